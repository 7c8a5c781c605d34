"""What Spark carries from the plan to a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from cometmq.spark.read.planning import Range


class QueueRanges(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, parts: tuple[Range, ...]) -> None:
        super().__init__(parts)


def ranges_of(partition: InputPartition) -> tuple[Range, ...]:
    """The ranges of a task; Spark sends a partition of nothing where a plan gave no task."""
    return partition.value if isinstance(partition, QueueRanges) else ()
