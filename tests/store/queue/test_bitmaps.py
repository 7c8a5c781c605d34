"""Bit maps of filters: which bits are set, and what gets none."""

from __future__ import annotations

import pytest

from cometmq.filter.sql92 import SqlFilter
from cometmq.filter.sqltext import parsing_words
from cometmq.message import properties
from cometmq.store.queue import bitmaps
from cometmq.store.queue.bitmaps import BitMaps

MATCHING = properties.encode({"a": "1"})
OTHER = properties.encode({"a": "2"})


def made(bits: int = 24) -> BitMaps:
    found = BitMaps(0)
    found.begin(bits)
    return found


def test_the_bits_of_groups_whose_filters_match_are_set() -> None:
    maps = made()
    assert not maps.wants("t", 0)
    maps.put("t", "g", "a = 1", (0, 9, 23, 9))
    maps.put("t", "h", "a = 2", (9, 1))
    maps.put("other", "g", "a = 3", (2,))
    assert maps.wants("t", 0)
    assert maps.of("t", MATCHING) == bytes([0b1, 0b10, 0b1000_0000])
    assert maps.of("t", OTHER) == bytes([0b10, 0b10, 0])
    assert maps.of("t", b"") == bytes(3)
    maps.put("t", "g", "a = 2", (5,))
    assert maps.wants("t", 0)
    assert maps.of("t", MATCHING) == bytes(3)
    assert maps.of("t", OTHER) == bytes([0b10_0010, 0b10, 0])
    maps.drop("t", "g")
    maps.drop("t", "nobody")
    assert maps.wants("t", 0)
    assert maps.of("t", OTHER) == bytes([0b10, 0b10, 0])
    maps.drop("t", "h")
    assert not maps.wants("t", 0)
    assert maps.wants("other", 0)


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
        assert maps.wants("t", 0)
    assert sorted(parsed) == ["a = 1", "a = 2"]
    assert maps.of("t", MATCHING) == bytes([0b10, 0, 0])
    monkeypatch.setattr(bitmaps, "MAX_COMPILED_BYTES", 1)
    maps.put("t", "g0", "a = 3", (0,))
    assert maps.wants("t", 0)
    assert maps.of("t", MATCHING) == bytes([0b10, 0, 0])
    assert sorted(parsed[2:]) == ["a = 1", "a = 2", "a = 3"]


def test_without_a_begin_there_are_none() -> None:
    maps = BitMaps(0)
    maps.put("t", "g", "a = 1", (0,))
    assert not maps.wants("t", 0)


def test_a_map_must_fit_a_unit(caplog: pytest.LogCaptureFixture) -> None:
    maps = made(8 * bitmaps.MAX_BYTES + 8)
    maps.put("t", "g", "a = 1", (0,))
    assert not maps.wants("t", 0)
    assert "filter_bit_maps_too_long" in caplog.text


@pytest.mark.parametrize("positions", [(-1,), (24,), (0, 1 << 40)])
def test_bits_of_another_shape_are_left_out(positions: tuple[int, ...]) -> None:
    maps = made()
    maps.put("t", "g", "a = 1", positions)
    maps.put("t", "h", "a = 1", (3,))
    assert maps.wants("t", 0)
    assert maps.of("t", MATCHING) == bytes([0b1000, 0, 0])


def test_a_topic_with_a_filter_that_cannot_be_read_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its unset bits would say that it does not match."""
    maps = made()
    maps.put("t", "g", "a = 1", (0,))
    maps.put("t", "h", "a = = 1", (1,))
    assert not maps.wants("t", 0)
    assert not maps.wants("t", 0)
    assert caplog.text.count("no_filter_bit_maps") == 1
    maps.put("t", "h", "a = 1", (1,))
    assert maps.wants("t", 0)
    assert maps.of("t", MATCHING) == bytes([0b11, 0, 0])


def test_filters_have_limits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bitmaps, "MAX_PARTS", 6)
    maps = made()
    maps.put("t", "g", "a = 1", (0,))
    maps.put("t", "h", "a = 1", (1,))
    assert maps.wants("t", 0)
    maps.put("t", "i", "a = 1", (2,))
    assert not maps.wants("t", 0)
    assert "more than 6 parts" in caplog.text
    maps.drop("t", "i")
    assert maps.wants("t", 0)
    # Compiled filters are forgotten, not the filters themselves.
    monkeypatch.setattr(bitmaps, "MAX_COMPILED_BYTES", 1)
    for number in range(10):
        now_ms = number * bitmaps.KEPT_MS
        maps.put(f"t{number}", "g", f"a = 1{number}", (0,))
        assert maps.wants(f"t{number}", now_ms)
        # Not again within a while: there is no bit map until then.
        maps.put("u", "g", f"a = 2{number}", (0,))
        assert not maps.wants("u", now_ms + bitmaps.KEPT_MS - 1)
    assert len(maps._compiled) == 1
    assert maps.wants("t", 10 * bitmaps.KEPT_MS)
    assert maps.of("t", MATCHING) == bytes([0b11, 0, 0])


def test_a_turn_compiles_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message after many long filters would hold the event loop for all of them."""
    parsed: list[str] = []

    def counted(expression: str) -> SqlFilter:
        parsed.append(expression)
        return SqlFilter(expression)

    monkeypatch.setattr(bitmaps, "SqlFilter", counted)
    maps = made()
    for topic in ("t", "u"):
        for number in range(20):
            texts = ", ".join(f"'{topic}{number}'" for _ in range(100))
            maps.put(topic, f"g{number}", f"a IN ({texts}, '1')", (number,))
    now_ms = done = 0
    while not maps.wants("t", now_ms):
        for topic in ("t", "u", "t"):
            maps.wants(topic, now_ms)
        assert sum(map(parsing_words, parsed[done:])) <= bitmaps.WORDS_AT_ONCE
        done = len(parsed)
        now_ms += bitmaps.PAUSE_MS
    assert now_ms >= 500
    assert len(parsed) == len(set(parsed))
    assert maps.of("t", MATCHING) == (2**20 - 1).to_bytes(3, "little")


def test_a_topic_with_a_filter_that_takes_long_to_compile_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    maps = made()
    maps.put("t", "g", "a IN ('1'" + ", '1'" * 1_000 + ")", (0,))
    assert not maps.wants("t", 0)
    assert not maps.wants("t", 60_000)
    assert caplog.text.count("more than 1024 words") == 1
