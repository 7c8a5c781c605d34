"""Parts of logs and queues, shared among tasks."""

import pickle

from cometmq.spark.store.files import LogFileStatus
from cometmq.spark.store.options import RequestedRanges, StoreRoot
from cometmq.spark.store.planning import LogPart, QueuePart, cut_log, join, log_parts, queue_parts

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


def test_a_piece_of_a_log_counts_the_records_that_the_whole_counts() -> None:
    places = {"t": {0: 5, 1: 40, 2: 70, 9: 12}, "u": {3: 95}}
    whole = LogPart(ROOT, FILES[0], 0, 100, RequestedRanges(), 60, places)
    pieces = cut_log(whole, 25)
    assert [(piece.start, piece.stop) for piece in pieces] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
    ]
    for piece in pieces:
        for topic, queue_id in (
            ("t", 0),
            ("t", 1),
            ("t", 2),
            ("t", 5),
            ("t", 9),
            ("u", 3),
            ("v", 0),
        ):
            counted = [
                at >= whole.first_of(topic, queue_id) for at in range(piece.start, piece.stop)
            ]
            assert counted == [
                at >= piece.first_of(topic, queue_id) for at in range(piece.start, piece.stop)
            ]


def test_tasks_of_a_log_of_many_queues_are_small() -> None:
    places = {f"topic-{topic}": {at: topic * 100 + at for at in range(100)} for topic in range(800)}
    file = LogFileStatus("/s/0", 0, 1 << 20)
    whole = LogPart(ROOT, file, 0, 1 << 20, RequestedRanges(), 1 << 19, places)
    sizes = [len(pickle.dumps(piece)) for piece in cut_log(whole, 1 << 17)]
    assert len(pickle.dumps(whole)) > 400_000
    assert all(size < 30_000 for size in sizes[1:])
    assert all(size < 1_000 for size in sizes[4:])
