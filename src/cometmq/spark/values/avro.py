"""Avro bodies, with one schema or with a schema registry as Kafka's clients use it.

offset  size  content of a body with a registry
     0     1  0
     1     4  id of the schema that wrote it, big-endian
     5  rest  the value
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from cometmq.core.errors import SettingsError
from cometmq.spark.values.formats import BadValue
from cometmq.spark.values.registry import Registry, SchemaUnknown

if TYPE_CHECKING:
    from cometmq.spark.values.formats import Decoder

_AVRO_TYPES: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
    "fixed": t.BinaryType(),
}
_AVRO_LOGICAL_TYPES: Final[dict[str, t.DataType]] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "local-timestamp-millis": t.TimestampNTZType(),
    "local-timestamp-micros": t.TimestampNTZType(),
    "uuid": t.StringType(),
}
_CONFLUENT_HEAD_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro datums of the record ``schema`` (JSON text).

    With ``registry``, the URL of a schema registry with Confluent's API, bodies begin with a zero
    byte and the 4-byte id of the schema that wrote them. ``schema`` is then the reader's schema; if
    it is empty, the newest version of ``subject`` is used.
    """

    schema: str = ""
    registry: str = ""
    subject: str = ""

    def __post_init__(self) -> None:
        if not self.schema and not (self.registry and self.subject):
            raise SettingsError("Avro", "needs schema, or registry and subject")

    def spark_type(self) -> t.StructType:
        """Return the type of the reader's schema. Raises SettingsError if it is not a record."""
        found = avro_type(_parsed_avro(self._reader_schema()))
        if not isinstance(found, t.StructType):
            raise SettingsError("Avro", "the schema of a body must be a record")
        return found

    def decoder(self) -> Decoder:
        """Return a decoder. It asks the registry for each schema id once per process.

        The decoder raises BadValue, and RegistryFailed if the registry does not answer.
        """
        reader = _parsed_avro(self._reader_schema())
        if not self.registry:
            return lambda body: _avro_datum(io.BytesIO(body), reader, reader, len(body))
        registry = Registry(self.registry)

        def decode(body: bytes) -> Any:
            if len(body) < _CONFLUENT_HEAD_BYTES or body[0]:
                raise BadValue("does not begin with a zero byte and the id of its schema")
            schema_id = int.from_bytes(body[1:_CONFLUENT_HEAD_BYTES], "big")
            try:
                writer = _parsed_avro(registry.schema(schema_id))
            except SchemaUnknown as error:
                raise BadValue(str(error)) from None
            stream = io.BytesIO(body)
            stream.seek(_CONFLUENT_HEAD_BYTES)
            return _avro_datum(stream, writer, reader, len(body))

        return decode

    def _reader_schema(self) -> str:
        return self.schema or Registry(self.registry).newest(self.subject)


@lru_cache(maxsize=256)
def _parsed_avro(schema: str) -> Any:
    from fastavro import parse_schema

    return parse_schema(json.loads(schema))


def _avro_datum(stream: io.BytesIO, writer: Any, reader: Any, size_bytes: int) -> Any:
    from fastavro import schemaless_reader

    try:
        value = schemaless_reader(stream, writer, reader)
    except Exception as error:  # fastavro raises exceptions of many types
        raise BadValue(f"not Avro of its schema: {type(error).__name__}: {error}") from None
    if stream.tell() != size_bytes:
        raise BadValue(f"{size_bytes - stream.tell()} bytes follow the Avro value")
    return value


def avro_type(schema: Any, inside: tuple[str, ...] = ()) -> t.DataType:
    """Return Spark's type of a schema that fastavro has parsed.

    ``inside`` names the records that contain the schema. A union of null and one other type becomes
    that type. Raises SettingsError for any other union, for an unknown type, and for a record that
    contains itself.
    """
    return _TypeReader().read(schema, inside)


class _TypeReader:
    """Converts one schema. It remembers named types, since later parts refer to them by name."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def read(self, schema: Any, inside: tuple[str, ...]) -> t.DataType:
        """Return the type of a part of the schema; ``inside`` names the records that contain it."""
        if isinstance(schema, list):
            branches = [branch for branch in schema if branch != "null"]
            if len(branches) != 1:
                raise SettingsError("Avro", f"a union of {branches} has no type in Spark")
            return self.read(branches[0], inside)
        if isinstance(schema, str):
            return self._plain(schema, inside)
        if (logical := _logical_type(schema)) is not None:
            return logical
        kind = schema["type"]
        if kind == "array":
            return t.ArrayType(self.read(schema["items"], inside))
        if kind == "map":
            return t.MapType(t.StringType(), self.read(schema["values"], inside))
        if "name" in schema:
            self._named[schema["name"]] = schema
        return self._record(schema, inside) if kind == "record" else self.read(kind, inside)

    def _plain(self, name: str, inside: tuple[str, ...]) -> t.DataType:
        if name in inside:
            raise SettingsError("Avro", f"the record {name} contains itself")
        if name in self._named:
            return self.read(self._named[name], inside)
        if name not in _AVRO_TYPES:
            raise SettingsError("Avro", f"the type {name!r} is unknown")
        return _AVRO_TYPES[name]

    def _record(self, schema: Any, inside: tuple[str, ...]) -> t.DataType:
        within = (*inside, schema["name"])
        fields = [(each["name"], self.read(each["type"], within)) for each in schema["fields"]]
        return t.StructType([t.StructField(name, kind) for name, kind in fields])


def _logical_type(schema: Any) -> t.DataType | None:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    return _AVRO_LOGICAL_TYPES.get(logical)
