"""Adds decoded bodies to messages: a column with the value, and one with the reason if it is null.

No message is dropped: a body that cannot be decoded has a null ``value`` and the reason in
``undecodable``. :func:`dead_letters` turns such rows into messages for another topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from cometmq.core.errors import SettingsError
from cometmq.spark.schema import UNDECODABLE, VALUE
from cometmq.spark.values.formats import MessagePack, ValueFormat, arrow_type, decoded_bodies

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON_PROPERTY: Final = "UNDECODABLE"
_CORRUPT: Final = "_as_it_was"
_ORIGIN: Final = {
    "topic": "ORIGIN_TOPIC",
    "broker_name": "ORIGIN_BROKER",
    "queue_id": "ORIGIN_QUEUE",
    "queue_offset": "ORIGIN_OFFSET",
}


def from_rocketmq(
    messages: DataFrame,
    schema: str | t.StructType | None = None,
    *,
    format: ValueFormat | str = "json",
    counted_as: str = "",
) -> DataFrame:
    """Return the messages with two more columns: ``value``, a struct, and ``undecodable``.

    ``messages`` need a column ``body``. ``schema`` is the type of the values as DDL or StructType;
    formats that know their type, Avro and Protobuf, need none. ``format`` is "json", "msgpack", or
    a :class:`ValueFormat`. With ``counted_as``, the progress of a streaming query has the metrics
    ``rows`` and ``undecodable`` under that name (``observedMetrics``).

    Raises SettingsError for a missing schema or body, and for an unknown format.
    """
    if "body" not in messages.columns:
        raise SettingsError("messages", "need the column body: name it in the schema of the read")
    taken = {VALUE, UNDECODABLE} & set(messages.columns)
    if taken:
        raise SettingsError("messages", f"have a column {min(taken)!r} already: rename it")
    if format == "json":
        rows = _from_json(messages, _struct(schema, None))
    elif format == "msgpack":
        rows = _from_python(messages, _struct(schema, None), MessagePack())
    elif isinstance(format, str):
        raise SettingsError("format", f"{format!r} is neither json, msgpack nor a ValueFormat")
    else:
        rows = _from_python(messages, _struct(schema, format), format)
    if counted_as:
        failed = f.count(f.col(UNDECODABLE)).alias(UNDECODABLE)
        rows = rows.observe(counted_as, f.count(f.lit(1)).alias("rows"), failed)
    return rows


def dead_letters(rows: DataFrame, topic: str) -> DataFrame:
    """Return the rows that could not be decoded as messages for ``topic``.

    Write them with ``format("rocketmq")``. Each has the body, keys, tags and properties of the
    original, the property UNDECODABLE with the reason, and its origin in ORIGIN_TOPIC,
    ORIGIN_BROKER, ORIGIN_QUEUE and ORIGIN_OFFSET, as far as ``rows`` have these columns.
    """
    failed = rows.where(f.col(UNDECODABLE).isNotNull())
    given: list[Column] = [f.lit(REASON_PROPERTY), f.col(UNDECODABLE)]
    for column, name in _ORIGIN.items():
        if column in rows.columns:
            given += [f.lit(name), f.col(column).cast("string")]
    properties = f.create_map(*given)
    if "properties" in rows.columns:
        own = f.array(*(f.lit(name) for name in (REASON_PROPERTY, *_ORIGIN.values())))
        kept = f.map_filter(
            f.coalesce("properties", f.create_map().cast("map<string,string>")),
            lambda name, _: ~f.array_contains(own, name),
        )
        properties = f.map_concat(kept, properties)
    kept_columns = [name for name in ("keys", "tags") if name in rows.columns]
    return failed.select(
        f.lit(topic).alias("topic"), "body", *kept_columns, properties.alias("properties")
    )


def _struct(schema: str | t.StructType | None, format: ValueFormat | None) -> t.StructType:
    if schema is None:
        found = None if format is None else format.spark_type()
        if found is None:
            raise SettingsError("schema", "is needed: the format does not say what values have")
        return found
    if isinstance(schema, t.StructType):
        return schema
    parsed = t.StructType.fromDDL(schema)
    assert isinstance(parsed, t.StructType)
    return parsed


def _from_json(messages: DataFrame, schema: t.StructType) -> DataFrame:
    # Spark replaces invalid UTF-8, which could make two different keys equal: report it instead.
    text = f.col("body").cast("string")
    is_text = f.is_valid_utf8(text)
    full = t.StructType([*schema.fields, t.StructField(_CORRUPT, t.StringType())])
    parsed = f.from_json(text, full, {"columnNameOfCorruptRecord": _CORRUPT})
    reason = (
        f.when(f.col("body").isNull() | (f.octet_length("body") == 0), "the body is empty")
        .when(~is_text, "not UTF-8")
        .when(f.col("_parsed").isNull(), "not a JSON object")
        .when(f.col("_parsed")[_CORRUPT].isNotNull(), "not JSON, or a field has another type")
    )
    value = f.struct(*(f.col("_parsed")[name].alias(name) for name in schema.names))
    return (
        messages.withColumn("_parsed", parsed)
        .withColumn(UNDECODABLE, reason)
        .withColumn(VALUE, f.when(f.col(UNDECODABLE).isNull(), value))
        .select(*messages.columns, VALUE, UNDECODABLE)
    )


def _from_python(messages: DataFrame, schema: t.StructType, format: ValueFormat) -> DataFrame:
    fields = [t.StructField(VALUE, schema), t.StructField(UNDECODABLE, t.StringType())]

    def decode(bodies: pa.Array) -> pa.Array:
        kind = arrow_type(schema)
        found = decoded_bodies(bodies, kind, format.decoder())
        return pa.StructArray.from_arrays(found, names=[VALUE, UNDECODABLE])

    # Spark's older interface for Arrow, mapInArrow, needs pandas and passes all columns through
    # Python. The cast is needed because the annotations of arrow_udf omit structs.
    decoded = cast("Any", arrow_udf)(decode, t.StructType(fields))
    return messages.withColumn("_decoded", decoded(f.col("body"))).select(
        *messages.columns, f.col("_decoded")[VALUE].alias(VALUE), f.col("_decoded")[UNDECODABLE]
        .alias(UNDECODABLE),
    )  # fmt: skip
