"""Converts rows to messages: properties, ids, limits. Pure functions; an error names the row.

The content of a row, which its id is derived from, is its topic, its flag, its body and its
property text without the id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.client.limits import check_target
from cometmq.core.errors import CometError, MessageIllegal
from cometmq.message import properties as props
from cometmq.spark.write.columns import PLACE
from cometmq.spark.write.identity import Ids, place_seed

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.write.options import WriteOptions

_SIGNS: Final = props.NAME_VALUE_SEPARATOR + props.PROPERTY_SEPARATOR
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BadRow(CometError):
    """Raised if row ``number`` of a task, from 0, cannot be a message."""

    def __init__(self, number: int, topic: str, problem: str) -> None:
        self.number = number
        self.topic = topic
        super().__init__(f"row {number} of the task, for topic {topic!r}: {problem}")


class Outgoing(NamedTuple):
    """A message to send. ``alone`` means that it must not be in a batch."""

    topic: str
    order_key: str | None
    unique: str
    flag: int
    body: bytes
    properties: bytes
    alone: bool


class Encoder:
    """Encodes the rows of one task."""

    def __init__(self, options: WriteOptions, ids: Ids) -> None:
        self._topic = options.topic
        self._message_bytes = options.message_bytes
        self._ids = ids
        self._number = 0
        self._checked: set[str] = set()

    def messages(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yield the messages of a batch of rows, in order. Raises BadRow."""
        found = _Columns(batch)
        for at in range(batch.num_rows):
            topic = self._topic or found.text("topic", at) or ""
            try:
                yield self._message(found, at, topic)
            except (MessageIllegal, UnicodeEncodeError) as error:
                raise BadRow(self._number, topic, str(error)) from None
            self._number += 1

    def _message(self, found: _Columns, at: int, topic: str) -> Outgoing:
        if topic not in self._checked:
            check_target(topic)
            self._checked.add(topic)
        body = found.columns["body"][at]
        if body is None:
            raise MessageIllegal("its body is null")
        if isinstance(body, str):
            body = body.encode()
        if len(body) > self._message_bytes:
            raise MessageIllegal(
                f"its body has {len(body)} bytes; the limit is {self._message_bytes} (option "
                "maxMessageBytes, and maxMessageSize of the broker)"
            )
        pairs = found.properties(at)
        delayed = found.delay(at)
        text = props.encode_text(pairs | delayed).encode()
        flag = found.number("flag", at)
        unique = found.text("message_id", at)
        if unique is None:
            content = b"".join((topic.encode(), b"\x01%d\x01" % flag, body, b"\x01", text))
            seed = found.seed(at)
            unique = (
                self._ids.of_row(content) if seed is None else self._ids.of_place(seed, content)
            )
        else:
            _check_value("message_id", unique)
            if unique.split() != [unique]:
                raise MessageIllegal(f"message id {unique!r} contains a blank")
        raw = props.joined(text, props.encode({props.UNIQ_KEY: unique}))
        if len(raw) > props.MAX_SIZE_BYTES:
            raise MessageIllegal(
                f"its properties have {len(raw)} bytes; the limit is {props.MAX_SIZE_BYTES}"
            )
        return Outgoing(topic, found.text("order_key", at), unique, flag, body, raw, bool(delayed))


class _Columns:
    """The columns of a batch as Python values."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        wanted = {field.name: batch.column(at) for at, field in enumerate(batch.schema)}
        self.columns: dict[str, Sequence[Any]] = {
            name: _values(column) for name, column in wanted.items() if name in _USED
        }
        self._places = all(name in self.columns for name in PLACE)
        self._maps = self.columns.get("properties")
        self._tags = self.columns.get("tags")
        self._keys = self.columns.get("keys")

    def text(self, name: str, at: int) -> str | None:
        """Return a text, or None if it is empty or null or the column does not exist."""
        column = self.columns.get(name)
        return (column[at] or None) if column is not None else None

    def number(self, name: str, at: int) -> int:
        """Return a number, or 0 if it is null or the column does not exist."""
        column = self.columns.get(name)
        return (column[at] or 0) if column is not None else 0

    def seed(self, at: int) -> bytes | None:
        """Return the row's place in a topic as the seed of its id, or None without a place."""
        if not self._places:
            return None
        broker, queue_id, offset = (self.columns[name][at] for name in PLACE)
        if broker is None or queue_id is None or offset is None:
            return None
        return place_seed(self.text("topic", at) or "", broker, queue_id, offset)

    def properties(self, at: int) -> dict[str, str]:
        """Return tag, keys and the user's properties. Raises MessageIllegal."""
        found: dict[str, str] = {}
        given: Mapping[str, str] = {}
        if self._maps is not None and self._maps[at]:
            given = dict(self._maps[at])
            for name, value in given.items():
                if name in props.RESERVED or not value:
                    continue
                _check_value(name, value)
                found[name] = value
        tag = given.get(props.TAGS) if self._tags is None else self._tags[at]
        if tag:
            _check_value("tags", tag)
            found[props.TAGS] = tag
        keys = given.get(props.KEYS) if self._keys is None else self._keys[at]
        if keys:
            text = _joined(keys)
            _check_value("keys", text)
            found[props.KEYS] = text
        return found

    def delay(self, at: int) -> dict[str, str]:
        """Return the properties that request a delay. Raises MessageIllegal."""
        found: dict[str, str] = {}
        for column, name in _DELAYS.items():
            value = self._delay_of(column, at)
            if value < 0:
                raise MessageIllegal(f"its {column} of {value} is negative")
            if value:
                found[name] = str(value)
        if len(found) > 1:
            raise MessageIllegal(f"it may have one of {', '.join(_DELAYS)}")
        return found

    def _delay_of(self, name: str, at: int) -> int:
        column = self.columns.get(name)
        value = None if column is None else column[at]
        if isinstance(value, datetime):
            return round((value.astimezone(UTC) - _EPOCH).total_seconds() * 1000)
        return value or 0


_DELAYS: Final = {
    "delay_level": props.DELAY,
    "delay_ms": props.TIMER_DELAY_MS,
    "deliver_at": props.TIMER_DELIVER_MS,
}
_USED: Final = frozenset(
    {"body", "topic", "tags", "keys", "properties", "flag", "order_key", "message_id"}
    | set(_DELAYS)
    | set(PLACE)
)


def _values(column: pa.Array) -> Sequence[Any]:
    found: Sequence[Any] = column.to_pylist()
    return found


def _joined(keys: str | Sequence[str | None]) -> str:
    if isinstance(keys, str):
        return " ".join(props.split_keys(keys))
    for key in keys:
        if key and key.split() != [key]:
            raise MessageIllegal(f"key {key!r} contains a blank, which separates keys")
    return " ".join(key for key in keys if key)


def _check_value(name: str, value: str) -> None:
    if not name:
        raise MessageIllegal("a property has no name")
    if any(sign in name or sign in value for sign in _SIGNS):
        raise MessageIllegal(
            f"property {name!r} contains a control character that separates properties"
        )
