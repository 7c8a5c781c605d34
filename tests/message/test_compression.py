"""Packed bodies."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message import compression
from cometmq.message.flags import COMPRESSED
from cometmq.message.record import BadRecord


@given(st.binary(max_size=2000))
def test_round_trip(body: bytes) -> None:
    assert compression.decompress(compression.compress(body), COMPRESSED) == body
    assert compression.decompress(body, 0) is body


def test_what_cannot_be_unpacked_says_so() -> None:
    whole = compression.compress(b"x" * 100)
    with pytest.raises(BadRecord, match="does not inflate"):
        compression.decompress(b"junk", COMPRESSED)
    with pytest.raises(BadRecord, match="cut off"):
        compression.decompress(whole[:-5], COMPRESSED)
    with pytest.raises(BadRecord, match="LZ4"):
        compression.decompress(whole, COMPRESSED | 0x100)
    with pytest.raises(BadRecord, match="unknown"):
        compression.decompress(whole, COMPRESSED | 0x700)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_INFLATED_BYTES", 1000)
    with pytest.raises(BadRecord, match="over 1000 bytes"):
        compression.decompress(zlib.compress(bytes(100_000)), COMPRESSED)
