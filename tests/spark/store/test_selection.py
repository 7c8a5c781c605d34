"""Which records of a log are wanted; test_rows.py has the whole."""

from pathlib import Path

from cometmq.spark.decode import Block
from cometmq.spark.store.files import LogFileStatus
from cometmq.spark.store.options import RequestedRange, RequestedRanges, StoreRoot, parse
from cometmq.spark.store.planning import LogPart
from cometmq.spark.store.reader import Selection
from tests.spark.records import plain_record


def chosen(root: Path, requested: RequestedRanges, dispatched: int, **options: str) -> list[int]:
    """The offsets of ten messages of queue 3 of T that are wanted; times are 0 to 90."""
    data = b"".join(plain_record(at, store_ms=at * 10) for at in range(10))
    part = LogPart(StoreRoot(str(root), "b"), LogFileStatus("", 0, 0), 0, 0, requested, dispatched)
    block = Block(data)
    Selection(part, parse({"store": str(root), **options})).choose(block)
    found: list[int] = block.queue_offsets.tolist()
    return found


def test_a_log_alone(tmp_path: Path) -> None:
    assert chosen(tmp_path, RequestedRanges(), -1) == list(range(10))
    assert chosen(tmp_path, RequestedRanges(), -1, topic="T") == list(range(10))
    assert chosen(tmp_path, RequestedRanges(), -1, topic="other") == []
    assert chosen(tmp_path, RequestedRanges(), -1, filter="other") == []


def test_ranges_of_queues(tmp_path: Path) -> None:
    requested = RequestedRanges(by_queue={("T", 3): RequestedRange(2, 7, 30, 60)})
    assert chosen(tmp_path, requested, -1) == [3, 4, 5]
    assert chosen(tmp_path, RequestedRanges(RequestedRange(stop=2)), -1) == [0, 1]
    assert chosen(tmp_path, RequestedRanges(), -1, assign='{"T": {"b": [3]}}') == list(range(10))
    assert chosen(tmp_path, RequestedRanges(), -1, assign='{"T": {"b": [4]}}') == []


def test_a_queue_that_is_not_there(tmp_path: Path) -> None:
    # Records of plain_record lie every 200 bytes: those behind 1 000 may not be in queues yet.
    assert chosen(tmp_path, RequestedRanges(), 1_000) == [5, 6, 7, 8, 9]
