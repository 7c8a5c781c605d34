"""The dead letters of a consumer group as a DataFrame: their origin, their retries, and their
re-drive ids.

A broker keeps them in ``%DLQ%group``. It records how often the group sent a message back and the
message's first topic. It does not know the consumer's error.
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
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def retries(group: str) -> str:
    """Return the retry topic of a group."""
    return RETRY_PREFIX + group


def with_origin(rows: DataFrame) -> DataFrame:
    """Add to dead letters ``origin`` (the topic they were sent to, null if no broker recorded it),
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
    """Return the message id that a dead letter gets whenever it is sent again.

    It is derived from its place in the dead-letter queue. It has the form of a client's id, with a
    loopback address.
    """
    place = f.concat_ws("|", "topic", "broker_name", "queue_id", "queue_offset")
    digest = f.upper(f.sha2(place.cast("binary"), 256))
    return f.concat(
        f.lit("7F"), f.substring(digest, 1, 18), f.lit("00000000"), f.substring(digest, 19, 4)
    )


def why(reconsume_times: int, most: int) -> str:
    """Return the likely reason why a message is dead, from the number of times it was sent back.
    ``most`` is the highest number in the group."""
    if reconsume_times <= 0:
        return "put here by a producer, or sent back without a count"
    if reconsume_times < most:
        return f"given up after {reconsume_times} retries: the consumer asked for no more of them"
    return f"failed {reconsume_times} retries, the group's limit"


def chosen(rows: DataFrame, key: str, message_id: str, where: str) -> DataFrame:
    """Return the letters selected by a key, an id (of the letter or of the original message) and
    SQL."""
    if key:
        rows = rows.where(f.array_contains(f.split("keys", " "), key))
    if message_id:
        named = (f.col("msg_id") == message_id) | (f.col("origin_id") == message_id)
        rows = rows.where(f.coalesce(named, f.lit(False)))
    return rows.where(where) if where else rows


def unreadable(topic: str, nameservers: str) -> BadOption:
    """Return the error for a topic that consumers may not read, with the remedy."""
    return BadOption(
        "group",
        f"{topic} may be written but not read, as old brokers make it: allow it with "
        f"--make-readable, or with mqadmin updateTopicPerm -n '{nameservers}' -t '{topic}' -p 6",
    )
