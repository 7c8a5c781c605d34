"""Unpacking and packing message bodies (upstream: UtilAll.uncompress, CompressorFactory.java)."""

from __future__ import annotations

import zlib

from cometmq.message.flags import COMPRESSED, Compression, compression
from cometmq.message.record import BadRecord

MAX_INFLATED_BYTES = 256 << 20
"""A body that grows beyond this is refused: no sender's message limit is near it."""


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as its sender gave it.

    Raises BadRecord when it cannot be unpacked.
    """
    if not sys_flag & COMPRESSED:
        return body
    try:
        kind = compression(sys_flag)
    except ValueError:
        raise BadRecord(0, f"compression type of sysFlag {sys_flag:#x} is unknown") from None
    if kind is Compression.ZLIB:
        return _inflate(body)
    raise BadRecord(0, f"body is packed with {kind.name}, which this release cannot unpack")


def compress(body: bytes, level: int = 5) -> bytes:
    """The body packed with zlib, the only kind that every client can unpack."""
    return zlib.compress(body, level)


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise BadRecord(0, f"body does not inflate: {error}") from None
    if not inflater.eof:
        raise BadRecord(0, f"body is cut off, or inflates to over {MAX_INFLATED_BYTES} bytes")
    return inflated
