"""``spark.read`` with option ``store``: messages read directly from the files of stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.frozen import keep_loaded
from cometmq.spark.store.rows import batches
from cometmq.spark.store.survey import plan

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.store.options import StoreOptions
    from cometmq.spark.store.planning import Part


class StoreParts(InputPartition):
    """The parts that one task reads."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        super().__init__(parts)


class StoreReader(DataSourceReader):
    """Reads store directories, planned once."""

    def __init__(self, options: StoreOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task. Raises NoStore, BadOption, DataLoss, OSError."""
        keep_loaded()
        return [StoreParts(parts) for parts in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises the errors of rows.batches."""
        keep_loaded()
        # If the plan has no task, Spark sends a partition that is no StoreParts.
        parts = partition.value if isinstance(partition, StoreParts) else ()
        return batches(parts, self._options, self._names)
