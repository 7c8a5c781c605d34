"""A function for ``foreachBatch`` that writes micro-batches to topics:
``foreachBatch(topic_sink(...))``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cometmq.spark.write.writer import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def topic_sink(options: Mapping[str, str], *, name: str = "") -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each micro-batch to topics.

    ``options`` are those of ``df.write.format("rocketmq")``. For rows that were not read from a
    topic, ids are derived from the query's id, which lives as long as its checkpoint, from
    ``name``, and from the number of the micro-batch. If a query writes to the same topic with
    several sinks, give each of them its own name.
    """

    def write(rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
        origin = "/".join(part for part in (query, name) if part)
        writer = rows.write.format("rocketmq").mode("append").options(**options)
        if origin:
            writer = writer.option("queryId", origin).option("batchId", str(batch))
        writer.save()

    return write
