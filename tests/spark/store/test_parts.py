"""Parts of logs and queues, shared among tasks."""

from cometmq.spark.store.files import LogFileStatus
from cometmq.spark.store.options import RequestedRanges, StoreRoot
from cometmq.spark.store.planning import QueuePart, join, log_parts, queue_parts

ROOT = StoreRoot("/s", "b")
FILES = [LogFileStatus("/s/0", 0, 100), LogFileStatus("/s/1", 100, 100)]


def test_a_log_is_cut_within_its_files() -> None:
    parts = log_parts(ROOT, FILES, 30, 150, RequestedRanges(), 0, 40)
    assert [(part.start, part.stop) for part in parts] == [
        (30, 70),
        (70, 100),
        (100, 140),
        (140, 150),
    ]
    assert [part.file.path for part in parts] == ["/s/0", "/s/0", "/s/1", "/s/1"]
    assert not log_parts(ROOT, FILES, 150, 150, RequestedRanges(), 0, 40)


def test_a_queue_is_cut_evenly() -> None:
    parts = queue_parts(QueuePart(ROOT, "t", 0, 10, 110, 50), 1_300)
    assert [(part.start, part.stop) for part in parts] == [(10, 35), (35, 60), (60, 85), (85, 110)]
    assert queue_parts(QueuePart(ROOT, "t", 0, 5, 5, 50), 10) == []
    assert len(queue_parts(QueuePart(ROOT, "t", 0, 0, 3, 50), 1)) == 3


def test_small_neighbours_share_a_task() -> None:
    parts = log_parts(ROOT, FILES, 0, 200, RequestedRanges(), 0, 30)
    assert [sum(part.size_bytes for part in each) for each in join(parts, 60)] == [60, 40, 60, 40]
    assert join([], 10) == []
