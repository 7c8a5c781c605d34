"""Decoder of JSON bodies in Python, for the option ``valueFormat=json`` of the data source.

decoding.py decodes JSON with Spark's own functions, which a data source in Python cannot call. This
decoder is stricter: it accepts no number for a text, and no text for a number.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final, TypedDict

import msgspec
from pyspark.sql import types as t

from cometmq.core.errors import SettingsError
from cometmq.spark.values.formats import BadValue, Decoder

_BITS: Final[dict[str, int]] = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_PLAIN: Final[dict[str, Any]] = {
    "boolean": bool,
    "float": float,
    "double": float,
    "decimal": Decimal,
    "string": str,
    "binary": bytes,
    "date": datetime.date,
    "timestamp": datetime.datetime,
    "timestamp_ntz": datetime.datetime,
}


@dataclass(frozen=True, slots=True)
class Json:
    """JSON objects with the fields of ``schema``. A missing field is null; unknown fields are
    ignored."""

    schema: t.StructType

    def spark_type(self) -> t.StructType:
        """Return the schema."""
        return self.schema

    def decoder(self) -> Decoder:
        """Return a decoder. Raises SettingsError for a type that cannot be read from JSON."""
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(python_type(self.schema))

        def decode(body: bytes) -> Any:
            if not body:
                raise BadValue("the body is empty")
            try:
                return decoder.decode(body)
            except msgspec.ValidationError as error:
                raise BadValue(f"a field has another type: {error}") from None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadValue(f"not JSON: {error}") from None

        return decode


def python_type(kind: t.DataType) -> Any:
    """Return the Python type that msgspec shall decode for a column. Raises SettingsError."""
    if isinstance(kind, t.StructType):
        # A TypedDict, because its fields may have any name; a class allows only identifiers.
        fields = {field.name: python_type(field.dataType) | None for field in kind}
        return TypedDict("Fields", fields, total=False)  # type: ignore[operator]
    if isinstance(kind, t.ArrayType):
        return list[python_type(kind.elementType) | None]  # type: ignore[misc]
    if isinstance(kind, t.MapType):
        return dict[python_type(kind.keyType), python_type(kind.valueType) | None]  # type: ignore[misc]
    name = kind.typeName()
    if name in _BITS:
        edge = 1 << (_BITS[name] - 1)
        return Annotated[int, msgspec.Meta(ge=-edge, le=edge - 1)]
    if name not in _PLAIN:
        raise SettingsError("valueSchema", f"{kind.simpleString()} cannot be read from JSON")
    return _PLAIN[name]
