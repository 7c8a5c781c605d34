"""Bit maps of filters: which bits are set, and what gets none."""

from __future__ import annotations

import pytest

from cometmq.filter.sql92 import SqlFilter
from cometmq.message import properties
from cometmq.store.queue import bitmaps
from cometmq.store.queue.bitmaps import BitMaps

MATCHING = properties.encode({"a": "1"})
OTHER = properties.encode({"a": "2"})


def made(bits: int = 24) -> BitMaps:
    found = BitMaps()
    found.begin(bits)
    return found


def test_the_bits_of_groups_whose_filters_match_are_set() -> None:
    maps = made()
    assert not maps.wants("t")
    maps.put("t", "g", "a = 1", (0, 9, 23, 9))
    maps.put("t", "h", "a = 2", (9, 1))
    maps.put("other", "g", "a = 3", (2,))
    assert maps.wants("t")
    assert maps.of("t", MATCHING) == bytes([0b1, 0b10, 0b1000_0000])
    assert maps.of("t", OTHER) == bytes([0b10, 0b10, 0])
    assert maps.of("t", b"") == bytes(3)
    maps.put("t", "g", "a = 2", (5,))
    assert maps.wants("t")
    assert maps.of("t", MATCHING) == bytes(3)
    assert maps.of("t", OTHER) == bytes([0b10_0010, 0b10, 0])
    maps.drop("t", "g")
    maps.drop("t", "nobody")
    assert maps.wants("t")
    assert maps.of("t", OTHER) == bytes([0b10, 0b10, 0])
    maps.drop("t", "h")
    assert not maps.wants("t")
    assert maps.wants("other")


def test_a_change_of_one_group_does_not_parse_the_filters_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A heartbeat could have the loop parse a thousand parts otherwise, as often as it likes."""
    parsed: list[str] = []

    def counted(expression: str) -> SqlFilter:
        parsed.append(expression)
        return SqlFilter(expression)

    monkeypatch.setattr(bitmaps, "SqlFilter", counted)
    maps = made()
    for number in range(3):
        maps.put("t", f"g{number}", f"a = {number}", (number,))
    for turn in range(10):
        maps.put("t", "g0", f"a = {turn % 2 + 1}", (0,))
        assert maps.wants("t")
    assert sorted(parsed) == ["a = 1", "a = 2"]
    assert maps.of("t", MATCHING) == bytes([0b10, 0, 0])
    monkeypatch.setattr(bitmaps, "MAX_COMPILED_BYTES", 1)
    maps.put("t", "g0", "a = 1", (0,))
    assert maps.wants("t")
    assert maps.of("t", MATCHING) == bytes([0b11, 0, 0])
    assert sorted(parsed) == ["a = 1", "a = 1", "a = 2", "a = 2"]


def test_without_a_begin_there_are_none() -> None:
    maps = BitMaps()
    maps.put("t", "g", "a = 1", (0,))
    assert not maps.wants("t")


def test_a_map_must_fit_a_unit(caplog: pytest.LogCaptureFixture) -> None:
    maps = made(8 * bitmaps.MAX_BYTES + 8)
    maps.put("t", "g", "a = 1", (0,))
    assert not maps.wants("t")
    assert "filter_bit_maps_too_long" in caplog.text


@pytest.mark.parametrize("positions", [(-1,), (24,), (0, 1 << 40)])
def test_bits_of_another_shape_are_left_out(positions: tuple[int, ...]) -> None:
    maps = made()
    maps.put("t", "g", "a = 1", positions)
    maps.put("t", "h", "a = 1", (3,))
    assert maps.wants("t")
    assert maps.of("t", MATCHING) == bytes([0b1000, 0, 0])


def test_a_topic_with_a_filter_that_cannot_be_read_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its unset bits would say that it does not match."""
    maps = made()
    maps.put("t", "g", "a = 1", (0,))
    maps.put("t", "h", "a = = 1", (1,))
    assert not maps.wants("t")
    assert not maps.wants("t")
    assert caplog.text.count("no_filter_bit_maps") == 1
    maps.put("t", "h", "a = 1", (1,))
    assert maps.wants("t")
    assert maps.of("t", MATCHING) == bytes([0b11, 0, 0])


def test_filters_have_limits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bitmaps, "MAX_PARTS", 6)
    maps = made()
    maps.put("t", "g", "a = 1", (0,))
    maps.put("t", "h", "a = 1", (1,))
    assert maps.wants("t")
    maps.put("t", "i", "a = 1", (2,))
    assert not maps.wants("t")
    assert "more than 6 parts" in caplog.text
    maps.drop("t", "i")
    assert maps.wants("t")
    # Compiled filters are forgotten, not the filters themselves.
    monkeypatch.setattr(bitmaps, "MAX_COMPILED_BYTES", 1)
    for number in range(10):
        maps.put(f"t{number}", "g", "a = 1", (0,))
        assert maps.wants(f"t{number}")
    assert len(maps._compiled) == 1
    assert maps.wants("t")
    assert maps.of("t", MATCHING) == bytes([0b11, 0, 0])
