"""The dead letters of a consumer group as a DataFrame: what they were, why they died, what a
re-driven one is known by.

A broker keeps them in ``%DLQ%group``. What it notes is how often the group sent a message back and
where it first was; what the consumer's error was, no broker knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.message.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
)
from cometmq.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = (
    *("topic", "broker_name", "queue_id", "queue_offset", "msg_id", "keys", "tags", "body"),
    *("properties", "born_timestamp", "store_timestamp", "reconsume_times", "flag"),
)


def dead_letters(group: str) -> str:
    """The topic of a group's dead letters."""
    return DLQ_PREFIX + group


def retries(group: str) -> str:
    """The topic of what a group will be given again."""
    return RETRY_PREFIX + group


def with_origin(rows: DataFrame) -> DataFrame:
    """Dead letters with ``origin`` (the topic they were sent to, null where no broker noted it),
    ``origin_id`` and ``redrive_id``."""
    of = f.col("properties")
    return rows.withColumns(
        {
            "origin": f.coalesce(of[DLQ_ORIGIN_TOPIC], of[RETRY_TOPIC]),
            "origin_id": f.coalesce(of[DLQ_ORIGIN_MESSAGE_ID], of[ORIGIN_MESSAGE_ID]),
            "redrive_id": redrive_id(),
        }
    )


def redrive_id() -> Column:
    """The message id that a dead letter gets when it is sent again, always the same: made of its
    place among the dead letters. It has the form of a client's, under a loopback address."""
    place = f.concat_ws("|", "topic", "broker_name", "queue_id", "queue_offset")
    digest = f.upper(f.sha2(place.cast("binary"), 256))
    return f.concat(
        f.lit("7F"), f.substring(digest, 1, 18), f.lit("00000000"), f.substring(digest, 19, 4)
    )


def why(reconsume_times: int, most: int) -> str:
    """What can be said of why a message is dead, from how often it was sent back; ``most`` is the
    most that any of the group's was."""
    if reconsume_times <= 0:
        return "put here by a producer, or sent back without a count"
    if reconsume_times < most:
        return f"given up after {reconsume_times} retries: the consumer asked for no more of them"
    return f"failed {reconsume_times} retries, the group's limit"


def chosen(rows: DataFrame, key: str, message_id: str, where: str) -> DataFrame:
    """The letters that a key, an id (of the letter or of the message it was) and SQL name."""
    if key:
        rows = rows.where(f.array_contains(f.split("keys", " "), key))
    if message_id:
        named = (f.col("msg_id") == message_id) | (f.col("origin_id") == message_id)
        rows = rows.where(f.coalesce(named, f.lit(False)))
    return rows.where(where) if where else rows


def unreadable(topic: str, nameservers: str) -> BadOption:
    """The error for a topic that consumers may not read, with what to do."""
    return BadOption(
        "group",
        f"{topic} may be written but not read, as old brokers make it: allow it with "
        f"--make-readable, or with mqadmin updateTopicPerm -n '{nameservers}' -t '{topic}' -p 6",
    )
