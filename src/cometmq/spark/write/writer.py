"""The writers that Spark calls: tasks send rows, and the driver logs the totals.

A task ends only when every row is stored, so all rows of a committed batch are in the topic. Rows
that a failed task sent stay in the topic. When Spark repeats the task or the batch, they are sent
again with the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from cometmq.spark.write.rows import Encoder, Ids, Origin
from cometmq.spark.write.sender import Sender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cometmq.spark.write.options import WriteOptions

log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The result of one task: rows and bytes stored, requests retried."""

    rows: int
    size_bytes: int
    retries: int


class TopicWriter(DataSourceArrowWriter):
    """Writer of ``df.write``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        #: The same for all tasks and their repetitions, because Spark pickles the writer.
        self._run = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task. Raises BadRow and SendFailed."""
        return write_rows(iterator, self._options, self._run)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the totals. The tasks have stored all rows already."""
        _report(messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: rows that were sent stay in the topic."""


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writer of ``writeStream``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task of a micro-batch. Raises BadRow and SendFailed."""
        return write_rows(iterator, self._options, self._run)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the totals; all rows are stored already."""
        _report(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: rows that were sent stay in the topic, and the batch is repeated with the
        same ids."""


def write_rows(iterator: Iterator[pa.RecordBatch], options: WriteOptions, run: str) -> Written:
    """Store the rows of one task. ``run`` is the id of the write, used as the origin of rows if
    there is no query. Raises BadRow and SendFailed."""
    origin = _origin(options, run)
    encoder, sender = Encoder(options, Ids(origin)), Sender(options, origin.task)
    try:
        for batch in iterator:
            for message in encoder.messages(batch):
                sender.add(message)
        sender.finish()
    finally:
        sender.close()
    return Written(sender.rows, sender.size_bytes, sender.retries)


def _origin(options: WriteOptions, run: str) -> Origin:
    """Return the origin of the task's rows, which is the same each time Spark repeats the task."""
    context = TaskContext.get()
    if context is None:
        return Origin(options.query or run, options.batch or 0, 0)
    query = options.query or context.getLocalProperty(QUERY_ID)
    if not query:
        return Origin(run, 0, context.partitionId())
    batch = options.batch
    if batch is None:
        batch = int(context.getLocalProperty(BATCH_ID) or 0)
    return Origin(query, batch, context.partitionId())


def _report(messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    log.info(
        "topic_written batch=%s rows=%d bytes=%d retries=%d",
        batch,
        sum(each.rows for each in done),
        sum(each.size_bytes for each in done),
        sum(each.retries for each in done),
    )


def topic_sink(options: Mapping[str, str], *, name: str = "") -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each micro-batch to topics.

    ``options`` are those of ``df.write.format("rocketmq")``. For rows that were not read from a
    topic, ids are derived from the query's id (the same as long as its checkpoint exists),
    ``name``, and the number of the micro-batch. If a query writes to the same topic with several
    sinks, give each sink its own name.
    """

    def write(rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
        origin = "/".join(part for part in (query, name) if part)
        writer = rows.write.format("rocketmq").mode("append").options(**options)
        if origin:
            writer = writer.option("queryId", origin).option("batchId", str(batch))
        writer.save()

    return write
