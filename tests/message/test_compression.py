"""Packed bodies."""

import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message import compression
from cometmq.message.record import COMPRESSED, BadRecord

LZ4 = COMPRESSED | 0x100
ZSTD = COMPRESSED | 0x200


def zstd(body: bytes) -> bytes:
    """A frame that does not say how long its content is, as Java's stream writes it."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(body) + packer.flush()


KINDS: dict[int, Callable[[bytes], bytes]] = {
    COMPRESSED: compression.compress,
    COMPRESSED | 0x300: zlib.compress,
    LZ4: lz4.frame.compress,
    ZSTD: zstd,
}


@pytest.mark.parametrize("sys_flag", KINDS)
@given(st.binary(max_size=5000))
def test_round_trip(sys_flag: int, body: bytes) -> None:
    assert compression.decompress(KINDS[sys_flag](body), sys_flag) == body


def test_what_is_not_packed_stays() -> None:
    body = b"plain"
    assert compression.decompress(body, 0) is body
    assert compression.decompress(b"", COMPRESSED) == b""
    assert compression.decompress(b"", COMPRESSED | 0x700) == b""


@pytest.mark.parametrize("sys_flag", KINDS)
def test_what_cannot_be_unpacked_says_so(sys_flag: int) -> None:
    whole = KINDS[sys_flag](b"x" * 100)
    with pytest.raises(BadRecord, match="cannot be decompressed"):
        compression.decompress(b"junk that is no frame", sys_flag)
    with pytest.raises(BadRecord, match="incomplete"):
        compression.decompress(whole[:-5], sys_flag)


def test_an_unknown_kind() -> None:
    with pytest.raises(BadRecord, match="unknown"):
        compression.decompress(b"body", COMPRESSED | 0x700)


@pytest.mark.parametrize(("sys_flag", "name"), [(LZ4, "lz4.frame"), (ZSTD, "zstandard")])
def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, sys_flag: int, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadRecord, match=r"pip install 'cometmq\[compression\]'"):
        compression.decompress(b"body", sys_flag)


@pytest.mark.parametrize("sys_flag", KINDS)
def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch, sys_flag: int) -> None:
    monkeypatch.setattr(compression, "MAX_INFLATED_BYTES", 1000)
    with pytest.raises(BadRecord, match="over 1000 bytes"):
        compression.decompress(KINDS[sys_flag](bytes(1_000_000)), sys_flag)


def test_a_large_body_of_little_pattern() -> None:
    body = b"".join(at.to_bytes(4, "big") * 3 for at in range(50_000))
    assert compression.decompress(zstd(body), ZSTD) == body
