"""Signing of requests: header fields that prove to a broker which account sent the request.

    content    values of all ext fields but Signature, in the order of their names; then the body
    Signature  base64(HMAC-SHA1(secret key, content))

The signed values are the texts of the frame, so both sides need no parsing to agree on them
(upstream: AclClientRPCHook.java, AclUtils.java, SessionCredentials.java).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from cometmq.core.errors import SettingsError
from cometmq.protocol.frame import head_pieces

if TYPE_CHECKING:
    from cometmq.protocol.codes import Language

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of the account that signs requests. The secret key and the token are left out of
    ``repr``.

    ``security_token`` is sent if it is not empty. Raises SettingsError for an empty key and for
    text that UTF-8 cannot encode.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name):
                raise SettingsError(name, "must not be empty: give the keys of an account")
        try:
            f"{self.access_key}{self.secret_key}{self.security_token}".encode()
        except UnicodeEncodeError:
            raise SettingsError(
                "credentials", "they have characters that UTF-8 cannot encode"
            ) from None


def _named(credentials: Credentials) -> dict[str, str]:
    """Return the ext fields that name the account, without the signature."""
    fields = {ACCESS_KEY: credentials.access_key}
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    return fields


def signed(credentials: Credentials, ext: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    """Return the fields that sign a request; the caller adds them to its fields ``ext``."""
    added = _named(credentials)
    added[SIGNATURE] = signature(credentials.secret_key, {**ext, **added}, body)
    return added


def signature(secret_key: str, ext: Mapping[str, str], body: bytes = b"") -> str:
    """Return the value of ``Signature`` for a request with these fields and this body."""
    values = [ext[name] for name in sorted(ext) if name != SIGNATURE]
    content = "".join(values).encode() + body
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode("ascii")


@final
class SignedHead:
    """Signed JSON header of requests of one code that differ only in the values of ``names``.

    Its constant pieces are encoded once, see ``head_pieces``; :meth:`sign` adds values and
    signature.
    """

    __slots__ = ("_count", "_keyed", "_order", "_parts", "_pieces", "_rest")

    def __init__(
        self,
        credentials: Credentials,
        code: int,
        ext: Mapping[str, str],
        language: Language,
        names: Sequence[str],
    ) -> None:
        known = {**ext, **_named(credentials)}
        # Copying a hash that has its key takes half the time of hmac.digest.
        self._keyed = hmac.new(credentials.secret_key.encode(), digestmod="sha1")
        self._count = len(names)
        self._pieces = head_pieces(
            code, {**known, SIGNATURE: ""}, language, (*names, SIGNATURE)
        )  # fmt: skip
        #: For each value, in the order of the signed content: the constant text before it, and the
        #: index of its name in ``names``.
        self._parts: list[str] = []
        self._order: list[int] = []
        text = ""
        for name in sorted(known):
            if name in names:
                self._parts.append(text)
                self._order.append(names.index(name))
                text = ""
            else:
                text += known[name]
        self._rest = text

    def sign(self, values: Sequence[object], body: bytes = b"") -> tuple[bytes, ...]:
        """Return the pieces of a signed header, between which the caller writes ``values``.

        The last gap is for the opaque. Raises UnicodeEncodeError for text that UTF-8 cannot encode.
        """
        texts = [f"{part}{values[at]}" for part, at in zip(self._parts, self._order, strict=True)]
        keyed = self._keyed.copy()
        keyed.update(("".join(texts) + self._rest).encode() + body)
        proof = b64encode(keyed.digest())
        pieces, at = self._pieces, self._count
        return (*pieces[:at], b"".join((pieces[at], proof, pieces[at + 1])), pieces[at + 2])
