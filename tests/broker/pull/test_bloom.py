"""Bits of names: the hash against known values, and shapes as upstream computes them."""

from __future__ import annotations

import pytest

from cometmq.broker.pull.filterdata import BloomShape, murmur3_low


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"hello", 0xCBD8A7B341BD9B02),
        (b"hello, world", 0x342FAC623A5EBC8E),
        (b"19 Jan 2038 at 3:14:07 AM", 0xB89E5988B737AFFC),
        (b"The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9),
    ],
)
def test_the_hash_is_murmur3(data: bytes, expected: int) -> None:
    assert murmur3_low(data) == expected


def test_shapes() -> None:
    assert BloomShape.of(20, 32) == BloomShape(3, 112)
    assert BloomShape.of(1, 1_000) == BloomShape(7, 9_592)


def test_positions_lie_within_the_bits() -> None:
    shape = BloomShape.of(20, 32)
    found = {shape.positions(f"group-{at}#topic") for at in range(100)}
    assert len(found) > 90
    assert {len(each) for each in found} == {3}
    assert all(0 <= bit < shape.bits for each in found for bit in each)
