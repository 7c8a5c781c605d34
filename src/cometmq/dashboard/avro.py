"""A decoder for Avro's binary encoding, with a given schema. Pure, and without a library.

A body may be hostile, so a value has at most DEPTH_MAX levels and VALUES_MAX values. Without the
second limit an array of nulls, which take no bytes, could have any length.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

DEPTH_MAX: Final = 64
VALUES_MAX: Final = 20_000
_PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class UnfitBody(ValueError):
    """A body does not match the schema; the message says where."""


class AvroSchema:
    """A schema, parsed from JSON. Raises ValueError if the schema is invalid."""

    def __init__(self, text: str) -> None:
        self._types: dict[str, Any] = {}
        try:
            self._root = self._known(json.loads(text), "")
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"it is not a schema of Avro: {error!r}") from None

    def read(self, body: bytes) -> object:
        """Decode a whole body to a value that JSON can represent. Raises UnfitBody."""
        reader = _Reader(body, self._types)
        value = reader.value(self._root, 0)
        if reader.at != len(body):
            raise UnfitBody(f"{len(body) - reader.at:,} bytes follow the value")
        return value

    def _known(self, schema: Any, namespace: str) -> Any:
        """Return a schema in which names are full names. Raises ValueError for an unknown type.

        A named type is stored in ``_types``, and its full name is returned instead.
        """
        if isinstance(schema, list):
            return [self._known(each, namespace) for each in schema]
        if isinstance(schema, str):
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            for name in (full, schema):
                if name in self._types:
                    return name
            if schema not in _PRIMITIVES:
                raise ValueError(f"it names the type {schema!r}, which it does not have")
            return {"type": schema}
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._known(kind, namespace)
        if kind in _NAMED:
            return self._named(schema, namespace)
        if kind == "array":
            return {"type": kind, "items": self._known(schema["items"], namespace)}
        if kind == "map":
            return {"type": kind, "values": self._known(schema["values"], namespace)}
        return schema if kind in _PRIMITIVES else self._known(kind, namespace)

    def _named(self, schema: Any, namespace: str) -> str:
        name: str = schema["name"]
        space = name.rpartition(".")[0] if "." in name else schema.get("namespace", namespace)
        full = name if "." in name or not space else f"{space}.{name}"
        self._types[full] = made = dict(schema)
        if schema["type"] == "fixed":
            _check_size(full, schema.get("size"))
        elif schema["type"] == "enum":
            _check_symbols(full, schema.get("symbols"))
        else:
            made["type"] = "record"
            made["fields"] = [
                (str(each["name"]), self._known(each["type"], space)) for each in schema["fields"]
            ]
        return full


def _check_size(name: str, size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        found = "has no size" if size is None else f"has the size {size!r}"
        raise ValueError(f"the fixed type {name!r} {found}; a number of bytes is wanted")


def _check_symbols(name: str, symbols: object) -> None:
    if not isinstance(symbols, list) or not symbols:
        raise ValueError(f"the enum {name!r} has no symbols; a list of names is wanted")
    if any(not isinstance(each, str) for each in symbols):
        raise ValueError(f"a symbol of the enum {name!r} is not a string")


class _Reader:
    """A reader of consecutive values; ``at`` is the position after the last one."""

    def __init__(self, body: bytes, types: Mapping[str, Any]) -> None:
        self._body = body
        self._types = types
        self._left = VALUES_MAX
        self.at = 0

    def value(self, schema: Any, depth: int) -> object:
        """Decode the next value, which is ``depth`` levels deep. Raises UnfitBody."""
        self._left -= 1
        if depth > DEPTH_MAX or self._left < 0:
            raise UnfitBody(f"more than {VALUES_MAX:,} values, or {DEPTH_MAX} levels")
        if isinstance(schema, list):
            return self.value(self._one_of(schema, "a branch of a union"), depth + 1)
        if isinstance(schema, str):
            schema = self._types[schema]
        kind = schema["type"]
        if kind == "record":
            return {name: self.value(each, depth + 1) for name, each in schema["fields"]}
        if kind == "array":
            return [self.value(schema["items"], depth + 1) for _ in self._blocks()]
        if kind == "map":
            return {self._text(): self.value(schema["values"], depth + 1) for _ in self._blocks()}
        if kind == "enum":
            return self._one_of(schema["symbols"], "a symbol")
        raw = self._take(schema["size"]) if kind == "fixed" else self._plain(kind)
        return _shown(raw, schema)

    def _plain(self, kind: str) -> object:
        if kind == "null":
            return None
        if kind == "boolean":
            return self._take(1) != b"\0"
        if kind in ("int", "long"):
            return self._number()
        if kind in ("float", "double"):
            layout = struct.Struct("<f" if kind == "float" else "<d")
            return layout.unpack(self._take(layout.size))[0]
        return self._text() if kind == "string" else self._take(self._number())

    def _blocks(self) -> Iterator[int]:
        """Yield once for each item of an array or a map."""
        while count := self._number():
            if count < 0:  # then the block's size in bytes follows, which is not needed
                count = -count
                self._number()
            if count > self._left:
                raise UnfitBody(f"more than {VALUES_MAX:,} values")
            yield from range(count)

    def _one_of(self, choices: list[Any], what: str) -> Any:
        index = self._number()
        if not 0 <= index < len(choices):
            raise UnfitBody(f"{index} is not {what}, at byte {self.at}")
        return choices[index]

    def _number(self) -> int:
        """Decode an int or a long: a varint of at most 10 bytes, zigzag."""
        value = 0
        for index in range(10):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
        raise UnfitBody(f"a number of more than 64 bits, before byte {self.at}")

    def _text(self) -> str:
        try:
            return self._take(self._number()).decode()
        except UnicodeDecodeError:
            raise UnfitBody(f"a string that is not UTF-8, before byte {self.at}") from None

    def _take(self, size_bytes: int) -> bytes:
        end = self.at + size_bytes
        if size_bytes < 0 or end > len(self._body):
            raise UnfitBody(f"it ends within a value, at byte {self.at}")
        taken = self._body[self.at : end]
        self.at = end
        return taken


def _shown(raw: object, schema: Mapping[str, Any]) -> object:
    """Return a value for display: dates and timestamps in ISO 8601, decimals as digits, bytes in
    hex."""
    read = _LOGICAL.get(str(schema.get("logicalType")))
    if read is not None:
        try:
            return read(raw, schema)
        except (ArithmeticError, TypeError, ValueError):
            pass  # a time after year 9999, or a logical type on the wrong type: show the raw value
    return raw.hex(" ") if isinstance(raw, bytes) else raw


def _decimal(raw: Any, schema: Mapping[str, Any]) -> str:
    if len(raw) > 128:
        raise ValueError(raw)
    whole = int.from_bytes(raw, "big", signed=True)
    digits = tuple(map(int, str(abs(whole))))
    return format(Decimal((whole < 0, digits, -int(schema.get("scale", 0)))), "f")


def _moment(unit_us: int) -> Callable[[Any, Mapping[str, Any]], str]:
    def read(raw: Any, schema: Mapping[str, Any]) -> str:
        moment = _EPOCH + timedelta(microseconds=raw * unit_us)
        is_local = schema["logicalType"].startswith("local")
        return (moment.replace(tzinfo=None) if is_local else moment).isoformat()

    return read


_LOGICAL: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], object]]] = {
    "decimal": _decimal,
    "date": lambda raw, _: (date(1970, 1, 1) + timedelta(days=raw)).isoformat(),
    "timestamp-millis": _moment(1000), "timestamp-micros": _moment(1),
    "local-timestamp-millis": _moment(1000), "local-timestamp-micros": _moment(1),
}  # fmt: skip
