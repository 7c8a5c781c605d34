"""What travels from the plan to a task."""

import pickle

from pyspark.sql.datasource import InputPartition

from cometmq.message.model import MessageQueue
from cometmq.spark.read.partition import QueueRanges, ranges_of
from cometmq.spark.read.planning import Range


def test_ranges_survive_the_journey() -> None:
    parts = (Range(MessageQueue("T", "broker-a", 1), 3, 9), Range(MessageQueue("T", "b", 0), 0, 1))
    assert ranges_of(pickle.loads(pickle.dumps(QueueRanges(parts)))) == parts


def test_a_plan_without_tasks_reads_nothing() -> None:
    assert ranges_of(InputPartition(None)) == ()
