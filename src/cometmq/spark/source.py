"""The data source ``rocketmq``: what Spark calls first, in many short-lived processes.

Options are read when a reader is made, so that a bad one fails the query before any task runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from cometmq.spark.options import for_stream, parse
from cometmq.spark.reader import TopicReader
from cometmq.spark.schema import DDL, selected
from cometmq.spark.stream import TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TopicSource(DataSource):
    """``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")``."""

    @classmethod
    def name(cls) -> str:
        """The name that users give to ``format``."""
        return "rocketmq"

    def schema(self) -> str:
        """All columns; a user's own schema may name fewer."""
        return DDL

    def reader(self, schema: StructType) -> TopicReader:
        """For a batch read. Raises BadOption, BadSchema."""
        return TopicReader(parse(self.options), selected(schema))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        """For a stream. Raises BadOption, BadSchema."""
        return TopicStreamReader(for_stream(parse(self.options)), selected(schema))
