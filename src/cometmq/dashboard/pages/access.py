"""Pages of the brokers' access control: accounts, their permissions, and changes of both.

Secrets are never shown: a CometMQ broker does not send them, and those that a Java broker sends are
dropped here. Users of RocketMQ 5 (ACL 2.0) are shown, but cannot be changed.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse
from starlette.routing import Route

from cometmq.admin.servers import Account
from cometmq.admin.users import users_of
from cometmq.core.errors import BrokerRefused, ClientError, CometError, NotFound
from cometmq.dashboard import shown
from cometmq.dashboard.rendering import (
    InputRefused,
    cluster_of,
    field,
    link,
    part_of,
    render,
)
from cometmq.dashboard.sharing import NAMES_MS
from cometmq.dashboard.watched import is_refusal
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.api import Broker
    from cometmq.admin.servers import Applied
    from cometmq.admin.users import User
    from cometmq.dashboard.watched import WatchedCluster

#: Permissions of RocketMQ's access control, with what they mean.
PERMISSIONS: Final = {
    "DENY": "nothing", "PUB": "send", "SUB": "consume", "PUB|SUB": "send and consume",
}  # fmt: skip
_SECRET_MIN: Final = 7
_IS_OFF: Final = "access control is off there"
_ONLY_ADMINISTRATORS: Final = "only an administrator may see them"
#: Users of RocketMQ 5 that the page shows; a search finds the others.
_USERS_MAX: Final = 500
#: A setting that only brokers of RocketMQ 5 have. Their `aclEnable` says nothing about users.
_OF_ROCKETMQ_5: Final = "enableControllerMode"
#: Advice for emptying a value: a broker keeps its value of a field that a change leaves empty.
_ANEW: Final = "delete the account and create it again"
_ENTRY: Final = re.compile(r"[^\s=,]+=(DENY|PUB|SUB|PUB\|SUB)")


@dataclass(frozen=True, slots=True)
class _Found:
    """One account, and the brokers that have it with the same permissions."""

    account: Account
    brokers: list[str]

    @property
    def others(self) -> tuple[str, str]:
        """Permissions for topics, and for groups, that the account has no entry for."""
        one = self.account
        if one.admin and not one.topic_perms and not one.group_perms:
            return "everything", "everything"
        return _meaning(one.default_topic_perm), _meaning(one.default_group_perm)

    @property
    def topics(self) -> list[tuple[str, str]]:
        """Topics that the account has an entry for, each with the permission."""
        return _entries(self.account.topic_perms)

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Groups that the account has an entry for, each with the permission."""
        return _entries(self.account.group_perms)


@dataclass(frozen=True, slots=True)
class _Accounts:
    """Accounts by access key, and white lists by broker, of all brokers that sent them.

    ``unread`` has the reason for each other broker. ``users`` are those of RocketMQ 5, each with
    the brokers that have the same entry. ``is_off`` is True if no broker has access control.
    """

    found: dict[str, list[_Found]]
    white_lists: dict[str, tuple[str, ...]]
    unread: dict[str, str]
    users: dict[User, list[str]]
    is_off: bool = False

    @property
    def may_be_added(self) -> bool:
        """True if a broker has accounts; brokers of RocketMQ 5 have users instead."""
        return bool(self.white_lists)

    def of(self, key: str) -> list[_Found]:
        """Return an account, once for each variant that brokers have of it. Raises NotFound."""
        if key in self.found:
            return self.found[key]
        raise NotFound("account", key, shown.untold(self.unread) or "no broker has it")


def _entries(permissions: Iterable[str]) -> list[tuple[str, str]]:
    pairs = (text.partition("=") for text in permissions)
    return sorted((name, _meaning(perm)) for name, _, perm in pairs)


def _meaning(permission: str | None) -> str:
    return PERMISSIONS.get(permission or "DENY", permission or "")


def _label(broker: Broker) -> str:
    return broker.name if not broker.broker_id else f"{broker.name} (slave {broker.broker_id})"


async def _read(cluster: WatchedCluster) -> _Accounts:
    """Read the accounts and users of all brokers, slaves included."""
    brokers = await cluster.admin.brokers()
    # A broker of RocketMQ 4.9 without access control never answers a request for accounts.
    settings = await cluster.servers.broker_settings()
    off = {
        each.address
        for each in settings
        if each.values.get("aclEnable") == "false" and _OF_ROCKETMQ_5 not in each.values
    }
    asked = [each for each in brokers if each.address not in off]
    answers = await asyncio.gather(
        *(cluster.servers.accounts(each.address) for each in asked), return_exceptions=True
    )
    read = _Accounts({}, {}, {}, {}, is_off=bool(brokers) and not asked)
    read.unread.update({_label(each): _IS_OFF for each in brokers if each.address in off})
    with_users: list[Broker] = []
    for broker, answer in zip(asked, answers, strict=True):
        name = _label(broker)
        if isinstance(answer, BrokerRefused) and is_refusal(answer):
            read.unread[name] = _ONLY_ADMINISTRATORS
        elif (
            isinstance(answer, BrokerRefused)
            and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        ):
            with_users.append(broker)
        elif isinstance(answer, ClientError | OSError):
            read.unread[name] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            for each in answer:
                read.white_lists[name] = each.white_list
                for account in each.accounts:
                    _add(read.found, replace(account, secret_key=None), name)
    await _read_users(cluster, with_users, read)
    return read


async def _read_users(cluster: WatchedCluster, brokers: list[Broker], read: _Accounts) -> None:
    """Add the users of RocketMQ 5 brokers, which have no accounts, to ``read``."""
    answers = await asyncio.gather(
        *(users_of(cluster.admin, each.address) for each in brokers), return_exceptions=True
    )
    for broker, answer in zip(brokers, answers, strict=True):
        name = _label(broker)
        if isinstance(answer, BrokerRefused) and is_refusal(answer):
            read.unread[name] = _ONLY_ADMINISTRATORS
        elif isinstance(answer, CometError | OSError):
            read.unread[name] = f"it has no accounts, and of users of RocketMQ 5 it says: {answer}"
        elif isinstance(answer, BaseException):
            raise answer
        else:
            for user in answer:
                read.users.setdefault(user, []).append(name)


def _add(found: dict[str, list[_Found]], account: Account, broker: str) -> None:
    """Add a broker's account: to the same one of other brokers, or as a further variant."""
    known = found.setdefault(account.access_key, [])
    for each in known:
        if each.account == account:
            each.brokers.append(broker)
            return
    known.append(_Found(account, [broker]))


async def _accounts(cluster: WatchedCluster) -> _Accounts:
    return await cluster.calls.get("accounts", lambda: _read(cluster), fresh_ms=NAMES_MS)


async def show_all(request: Request) -> Response:
    """Show one page of the list of accounts, the white lists, and the users."""
    cluster = cluster_of(request)
    read = await _accounts(cluster)
    wanted = field(request, "q").lower()
    found = [
        each for key, rows in sorted(read.found.items()) if wanted in key.lower() for each in rows
    ]
    users = [each for each in read.users.items() if wanted in each[0].name.lower()]
    names = Counter(user.name for user in read.users)
    return render(
        request, "accounts.html", title="Accounts", read=read, part=part_of(found, request),
        users=users[:_USERS_MAX], users_total=len(users),
        differing={name for name in names if names[name] > 1},
    )  # fmt: skip


async def show(request: Request) -> Response:
    """Show the permissions of an account on each broker."""
    key = request.path_params["key"]
    read = await _accounts(cluster_of(request))
    return render(
        request, "account.html", title=key, key=key, found=read.of(key), read=read
    )  # fmt: skip


# ------------------------------------------------------------------------------- changes


async def edit(request: Request) -> Response:
    """Show the form of an account (GET), or create or change it on all brokers (POST)."""
    cluster, key = cluster_of(request), request.path_params.get("key", "")
    read = await _accounts(cluster)
    found = read.of(key) if key else []
    before = found[0].account if found else None
    if request.method == "POST":
        account = _sent(request, before)
        if not key and account.access_key in read.found:
            raise InputRefused(f"there is an account {account.access_key!r} already: edit that one")
        _check(await cluster.servers.put_account(account))
        cluster.calls.forget()
        return RedirectResponse(link("/accounts/{}", account.access_key), 303)
    return render(
        request, "account_form.html", title=f"Edit {key}" if key else "New account", key=key,
        before=before, differs=len(found) > 1, permissions=PERMISSIONS, secret_min=_SECRET_MIN,
    )  # fmt: skip


def _sent(request: Request, before: Account | None) -> Account:
    """Return the account that a form describes. Raises InputRefused.

    ``before`` is the account as it is now, None for a new one. An empty secret keeps the present
    one.
    """
    key = before.access_key if before else field(request, "key")
    secret = field(request, "secret")
    if len(key) < _SECRET_MIN and before is None:
        raise InputRefused(f"an access key has at least {_SECRET_MIN} characters")
    if (secret or before is None) and len(secret) < _SECRET_MIN:
        raise InputRefused(f"a secret key has at least {_SECRET_MIN} characters")
    address = field(request, "white_address")
    if before is not None and before.white_remote_address and not address:
        raise InputRefused(f"brokers do not take the addresses away: {_ANEW}")
    return Account(
        key,
        secret or None,
        address or None,
        field(request, "admin") == "on",
        _permission(field(request, "default_topic")),
        _permission(field(request, "default_group")),
        _lines(request, "topics", before.topic_perms if before else ()),
        _lines(request, "groups", before.group_perms if before else ()),
    )


def _permission(text: str) -> str:
    if text not in PERMISSIONS:
        raise InputRefused(f"{text!r} is not a permission: use {', '.join(PERMISSIONS)}")
    return text


def _lines(request: Request, name: str, before: Sequence[str]) -> tuple[str, ...]:
    """Return the entries ``NAME=PERMISSION`` of a form, one per line. Raises InputRefused."""
    lines = tuple(field(request, name).split())
    for line in lines:
        if not _ENTRY.fullmatch(line):
            raise InputRefused(
                f"{line!r} is not a permission for one of the {name}: write NAME=PERMISSION, with "
                f"{', '.join(PERMISSIONS)}"
            )
    if before and not lines:
        raise InputRefused(
            f"brokers do not take the last of the {name} away: set it to DENY, or {_ANEW}"
        )
    return lines


async def delete(request: Request) -> Response:
    """Ask for confirmation (GET), or delete an account from all brokers (POST)."""
    cluster, key = cluster_of(request), request.path_params["key"]
    found = (await _accounts(cluster)).of(key)
    if request.method == "POST":
        if field(request, "confirmed") != key:
            raise InputRefused("the access key was not repeated: nothing was deleted")
        _check(await cluster.servers.delete_account(key))
        cluster.calls.forget()
        return RedirectResponse("/accounts", 303)
    return render(
        request, "account_delete.html", title=f"Delete {key}", key=key, found=found,
        is_own=key == cluster.account,
    )  # fmt: skip


def _check(outcomes: list[Applied]) -> None:
    """Raise CometError if a broker did not apply a change; the message names those that did."""
    failed = [each for each in outcomes if each.error is not None]
    if failed:
        done = ", ".join(each.address for each in outcomes if each.error is None) or "none"
        reasons = "; ".join(f"{each.server} ({each.address}): {each.error}" for each in failed)
        raise CometError(f"not on all brokers: {reasons}. Changed: {done}")


ROUTES = [
    Route("/accounts", show_all),
    Route("/new-account", edit, methods=["GET", "POST"]),
    Route("/accounts/{key:path}/edit", edit, methods=["GET", "POST"]),
    Route("/accounts/{key:path}/delete", delete, methods=["GET", "POST"]),
    Route("/accounts/{key:path}", show),
]
