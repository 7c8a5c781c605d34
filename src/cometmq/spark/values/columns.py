"""The columns ``value`` and ``undecodable`` of a read whose options decode bodies.

Tasks decode each batch of messages as it arrives, so the rows pass through Python only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t

from cometmq.core.errors import SettingsError
from cometmq.spark.options import BadOption
from cometmq.spark.schema import BODY, UNDECODABLE, VALUE, BadSchema
from cometmq.spark.values.avro import Avro
from cometmq.spark.values.formats import MessagePack, ValueFormat, arrow_type, decoded_bodies
from cometmq.spark.values.jsonvalues import Json, python_type
from cometmq.spark.values.protobuf import Protobuf
from cometmq.spark.values.registry import Registry

if TYPE_CHECKING:
    from cometmq.spark.values.options import ValueOptions


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """Decoder of the bodies of a read. ``names`` are the columns of the read, ``kind`` is the type
    of the column ``value``."""

    names: tuple[str, ...]
    kind: t.StructType
    format: ValueFormat

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of messages that the read needs."""
        found = tuple(name for name in self.names if name not in (VALUE, UNDECODABLE))
        return found if BODY in found else (*found, BODY)

    def decode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns ``needed`` as batches of ``names``."""
        arrow = arrow_type(self.kind)
        for batch in batches:
            values, reasons = decoded_bodies(batch.column(BODY), arrow, self.format.decoder())
            columns = {VALUE: values, UNDECODABLE: reasons}
            arrays = [
                columns[name] if name in columns else batch.column(name) for name in self.names
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(self.names))


def ddl_of(options: ValueOptions) -> str:
    """Return the two columns as DDL. Raises BadOption if the options lack the schema of the values,
    and the errors of the format."""
    if options.format in ("json", "msgpack"):
        if not options.schema:
            raise BadOption("valueSchema", "is required, or a schema of the read with 'value'")
        fields = options.schema.strip()
        is_struct = fields.lower().startswith("struct<")
        kind = fields if is_struct else f"struct<{fields}>"
    else:
        found = _format(options, None).spark_type()
        assert found is not None
        kind = found.simpleString()
    return f"{VALUE} {kind}, {UNDECODABLE} string"


def value_columns(options: ValueOptions | None, schema: t.StructType) -> ValueColumns | None:
    """Return the decoder for a read with this schema; None if the read decodes no bodies.

    Raises BadSchema if ``value`` is missing or the type of a column does not fit, BadOption for a
    type that cannot be read from JSON, and the errors of the format.
    """
    asked = {VALUE, UNDECODABLE} & set(schema.names)
    if options is None or not asked:
        return None
    if VALUE not in asked:
        raise BadSchema(f"column {UNDECODABLE!r} needs the column {VALUE!r} in the schema")
    kind = schema[VALUE].dataType
    if not isinstance(kind, t.StructType):
        raise BadSchema(f"column {VALUE!r} must be a struct, not {kind.simpleString()}")
    if UNDECODABLE in asked and not isinstance(schema[UNDECODABLE].dataType, t.StringType):
        raise BadSchema(f"column {UNDECODABLE!r} is string")
    if '"nullable":false' in (text := schema.json()) or 'ontainsNull":false' in text:
        raise BadSchema(f"nothing in column {VALUE!r} can be declared NOT NULL")
    format = _format(options, kind)
    own = format.spark_type()
    if own is not None and own.simpleString() != kind.simpleString():
        raise BadSchema(f"column {VALUE!r} is {own.simpleString()}, not {kind.simpleString()}")
    return ValueColumns(tuple(schema.names), kind, format)


def _format(options: ValueOptions, kind: t.StructType | None) -> ValueFormat:
    """Return the format that the options name. ``kind`` is the type of the values, if it is
    known."""
    try:
        match options.format:
            case "json":
                assert kind is not None
                python_type(kind)
                return Json(kind)
            case "msgpack":
                return MessagePack()
            case "avro":
                schema = options.schema or Registry(options.registry).newest(options.subject)
                # Every task reads into the schema that the read was planned with.
                return Avro(schema, options.registry, options.subject)
            case _:
                return Protobuf(options.descriptors, options.message)
    except SettingsError as error:
        raise BadOption("valueFormat", f"{options.format}: {error}") from None
