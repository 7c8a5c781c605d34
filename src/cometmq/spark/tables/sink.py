"""The rule that all kinds of tables share: a micro-batch is applied exactly once.

Spark repeats a micro-batch, with the same number, if it does not know whether it was done: the
driver died, or a task failed late. A table records the query and the number of each batch in the
same step that makes the batch's rows visible. So a repeated batch is recognized by its number, and
there is never a record without rows or rows without a record.

A kind of table is a :class:`TableSink`: it returns its last batch, and writes one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

NO_BATCH: Final = -1
_QUERY_ID: Final = "sql.streaming.queryId"


class Mark(NamedTuple):
    """A micro-batch of a query. A query's id lives as long as its checkpoint."""

    query: str
    batch: int


class TableSink(ABC):
    """A table that micro-batches are appended to or merged into: ``foreachBatch(sink)``."""

    @abstractmethod
    def last(self, spark: SparkSession, query: str) -> int:
        """Return the highest batch of a query in the table, NO_BATCH before its first."""

    @abstractmethod
    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Make rows and mark visible in one step, or neither if this raises.

        Return False, and change nothing, if the table turns out to have the batch already, because
        another driver of the same checkpoint, which was presumed dead, was faster.
        """

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a micro-batch; called by ``foreachBatch``."""
        spark = rows.sparkSession
        query = spark.sparkContext.getLocalProperty(_QUERY_ID) or ""
        self.apply(rows, Mark(query, batch))

    def apply(self, rows: DataFrame, mark: Mark) -> bool:
        """Write a batch unless the table has it. Return whether it was written."""
        if mark.batch <= self.last(rows.sparkSession, mark.query):
            log.info("batch_already_written table=%s query=%s batch=%d", self, *mark)
            return False
        return self.write(rows, mark)
