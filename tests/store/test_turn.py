"""A turn's messages and batches, in the order of the log."""

from pathlib import Path

from cometmq.message import batch
from cometmq.store.runs import Run
from cometmq.store.turn import Turn, undo
from tests.store.stores import opened, put, shared

BODY = batch.pack([(0, b"x", b"")])


def test_messages_and_batches_keep_their_order(tmp_path: Path) -> None:
    store = opened(tmp_path)
    turn, queue = store.turn, store.queue("t", 0)
    empty = [turn.is_empty]
    store.append_batch(queue, BODY, shared(store))
    empty.append(turn.is_empty)
    put(store)
    put(store)
    store.append_batch(queue, BODY, shared(store))
    put(store)
    segments = turn.end()
    assert [*empty, turn.is_empty] == [True, False, True]
    assert [(type(segment) is Run, len(segment)) for segment in segments] == [
        (True, 1), (False, 2), (True, 1), (False, 1),
    ]  # fmt: skip
    assert turn.end() == []
    assert undo(segments) == 5
    assert queue.next_offset == 0
    store.close()


def test_what_held_the_log_comes_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    turn, queue = Turn(), store.queue("t", 0)
    turn.is_held = True
    turn.rows.append((queue, 1, 100, 100, 0, 1, ()))
    run = Run(queue, 0, [0], [100], [0], 1, [], [0])
    turn.fill_in([run])
    assert turn.is_held is False
    assert turn.end() == [run, [(queue, 1, 100, 100, 0, 1, ())]]
    store.close()
