"""Unpacking and packing message bodies (upstream: MessageDecoder.java, CompressorFactory.java).

zlib is written, because every client can unpack it; LZ4 frames and ZSTD come from Java clients that
were told so. Their libraries are an extra, imported when the first such body arrives. A body of no
bytes is never packed, whatever its flag says: the Java client reads it so.
"""

from __future__ import annotations

import zlib
from typing import Final

from cometmq.message.flags import COMPRESSED, Compression, compression
from cometmq.message.record import BadRecord

#: A body that grows beyond this is refused: no sender's message limit is near it.
MAX_INFLATED_BYTES = 256 << 20
#: ZSTD has no bound of its own. A block of four bytes can stand for 128 KiB, so this much at a time
#: goes over the bound by 32 MiB at most.
_ZSTD_STEP_BYTES: Final = 1024


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as its sender gave it.

    Raises BadRecord when it cannot be unpacked.
    """
    if not sys_flag & COMPRESSED or not body:
        return body
    try:
        kind = compression(sys_flag)
    except ValueError:
        raise BadRecord(0, f"compression type of sysFlag {sys_flag:#x} is unknown") from None
    try:
        inflated, is_whole = _UNPACK[kind](body)
    except ImportError:
        raise BadRecord(
            0, f"body is packed with {kind.name}: pip install 'cometmq[compression]'"
        ) from None
    if not is_whole:
        raise BadRecord(0, f"body is cut off, or inflates to over {MAX_INFLATED_BYTES} bytes")
    return inflated


def compress(body: bytes, level: int = 5) -> bytes:
    """The body packed with zlib, the only kind that every client can unpack."""
    return zlib.compress(body, level)


def _inflate_zlib(body: bytes) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    try:
        return inflater.decompress(body, MAX_INFLATED_BYTES), inflater.eof
    except zlib.error as error:
        raise BadRecord(0, f"body does not inflate: {error}") from None


def _inflate_lz4(body: bytes) -> tuple[bytes, bool]:
    from lz4.frame import LZ4FrameDecompressor

    inflater = LZ4FrameDecompressor()
    try:
        return inflater.decompress(body, max_length=MAX_INFLATED_BYTES), inflater.eof
    except RuntimeError as error:
        raise BadRecord(0, f"body does not inflate: {error}") from None


def _inflate_zstd(body: bytes) -> tuple[bytes, bool]:
    from zstandard import ZstdDecompressor, ZstdError

    inflater = ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size_bytes = 0
    try:
        for at in range(0, len(body), _ZSTD_STEP_BYTES):
            parts.append(inflater.decompress(body[at : at + _ZSTD_STEP_BYTES]))
            size_bytes += len(parts[-1])
            if inflater.eof or size_bytes > MAX_INFLATED_BYTES:
                break
    except ZstdError as error:
        raise BadRecord(0, f"body does not inflate: {error}") from None
    return b"".join(parts), inflater.eof and size_bytes <= MAX_INFLATED_BYTES


_UNPACK: Final = {
    Compression.ZLIB: _inflate_zlib,
    Compression.LZ4: _inflate_lz4,
    Compression.ZSTD: _inflate_zstd,
}
