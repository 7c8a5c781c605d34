"""Waiting messages: how they come in, and where they are kept until they are due."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.scheduled.timers.pending import (
    TICK_MS,
    Pending,
    Waiting,
    Wheel,
    done_in,
    end_mark,
    ended_by,
    first_bucket,
    record_or_none,
    tick_of,
    waiting_of,
)
from cometmq.core.clock import Slices, VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.record import Record, pack
from cometmq.store.files import PosixFiles
from cometmq.store.timerfiles import BUCKET_MS, ROW, TimerFiles
from tests.broker.scheduled.timers.timedworld import timed_world

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


def test_nothing_is_early_and_a_tick_late_at_most() -> None:
    for due_ms in (0, 1, TICK_MS - 1, TICK_MS, TICK_MS + 1, 1_700_000_000_013):
        assert 0 <= tick_of(due_ms) * TICK_MS - due_ms < TICK_MS


def test_ticks_come_in_their_order_and_rows_in_theirs() -> None:
    wheel = Wheel()
    assert wheel.next_tick() is None
    rows = [ROW.pack(number, number, number, 1) for number in range(4)]
    wheel.put(7, rows[0])
    wheel.put(3, rows[1])
    wheel.put(7, rows[2])
    wheel.put(5, rows[3])
    assert wheel.count == 4
    assert wheel.next_tick() == 3
    assert wheel.take() == rows[1]
    assert wheel.take() == rows[3]
    assert wheel.next_tick() == 7
    assert wheel.take() == rows[0] + rows[2]
    assert (wheel.count, wheel.next_tick()) == (0, None)


HOST = bytes(8)


def record(topic: str = TIMER_TOPIC, prepared_offset: int = 0, **properties: str) -> Record:
    raw = props.encode(properties)
    return Record(
        120, 0, 0, 0, 7, 700, 0, 1, HOST, 5_000, HOST, 0, prepared_offset, b"", topic, raw
    )


def test_a_record_says_what_it_waits_for() -> None:
    waiting = record(TIMER_OUT_MS="9000", TIMER_DELIVER_MS="9400")
    assert waiting_of(waiting) == Waiting(9_400, 7, 700, 120)
    recall = record(TIMER_OUT_MS="9000", TIMER_DEL_UNIQKEY="t+k", TIMER_DELIVER_MS="9001")
    assert waiting_of(recall) == Waiting(9_000, 7, 700, -120)
    assert waiting_of(record(TIMER_DELIVER_MS="9400")) is None


@pytest.mark.parametrize(
    ("prepared", "properties", "ended"),
    [
        (300, {"TIMER_OUT_MS": "9000"}, (300, 9_000)),
        (-1, {"TIMER_OUT_MS": "9000"}, (0, 9_000)),
        (0, {"TIMER_OUT_MS": "9000"}, None),
        (300, {}, None),
        (300, {"TIMER_OUT_MS": "x"}, None),
        (300, {"a": "TIMER_OUT_MS"}, None),
    ],
)
def test_a_record_says_whose_wait_it_ends(
    prepared: int, properties: dict[str, str], ended: tuple[int, int] | None
) -> None:
    assert ended_by(record("t", prepared, **properties)) == ended


def test_offset_0_has_a_mark_too() -> None:
    assert (end_mark(0), end_mark(300)) == (-1, 300)


def test_damage_and_gaps_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert record_or_none(None, 5) is None
    assert record_or_none(StoreCorrupt("file", 5, "flipped"), 5) is None
    assert "timed message damaged physical=5" in caplog.text
    assert record_or_none(memoryview(pack(record())), 700) is not None


async def test_what_says_no_time_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with timed_world(tmp_path) as world:
        await world.put(TIMER_TOPIC, b"bad", 0, {})
        await world.send(b"good", 1_000)
        await world.advance(1_000)
        assert world.bodies() == [b"good"]
        assert "it has no delivery time" in caplog.text


async def test_large_messages_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        for number in range(5):
            await world.send(bytes([number]) * 700_000, 1_000)
        await world.advance(1_000)
        assert [body[0] for body in world.bodies()] == [0, 1, 2, 3, 4]
