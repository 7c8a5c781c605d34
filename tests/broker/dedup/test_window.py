"""Ids and where they were stored: found while the window lasts, in bounded memory."""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.dedup import MIN_CELLS, IdTable, IdWindow

HOUR_MS = 3_600_000


def digests(count: int, seed: int = 1) -> list[int]:
    source = random.Random(seed)
    return [source.getrandbits(64) for _ in range(count)]


def test_every_id_is_found_and_no_other() -> None:
    window = IdWindow(HOUR_MS, ids_max=1_000_000)
    known = digests(20_000)
    for place, digest in enumerate(known):
        window.add(digest, 500 * place, 0)
    assert all(500 * place in window.find(digest) for place, digest in enumerate(known))
    assert sum(len(window.find(digest)) for digest in digests(10_000, seed=2)) == 0


def test_ids_with_one_hash_are_told_apart_by_their_places() -> None:
    window = IdWindow(HOUR_MS, ids_max=1_000_000)
    far = 1 << 60
    for place in (0, 7, far, far - (1 << 20)):
        window.add(5, place, 0)
    window.add(5 | 1 << 60, 9, 0)  # the same cell, another mark
    assert sorted(window.find(5)) == [0, 7, far - (1 << 20), far]
    assert window.find(5 | 1 << 60) == [9]


@given(
    steps=st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 3_000)), max_size=12),
    window_ms=st.integers(1_000, 1_000_000),
)
def test_what_is_younger_than_the_window_is_never_forgotten(
    steps: list[tuple[int, int]], window_ms: int
) -> None:
    window = IdWindow(window_ms, ids_max=1_000_000)
    now_ms, place = 1_700_000_000_000, 0
    kept: list[tuple[int, int, int]] = []
    source = random.Random(3)
    for pause_ms, count in steps:
        now_ms += pause_ms
        for _ in range(count):
            digest = source.getrandbits(64)
            window.add(digest, place, now_ms)
            kept.append((digest, place, now_ms))
            place += 1
        window.expire(now_ms)
    for digest, at, added_ms in kept:
        if now_ms - added_ms < window_ms:
            assert at in window.find(digest)
    assert window.left_early == 0


def test_ids_older_than_the_window_leave() -> None:
    window = IdWindow(HOUR_MS, ids_max=1_000_000)
    for place, digest in enumerate(digests(1_000)):
        window.add(digest, place, place)
    window.expire(HOUR_MS + 998)
    assert len(window) == 1_000  # the youngest of their table is within the window
    window.expire(HOUR_MS + 1_000)
    assert (len(window), window.size_bytes) == (0, 0)


def test_too_many_ids_leave_early_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    window = IdWindow(HOUR_MS, ids_max=20_000)
    known = digests(60_000)
    with caplog.at_level(logging.WARNING):
        for place, digest in enumerate(known):
            window.add(digest, place, place)
            assert len(window) <= 20_000
    assert window.left_early > 0
    assert len(window) + window.left_early == 60_000
    assert "repeated_ids_evicted_early" in caplog.text
    assert all(window.find(digest) == [place] for place, digest in list(enumerate(known))[-10_000:])


def test_an_id_takes_sixteen_bytes_in_a_full_table() -> None:
    table = IdTable(MIN_CELLS, 0, 0)
    for place, digest in enumerate(digests(table.room)):
        assert table.takes(place)
        table.add(digest, place)
    assert not table.takes(table.room)
    assert table.cells.itemsize * len(table.cells) == 16 * table.count


def test_few_tables_are_searched_at_any_rate() -> None:
    window = IdWindow(HOUR_MS, ids_max=10_000_000)
    for at, digest in enumerate(digests(300_000)):
        window.add(digest, at, at * 30)
    window.expire(300_000 * 30)
    assert len(window) >= 120_000
    assert len(window._tables) <= 7
    assert window.size_bytes / len(window) < 48


def test_tables_shrink_when_less_comes() -> None:
    window = IdWindow(HOUR_MS, ids_max=10_000_000)
    for place, digest in enumerate(digests(50_000)):
        window.add(digest, place, 0)
    for hour in range(1, 12):
        window.add(hour, hour, hour * HOUR_MS)
    assert window.size_bytes <= 8 * MIN_CELLS * 6
