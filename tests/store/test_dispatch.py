"""From records to rows, and from rows to queues and index."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from cometmq.message import properties as props
from cometmq.message.record import Record, TransactionType
from cometmq.store.dispatch import delay_of, row_of
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.queue.consumequeue import ConsumeQueue, Dispatched
from tests.store.faults import FailingFiles
from tests.store.stores import (
    BORN,
    STORE_HOST,
    assert_consistent,
    entries_of,
    fill,
    opened,
    put,
)

DELAYS_MS = (1_000, 5_000)


def record(topic: str, properties: dict[str, str], sys_flag: int = 0) -> Record:
    return Record(
        200, 0, 1, 0, 9, 4_000, sys_flag, 1, BORN, 70_000, STORE_HOST, 0, 0, b"", topic,
        props.encode(properties),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "properties", "kind", "expected"),
    [
        ("t", {}, TransactionType.NONE, (9, 0, ())),
        ("t", {"TAGS": "a", "KEYS": "x y"}, TransactionType.NONE, (9, 97, ("x", "y"))),
        ("t", {"UNIQ_KEY": "u"}, TransactionType.COMMIT, (9, 0, ("u",))),
        ("t", {"UNIQ_KEY": "u"}, TransactionType.PREPARED, (-1, 0, ("u",))),
        ("t", {"UNIQ_KEY": "u"}, TransactionType.ROLLBACK, (-1, 0, ())),
        (SCHEDULE_TOPIC, {"DELAY": "2", "TAGS": "a"}, TransactionType.NONE, (9, 75_000, ())),
        (SCHEDULE_TOPIC, {"DELAY": "99"}, TransactionType.NONE, (9, 75_000, ())),
        (SCHEDULE_TOPIC, {"TAGS": "a"}, TransactionType.NONE, (9, 97, ())),
        ("t", {"DELAY": "2", "TAGS": "a"}, TransactionType.NONE, (9, 97, ())),
    ],
)
def test_rows_of_records(
    tmp_path: Path,
    topic: str,
    properties: dict[str, str],
    kind: TransactionType,
    expected: tuple[int, int, tuple[str, ...]],
) -> None:
    store = opened(tmp_path)
    queue = store.queue(topic, 1)
    row = row_of(record(topic, properties, kind), queue, DELAYS_MS)
    assert row == (queue, expected[0], 4_000, 200, expected[1], 70_000, expected[2])
    store.close()


def test_delays() -> None:
    assert [delay_of(text, DELAYS_MS) for text in ("", "0", "1", "2", "3", "x", "-1", "²")] == [
        0, 0, 1_000, 5_000, 5_000, 0, 0, 0,
    ]  # fmt: skip
    assert delay_of("1", ()) == 1_000


def test_a_row_is_never_dispatched_twice(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 5, queues=1)
    queue = store.queue("t", 0)
    before = entries_of(queue)
    rows: list[Dispatched] = [(queue, number, 1, 1, 1, 1, ()) for number in range(5)]
    store.dispatcher.dispatch(rows, store.written_offset, 0)
    assert entries_of(queue) == before
    store.close()


def test_a_log_that_begins_anew_is_seen_from_its_first_record_on(tmp_path: Path) -> None:
    """A slave lost all of its log, and its queue's files, of which only the length is known."""
    store = opened(tmp_path / "s")
    queue = store.queue("t", 0)
    queue.expect(19)
    queue.finish_recovery()
    rows: list[Dispatched] = [
        (queue, number, number * 100, 100, 0, 1_000, ()) for number in range(3)
    ]
    for row in rows:
        store.dispatcher.dispatch([row], row[2] + row[3], 1_000)
    assert (queue.min_offset, queue.max_offset) == (0, 3)
    assert [place for place, _, _ in entries_of(queue)] == [0, 100, 200]
    store.close()


def test_entries_are_written_after_many_rows_without_upkeep(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 22)
    queue = store.queue("t", 0)
    rows: list[Dispatched] = [
        (queue, number, number * 100, 100, 0, 1, ()) for number in range(5_000)
    ]
    store.dispatcher.dispatch(rows, 500_000, 0)
    assert (tmp_path / "consumequeue" / "t" / "0" / f"{800:020d}").exists()
    assert len(queue.tail) < 5_000
    # It keeps its place: the round that comes by finds nothing left to write.
    assert store.dispatcher.dirty_count == 1
    assert store.dispatcher.write(0)
    assert store.dispatcher.complete == (500_000, 1)


def test_the_queues_that_wait_longest_are_written_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    dispatcher = store.dispatcher
    ends = [0]
    for number in (0, 1, 0, 2):
        put(store, "t", number)
        store.commit()
        ends.append(dispatcher.position)
    assert dispatcher.complete[0] == 0
    assert not dispatcher.write(0, 1)
    # Queue 0 was written with its second entry, so queue 1 waits longest.
    assert dispatcher.complete[0] == ends[1]
    assert dispatcher.write(0, before=ends[2])
    assert dispatcher.complete == (ends[3], store.state.last_ms)
    assert dispatcher.write(0, before=ends[3])
    assert dispatcher.dirty_count == 1
    assert dispatcher.write(0)
    assert dispatcher.complete[0] == ends[4]
    store.close()


def test_failed_writes_keep_everything_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "s", files=files)
    fill(store, 30)
    files.failing["pwrite"] = errno.ENOSPC
    assert not store.dispatcher.write(0)
    assert caplog.text.count("dispatch_write_failed") == 1
    store.state.update()
    assert "writes resume automatically" in str(store.state.refusal)
    assert len(entries_of(store.queue("t", 0))) == 10
    files.failing.clear()
    assert store.dispatcher.write(0)
    store.state.update()
    put(store)
    store.commit()
    assert len(assert_consistent(store)) == 31
    store.close()
    again = opened(tmp_path / "s")
    assert len(assert_consistent(again)) == 31
    again.close()


def test_a_forgotten_topic_is_not_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for topic in ("gone", "kept"):
        put(store, topic)
        store.commit()
    begin = store.message_at(0)
    assert begin is not None
    store.dispatcher.forget({store.queue("gone", 0)})
    assert store.dispatcher.dirty_count == 1
    assert store.dispatcher.complete[0] == len(begin)
    store.close()


def test_limit_of_a_slice(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(10):
        put(store, "t", number)
    store.commit()
    assert not store.dispatcher.write(0, 4)
    assert store.dispatcher.dirty_count == 6
    assert not store.dispatcher.write(0, 4)
    assert store.dispatcher.write(0, 4)
    assert isinstance(store.queue("t", 9), ConsumeQueue)
    store.close()


def test_a_failing_listener_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    seen: list[int] = []

    def broken(grown: Sequence[ConsumeQueue]) -> None:
        raise ValueError(len(grown))

    store.listeners.append(broken)
    store.listeners.append(lambda grown: seen.extend(queue.max_offset for queue in grown))
    fill(store, 3)
    assert seen == [1, 1, 1]
    assert "dispatch_listener_failed" in caplog.text
    store.close()


def test_entries_of_delayed_messages_are_in_the_file_after_their_turn(tmp_path: Path) -> None:
    """A Java broker that takes over after a crash would deliver at once what lacks its entry."""
    store = opened(tmp_path)
    put(store, SCHEDULE_TOPIC, 2, more={"DELAY": "3"})
    put(store, "t", 0)
    for turn in range(1, 4):
        put(store, SCHEDULE_TOPIC, 1, more={"DELAY": "2"})
        store.commit()
        for queue_id, count in ((1, turn), (2, 1)):
            queue = store.queue(SCHEDULE_TOPIC, queue_id)
            file = tmp_path / "consumequeue" / SCHEDULE_TOPIC / str(queue_id) / f"{0:020d}"
            raw = file.read_bytes()
            assert raw[: 20 * count] == bytes(queue.read(0, count))
            assert not any(raw[20 * count :])
    assert not (tmp_path / "consumequeue" / "t").exists()
    store.close()


def test_a_delayed_message_whose_entry_cannot_be_written_refuses_the_next(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    put(store, SCHEDULE_TOPIC, 1, more={"DELAY": "2"})
    store.log.commit()
    files.failing["pwrite"] = errno.ENOSPC
    store.commit()
    assert store.dispatcher.problem is not None
    files.failing.clear()
    assert store.dispatcher.write(0)
    assert len(assert_consistent(store)) == 1
    store.close()
