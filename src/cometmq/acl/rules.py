"""Accounts, their permissions, and the decision whether a request is allowed.

Decision, in this order (upstream: PlainPermissionManager.validate, checkPerm):

    1. the remote address is on the global white list                        allowed
    2. no access key, or no account of that name                             refused
    3. the signature is not the one of the account's secret, and the
       remote address is not on the account's white list                     refused
    4. the request needs an administrator and the account is not one         refused
    5. a topic or group of the request lacks the permission, or, if the
       account does not name it, the account's default lacks it              refused

From an address on its white list, an account has PUB and SUB by default, and its own topics and
groups do not count. Defaults do not count for topics in which the broker keeps messages of all
topics: delayed messages, half messages, and messages whose transaction never ended.
An administrator without any topic or group of its own passes step 5. Values are immutable; a change
of the files makes a new :class:`AclRules` (files.py).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Any, Final

from cometmq.acl.addresses import AddressPattern, address_parts, parse_pattern
from cometmq.core.errors import AclDenied
from cometmq.message.names import (
    CHECK_MAX_TIME_TOPIC,
    MAX_NAME_CHARACTERS,
    RETRY_PREFIX,
    WAITING_TOPICS,
)
from cometmq.protocol.acl import ACCESS_KEY, SIGNATURE, signature

#: An access key and a secret key have at least this many characters.
MIN_KEY_LENGTH: Final = 7
#: Header field that clients up to 4.9.3 add after they have signed (upstream:
#: MixAll.UNIQUE_MSG_QUERY_FLAG).
UNSIGNED_FIELD: Final = "_UNIQUE_KEY_QUERY"
#: Length of a signature: 20 bytes in base64.
_SIGNATURE_CHARACTERS: Final = 28
#: Topics in which the broker keeps messages that were sent to any topic.
_OF_ALL_TOPICS: Final = WAITING_TOPICS | {CHECK_MAX_TIME_TOPIC}


class Permission(IntFlag):
    """Permission for a topic or a group (upstream: Permission.java)."""

    DENY = 1
    PUB = 4
    SUB = 8


def parse_permission(text: str | None) -> Permission:
    """Return the permission of a text such as "PUB|SUB"; any other text denies, as upstream."""
    words = {word.strip() for word in (text or "").split("|")}
    if words == {"PUB", "SUB"}:
        return Permission.PUB | Permission.SUB
    if len(words) == 1 and words <= {"PUB", "SUB"}:
        return Permission[words.pop()]
    return Permission.DENY


@dataclass(frozen=True, slots=True)
class AclAccount:
    """One account. ``resources`` are its permissions by topic; a group stands as its retry topic.

    The secret key is not part of its ``repr``.
    """

    access_key: str
    secret_key: str = field(repr=False)
    white_list: AddressPattern
    is_admin: bool
    default_topic_permission: Permission
    default_group_permission: Permission
    resources: Mapping[str, Permission]

    @property
    def is_unrestricted(self) -> bool:
        """True for an administrator without topics and groups of its own."""
        return self.is_admin and not self.resources

    def check(
        self, code: int, needs: Iterable[tuple[str, Permission]], *, needs_admin: bool
    ) -> None:
        """Check the permissions that a request needs for topics, and groups as retry topics.

        Raises AclDenied, which names the topic or group, unless the account has all of them.
        """
        if needs_admin and not self.is_admin:
            raise AclDenied(
                f"Need admin permission for request code={code}, but "
                f"accessKey={self.access_key[:64]} is not"
            )
        if self.is_unrestricted:
            return
        for name, needed in needs:
            held = self.resources.get(name)
            if held is None:
                held = self._default_for(name)
            if held & Permission.DENY or not held & needed:
                what = describe_resource(name)
                raise AclDenied(f"No default permission for {what}")

    def _default_for(self, name: str) -> Permission:
        if name in _OF_ALL_TOPICS:
            # This topic has messages of all topics, also of those that the account may not read.
            return Permission.DENY
        is_group = name.startswith(RETRY_PREFIX)
        return self.default_group_permission if is_group else self.default_topic_permission


def describe_resource(name: str) -> str:
    """Return "topic:NAME", or "group:NAME" for a retry topic, as error answers have it."""
    kind = "group" if name.startswith(RETRY_PREFIX) else "topic"
    return f"{kind}:{name.removeprefix(RETRY_PREFIX)[:MAX_NAME_CHARACTERS]}"


@dataclass(frozen=True, slots=True)
class AclRules:
    """All rules of a server."""

    white_list: tuple[AddressPattern, ...] = ()
    accounts: Mapping[str, AclAccount] = field(default_factory=dict)

    def is_white_listed(self, host: str) -> bool:
        """Return whether requests from ``host`` are allowed without an account."""
        if not self.white_list:
            return False
        parts = address_parts(host)
        return any(pattern.matches(parts) for pattern in self.white_list)

    def authenticate(self, host: str, fields: Mapping[str, str], body: bytes) -> AclAccount | None:
        """Return the account of a request, with its permissions for requests from ``host``.

        Returns None if ``host`` is on the global white list, which allows everything. A host on the
        white list of the account needs no signature. ``fields`` are the header fields as text, as
        received. Raises AclDenied.
        """
        if self.is_white_listed(host):
            return None
        access_key = fields.get(ACCESS_KEY)
        if not access_key:
            raise AclDenied("No accessKey is configured")
        account = self.account(host, access_key)
        if self.secret_of(host, access_key) and not _is_signed(account.secret_key, fields, body):
            raise AclDenied(f"Check signature failed for accessKey={access_key[:64]}")
        return account

    def account(self, host: str, access_key: str) -> AclAccount:
        """Return an account with the permissions that it has for requests from ``host``.

        Raises AclDenied if there is none.
        """
        account = self.accounts.get(access_key)
        if account is None:
            raise AclDenied(f"No acl config for {access_key[:64]}")
        if not account.white_list.matches(address_parts(host)):
            return account
        every = Permission.PUB | Permission.SUB
        return replace(
            account, resources={}, default_topic_permission=every, default_group_permission=every
        )

    def trusting(self, host: str) -> frozenset[str]:
        """Return the access keys of the accounts whose white list has ``host``."""
        parts = address_parts(host)
        return frozenset(
            key
            for key, account in self.accounts.items()
            if account.white_list.text and account.white_list.matches(parts)
        )

    def secret_of(self, host: str, access_key: str) -> bytes | None:
        """Return the secret key with which an account signs its requests from ``host``.

        It is empty if the account need not sign them, and None if there is no such account.
        """
        account = self.accounts.get(access_key)
        if account is None:
            return None
        is_trusted = account.white_list.matches(address_parts(host))
        return b"" if is_trusted else account.secret_key.encode()


def _is_signed(secret_key: str, fields: Mapping[str, str], body: bytes) -> bool:
    text = fields.get(SIGNATURE, "")
    if len(text) != _SIGNATURE_CHARACTERS:  # do not hash a body of up to 16 MiB in vain
        return False
    received = text.encode("utf-8", "replace")
    if hmac.compare_digest(signature(secret_key, fields, body).encode(), received):
        return True
    if body or UNSIGNED_FIELD not in fields:  # only queries have this field, and no body
        return False
    signed = {name: value for name, value in fields.items() if name != UNSIGNED_FIELD}
    return hmac.compare_digest(signature(secret_key, signed, body).encode(), received)


def parse_account(values: Mapping[str, Any]) -> AclAccount:
    """Return the account of an entry of ``accounts`` in an ACL file.

    Raises AclDenied, which names the field and never shows a secret.
    """
    access_key = _text(values, "accessKey")
    secret_key = _text(values, "secretKey")
    if not _is_utf8(access_key + secret_key):
        raise AclDenied("an accessKey or a secretKey has characters that UTF-8 cannot encode")
    if len(access_key) < MIN_KEY_LENGTH:
        raise AclDenied(
            f"The accessKey={access_key} cannot be null and length should longer than 6"
        )
    if len(secret_key) < MIN_KEY_LENGTH:
        raise AclDenied(
            f"The secretKey of accessKey={access_key} cannot be null and length should longer "
            "than 6"
        )
    return AclAccount(
        access_key,
        secret_key,
        parse_pattern(_text(values, "whiteRemoteAddress")),
        str(values.get("admin", "")).lower() == "true",
        parse_permission(_text(values, "defaultTopicPerm")),
        parse_permission(_text(values, "defaultGroupPerm")),
        {
            **_resources(values, "topicPerms", ""),
            **_resources(values, "groupPerms", RETRY_PREFIX),
        },
    )


def parse_rules(documents: Mapping[str, Mapping[str, Any]]) -> tuple[AclRules, list[str]]:
    """Return the rules of several files, by their path, and warnings about accounts left out.

    An access key counts in the first file that has it. Raises AclDenied, which names the file.
    """
    patterns: list[AddressPattern] = []
    accounts: dict[str, AclAccount] = {}
    warnings: list[str] = []
    for path, document in documents.items():
        try:
            patterns += [
                parse_pattern(str(text))
                for text in _entries(document, "globalWhiteRemoteAddresses")
            ]
            for values in _entries(document, "accounts"):
                if not isinstance(values, dict):
                    raise AclDenied("an entry of accounts is not a set of fields")
                account = parse_account(values)
                if account.access_key in accounts:
                    warnings.append(f"accessKey {account.access_key} is repeated in {path}")
                else:
                    accounts[account.access_key] = account
        except AclDenied as error:
            raise AclDenied(f"{path}: {error}") from None
    return AclRules(tuple(patterns), accounts), warnings


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return "" if value is None else str(value)


def _entries(document: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = document.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise AclDenied(f"{key} must be a list")
    return value


def _resources(values: Mapping[str, Any], key: str, prefix: str) -> dict[str, Permission]:
    found: dict[str, Permission] = {}
    for entry in _entries(values, key):
        name, equals, permission = str(entry).partition("=")
        if not equals or not name.strip() or "=" in permission:
            raise AclDenied(
                f"{key}: {str(entry)!r} must have the form name=PERMISSION, as in orders=PUB|SUB"
            )
        found[prefix + name.strip()] = parse_permission(permission)
    return found
