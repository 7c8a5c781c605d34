"""Records that the looker gathered: what a pull takes of them, and how much is held."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cometmq.store import gathered as module
from cometmq.store.consumequeue import ConsumeQueue
from cometmq.store.gathered import (
    MAX_HELD_BYTES,
    MAX_HELD_BYTES_EACH,
    Gathered,
    Piece,
    Run,
)
from cometmq.store.looking import TRAY_BYTES
from tests.store.stores import opened, put

WANTED, OTHER = "a = 1", "a = 2"


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    made = opened(tmp_path, mapped_file_size_consume_queue=60_000)
    put(made, "t", 0, b"")
    made.commit()
    return made.queue("t", 0)


def run(
    queue: ConsumeQueue, offset: int, stop: int, numbers: Sequence[int], size_bytes: int = 4
) -> Run:
    """Records of one size, each of which says its number."""
    bounds = [at * size_bytes for at in range(len(numbers) + 1)]
    records = b"".join((offset + each).to_bytes(size_bytes, "big") for each in numbers)
    return Run(queue.restarts, offset, stop, [*numbers], bounds, records)


def pieces(found: Run, at: int, max_count: int, max_bytes: int) -> list[tuple[list[int], int]]:
    """What pulls get that read on to the run's end: queue offsets, and where each goes on."""
    made = []
    while at < found.stop:
        records, count, onward = found.piece(at, max_count, max_bytes)
        assert len(records) == 4 * count <= max(max_bytes, 4)
        offsets = [int.from_bytes(records[each : each + 4]) for each in range(0, 4 * count, 4)]
        assert onward > at
        made.append((offsets, onward))
        at = onward
    return made


def test_a_pull_gets_what_it_has_room_for(queue: ConsumeQueue) -> None:
    found = run(queue, 256, 512, [3, 4, 9, 100, 200])
    assert pieces(found, 256, 2, 100) == [
        ([259, 260], 265),
        ([265, 356], 456),
        ([456], 512),
    ]
    assert pieces(found, 256, 32, 100) == [([259, 260, 265, 356, 456], 512)]
    assert pieces(found, 256, 32, 11) == [([259, 260], 265), ([265, 356], 456), ([456], 512)]


def test_from_anywhere_in_the_run(queue: ConsumeQueue) -> None:
    found = run(queue, 256, 512, [3, 4, 9])
    assert pieces(found, 260, 32, 100) == [([260, 265], 512)]
    assert pieces(found, 261, 32, 100) == [([265], 512)]
    assert pieces(found, 266, 32, 100) == [([], 512)]


def test_where_nothing_matches_there_is_nothing_to_read(queue: ConsumeQueue) -> None:
    assert pieces(run(queue, 0, 2_048, []), 0, 32, 100) == [([], 2_048)]


def test_no_room_for_the_next_one(queue: ConsumeQueue) -> None:
    found = run(queue, 0, 256, [5, 6])
    assert found.piece(0, 32, 3) == Piece(memoryview(b""), 0, 5)


def test_what_is_passed_goes(queue: ConsumeQueue) -> None:
    held = Gathered()
    held.put(queue, WANTED, run(queue, 256, 512, [1]))
    held.put(queue, WANTED, run(queue, 512, 768, [1, 2]))
    held.put(queue, WANTED, run(queue, 1_024, 1_280, [1]))
    assert held.held_bytes == 16
    assert held.find(queue, WANTED, 255) is None
    assert held.find(queue, OTHER, 256) is None
    first = held.find(queue, WANTED, 511)
    assert first is not None
    assert first.offset == 256
    second = held.find(queue, WANTED, 512)
    assert second is not None
    assert second.offset == 512
    assert held.held_bytes == 12
    assert held.find(queue, WANTED, 800) is None  # nobody gathered there
    assert held.held_bytes == 4
    assert held.find(queue, WANTED, 1_280) is None
    assert held.held_bytes == 0


def test_a_queue_that_began_anew_has_other_records(queue: ConsumeQueue) -> None:
    held = Gathered()
    held.put(queue, WANTED, run(queue, 0, 256, [1]))
    queue.restart_at(0)
    held.put(queue, WANTED, run(queue, 256, 512, [1]))
    assert held.find(queue, WANTED, 0) is None
    found = held.find(queue, WANTED, 256)
    assert found is not None
    assert found.restarts == queue.restarts


def test_what_is_held_is_bounded(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 1_000)
    held = Gathered()
    for wanted in ("a", "b", "a", "c"):
        held.put(queue, wanted, run(queue, 256, 512, range(3), 100))
    # "b" waited for the longest time.
    assert held.held_bytes == 900
    assert held.find(queue, "b", 256) is None
    assert held.find(queue, "a", 256) is not None
    assert held.find(queue, "c", 256) is not None
    held.drop(queue, "a")
    assert held.held_bytes == 300
    held.clear()
    assert held.held_bytes == 0
    assert held.find(queue, "c", 256) is None


def test_each_has_its_share(queue: ConsumeQueue) -> None:
    held = Gathered()
    tray = run(queue, 0, 256, [1], TRAY_BYTES)
    wanted = [f"a = {number}" for number in range(16)]
    for _ in range(8):  # of each in turn, as much as it has room for
        for each in wanted:
            if held.has_room(queue, each):
                held.put(queue, each, tray)
    assert MAX_HELD_BYTES // 2 <= held.held_bytes <= MAX_HELD_BYTES
    assert all(held.find(queue, each, 0) is not None for each in wanted)
    alone = Gathered()
    while alone.has_room(queue, WANTED):
        alone.put(queue, WANTED, tray)
    assert alone.held_bytes == MAX_HELD_BYTES_EACH


def test_who_does_not_read_any_more_has_no_share(queue: ConsumeQueue) -> None:
    held = Gathered()
    tray = run(queue, 0, 256, [1], TRAY_BYTES)
    for number in range(40):
        held.put(queue, f"gone = {number}", run(queue, 0, 256, [1]))
    assert not held.has_room(queue, WANTED)
    room = [held.has_room(queue, WANTED) for _ in range(200)]
    assert room == sorted(room)  # once it has some it has it
    while held.has_room(queue, WANTED):
        held.put(queue, WANTED, tray)
    assert held.held_bytes == MAX_HELD_BYTES_EACH + 40 * 4
    # One that comes again has its share again.
    assert held.find(queue, "gone = 1", 0) is not None
    assert held.has_room(queue, "gone = 1")
