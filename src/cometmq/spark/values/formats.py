"""Formats of message bodies: the Spark type of their values, and the decoder.

In :func:`decoding.from_rocketmq`, Spark itself decodes JSON. All other decoding uses a ValueFormat:
it is pickled to the executors, and ``decoder()`` is called there once for each Arrow batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import types as t

_REASON_CHARS_MAX: Final = 1_000

Decoder = Callable[[bytes], Any]
"""Function from a body to its value: dicts, lists and plain values. Raises BadValue."""


class BadValue(ValueError):
    """Raised by a decoder if a body is not a value of its format. The text is the reason."""


class ValueFormat(Protocol):
    """A format of bodies."""

    def spark_type(self) -> t.StructType | None:
        """Return the Spark type of the values; None if the user has to specify it."""
        ...

    def decoder(self) -> Decoder:
        """Return a decoder. It is called on an executor."""
        ...


@dataclass(frozen=True, slots=True)
class MessagePack:
    """MessagePack maps whose keys are the names of fields."""

    def spark_type(self) -> t.StructType | None:
        """Return None: MessagePack has no schema."""
        return None

    def decoder(self) -> Decoder:
        """Return a decoder of one value that fills the whole body."""

        def decode(body: bytes) -> Any:
            try:
                return msgspec.msgpack.decode(body)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadValue(f"not MessagePack: {error}") from None

        return decode


def arrow_type(kind: t.DataType) -> pa.DataType:
    """Return the Arrow type of values, with timestamps in UTC. Older versions of Spark always use
    UTC and have no parameter for the time zone."""
    from pyspark.sql.pandas.types import to_arrow_type

    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
    found: pa.DataType = to_arrow_type(kind, **cast("Any", zone))
    return found


def decoded_bodies(
    bodies: pa.Array, kind: pa.DataType, decode: Decoder
) -> tuple[pa.Array, pa.Array]:
    """Return the values of bodies as an Arrow array of type ``kind``, and the reasons of null ones.

    If a body or one of its fields does not fit the type, the value is null. BadValue is not raised.
    """
    values: list[Any] = []
    reasons: list[str | None] = []
    for body in bodies.to_pylist():
        value, reason = None, None
        try:
            value = decode(body or b"")
            reason = "the value is null" if value is None else None
        except BadValue as error:
            reason = str(error)[:_REASON_CHARS_MAX]
        values.append(value)
        reasons.append(reason)
    column = _column(values, reasons, kind)
    return column, pa.array(reasons, pa.string())


def _column(values: list[Any], reasons: list[str | None], kind: pa.DataType) -> pa.Array:
    """Return the values as Arrow; a value of another type becomes null and gets a reason."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for at, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                values[at] = None
                reasons[at] = f"a field has another type: {error}"[:_REASON_CHARS_MAX]
    return pa.array(values, kind)
