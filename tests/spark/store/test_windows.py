"""Points of options as windows of queues."""

import pytest

from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption
from cometmq.spark.read.positions import AtGroup, AtOffsets, AtTimes, Edge, NamedPosition, Position
from cometmq.spark.store.windows import END, Key, Window, Windows, check_brokers, resolve

QUEUES: list[Key] = [("t", 0), ("t", 1)]


def bounds(key: Key) -> tuple[int, int]:
    return 10 + key[1], 20 + key[1]


def windows(start: Position | None, stop: Position | None = None) -> Windows:
    starting = None if start is None else NamedPosition("startingOffsets", start)
    ending = None if stop is None else NamedPosition("endingOffsets", stop)
    return resolve(starting, ending, "b", QUEUES, bounds)


def at(queue_id: int) -> MessageQueue:
    return MessageQueue("t", "b", queue_id)


def test_nothing_named_is_all() -> None:
    assert windows(None).are_open
    assert windows(None).of("t", 0) == Window()


def test_edges() -> None:
    assert windows(Edge.LATEST).of("t", 1) == Window(start=21)
    assert windows(Edge.EARLIEST).of("t", 1) == Window()
    assert windows(None, Edge.EARLIEST).of("t", 1) == Window(stop=11)
    assert windows(None, Edge.LATEST).of("t", 1) == Window(stop=21)
    assert windows(Edge.LATEST).of("new", 0) == Window()


def test_offsets() -> None:
    found = windows(AtOffsets({at(0): 15}, Edge.LATEST), AtOffsets({at(0): -2}, Edge.LATEST))
    assert found.of("t", 0) == Window(start=15, stop=10)
    assert found.of("t", 1) == Window(start=21, stop=21)
    assert windows(AtOffsets({at(0): 0}, Edge.EARLIEST)).of("t", 0) == Window(start=0)
    assert windows(AtOffsets({at(0): -1}, Edge.EARLIEST)).of("t", 0) == Window(start=20)


def test_times() -> None:
    everywhere = windows(AtTimes(500), AtTimes(900))
    assert everywhere == Windows(Window(from_ms=500, until_ms=900))
    one = windows(AtTimes(None, {at(0): 500}, Edge.LATEST))
    assert one.of("t", 0) == Window(from_ms=500)
    assert one.of("t", 1) == Window(start=21)
    both = windows(AtTimes(500), AtOffsets({at(0): 15}, Edge.LATEST))
    assert both.of("t", 0) == Window(stop=15, from_ms=500)
    assert both.otherwise == Window(from_ms=500, until_ms=END)


def test_refused() -> None:
    with pytest.raises(BadOption, match="no queue 7"):
        windows(AtOffsets({at(7): 1}, Edge.EARLIEST))
    with pytest.raises(BadOption, match="without the offsets of groups"):
        windows(AtGroup("g", Edge.EARLIEST))
    with pytest.raises(BadOption, match="no store is of broker 'b'"):
        check_brokers(NamedPosition("startingOffsets", AtOffsets({at(0): 1}, Edge.EARLIEST)), ["c"])
    check_brokers(NamedPosition("startingOffsets", Edge.LATEST), ["c"])
    # Another store's queue is none of this one's business.
    other = AtOffsets({MessageQueue("x", "other", 0): 1}, Edge.EARLIEST)
    assert windows(other).of("t", 0) == Window()
