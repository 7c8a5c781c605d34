"""Consume queues: entries in memory and in files, cuts, holes, many handles."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.files import PosixFiles
from cometmq.store.layout import HOLE, QUEUE_ENTRY
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.queue.queuefiles import QueueFiles

PER_FILE = 10


def pool_at(root: Path) -> QueueFiles:
    return QueueFiles(PosixFiles(), str(root / "consumequeue"), 20 * PER_FILE)


def add(queue: ConsumeQueue, count: int) -> None:
    for _ in range(count):
        queue.tail += entry(queue.max_offset)
        queue.max_offset += 1


def entry(number: int) -> bytes:
    return QUEUE_ENTRY.pack(number * 100, 100, number)


def all_of(queue: ConsumeQueue, step: int = 7) -> bytes:
    found = b""
    offset = queue.min_offset
    while offset < queue.max_offset:
        raw = queue.read(offset, step)
        assert raw
        found += raw
        offset += len(raw) // 20
    return found


def test_entries_are_read_before_and_after_they_are_written(tmp_path: Path) -> None:
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    expected = b""
    for number in range(1, 40):
        expected += b"".join(map(entry, range(queue.max_offset, queue.max_offset + number)))
        add(queue, number)
        assert all_of(queue) == expected
        if number % 3:
            queue.write()
            assert all_of(queue) == expected
    sizes = {path.stat().st_size for path in (tmp_path / "consumequeue" / "t" / "0").iterdir()}
    assert sizes == {20 * PER_FILE}
    pool.close()


@given(st.integers(0, 35), st.integers(0, 36), st.booleans())
def test_load_cuts_what_is_not_below(
    tmp_path_factory: pytest.TempPathFactory, count: int, below: int, more: bool
) -> None:
    root = tmp_path_factory.mktemp("queue")
    pool = pool_at(root)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, count)
    queue.write()
    again = ConsumeQueue(pool, "t", 0)
    again.load(below * 100, 0)
    kept = min(count, below)
    assert (again.next_offset, again.max_offset) == (kept, kept)
    assert all_of(again) == b"".join(map(entry, range(kept)))
    on_disk = b"".join(
        path.read_bytes() for path in sorted((root / "consumequeue" / "t" / "0").glob("*"))
    )
    assert not any(on_disk[kept * 20 :])
    if more:
        add(again, 5)
        again.write()
        third = ConsumeQueue(pool, "t", 0)
        third.load(1 << 60, 0)
        assert all_of(third) == b"".join(map(entry, range(kept + 5)))
    pool.close()


def test_expired_entries_and_files(tmp_path: Path) -> None:
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, 35)
    queue.write()
    queue.correct_min(0)
    assert queue.min_offset == 0
    queue.correct_min(2_350)
    assert queue.min_offset == 24
    names = sorted(path.name for path in (tmp_path / "consumequeue" / "t" / "0").iterdir())
    assert names == [f"{base:020d}" for base in (400, 600)]
    again = ConsumeQueue(pool, "t", 0)
    again.load(1 << 60, 2_350)
    assert (again.min_offset, again.max_offset) == (24, 35)
    again.correct_min(1 << 60)
    assert again.min_offset == again.max_offset == 35
    again.correct_min(1 << 61)
    pool.close()


def test_a_queue_may_begin_late(tmp_path: Path) -> None:
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    queue.fill_to(23)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (23, 23, 23)
    add(queue, 2)
    queue.write()
    raw = (tmp_path / "consumequeue" / "t" / "0" / f"{400:020d}").read_bytes()
    assert raw == HOLE * 3 + entry(23) + entry(24) + bytes(5 * 20)
    again = ConsumeQueue(pool, "t", 0)
    again.load(1 << 60, 0)
    assert (again.min_offset, again.max_offset) == (23, 25)
    assert again.last_record_end() == 2_500
    pool.close()


def test_a_gap_is_filled_with_holes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = ConsumeQueue(pool_at(tmp_path), "t", 0)
    add(queue, 2)
    queue.fill_to(4)
    assert queue.read(0, 9) == entry(0) + entry(1) + HOLE * 2
    assert queue.last_record_end() == 200
    assert "queue_gap_filled" in caplog.text


def test_last_file_without_entries(tmp_path: Path) -> None:
    """A Java broker may have made the next file and not used it."""
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, PER_FILE)
    queue.write()
    (tmp_path / "consumequeue" / "t" / "0" / f"{200:020d}").write_bytes(bytes(200))
    again = ConsumeQueue(pool, "t", 0)
    again.load(1 << 60, 0)
    assert again.max_offset == PER_FILE
    add(again, 1)
    again.write()
    assert all_of(again) == b"".join(map(entry, range(PER_FILE + 1)))
    pool.close()


def test_a_torn_entry_does_not_mislead_the_search(tmp_path: Path) -> None:
    """Four entries were synced; behind them a power cut left one of two, and half of another."""
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, 5)
    queue.tail += QUEUE_ENTRY.pack(3, 100, 0)
    queue.max_offset += 1
    queue.write()
    again = ConsumeQueue(pool, "t", 0)
    again.load(400, 0)
    assert again.max_offset == 4
    assert all_of(again) == b"".join(map(entry, range(4)))
    pool.close()


def test_without_any_entry_the_offsets_go_on_where_the_files_began(tmp_path: Path) -> None:
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    queue.fill_to(20)
    add(queue, 3)
    queue.write()
    again = ConsumeQueue(pool, "t", 0)
    again.load(0, 0)
    assert again.max_offset == 0
    again.finish_recovery()
    assert (again.min_offset, again.max_offset, again.next_offset) == (20, 20, 20)
    pool.close()


def punched(queue: ConsumeQueue, pool: QueueFiles, first: int, count: int) -> None:
    """Holes where ``count`` entries from ``first`` on were."""
    queue.write()
    pool.write(f"{pool.directory}/t/0", first * 20, HOLE * count)
    queue.load(1 << 60, 0)


@pytest.mark.parametrize("log_start", [0, 100, 1_000, 1_050, 2_400, 5_900])
def test_holes_in_the_middle_mislead_no_search(tmp_path: Path, log_start: int) -> None:
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, 60)
    punched(queue, pool, 20, 25)
    queue.correct_min(log_start)
    places = [number for number in range(60) if not 20 <= number < 45]
    assert queue.min_offset == min(number for number in places if number * 100 >= log_start)
    pool.close()


def test_the_last_record_is_found_behind_holes(tmp_path: Path) -> None:
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, 60)
    punched(queue, pool, 21, 39)
    assert queue.max_offset == 60
    assert queue.last_record_end() == 2_100
    assert queue.is_older_than(2_001)
    assert not queue.is_older_than(2_000)
    punched(queue, pool, 0, 60)
    assert queue.last_record_end() == 0
    assert queue.is_older_than(0)
    pool.close()


def test_the_last_file_stays_when_all_of_its_records_are_gone(tmp_path: Path) -> None:
    """It alone says where the offsets of the queue go on."""
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, 3 * PER_FILE)
    queue.write()
    queue.correct_min(1 << 40)
    again = ConsumeQueue(pool, "t", 0)
    again.load(1 << 60, 1 << 40)
    assert (again.min_offset, again.max_offset) == (30, 30)
    pool.close()


def test_a_queue_none_of_whose_records_is_left_holds_nothing(tmp_path: Path) -> None:
    queue = ConsumeQueue(pool_at(tmp_path), "t", 0)
    add(queue, 5)
    queue.write()
    queue.load(0, 0)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 0, 0)
    assert all_of(queue) == b""


def test_a_queue_that_goes_on_within_a_file_is_found_again(tmp_path: Path) -> None:
    """Its files were lost, with 13 offsets: the file of the next entry begins with holes, because
    a file ends at its first entry of zeros."""
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    queue.expect(13)
    queue.finish_recovery()
    assert (queue.min_offset, queue.max_offset) == (13, 13)
    add(queue, 1)
    queue.write()
    again = ConsumeQueue(pool_at(tmp_path), "t", 0)
    again.load(1 << 40, 0)
    again.finish_recovery()
    assert (again.min_offset, again.max_offset) == (13, 14)
    assert all_of(again) == entry(13)
    pool.close()


def test_expired_entries_stay_in_their_file(tmp_path: Path) -> None:
    """All records of a queue are gone; its next entry follows the old ones."""
    pool = pool_at(tmp_path)
    queue = ConsumeQueue(pool, "t", 0)
    add(queue, 3)
    queue.write()
    again = ConsumeQueue(pool_at(tmp_path), "t", 0)
    again.load(1 << 40, 1_000)
    again.finish_recovery()
    assert (again.min_offset, again.max_offset) == (3, 3)
    add(again, 1)
    again.write()
    (path,) = (tmp_path / "consumequeue" / "t" / "0").iterdir()
    assert path.read_bytes()[:80] == b"".join(map(entry, range(4)))
    pool.close()
