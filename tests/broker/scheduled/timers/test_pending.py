"""Where what waits is kept: in files, in the wheel, or on its way out."""

from pathlib import Path

from cometmq.broker.scheduled.timers.pending import Pending, Waiting, done_in, first_bucket
from cometmq.broker.scheduled.timers.wheel import TICK_MS, tick_of
from cometmq.core.clock import Slices, VirtualClock
from cometmq.store.files import PosixFiles
from cometmq.store.timerfiles import BUCKET_MS, ROW, TimerFiles

#: The beginning of a bucket.
BASE = BUCKET_MS * 2_000_000


def make(tmp_path: Path) -> Pending:
    pending = Pending(TimerFiles(PosixFiles(), str(tmp_path)))
    pending.begin(BASE // TICK_MS)
    return pending


def rows(raw: bytes) -> list[tuple[int, int, int, int]]:
    return list(ROW.iter_unpack(raw))


async def load(pending: Pending, until_ms: int) -> list[int]:
    loaded = []
    while (bucket := pending.next_bucket(until_ms)) is not None:
        read = pending.begin_load(bucket)
        raw = pending.files.fetch(*read)
        await pending.end_load(bucket, raw, Slices(VirtualClock()))
        loaded.append(bucket)
    return loaded


async def test_later_buckets_wait_in_files(tmp_path: Path) -> None:
    pending = make(tmp_path)
    for number, due_ms in enumerate((BASE + 500, BASE + BUCKET_MS, BASE + 3 * BUCKET_MS)):
        pending.put(Waiting(due_ms, number, number * 100, 50))
    assert pending.wheel.count == 0
    assert await load(pending, BASE + BUCKET_MS) == [2_000_000, 2_000_001]
    assert pending.wheel.count == 2
    assert pending.loaded == 2_000_002
    pending.put(Waiting(BASE + 700, 3, 300, 50))
    assert pending.wheel.count == 3
    assert rows(pending.wheel.take()) == [(BASE + 500, 0, 0, 50)]
    assert await load(pending, BASE + 4 * BUCKET_MS) == [2_000_003]


async def test_rows_that_come_while_a_bucket_is_loaded_are_not_missed(tmp_path: Path) -> None:
    pending = make(tmp_path)
    pending.put(Waiting(BASE + 1_000, 0, 0, 50))
    bucket = pending.next_bucket(BASE)
    assert bucket is not None
    read = pending.begin_load(bucket)
    pending.put(Waiting(BASE + 1_000, 1, 100, 50))
    await pending.end_load(bucket, pending.files.fetch(*read), Slices(VirtualClock()))
    assert sorted(row[1] for row in rows(pending.wheel.take())) == [0, 1]


async def test_what_is_late_goes_at_once_and_not_to_a_file(tmp_path: Path) -> None:
    pending = make(tmp_path)
    assert pending.is_noted_by_files()
    pending.put(Waiting(BASE - 5, 0, 0, 50))
    assert pending.wheel.next_tick() == pending.through + 1
    assert not pending.is_noted_by_files()
    assert pending.files.buckets() == []
    pending.wheel.take()
    pending.through += 1
    assert pending.is_noted_by_files()


async def test_what_is_done_with_does_not_come_from_a_file(tmp_path: Path) -> None:
    pending = make(tmp_path)
    due_ms = BASE + 3_000
    pending.put(Waiting(due_ms, 0, 100, 50))
    pending.put(Waiting(due_ms, 1, 200, 50))
    pending.done(100, due_ms - 100, due_ms + 900)
    await load(pending, BASE)
    assert [row[2] for row in rows(pending.wheel.take())] == [200]


async def test_what_is_done_with_after_loading_is_known_when_it_is_due(tmp_path: Path) -> None:
    pending = make(tmp_path)
    pending.put(Waiting(BASE + 3_000, 0, 100, 50))
    await load(pending, BASE)
    pending.done(100, BASE + 3_000, BASE + 3_000)
    assert pending.is_gone(100)
    assert not pending.is_gone(100)


async def test_near_the_end_of_a_bucket_both_are_told(tmp_path: Path) -> None:
    pending = make(tmp_path)
    edge = BASE + BUCKET_MS
    pending.put(Waiting(edge - 1, 0, 100, 50))
    pending.put(Waiting(edge, 1, 200, 50))
    for physical in (100, 200):
        pending.done(physical, edge - 500, edge + 500)
    await load(pending, edge)
    assert pending.wheel.count == 0


async def test_what_was_delivered_before_does_not_come_back(tmp_path: Path) -> None:
    pending = make(tmp_path)
    for number in range(4):
        pending.put(Waiting(BASE + number * 1_000 + 500, number, number, 50))
    pending.put(Waiting(BASE + 2_000, 9, 9, -50))
    pending.through = tick_of(BASE + 2_600)
    pending.loaded = first_bucket(pending.through)
    await load(pending, BASE)
    # The recall still counts for its second, and comes first.
    assert [row[3] for row in rows(pending.wheel.take())] == [-50]
    assert [row[1] for row in rows(pending.wheel.take())] == [3]
    assert pending.wheel.count == 0


async def test_a_slice_at_a_time_tells_what_is_done(tmp_path: Path) -> None:
    raw = b"".join(ROW.pack(0, 0, number, number % 2) for number in range(1_000))
    assert await done_in(raw, Slices(VirtualClock())) == set(range(0, 1_000, 2))


def test_it_can_forget_everything(tmp_path: Path) -> None:
    pending = make(tmp_path)
    pending.put(Waiting(BASE + 1, 0, 0, 50))
    pending.clear()
    assert (pending.count, pending.through, pending.files.buckets()) == (0, 0, [])
