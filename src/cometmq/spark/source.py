"""The data source ``rocketmq``: what Spark calls first, in many short-lived processes.

Every Spark session of a machine imports this module when it looks for Python data sources, used or
not. So it imports nothing but Spark until it is used, and an installation without the extra
``spark`` disturbs nobody. Options are read when a reader is made, so that a bad one fails the query
before any task runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from cometmq.spark.read.stream import TopicStreamReader
    from cometmq.spark.write.writer import TopicStreamWriter, TopicWriter


class TopicSource(DataSource):
    """``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")``."""

    @classmethod
    def name(cls) -> str:
        """The name that users give to ``format``."""
        return "rocketmq"

    def schema(self) -> str:
        """All columns; a user's own schema may name fewer."""
        from cometmq.spark.schema import CORRUPT, DDL

        lets_bad_rows_through = self.options.get("mode", "").strip().upper() == "PERMISSIVE"
        return f"{DDL}, {CORRUPT.name} {CORRUPT.spark}" if lets_bad_rows_through else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch read, of topics or of store directories. Raises BadOption, BadSchema."""
        if "store" in self.options:
            return self._store_reader(schema)
        from cometmq.spark.read.batch import TopicReader
        from cometmq.spark.read.options import parse
        from cometmq.spark.schema import selected

        return TopicReader(parse(self.options), selected(schema))

    def _store_reader(self, schema: StructType) -> DataSourceReader:
        from cometmq.spark.schema import selected
        from cometmq.spark.store.batch import StoreReader
        from cometmq.spark.store.options import parse

        return StoreReader(parse(self.options), selected(schema))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        """For a stream. Raises BadOption, BadSchema."""
        from cometmq.spark.read.options import for_stream, parse
        from cometmq.spark.read.stream import TopicStreamReader
        from cometmq.spark.schema import selected

        return TopicStreamReader(for_stream(parse(self.options)), selected(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """For a batch write. Raises BadOption, BadSchema."""
        from cometmq.spark.write.columns import check
        from cometmq.spark.write.options import appending
        from cometmq.spark.write.writer import TopicWriter

        options = appending(self.options, overwrite=overwrite)
        check(schema, options.topic)
        return TopicWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """For a stream. Raises BadOption, BadSchema."""
        from cometmq.spark.write.columns import check
        from cometmq.spark.write.options import appending
        from cometmq.spark.write.writer import TopicStreamWriter

        options = appending(self.options, overwrite=overwrite)
        check(schema, options.topic)
        return TopicStreamWriter(options)
