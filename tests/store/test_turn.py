"""A turn's messages and batches, in the order of the log."""

from pathlib import Path

from cometmq.message import batch
from cometmq.speedups import WriteBatch
from cometmq.store.turn import undo
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
    store.append_batch(queue, BODY, shared(store))
    put(store)
    segments = turn.end()
    assert [*empty, turn.is_empty] == [True, False, True]
    assert [(type(segment) is WriteBatch, len(segment)) for segment in segments] == [
        (True, 1), (False, 2), (True, 2), (False, 1),
    ]  # fmt: skip
    assert turn.end() == []
    assert undo(segments) == 6
    assert queue.next_offset == 0
    store.close()
