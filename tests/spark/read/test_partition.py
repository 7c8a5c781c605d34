"""What travels from the plan to a task."""

import pickle

from pyspark.sql.datasource import InputPartition

from cometmq.message.model import MessageQueue
from cometmq.spark.read.planning import TASK_ROWS_MAX, Range
from cometmq.spark.read.reader import QueueRanges, partitions_of, ranges_of
from tests.spark.topics import options


def test_ranges_survive_the_journey() -> None:
    parts = (Range(MessageQueue("T", "broker-a", 1), 3, 9), Range(MessageQueue("T", "b", 0), 0, 1))
    assert ranges_of(pickle.loads(pickle.dumps(QueueRanges(parts)))) == parts


def test_a_plan_without_tasks_reads_nothing() -> None:
    assert ranges_of(InputPartition(None)) == ()


def test_a_batch_read_has_larger_tasks_than_a_micro_batch() -> None:
    todo = [Range(MessageQueue("T", "broker-a", at), 0, 25_000) for at in range(8)]
    given = options("127.0.0.1:9876", "T")
    assert len(partitions_of(todo, given)) == 4
    assert len(partitions_of(todo, given, rows_min=TASK_ROWS_MAX)) == 1
    asked = options("127.0.0.1:9876", "T", minPartitions="6")
    assert len(partitions_of(todo, asked, rows_min=TASK_ROWS_MAX)) == 8
