"""Users of RocketMQ 5 and their permissions (ACL 2.0), as its brokers report them.

CometMQ's brokers have accounts (ACL 1.0) and answer these requests with "not supported", so the
codes are not in the registry. Passwords come with the users, and are dropped when the answer is
decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.protocol.bodies import Body
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.admin.api import Admin

_LIST_USERS: Final = 3005
_LIST_POLICIES: Final = 3010


class UserEntry(Body, frozen=True):
    """One user (upstream: UserInfo.java), without the password."""

    username: str
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntry(Body, frozen=True):
    """Actions on a resource that a policy allows or denies (upstream: AclInfo.PolicyEntryInfo)."""

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class Policy(Body, frozen=True):
    """One policy of a subject. Policies of type ``CUSTOM`` come before ``DEFAULT`` ones."""

    policy_type: str | None = None
    entries: tuple[PolicyEntry, ...] | None = None


class Policies(Body, frozen=True):
    """The policies of a subject, such as ``User:name`` (upstream: AclInfo.java)."""

    subject: str
    policies: tuple[Policy, ...] | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A user with its permissions, in the order in which a broker checks them."""

    name: str
    is_super: bool
    is_enabled: bool
    permissions: tuple[PolicyEntry, ...]


async def users_of(admin: Admin, address: str) -> list[User]:
    """Return the users of a broker, by name.

    Raises BrokerRefused for a broker without ACL 2.0, and for an account that is no administrator.
    """
    call, timeout_ms = admin.session.remoting.call, admin.timeout_ms
    answer = await call(address, _LIST_USERS, None, timeout_ms=timeout_ms)
    users = parse_json(answer.body or b"[]", list[UserEntry])
    answer = await call(address, _LIST_POLICIES, None, timeout_ms=timeout_ms)
    policies = {
        each.subject: each.policies or ()
        for each in parse_json(answer.body or b"[]", list[Policies])
    }
    return [
        User(
            each.username,
            (each.user_type or "").lower() == "super",
            (each.user_status or "enable").lower() == "enable",
            tuple(
                permission
                for policy in policies.get(f"User:{each.username}", ())
                for permission in policy.entries or ()
            ),
        )
        for each in sorted(users, key=lambda user: user.username)
    ]
