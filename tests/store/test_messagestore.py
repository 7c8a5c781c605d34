"""The store as a whole: what is appended is read, in order, whatever happens in between."""

import asyncio
import logging
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import MessageIllegal, StoreLocked, StoreOffline
from cometmq.message import batch
from cometmq.message.ids import pack_host
from cometmq.message.record import TransactionType, iter_decode
from cometmq.net.tasks import Tasks
from cometmq.store.config import FlushDiskType
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.read.reader import ReadStatus
from tests.store.stores import (
    BORN,
    assert_consistent,
    bodies,
    copied,
    entries_of,
    fill,
    log_of,
    opened,
    put,
    shared,
)


def test_what_is_appended_is_read_after_the_commit(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert put(store, body=b"a") == (0, 0)
    phys, offset = put(store, body=b"b")
    assert offset == 1
    assert store.read("t", 0, 0, 32).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    store.commit()
    assert bodies(store, "t", 0) == [b"a", b"b"]
    assert store.written_offset == store.dispatched_offset == phys + phys
    store.close()


def test_records_carry_what_was_given(tmp_path: Path) -> None:
    store = opened(tmp_path, VirtualClock(wall_ms=5_000))
    v6 = pack_host("::1", 9)
    store.append(
        store.queue("topic", 4), b"b", b"a\x01b", flag=7, sys_flag=0x10, born_ms=3, born_host=BORN,
        reconsume_times=2, prepared_offset=77, store_host=v6,
    )  # fmt: skip
    store.commit()
    (record,) = log_of(store)
    assert (record.queue_id, record.flag, record.born_ms, record.store_ms) == (4, 7, 3, 5_000)
    assert (record.reconsume_times, record.prepared_offset) == (2, 77)
    assert (record.born_host, record.store_host, record.sys_flag) == (BORN, v6, 0x20)
    store.close()


def test_a_committed_batch_is_one_run_of_offsets(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store)
    body = batch.pack([(0, b"x%d" % number, b"K\x01v") for number in range(5)])
    common = shared(store, b"WAIT\x01true")
    first, (rows, begin, stop) = store.append_batch(store.queue("t", 0), body, common)
    places = rows.places(begin, stop)
    store.commit()
    assert first == 1
    records = log_of(store)
    assert [record.physical_offset for record in records[1:]] == places
    assert [record.body for record in records[1:]] == [b"x0", b"x1", b"x2", b"x3", b"x4"]
    assert {record.properties for record in records[1:]} == {b"K\x01v\x02WAIT\x01true"}
    assert_consistent(store)
    store.close()


def test_prepared_and_rolled_back_messages_take_no_place(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert put(store, sys_flag=TransactionType.PREPARED)[1] == -1
    assert put(store, sys_flag=TransactionType.COMMIT)[1] == 0
    assert put(store, sys_flag=TransactionType.ROLLBACK)[1] == -1
    store.commit()
    assert [record.queue_offset for record in log_of(store)] == [0, 0, 0]
    assert store.queue("t", 0).max_offset == 1
    assert_consistent(store)
    store.close()


def test_delayed_messages_carry_their_time_of_delivery(tmp_path: Path) -> None:
    store = opened(tmp_path, VirtualClock(wall_ms=1_000_000))
    put(store, SCHEDULE_TOPIC, 2, more={"DELAY": "3"})
    store.commit()
    assert entries_of(store.queue(SCHEDULE_TOPIC, 2))[0][2] == 1_010_000
    again = opened(copied(tmp_path, "crashed"))
    assert entries_of(again.queue(SCHEDULE_TOPIC, 2))[0][2] == 1_010_000
    again.close()
    store.close()


def test_store_time_never_goes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    store = opened(tmp_path, clock)
    put(store)
    store.commit()
    clock.jump_wall(-5_000)
    with caplog.at_level(logging.WARNING):
        put(store)
    store.commit()
    first, second = log_of(store)
    assert first.store_ms == second.store_ms
    assert "store_time_ahead ahead_ms=5000" in caplog.text
    store.close()
    reopened = opened(tmp_path, clock)
    put(reopened)
    reopened.commit()
    assert log_of(reopened)[2].store_ms == first.store_ms
    reopened.close()


def test_what_cannot_be_stored_is_refused_and_burns_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(MessageIllegal, match="a log file has 16384"):
        put(store, body=bytes(16_384))
    big = opened(tmp_path / "big", mapped_file_size_commit_log=1 << 20)
    with pytest.raises(MessageIllegal, match="limit is 32767"):
        put(big, more={"k": "x" * 33_000})
    big.close()
    with pytest.raises(MessageIllegal, match="out of range"):
        store.append(
            store.queue("t", 0), b"", b"", flag=1 << 40, sys_flag=0, born_ms=0, born_host=BORN
        )
    with pytest.raises(MessageIllegal, match="limit is 127"):
        store.queue("t" * 128, 0)
    assert put(store) == (0, 0)
    store.commit()
    assert_consistent(store)
    store.close()


def test_listeners_get_each_turn_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    turns: list[list[tuple[str, int, int]]] = []
    store.listeners.append(
        lambda grown: turns.append(
            [(queue.topic, queue.queue_id, queue.max_offset) for queue in grown]
        )
    )
    put(store)
    put(store, "u", 3)
    store.commit()
    store.commit()
    put(store)
    store.commit()
    assert turns == [[("t", 0, 1), ("u", 3, 1)], [("t", 0, 2)]]
    store.close()


def test_two_stores_cannot_share_a_directory(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreLocked, match="in use by another process"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


def test_closed_store_refuses_writes_and_closes_twice(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("t", 0)
    store.close()
    store.close()
    with pytest.raises(StoreOffline, match="closed"):
        store.append(queue, b"", b"", flag=0, sys_flag=0, born_ms=0, born_host=BORN)


def test_deleted_topic_begins_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 20)
    put(store, "other", 0)
    store.deletions.delete("t")
    assert store.topics() == {"other": [0]}
    assert store.read("t", 0, 0, 1).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    assert put(store, "t", 0)[1] == 0
    store.commit()
    store.close()
    assert not (tmp_path / "consumequeue" / "t" / "1").exists()


async def test_sync_flush_hides_a_message_until_it_is_durable(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    released: list[object] = []
    store.on_durable.append(released.extend)
    phys, _ = put(store)
    store.commit()
    store.sync_waiters.park(phys + 1, 1 << 60, "token")
    assert store.read("t", 0, 0, 1).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert put(store)[1] == 1
    store.commit()
    store.sync()
    async with asyncio.timeout(60):
        while not released:
            await asyncio.sleep(0.001)
    assert released == ["token"]
    assert store.durable_offset == store.written_offset
    assert len(bodies(store, "t", 0)) == 2
    store.close()


async def test_queries(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = opened(tmp_path, clock)
    begin_ms = clock.wall_ms()
    for number in range(10):
        put(store, body=b"%d" % number, keys=(f"u{number}", "odd" if number % 2 else "even"))
        store.commit()
        clock.advance(1_000)
    found = await store.query_index("t", "odd", 3, 0, 1 << 60)
    assert [next(iter_decode(raw)).body for raw in found.records] == [b"5", b"7", b"9"]
    assert found.last_update_ms == begin_ms + 9_000
    assert await store.offset_by_time("t", 0, begin_ms + 2_500) == 3
    assert await store.offset_by_time("t", 0, begin_ms + 2_500, upper=True) == 2
    assert await store.offset_by_time("none", 0, begin_ms) == 0
    assert await store.earliest_time("t", 0) == begin_ms
    assert await store.earliest_time("none", 0) == -1
    assert await store.store_time_at("none", 0, 0) == -1
    place = log_of(store)[4].physical_offset
    raw = store.message_at(place)
    assert raw is not None
    assert raw == await store.fetch_at(place)
    assert store.message_at(place + 1) is None
    assert store.message_at(-1) is None
    assert store.message_at(1 << 40) is None
    assert store.runtime()["queues"] == 1
    store.close()


async def test_cold_bytes_are_loaded(tmp_path: Path) -> None:
    store = opened(tmp_path, access_message_in_memory_max_ratio=0)
    fill(store, 60, queues=1)
    result = store.read("t", 0, 0, 32)
    assert (result.cold, result.chunks, result.count) == (True, [], 8)
    await store.load(result)
    found = [record.queue_offset for chunk in result.chunks for record in iter_decode(chunk)]
    assert found == list(range(8))
    assert await store.fetch_at(0) is not None
    assert await store.offset_by_time("t", 0, 0) == 0
    store.close()


async def test_background_work_and_clean_stop(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = opened(tmp_path, clock)
    tasks = Tasks()
    await store.start(tasks)
    fill(store, 30)
    async with asyncio.timeout(60):
        while store.durable_offset < store.written_offset or store.dispatcher.dirty_count:
            clock.advance(1_000)
            await asyncio.sleep(0.001)
    await tasks.close()
    store.close()
    again = opened(tmp_path)
    assert again.report is not None
    assert (again.report.crashed, again.report.records) == (False, 0)
    assert len(assert_consistent(again)) == 30
    again.close()
