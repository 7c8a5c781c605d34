"""Signing of requests: the fields that prove to a broker which account asks.

    content    values of all ext fields but Signature, in the order of their names; then the body
    Signature  base64(HMAC-SHA1(secret key, content))

The values are signed as they stand in the frame, so both sides agree without reading them
(upstream: AclClientRPCHook.java, AclUtils.java).
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
    """Who asks. The secret key is in no text that is made of an account."""

    access_key: str
    secret_key: str = field(repr=False)


def signed(account: Account, ext: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    """The fields to send beyond ``ext`` and ``body`` so that they count as the account's."""
    named = {**ext, ACCESS_KEY: account.access_key}
    return {
        ACCESS_KEY: account.access_key,
        SIGNATURE: signature(account.secret_key, named, body),
    }


def signature(secret_key: str, ext: Mapping[str, str], body: bytes = b"") -> str:
    """What ``Signature`` has to hold in a request with these fields and this body."""
    values = [ext[name] for name in sorted(ext) if name != SIGNATURE]
    content = "".join(values).encode() + body
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode("ascii")
