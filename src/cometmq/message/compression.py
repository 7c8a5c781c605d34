"""Compression of message bodies (upstream: MessageDecoder.java, CompressorFactory.java).

CometMQ compresses with zlib, because every client can decompress it. Java clients can be configured
to send LZ4 frames and ZSTD. The libraries for these are an extra, imported when the first such body
arrives. An empty body is never decompressed, even if its flag is set; the Java client does the
same.
"""

from __future__ import annotations

import zlib
from typing import Final

from cometmq.message.record import COMPRESSED, BadRecord, Compression, compression

#: Maximum size after decompression. The message limits of senders are far below this.
MAX_INFLATED_BYTES = 256 << 20
#: The ZSTD decompressor has no output limit. A block of four bytes can expand to 128 KiB, so a step
#: of this size exceeds the limit by at most 32 MiB.
_ZSTD_STEP_BYTES: Final = 1024


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body as the producer sent it, decompressed if ``sys_flag`` says so.

    Raises BadRecord if the body cannot be decompressed, or the library for it is not installed.
    """
    if not sys_flag & COMPRESSED or not body:
        return body
    try:
        kind = compression(sys_flag)
    except ValueError:
        raise BadRecord(0, f"sysFlag {sys_flag:#x} has an unknown compression type") from None
    try:
        inflated, is_whole = _UNPACK[kind](body)
    except ImportError:
        raise BadRecord(
            0, f"body is compressed with {kind.name}: pip install 'cometmq[compression]'"
        ) from None
    if not is_whole:
        raise BadRecord(
            0, f"body is incomplete, or has over {MAX_INFLATED_BYTES} bytes uncompressed"
        )
    return inflated


def compress(body: bytes, level: int = 5) -> bytes:
    """Compress the body with zlib, the only kind that every client can decompress."""
    return zlib.compress(body, level)


def _inflate_zlib(body: bytes) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    try:
        return inflater.decompress(body, MAX_INFLATED_BYTES), inflater.eof
    except zlib.error as error:
        raise BadRecord(0, f"body cannot be decompressed: {error}") from None


def _inflate_lz4(body: bytes) -> tuple[bytes, bool]:
    from lz4.frame import LZ4FrameDecompressor

    inflater = LZ4FrameDecompressor()
    try:
        return inflater.decompress(body, max_length=MAX_INFLATED_BYTES), inflater.eof
    except RuntimeError as error:
        raise BadRecord(0, f"body cannot be decompressed: {error}") from None


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
        raise BadRecord(0, f"body cannot be decompressed: {error}") from None
    return b"".join(parts), inflater.eof and size_bytes <= MAX_INFLATED_BYTES


_UNPACK: Final = {
    Compression.ZLIB: _inflate_zlib,
    Compression.LZ4: _inflate_lz4,
    Compression.ZSTD: _inflate_zstd,
}
