"""Signing of requests: header fields that prove to a broker which account sent the request.

    content    values of all ext fields but Signature, in the order of their names; then the body
    Signature  base64(HMAC-SHA1(secret key, content))

The values are signed as they are in the frame, so both sides agree without parsing them (upstream:
AclClientRPCHook.java, AclUtils.java, SessionCredentials.java).
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
    """Account that signs requests. Its secret key and token are not part of its ``repr``.

    ``security_token`` is sent along if it is not empty. Raises SettingsError for an empty key and
    for text that UTF-8 cannot encode.
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
    fields = {ACCESS_KEY: credentials.access_key}
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    return fields


def signed(credentials: Credentials, ext: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    """Return the fields to add to ``ext``, so that the request is signed by the account."""
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
    """Header of requests that differ only in the values of ``names``; signs each of them.

    It is cut once, as ``head_pieces`` does for requests without signatures.
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
        #: Constant texts of the signed content before each value, and the number of that value.
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
        """Return the pieces of the header of a request with these values, cut at ``names``.

        Raises UnicodeEncodeError for text that UTF-8 cannot encode.
        """
        texts = [f"{part}{values[at]}" for part, at in zip(self._parts, self._order, strict=True)]
        keyed = self._keyed.copy()
        keyed.update(("".join(texts) + self._rest).encode() + body)
        proof = b64encode(keyed.digest())
        pieces, at = self._pieces, self._count
        return (*pieces[:at], b"".join((pieces[at], proof, pieces[at + 1])), pieces[at + 2])
