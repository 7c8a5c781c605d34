"""Formats of bodies: what type their values have in Spark, and how executors decode one.

JSON is decoded by Spark itself (decoding.py). The other formats are Python values that travel to
the executors; ``decoder()`` is called there, once for each Arrow batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import types as t

Decoder = Callable[[bytes], Any]
"""Returns the value of a body as dicts, lists and plain values. Raises BadValue."""


class BadValue(ValueError):
    """Raised by a decoder: the body is not a value of its format, and the text says why."""


class ValueFormat(Protocol):
    """A format of bodies."""

    def spark_type(self) -> t.StructType | None:
        """Return the type of the values; None if the user has to name it."""
        ...

    def decoder(self) -> Decoder:
        """Return a decoder; called on an executor."""
        ...


@dataclass(frozen=True, slots=True)
class MessagePack:
    """MessagePack maps whose keys are the names of columns."""

    def spark_type(self) -> t.StructType | None:
        """Return None: a body does not say which type it has."""
        return None

    def decoder(self) -> Decoder:
        """Return a decoder of one value that fills the whole body."""

        def decode(body: bytes) -> Any:
            try:
                return msgspec.msgpack.decode(body)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadValue(f"not MessagePack: {error}") from None

        return decode
