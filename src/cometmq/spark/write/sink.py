"""Micro-batches to topics by a function of one's own: ``foreachBatch(topic_sink(...))``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cometmq.spark.write.writer import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def topic_sink(options: Mapping[str, str], *, name: str = "") -> Callable[[DataFrame, int], None]:
    """What ``foreachBatch`` takes, or calls among other things.

    ``options`` are those of ``df.write.format("rocketmq")``. The ids of rows that were not read
    from a topic are made of ``name`` and the number of the micro-batch; without a name of the
    query's own id, which lives as long as its checkpoint. Give each sink of one query that writes
    to the same topic a name of its own.
    """

    def write(rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
        origin = "/".join(part for part in (query, name) if part)
        writer = rows.write.format("rocketmq").mode("append").options(**options)
        if origin:
            writer = writer.option("queryId", origin).option("batchId", str(batch))
        writer.save()

    return write
