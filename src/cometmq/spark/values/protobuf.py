"""Protobuf bodies, decoded with a FileDescriptorSet, without generated code."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from cometmq.core.errors import SettingsError
from cometmq.spark.values.formats import BadValue

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message as ProtobufMessage

    from cometmq.spark.values.formats import Decoder

_TIMESTAMP: Final = "google.protobuf.Timestamp"


@dataclass(frozen=True, slots=True)
class Protobuf:
    """Protobuf messages of the type ``message``, a full name such as ``shop.Order``.

    ``descriptors`` is a FileDescriptorSet, as ``protoc --include_imports --descriptor_set_out``
    writes it.
    """

    descriptors: bytes = field(repr=False)
    message: str

    def spark_type(self) -> t.StructType:
        """Return the type of the message. Raises SettingsError for an unknown message, and for one
        that contains itself."""
        return _protobuf_type(self._type().DESCRIPTOR, ())

    def decoder(self) -> Decoder:
        """Return a decoder, to dicts. A field that has presence and is not set becomes None."""
        from google.protobuf.message import DecodeError

        kind = self._type()

        def decode(body: bytes) -> Any:
            try:
                return _protobuf_value(kind.FromString(body))
            except (DecodeError, ValueError, OverflowError) as error:
                raise BadValue(f"not Protobuf of {self.message}: {error}") from None

        return decode

    def _type(self) -> type[ProtobufMessage]:
        return _protobuf_class(self.descriptors, self.message)


@lru_cache(maxsize=64)
def _protobuf_class(descriptors: bytes, message: str) -> type[ProtobufMessage]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        found = pool.FindMessageTypeByName(message)
    except Exception as error:  # the library raises its own kinds for bad sets and for names
        raise SettingsError("Protobuf", f"{message!r} is not in the descriptors: {error}") from None
    kind: type[ProtobufMessage] = message_factory.GetMessageClass(found)
    return kind


def _protobuf_type(kind: Descriptor, inside: tuple[str, ...]) -> t.StructType:
    if kind.full_name in inside:
        raise SettingsError("Protobuf", f"the message {kind.full_name} contains itself")
    within = (*inside, kind.full_name)
    return t.StructType(
        [t.StructField(each.name, _field_type(each, within)) for each in kind.fields]
    )


def _is_map(of: FieldDescriptor) -> bool:
    return bool(of.message_type and of.message_type.GetOptions().map_entry)


def _field_type(of: FieldDescriptor, inside: tuple[str, ...]) -> t.DataType:
    if _is_map(of):
        names = of.message_type.fields_by_name
        return t.MapType(_single_type(names["key"], inside), _single_type(names["value"], inside))
    found = _single_type(of, inside)
    return t.ArrayType(found) if of.is_repeated else found


def _single_type(of: FieldDescriptor, inside: tuple[str, ...]) -> t.DataType:
    if of.message_type is not None:
        if of.message_type.full_name == _TIMESTAMP:
            return t.TimestampType()
        return _protobuf_type(of.message_type, inside)
    kinds: dict[int, t.DataType] = {
        of.CPPTYPE_INT32: t.IntegerType(),
        of.CPPTYPE_INT64: t.LongType(),
        of.CPPTYPE_UINT32: t.LongType(),
        of.CPPTYPE_UINT64: t.DecimalType(20, 0),
        of.CPPTYPE_DOUBLE: t.DoubleType(),
        of.CPPTYPE_FLOAT: t.FloatType(),
        of.CPPTYPE_BOOL: t.BooleanType(),
        of.CPPTYPE_ENUM: t.StringType(),
        of.CPPTYPE_STRING: t.BinaryType() if of.type == of.TYPE_BYTES else t.StringType(),
    }
    return kinds[of.cpp_type]


def _protobuf_value(message: ProtobufMessage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for of in message.DESCRIPTOR.fields:
        if of.has_presence and not message.HasField(of.name):
            found[of.name] = None
            continue
        value = getattr(message, of.name)
        if _is_map(of):
            kind = of.message_type.fields_by_name["value"]
            found[of.name] = [(key, _single_value(kind, value[key])) for key in value]
        elif of.is_repeated:
            found[of.name] = [_single_value(of, each) for each in value]
        else:
            found[of.name] = _single_value(of, value)
    return found


def _single_value(of: FieldDescriptor, value: Any) -> Any:
    if of.message_type is not None:
        if of.message_type.full_name == _TIMESTAMP:
            return value.ToDatetime()
        return _protobuf_value(value)
    if of.enum_type is not None:
        named = of.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if of.cpp_type == of.CPPTYPE_UINT64:
        return Decimal(value)
    return value
