"""Converts rows to messages: columns, properties, ids, limits. No I/O; an error names the row or
the column.

The columns have the same names as those of the source, so that a frame that was read can be written
back. Columns of the source that a producer cannot set (such as the queue and the store time) are
accepted and ignored.

A row of a micro-batch gets the same id each time it is written. An id is a hash of the row's origin
and content. The origin is:

- for a row that was read from a topic: the topic, broker, queue and offset;
- for another row of a stream: the query, micro-batch and task;
- for another row of a batch write: that write and its task.

The content of a row is its topic, its flag, its body and its encoded properties without the id. It
is part of the hash so that two different rows never share an id, even if a job makes several rows
from one message. Rows equal in origin and content are numbered within EPOCH_ROWS rows of their
task. Within these, the ids do not depend on the order of the rows.

An id has the form of a client's unique key. Its address is a loopback address (127.x.y.z), so that
tools that parse it as an offset id contact no other host. Its time is the beginning of the month.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.client.limits import check_target
from cometmq.core.errors import CometError, MessageIllegal
from cometmq.message import properties as props
from cometmq.spark import schema
from cometmq.spark.schema import BadSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from cometmq.spark.write.options import WriteOptions


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can be written. ``types`` are the names of the Spark types that it may have."""

    name: str
    types: tuple[str, ...]
    meaning: str


_MAP: Final = "map<string,string>"

COLUMNS: Final = (
    Column("body", ("binary", "string"), "the body; text becomes UTF-8; null is an error"),
    Column("topic", ("string",), "topic of the row, unless option `topic` sets it for all"),
    Column("tags", ("string",), "the tag"),
    Column("keys", ("string", "array<string>"), "index keys; in a text separated by blanks"),
    Column("properties", (_MAP,), "the user's properties; reserved names in it are left out"),
    Column("flag", ("int",), "the user's own flag"),
    Column("order_key", ("string",), "rows with one key go to one queue, in the task's order"),
    Column("delay_level", ("int",), "the broker's delay level; 0 or null for none"),
    Column("delay_ms", ("int", "bigint"), "delay of the delivery after the broker receives it"),
    Column("deliver_at", ("timestamp", "bigint"), "delivered at this time (a number: ms)"),
    Column("message_id", ("string",), "a message id of your own instead of a generated one"),
)
BY_NAME: Final = {column.name: column for column in COLUMNS}

PLACE: Final = ("broker_name", "queue_id", "queue_offset")
"""The columns with the place of the message that a row was read from. If a row has a value in each,
its id is derived from its topic, place and content, and not from the job that writes it."""

DIGEST_BYTES: Final = 11

EPOCH_ROWS: Final = 200_000
"""Number of rows of a task after which the counts of equal rows start again, which bounds memory.
Rows with a place are counted within at least half as many."""

_SIGNS: Final = props.NAME_VALUE_SEPARATOR + props.PROPERTY_SEPARATOR
_NONE: Final[Mapping[bytes, int]] = {}
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


def check_columns(frame: StructType, topic: str | None) -> None:
    """Raise BadSchema if a frame cannot be written, naming the column and the remedy.

    ``topic`` is the value of the option topic.
    """
    names = [field.name for field in frame.fields]
    for field in frame.fields:
        asked = field.dataType.simpleString()
        column = BY_NAME.get(field.name)
        read = schema.BY_NAME.get(field.name)
        if column is None and read is None:
            known = ", ".join(each.name for each in COLUMNS)
            raise BadSchema(f"a topic has no column {field.name!r}; allowed are {known}: drop it")
        types = column.types if column is not None else (read.spark if read is not None else "",)
        if asked not in types:
            raise BadSchema(f"column {field.name!r} is {asked}, not {' or '.join(types)}: cast it")
        if names.count(field.name) > 1:
            raise BadSchema(f"column {field.name!r} occurs twice")
    if "body" not in names:
        raise BadSchema("a frame for a topic needs a column 'body', binary or string")
    if topic is None and "topic" not in names:
        raise BadSchema("no topic is given: set option 'topic', or add a column 'topic'")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a task's rows: ``run`` is the id of a query or of one batch write, ``batch``
    the number of the micro-batch, ``task`` the index of the task."""

    run: str
    batch: int
    task: int

    def seed(self) -> bytes:
        """Return the prefix that is hashed into the ids of rows without a place."""
        return f"{self.run}|{self.batch}|{self.task}|".encode()


def place_seed(topic: str, broker: str, queue_id: int, offset: int) -> bytes:
    """Return the prefix that is hashed into the id of a row that was read from a topic."""
    return f"{topic}|{broker}|{queue_id}|{offset}|".encode()


class Ids:
    """Generates the ids of one task's rows, in their order."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin.seed()
        self._rows = 0
        self._base = blake2b(self._origin, digest_size=DIGEST_BYTES)
        self._seen: dict[bytes, int] = {}
        self._of_places: dict[bytes, int] = {}
        self._of_places_before: dict[bytes, int] = {}
        self.copy: Callable[[], blake2b] = self._base.copy

    def of_row(self, content: bytes) -> str:
        """Return the id of a row that was not read from a topic."""
        if self._rows and self._rows % EPOCH_ROWS == 0:
            # The counts start again, so the hash changes: otherwise ids would repeat.
            self._seen.clear()
            self._base.update(b"|")
        self._rows += 1
        digest = self._base.copy()
        digest.update(content)
        return _counted(digest, self._seen)

    def of_place(self, seed: bytes, content: bytes) -> str:
        """Return the id of a row that was read at the place in ``seed``."""
        if len(self._of_places) >= EPOCH_ROWS // 2:
            # Unlike of_row, do not change the hash: the id of a row with a place must not depend on
            # the row's position in the task.
            self._of_places_before, self._of_places = self._of_places, {}
        digest = blake2b(seed, digest_size=DIGEST_BYTES)
        digest.update(content)
        return _counted(digest, self._of_places, self._of_places_before)


def _counted(digest: blake2b, seen: dict[bytes, int], before: Mapping[bytes, int] = _NONE) -> str:
    # The first of several equal rows has the plain hash; its n-th repetition adds "|n" to the hash.
    first = digest.digest()
    times = seen.get(first) or before.get(first, 0)
    seen[first] = times + 1
    if times:
        digest.update(b"|%d" % times)
        first = digest.digest()
    text = first.hex().upper()
    return f"7F{text[:18]}00000000{text[18:]}"


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
        """Return the message of row ``at``. Raises MessageIllegal, UnicodeEncodeError."""
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
        """Return the text in row ``at``; None if it is empty or null, or there is no column."""
        column = self.columns.get(name)
        return (column[at] or None) if column is not None else None

    def number(self, name: str, at: int) -> int:
        """Return the number in row ``at``; 0 if it is null, or there is no column."""
        column = self.columns.get(name)
        return (column[at] or 0) if column is not None else 0

    def seed(self, at: int) -> bytes | None:
        """Return the seed of the row's id from its place; None if a part of the place is null."""
        if not self._places:
            return None
        broker, queue_id, offset = (self.columns[name][at] for name in PLACE)
        if broker is None or queue_id is None or offset is None:
            return None
        return place_seed(self.text("topic", at) or "", broker, queue_id, offset)

    def properties(self, at: int) -> dict[str, str]:
        """Return the user's properties with tag and keys. The columns ``tags`` and ``keys`` take
        precedence over the properties of these names. Raises MessageIllegal."""
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
