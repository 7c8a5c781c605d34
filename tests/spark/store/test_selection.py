"""Which records of a log are wanted; test_rows.py has the whole."""

from pathlib import Path

from cometmq.spark.decode import Block
from cometmq.spark.store.directory import LogFile
from cometmq.spark.store.options import StoreRoot, parse
from cometmq.spark.store.planning import LogPart
from cometmq.spark.store.rows import Selection
from cometmq.spark.store.windows import Window, Windows
from tests.spark.records import plain_record


def chosen(root: Path, windows: Windows, dispatched: int, **options: str) -> list[int]:
    """The offsets of ten messages of queue 3 of T that are wanted; times are 0 to 90."""
    data = b"".join(plain_record(at, store_ms=at * 10) for at in range(10))
    part = LogPart(StoreRoot(str(root), "b"), LogFile("", 0, 0), 0, 0, windows, dispatched)
    block = Block(data)
    Selection(part, parse({"store": str(root), **options})).choose(block)
    found: list[int] = block.queue_offsets.tolist()
    return found


def test_a_log_alone(tmp_path: Path) -> None:
    assert chosen(tmp_path, Windows(), -1) == list(range(10))
    assert chosen(tmp_path, Windows(), -1, topic="T") == list(range(10))
    assert chosen(tmp_path, Windows(), -1, topic="other") == []
    assert chosen(tmp_path, Windows(), -1, filter="other") == []


def test_windows(tmp_path: Path) -> None:
    windows = Windows(by_queue={("T", 3): Window(2, 7, 30, 60)})
    assert chosen(tmp_path, windows, -1) == [3, 4, 5]
    assert chosen(tmp_path, Windows(Window(stop=2)), -1) == [0, 1]
    assert chosen(tmp_path, Windows(), -1, assign='{"T": {"b": [3]}}') == list(range(10))
    assert chosen(tmp_path, Windows(), -1, assign='{"T": {"b": [4]}}') == []


def test_a_queue_that_is_not_there(tmp_path: Path) -> None:
    # Records of plain_record lie every 200 bytes: those behind 1 000 may not be in queues yet.
    assert chosen(tmp_path, Windows(), 1_000) == [5, 6, 7, 8, 9]
