"""The data source ``rocketmq``: the class that Spark loads first, in many short-lived processes.

Every Spark session on a machine imports this module when it looks for Python data sources, even if
it never uses this one. At import, the module therefore loads only Spark; its functions import the
rest. An installation without the extra ``spark`` then raises no error. Options are parsed when a
reader is created, so that an invalid option fails the query before any task runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from cometmq.spark.read.stream import TopicStreamReader
    from cometmq.spark.values.columns import ValueColumns
    from cometmq.spark.values.options import ValueOptions
    from cometmq.spark.write.writer import TopicStreamWriter, TopicWriter


def _need_spark(needed: str, what: str) -> None:
    """Raise SparkTooOld if pyspark is older than ``needed`` ("4.2"), which ``what`` requires."""
    from cometmq.spark.options import SparkTooOld

    found = pyspark.__version__
    if _minor(found) < _minor(needed):
        raise SparkTooOld(what, found, needed)


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _columns(
    schema: StructType, options: ValueOptions | None
) -> tuple[tuple[str, ...], ValueColumns | None]:
    """Return the columns of messages that a read needs, and the decoder of bodies or None.

    Raises BadSchema, BadOption.
    """
    from cometmq.spark.schema import UNDECODABLE, VALUE, selected

    if options is None:
        return selected(schema), None
    from cometmq.spark.values.columns import value_columns

    selected(schema, without=(VALUE, UNDECODABLE))
    values = value_columns(options, schema)
    return (selected(schema), None) if values is None else (values.needed, values)


class TopicSource(DataSource):
    """``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name that users pass to ``format``."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the DDL of all columns. A schema that the user sets may name fewer. Raises
        BadOption if an option about the decoding of bodies is invalid."""
        from cometmq.spark.schema import CORRUPT, DDL
        from cometmq.spark.values.options import of_source

        parts = [DDL]
        if self.options.get("mode", "").strip().upper() == "PERMISSIVE":
            parts.append(f"{CORRUPT.name} {CORRUPT.spark}")
        values = of_source(self.options)
        if values is not None:
            from cometmq.spark.values.columns import ddl_of

            parts.append(ddl_of(values))
        return ", ".join(parts)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query: of topics, of store directories, or of several tiers.
        Raises BadOption, BadSchema."""
        from cometmq.spark.tiers.options import are_tiered

        if are_tiered(self.options):
            return self._tiered_reader(schema)
        if "store" in self.options:
            return self._store_reader(schema)
        from cometmq.spark.read.options import parse
        from cometmq.spark.read.reader import TopicReader

        options = parse(self.options)
        return TopicReader(options, *_columns(schema, options.values))

    def _store_reader(self, schema: StructType) -> DataSourceReader:
        from cometmq.spark.store.options import parse
        from cometmq.spark.store.reader import StoreReader

        options = parse(self.options)
        return StoreReader(options, *_columns(schema, options.values))

    def _tiered_reader(self, schema: StructType) -> DataSourceReader:
        from cometmq.spark.tiers.options import parse
        from cometmq.spark.tiers.reader import TieredReader

        options = parse(self.options)
        return TieredReader(options, *_columns(schema, options.values))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        """Return the reader of a stream. Raises BadOption, BadSchema, SparkTooOld."""
        _need_spark("4.2", "streams from topics")
        from cometmq.spark.read.options import for_stream, parse
        from cometmq.spark.read.stream import TopicStreamReader
        from cometmq.spark.tiers.options import refuse_stream

        refuse_stream(self.options)
        options = for_stream(parse(self.options))
        return TopicStreamReader(options, *_columns(schema, options.values))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return the writer of a batch. Raises BadOption, BadSchema, SparkTooOld."""
        _need_spark("4.1", "writes to topics")
        from cometmq.spark.write.options import appending
        from cometmq.spark.write.rows import check_columns
        from cometmq.spark.write.writer import TopicWriter

        options = appending(self.options, overwrite=overwrite)
        check_columns(schema, options.topic)
        return TopicWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """Return the writer of a stream. Raises BadOption, BadSchema, SparkTooOld."""
        _need_spark("4.1", "writes to topics")
        from cometmq.spark.write.options import appending
        from cometmq.spark.write.rows import check_columns
        from cometmq.spark.write.writer import TopicStreamWriter

        options = appending(self.options, overwrite=overwrite)
        check_columns(schema, options.topic)
        return TopicStreamWriter(options)
