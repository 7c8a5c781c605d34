"""Columns of a frame that is written to topics, and what each one sets in the message.

The names are those of the source, so that a frame that was read can be written back. Columns of the
source that a producer cannot set (such as the queue and the time of storing) are accepted and
ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.spark import schema
from cometmq.spark.schema import BadSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can be written. ``types`` are the types it may have, by Spark's names."""

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
"""The place of the message that a row was read from. If a row has these columns and the source's
topic, its message id is derived from them and its content, and not from the job that writes it."""


def check(frame: StructType, topic: str | None) -> None:
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
