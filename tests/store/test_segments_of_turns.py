"""A turn's messages and batches, in the order of the log."""

from pathlib import Path

from cometmq.message import batch
from cometmq.speedups import WriteBatch
from cometmq.store.dispatch import end_of, parts_of, take_back, without_queues
from tests.store.stores import assert_consistent, opened, put, shared

ONE = batch.pack([(0, b"x", b"")])
BODY = batch.pack([(0, b"x%d" % number, b"UNIQ_KEY\x01k%d" % number) for number in range(3)])


def test_messages_and_batches_keep_their_order(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("t", 0)
    store.append_batch(queue, ONE, shared(store))
    put(store)
    put(store)
    store.append_batch(queue, ONE, shared(store))
    store.append_batch(queue, ONE, shared(store))
    put(store)
    segments = store.uncommitted
    assert [(isinstance(segment, WriteBatch), len(segment)) for segment in segments] == [
        (True, 1), (False, 2), (True, 2), (False, 1),
    ]  # fmt: skip
    for segment in reversed(segments):
        take_back(segment)
    assert queue.next_offset == 0
    store.close()


def test_a_write_batch_is_dispatched_as_its_rows_are(tmp_path: Path) -> None:
    for name in ("batch", "rows"):
        store = opened(tmp_path / name, message_index_enable=name == "batch")
        put(store, "t", 0)
        store.append_batch(store.queue("t", 0), BODY, shared(store, b"WAIT\x01true"))
        put(store, "t", 0)
        before, made, after = store.uncommitted
        assert isinstance(made, WriteBatch)
        assert isinstance(before, list)
        assert isinstance(after, list)
        rows = [*before, *made.rows_from(0), *after]
        assert [row[1] for row in rows] == [0, 1, 2, 3, 4]
        if name == "rows":
            store.uncommitted[1] = list(made.rows_from(0))
        store.commit()
        records = assert_consistent(store) if name == "batch" else []
        assert [record.queue_offset for record in records] in ([], [0, 1, 2, 3, 4])
        assert store.queue("t", 0).max_offset == 5
        store.close()


def test_a_batch_for_a_queue_that_ends_elsewhere(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("t", 0)
    queue.next_offset = 5
    store.append_batch(queue, BODY, shared(store))
    store.commit()
    assert (queue.min_offset, queue.max_offset) == (5, 8)
    store.close()


def test_ends_parts_and_topics(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "a")
    put(store, "b")
    store.append_batch(store.queue("a", 1), BODY, shared(store))
    rows, made = store.uncommitted
    assert isinstance(made, WriteBatch)
    assert isinstance(rows, list)
    assert end_of(rows) == made.places(0, 1)[0]
    assert end_of(made) == store.log.position
    assert list(parts_of(made, 1)) == [made]
    assert list(parts_of(rows, 2)) == [rows]
    assert [len(part) for part in parts_of(rows, 1)] == [1, 1]
    assert without_queues(rows, {store.queue("a", 0)}) == [rows[1]]
    for segment in (made, rows):
        take_back(segment)
    assert [store.queue(*place).next_offset for place in (("a", 0), ("b", 0), ("a", 1))] == [0] * 3
    store.close()


def test_a_batch_for_a_queue_that_goes_away(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_batch(store.queue("a", 1), BODY, shared(store))
    (made,) = store.uncommitted
    assert isinstance(made, WriteBatch)
    assert without_queues(made, {store.queue("a", 0)}) is made
    assert len(made.rows_from(0)) == 3
    without_queues(made, {store.queue("a", 1)})
    assert made.rows_from(0) == []
    store.commit()
    assert store.queue("a", 1).max_offset == 0
    store.close()
