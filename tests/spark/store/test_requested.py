"""Positions of options as ranges of queues."""

import pytest

from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption
from cometmq.spark.read.positions import AtGroup, AtOffsets, AtTimes, Edge, NamedPosition, Position
from cometmq.spark.store.options import (
    END,
    Key,
    RequestedRange,
    RequestedRanges,
    check_brokers,
    requested_ranges,
)

QUEUES: list[Key] = [("t", 0), ("t", 1)]


def bounds(key: Key) -> tuple[int, int]:
    return 10 + key[1], 20 + key[1]


def requested(start: Position | None, stop: Position | None = None) -> RequestedRanges:
    starting = None if start is None else NamedPosition("startingOffsets", start)
    ending = None if stop is None else NamedPosition("endingOffsets", stop)
    return requested_ranges(starting, ending, "b", QUEUES, bounds)


def at(queue_id: int) -> MessageQueue:
    return MessageQueue("t", "b", queue_id)


def test_nothing_named_is_all() -> None:
    assert requested(None).are_open
    assert requested(None).of("t", 0) == RequestedRange()


def test_edges() -> None:
    assert requested(Edge.LATEST).of("t", 1) == RequestedRange(start=21)
    assert requested(Edge.EARLIEST).of("t", 1) == RequestedRange()
    assert requested(None, Edge.EARLIEST).of("t", 1) == RequestedRange(stop=11)
    assert requested(None, Edge.LATEST).of("t", 1) == RequestedRange(stop=21)
    assert requested(Edge.LATEST).of("new", 0) == RequestedRange()


def test_offsets() -> None:
    found = requested(AtOffsets({at(0): 15}, Edge.LATEST), AtOffsets({at(0): -2}, Edge.LATEST))
    assert found.of("t", 0) == RequestedRange(start=15, stop=10)
    assert found.of("t", 1) == RequestedRange(start=21, stop=21)
    assert requested(AtOffsets({at(0): 0}, Edge.EARLIEST)).of("t", 0) == RequestedRange(start=0)
    # Tasks carry the ranges, so a queue without one of its own is not among them.
    named = requested(AtOffsets({at(0): 15}, Edge.EARLIEST))
    assert named.by_queue == {("t", 0): RequestedRange(start=15)}
    assert requested(Edge.EARLIEST).are_open
    assert requested(AtOffsets({at(0): -1}, Edge.EARLIEST)).of("t", 0) == RequestedRange(start=20)


def test_times() -> None:
    everywhere = requested(AtTimes(500), AtTimes(900))
    assert everywhere == RequestedRanges(RequestedRange(from_ms=500, until_ms=900))
    one = requested(AtTimes(None, {at(0): 500}, Edge.LATEST))
    assert one.of("t", 0) == RequestedRange(from_ms=500)
    assert one.of("t", 1) == RequestedRange(start=21)
    both = requested(AtTimes(500), AtOffsets({at(0): 15}, Edge.LATEST))
    assert both.of("t", 0) == RequestedRange(stop=15, from_ms=500)
    assert both.otherwise == RequestedRange(from_ms=500, until_ms=END)


def test_refused() -> None:
    with pytest.raises(BadOption, match="no queue 7"):
        requested(AtOffsets({at(7): 1}, Edge.EARLIEST))
    with pytest.raises(BadOption, match="without the offsets of groups"):
        requested(AtGroup("g", Edge.EARLIEST))
    with pytest.raises(BadOption, match="no store is of broker 'b'"):
        check_brokers(NamedPosition("startingOffsets", AtOffsets({at(0): 1}, Edge.EARLIEST)), ["c"])
    check_brokers(NamedPosition("startingOffsets", Edge.LATEST), ["c"])
    # Another store's queue is none of this one's business.
    other = AtOffsets({MessageQueue("x", "other", 0): 1}, Edge.EARLIEST)
    assert requested(other).of("t", 0) == RequestedRange()
