"""The reader that Spark calls for a batch read of several tiers.

The read is planned once. Each task reads one tier, with the same code as a read of that tier alone,
so that rows and filters are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.read.discovery import BATCH_OUTAGE_MS, wait_for_brokers
from cometmq.spark.read.planning import TASK_ROWS_MAX
from cometmq.spark.read.reader import QueueRanges, partitions_of, rows_of_task, sampled_bytes
from cometmq.spark.store.planning import tasks_of
from cometmq.spark.store.reader import StoreParts, batches
from cometmq.spark.tiers.archivefiles import rows_of_file
from cometmq.spark.tiers.holdings import Tier
from cometmq.spark.tiers.planning import ArchivePart, TieredPlan, archive_tasks, plan
from cometmq.spark.workermemory import keep_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from cometmq.spark.read.pushdown import Pushed
    from cometmq.spark.tiers.options import TieredOptions
    from cometmq.spark.values.columns import ValueColumns


class ArchiveParts(InputPartition):
    """The parts of archive files that one task reads."""

    def __init__(self, parts: tuple[ArchivePart, ...]) -> None:
        super().__init__(parts)


class TieredReader(DataSourceReader):
    """Reads every message between two positions once, from the first tier that holds it."""

    def __init__(
        self, options: TieredOptions, names: tuple[str, ...], values: ValueColumns | None = None
    ) -> None:
        self._options = options
        self._names = names
        self._values = values
        self._pushed: Pushed | None = None
        if options.pushes_filters and hasattr(DataSourceReader, "pushFilters"):
            # pyspark 4.0 cannot push filters down and lacks the classes that pushdown.py imports.
            from cometmq.spark.read.pushdown import Push

            self.pushFilters = Push(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Iterable[Filter]) -> list[Filter]:
        from cometmq.spark.read.pushdown import split_filters

        options = self._options
        self._pushed, rest = split_filters(filters, options.row_filter)
        chosen = self._pushed.row_filter
        self._options = replace(
            options,
            row_filter=chosen,
            store=None if options.store is None else replace(options.store, row_filter=chosen),
            live=None if options.live is None else replace(options.live, row_filter=chosen),
        )
        return rest

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task. Raises the errors of :func:`planning.plan`."""
        keep_loaded()
        if self._options.live is None:
            return self._partitions()
        outage = self._options.live.outage
        return wait_for_brokers(self._partitions, outage, BATCH_OUTAGE_MS)

    def _partitions(self) -> list[InputPartition]:
        return partitions(plan(self._options, self._pushed), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises the errors of the tier that it reads."""
        found = self._rows(partition)
        if self._values is None or isinstance(partition, QueueRanges):
            return found
        return self._values.decode(found)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        if isinstance(partition, QueueRanges):
            assert options.live is not None
            return rows_of_task(partition, options.live, self._names, self._values)
        keep_loaded()
        if isinstance(partition, StoreParts):
            assert options.store is not None
            return batches(partition.value, options.store, self._names)
        # If the plan has no task, Spark sends a partition of another class.
        parts = partition.value if isinstance(partition, ArchiveParts) else ()
        return archived_rows(parts, self._names, options)


def archived_rows(
    parts: Iterable[ArchivePart], names: tuple[str, ...], options: TieredOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task that reads files of the archive."""
    for part in parts:
        yield from rows_of_file(part.file, part.ranges, names, options)


def partitions(planned: TieredPlan, options: TieredOptions) -> list[InputPartition]:
    """Return the partitions of a plan. Option minPartitions is shared among the tiers in proportion
    to their messages."""
    total = max(1, sum(planned.rows.values()))
    tasks_min = {
        tier: max(1, -(-options.min_partitions * rows // total))
        for tier, rows in planned.rows.items()
    }
    found: list[InputPartition] = [
        ArchiveParts(task)
        for task in archive_tasks(
            planned.archive,
            tasks_min=tasks_min[Tier.ARCHIVE],
            rows_max=options.max_rows_per_partition,
            bytes_max=options.max_bytes_per_partition,
        )
    ]
    if options.store is not None:
        of_store = replace(options.store, min_partitions=tasks_min[Tier.STORE])
        found += [StoreParts(task) for task in tasks_of(planned.stores, of_store)]
    if options.live is not None:
        live = replace(options.live, min_partitions=tasks_min[Tier.LIVE])
        mean = sampled_bytes(planned.live, live.access)
        found += partitions_of(planned.live, live, rows_min=TASK_ROWS_MAX, mean_bytes=mean)
    return found
