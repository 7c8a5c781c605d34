"""The partition that Spark carries from the plan to a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from cometmq.spark.read.planning import TASK_ROWS_MIN, tasks

if TYPE_CHECKING:
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range


class QueueRanges(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, parts: tuple[Range, ...]) -> None:
        super().__init__(parts)


def ranges_of(partition: InputPartition) -> tuple[Range, ...]:
    """Return the ranges of a task. If the plan has no task, Spark sends a partition that is no
    QueueRanges."""
    return partition.value if isinstance(partition, QueueRanges) else ()


def planned(
    todo: Iterable[Range], options: ReadOptions, *, rows_min: int = TASK_ROWS_MIN
) -> list[InputPartition]:
    """Return the partitions of a plan: ranges split as the options say, and joined up to
    ``rows_min`` messages."""
    parts = tasks(
        todo,
        tasks_min=options.min_partitions,
        rows_max=options.max_rows_per_partition,
        rows_min=rows_min,
    )
    return [QueueRanges(part) for part in parts]
