"""Rows and runs: the same records, one by one and by the column."""

from pathlib import Path

from cometmq.message import batch
from cometmq.store.runs import Run, end_of, parts_of, take_back, without_queues
from tests.store.stores import assert_consistent, opened, put, shared

BODY = batch.pack([(0, b"x%d" % number, b"UNIQ_KEY\x01k%d" % number) for number in range(3)])


def test_a_run_is_dispatched_as_its_rows_are(tmp_path: Path) -> None:
    for name in ("run", "rows"):
        store = opened(tmp_path / name)
        put(store, "t", 0)
        store.append_batch(store.queue("t", 0), BODY, shared(store, b"WAIT\x01true"))
        put(store, "t", 0)
        before, run = store.turn.segments
        assert isinstance(run, Run)
        assert isinstance(before, list)
        rows = [*before, *run.rows(), *store.turn.rows]
        assert [row[1] for row in rows] == [0, 1, 2, 3, 4]
        if name == "rows":
            store.turn.segments[1] = list(run.rows())
        store.commit()
        assert len(assert_consistent(store)) == 5
        store.close()


def test_a_run_for_a_queue_that_ends_elsewhere(tmp_path: Path) -> None:
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
    rows, run = store.turn.segments
    assert isinstance(run, Run)
    assert isinstance(rows, list)
    assert end_of(rows) == run.places[0]
    assert end_of(run) == store.log.position
    assert list(parts_of(run, 1)) == [run]
    assert list(parts_of(rows, 2)) == [rows]
    assert [len(part) for part in parts_of(rows, 1)] == [1, 1]
    assert without_queues(rows, {store.queue("a", 0)}) == [rows[1]]
    assert without_queues(run, {store.queue("a", 0)}) is run
    assert without_queues(run, {store.queue("a", 1)}) == []
    for segment in (run, rows):
        take_back(segment)
    assert [store.queue(*place).next_offset for place in (("a", 0), ("b", 0), ("a", 1))] == [0] * 3
    store.close()
