"""Signing of requests: header fields that prove to a broker which account sent the request.

    content    values of all ext fields but Signature, in the order of their names; then the body
    Signature  base64(HMAC-SHA1(secret key, content))

The values are signed as they are in the frame, so both sides agree without parsing them (upstream:
AclClientRPCHook.java, AclUtils.java).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Account:
    """Account that sends requests. The secret key is not part of its ``repr``."""

    access_key: str
    secret_key: str = field(repr=False)


def signed(account: Account, ext: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    """Return the fields to add to ``ext``, so that the request is signed by the account."""
    named = {**ext, ACCESS_KEY: account.access_key}
    return {
        ACCESS_KEY: account.access_key,
        SIGNATURE: signature(account.secret_key, named, body),
    }


def signature(secret_key: str, ext: Mapping[str, str], body: bytes = b"") -> str:
    """Return the value of ``Signature`` for a request with these fields and this body."""
    values = [ext[name] for name in sorted(ext) if name != SIGNATURE]
    content = "".join(values).encode() + body
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode("ascii")
