"""The response that a handler returns; the router encodes it."""

from __future__ import annotations

import msgspec

from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import Header


class Reply(msgspec.Struct, frozen=True):
    """Response of a handler. ``ext`` replaces ``header`` if the registry has no header for it."""

    code: int = ResponseCode.SUCCESS
    header: Header | None = None
    body: bytes = b""
    remark: str | None = None
    ext: dict[str, str] | None = None
