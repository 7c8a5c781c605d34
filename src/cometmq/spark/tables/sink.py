"""A micro-batch is applied once: the one rule that every kind of table shares.

Spark gives a micro-batch again, with the same number, when it does not know whether it was done:
the driver died, or a task failed late. A table notes the query and the number of each batch in the
same step that makes the batch's rows visible. So a batch that comes again is known by its number,
and neither can the note be there without the rows nor the rows without the note.

A kind of table is a :class:`TableSink`: it says which batch it has last, and writes one.
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
    """Which micro-batch of which query; a query's id lives as long as its checkpoint."""

    query: str
    batch: int


class TableSink(ABC):
    """A table that micro-batches are appended to or merged into: ``foreachBatch(sink)``."""

    @abstractmethod
    def last(self, spark: SparkSession, query: str) -> int:
        """The highest batch of a query that the table holds, NO_BATCH before its first."""

    @abstractmethod
    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Make rows and mark visible in one step; nothing of both when this raises.

        False when it turned out that the table has the batch already: another driver of the same
        checkpoint, which was thought dead, was faster. Then nothing is changed.
        """

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """What ``foreachBatch`` calls."""
        spark = rows.sparkSession
        query = spark.sparkContext.getLocalProperty(_QUERY_ID) or ""
        self.apply(rows, Mark(query, batch))

    def apply(self, rows: DataFrame, mark: Mark) -> bool:
        """Write a batch unless the table has it; whether it was written."""
        if mark.batch <= self.last(rows.sparkSession, mark.query):
            log.info("batch_known table=%s query=%s batch=%d", self, *mark)
            return False
        return self.write(rows, mark)
