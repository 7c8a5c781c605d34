"""Compatibility with Spark's Kafka source: its option names, and conversions to and from its
columns.

Options with the same meaning have the same name or an alias. Any other option of Kafka's source is
an error that names the replacement, because a limit that is silently ignored limits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from cometmq.core.errors import SettingsError
from cometmq.spark.options import Given, boolean, get

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

READ_ALIASES: Final = {
    "kafka.group.id": "consumerGroup",
    "maxrecordsperpartition": "maxRowsPerPartition",
}
ACCEPTED: Final = ("includeHeaders",)
"""Options that change nothing: messages always have their properties, which are Kafka's headers."""
HINTS: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "name RocketMQ's name servers in nameservers",
    "groupidprefix": "no group is made for a read; consumerGroup names the one to report to",
    "kafkaconsumer.polltimeoutms": "use requestTimeoutMs",
    "fetchoffset.numretries": "use outageTimeout",
    "fetchoffset.retryintervalms": "use outageTimeout",
    "kafka.security.protocol": "use useTls and tlsCaFile, accessKey and secretKey",
    "kafka.isolation.level": "leave it out: half messages are never read",
}
_OTHERS: Final = "kafka."


def hint(option: str) -> str:
    """Return the text that names the replacement of an option of Kafka's source, or ""."""
    name = option.lower()
    found = HINTS.get(name, "")
    if not found and name.startswith(_OTHERS):
        return "is a setting of Kafka's client, which is not used here; leave it out"
    return found


def check_accepted(given: Given) -> None:
    """Raise BadOption for a bad value of an option that changes nothing."""
    for name in ACCEPTED:
        get(given, name, boolean, False)


def like_kafka(messages: DataFrame) -> DataFrame:
    """Return messages in the columns of Spark's Kafka source.

    These are ``key`` (the index keys as bytes), ``value`` (the body), ``topic``, ``partition`` (the
    queue's id), ``offset``, ``timestamp`` (the producer's time, hence ``timestampType`` 0) and
    ``headers`` (all properties, reserved names included). ``broker_name`` is added, because queues
    of several brokers have the same id. Raises SettingsError if ``messages`` lack a needed column.
    """
    needed = {
        *("keys", "body", "topic", "queue_id", "queue_offset"),
        *("born_timestamp", "properties", "broker_name"),
    }
    if missing := sorted(needed - set(messages.columns)):
        raise SettingsError("messages", f"have no column {missing[0]!r}: read it too")
    headers = f.transform(
        f.map_entries("properties"),
        lambda each: f.struct(
            each["key"].alias("key"), each["value"].cast("binary").alias("value")
        ),
    )
    return messages.select(
        f.col("keys").cast("binary").alias("key"),
        f.col("body").alias("value"),
        "topic",
        f.col("queue_id").alias("partition"),
        f.col("queue_offset").alias("offset"),
        f.col("born_timestamp").alias("timestamp"),
        f.lit(0).alias("timestampType"),
        headers.alias("headers"),
        "broker_name",
    )


def from_kafka(rows: DataFrame) -> DataFrame:
    """Convert rows for Spark's Kafka sink into rows for ``format("rocketmq")``.

    ``value`` becomes the body. ``key`` becomes the index key and the order key, so that rows with
    one key keep their order. ``headers`` become properties; of several with one name, the last one
    counts. ``topic`` stays. Raises SettingsError if there is no column ``value``, or if there is a
    column ``partition``: queues are chosen by order key.
    """
    if "value" not in rows.columns:
        raise SettingsError("rows", "have no column 'value'")
    if "partition" in rows.columns:
        raise SettingsError(
            "rows", "have a column 'partition': drop it, rows of one key go to one queue"
        )
    columns = [f.col("value").alias("body")]
    if "topic" in rows.columns:
        columns.append(f.col("topic"))
    if "key" in rows.columns:
        key = f.col("key").cast("string")
        columns += [f.when(key != "", f.array(key)).alias("keys"), key.alias("order_key")]
    if "headers" in rows.columns:
        pairs = f.transform(
            "headers",
            lambda each: f.struct(each["key"], each["value"].cast("string").alias("value")),
        )
        last = f.aggregate(
            pairs,
            f.create_map().cast("map<string,string>"),
            lambda found, each: f.map_concat(
                f.map_filter(found, lambda name, _: name != each["key"]),
                f.create_map(each["key"], each["value"]),
            ),
        )
        columns.append(f.when(f.col("headers").isNotNull(), last).alias("properties"))
    return rows.select(*columns)
