"""Access control on the hot path: a cache that decides which requests are certainly allowed.

This is the definition; compiled/access.pyx does the same. A request that is not certainly allowed
is handled individually: acl/rules.py applies the rules to it and allows it, or words the refusal.

The signature is that of protocol/acl.py, in base64: HMAC-SHA1 over the values of all fields but the
signature, in the order of their names, followed by the body.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final

_ACCESS_KEY: Final = b"AccessKey"
_SIGNATURE: Final = b"Signature"
#: Requests with more signed bytes are handled individually: hashlib is faster for long texts than
#: the compiled core.
SIGNED_MAX_BYTES: Final = 65_536
#: Maximum size of the names of a topic and a group together.
NAMES_MAX_BYTES: Final = 1_024
#: Maximum number of decisions kept for an account; all are dropped when it is reached.
DECISIONS_MAX: Final = 4_096


class _Account:
    """An account, and its known decisions: code, topic and group of each allowed request."""

    __slots__ = ("allowed", "name", "secret")

    def __init__(self, name: str, secret: bytes) -> None:
        self.name = name
        self.secret = secret
        self.allowed: set[tuple[int, bytes, bytes]] = set()


class AccessCache:
    """Decisions under one version of the rules.

    Client addresses share a cache if the same accounts trust them without a signature.

    ``secret_of(access_key)`` returns the secret key of an account: empty if its requests need no
    signature, None if there is no such account. ``allows(access_key, code, topic, group)`` returns
    whether the account may send such a request. The results of both may be cached for the lifetime
    of this object.
    """

    __slots__ = ("_accounts", "_allows", "_secret_of")

    def __init__(
        self,
        secret_of: Callable[[str], bytes | None],
        allows: Callable[[str, int, str, str], bool],
    ) -> None:
        self._secret_of = secret_of
        self._allows = allows
        self._accounts: dict[bytes, _Account] = {}

    def permits(
        self,
        code: int,
        fields: Mapping[bytes, bytes] | None,
        body: bytes,
        topic: bytes,
        group: bytes,
    ) -> bool:
        """Return whether a request is certainly allowed.

        ``fields`` are all fields of its header with escapes decoded, or None if a name is repeated
        or there are too many. ``topic`` and ``group`` are those for which the request needs
        permission; an empty one needs none.
        """
        account = None if fields is None else self._account(fields.get(_ACCESS_KEY, b""))
        if account is None or fields is None:
            return False
        if account.secret and not _is_signed(account.secret, fields, body):
            return False
        return self._is_allowed(account, code, topic, group)

    def _account(self, access_key: bytes) -> _Account | None:
        account = self._accounts.get(access_key)
        if account is None and access_key:
            name = access_key.decode("ascii")
            secret = self._secret_of(name)
            if secret is not None:
                account = self._accounts[access_key] = _Account(name, secret)
        return account

    def _is_allowed(self, account: _Account, code: int, topic: bytes, group: bytes) -> bool:
        request = (code, topic, group)
        if request in account.allowed:
            return True
        if len(topic) + len(group) > NAMES_MAX_BYTES:
            return False
        try:
            names = topic.decode(), group.decode()
        except UnicodeDecodeError:
            return False
        if not self._allows(account.name, code, *names):
            return False
        if len(account.allowed) >= DECISIONS_MAX:
            account.allowed.clear()
        account.allowed.add(request)
        return True


def _is_signed(secret: bytes, fields: Mapping[bytes, bytes], body: bytes) -> bool:
    content = b"".join([fields[name] for name in sorted(fields) if name != _SIGNATURE]) + body
    if len(content) > SIGNED_MAX_BYTES:
        return False
    signature = b64encode(hmac.digest(secret, content, "sha1"))
    return hmac.compare_digest(signature, fields.get(_SIGNATURE, b""))
