"""The sinks that the kill tests know: how a stream is written to each, and what each holds then."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pymysql
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cometmq.client.blocking import Client
from tests.spark.topics import make_topic, read_whole

TABLES = "tables"
COLUMNS = "topic string, queue_id int, queue_offset bigint, body binary"
#: Number of the keys that messages change rows of, and how often one is a deletion.
KEYS = 37
DELETES = 11


def body_of(number: int) -> str:
    """The body of the message with this number."""
    return f"message-{number}"


def key_of(number: int) -> str:
    """The key of the row that a message changes; messages of a key are in one queue."""
    return str(number % KEYS)


def every_message(sent: int) -> Counter[str]:
    """What a sink holds that keeps all messages."""
    return Counter(map(body_of, range(sent)))


def last_of_each_key(sent: int) -> Counter[str]:
    """What a sink holds that merges by key: the changes one after another, without Spark."""
    rows: dict[str, str] = {}
    for number in range(sent):
        rows.pop(key_of(number), None)
        if number % DELETES:
            rows[key_of(number)] = body_of(number)
    return Counter(f"{key} {body}" for key, body in rows.items())


@dataclass(frozen=True)
class Place:
    """Where a campaign's sinks are: a folder of its own, and servers."""

    folder: str
    namesrv: str
    postgres: str = ""
    mysql: str = ""

    @property
    def root(self) -> Path:
        """The folder as a path."""
        return Path(self.folder)


Apply = Callable[[DataFrame, int], None]


@dataclass(frozen=True)
class Sink:
    """``bodies`` reads, without Spark, the bodies of all messages that the sink holds, repeats
    included, each after its key if the sink merges; ``expected`` gives those that it should hold
    once so many were sent; ``make`` runs once before all. How it is written to is one of two:

    - ``table`` gives a callable for ``foreachBatch``. One stream goes into all sinks of this kind,
      each batch into one after another, so that a kill finds a batch in some of them only.
    - ``attach`` gives a writer of frames with COLUMNS, for a stream of its own.
    """

    bodies: Callable[[Place], list[str]]
    table: Callable[[Place], Apply] | None = None
    attach: Callable[[DataFrame, Place], DataStreamWriter] | None = None
    make: Callable[[Place], None] = lambda place: None
    expected: Callable[[int], Counter[str]] = every_message


def to_parquet(place: Place) -> Apply:
    """Our table of Parquet files."""
    from cometmq.spark.tables.parquet import ParquetTable

    return ParquetTable(str(place.root / "parquet"))


def in_parquet(place: Place) -> list[str]:
    """Read by pyarrow, from the files that the log names."""
    import pyarrow.parquet as pq

    found: list[str] = []
    root = place.root / "parquet"
    for path in root.glob("_batches/*/*.json"):
        entries = json.loads(path.read_bytes())
        for entry in entries if isinstance(entries, list) else [entries]:
            for file in entry["files"]:
                table = pq.read_table(root / file["name"], columns=["body"], partitioning=None)
                found += [body.decode() for body in table.column("body").to_pylist()]
    return found


def to_delta(place: Place) -> Apply:
    """A Delta table."""
    from cometmq.spark.tables.delta import DeltaLakeTable

    return DeltaLakeTable(str(place.root / "delta"))


def in_delta(place: Place) -> list[str]:
    """Read by deltalake."""
    from deltalake import DeltaTable

    column = DeltaTable(place.root / "delta").to_pyarrow_table(columns=["body"]).column("body")
    return [body.decode() for body in column.to_pylist()]


def catalogue(place: Place) -> dict[str, str]:
    """The properties of an Iceberg catalogue in a file."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{place.root}/iceberg.db",
        "warehouse": f"file://{place.root}/iceberg",
    }


def to_iceberg(place: Place) -> Apply:
    """An Iceberg table."""
    from cometmq.spark.tables.iceberg import IcebergTable

    return IcebergTable("killed.messages", properties=catalogue(place))


def in_iceberg(place: Place) -> list[str]:
    """Read by pyiceberg."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog("default", **catalogue(place)).load_table("killed.messages")
    column = table.scan(selected_fields=("body",)).to_arrow().column("body")
    return [body.decode() for body in column.to_pylist()]


def to_postgres(place: Place) -> Apply:
    """A table that rows are appended to, so that a repeat would be seen."""
    from cometmq.spark.tables.postgres import PostgresTable

    return PostgresTable(place.postgres, name_of(place))


def in_postgres(place: Place) -> list[str]:
    """Read by psycopg."""
    import psycopg

    with psycopg.connect(place.postgres) as connection:
        found = connection.execute(f"SELECT body FROM {name_of(place)}").fetchall()
    return [bytes(body).decode() for (body,) in found]


def name_of(place: Place) -> str:
    """The table of a database, one for each campaign."""
    return f"killed_{sha256(place.folder.encode()).hexdigest()[:12]}"


def to_mysql(place: Place) -> Apply:
    """The same in MariaDB."""
    from cometmq.spark.tables.mysql import MySqlTable

    return MySqlTable(place.mysql, name_of(place))


def in_mysql(place: Place) -> list[str]:
    """Read by PyMySQL."""
    return [body.decode() for (body,) in from_mysql(place, f"SELECT body FROM {name_of(place)}")]


def from_mysql(place: Place, select: str) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    from cometmq.spark.tables.mysql import arguments

    with pymysql.connect(**arguments(place.mysql)) as connection, connection.cursor() as cursor:
        cursor.execute(select)
        return list(cursor.fetchall())


def changes(rows: DataFrame) -> DataFrame:
    """The change of a row that each message is."""
    from pyspark.sql import functions as f

    body = f.col("body").cast("string")
    number = f.regexp_extract(body, "([0-9]+)", 1).cast("bigint")
    return rows.select(
        (number % KEYS).cast("string").alias("key"), number.alias("number"), body.alias("body"),
        (number % DELETES == 0).alias("deleted"), "queue_offset",
    )  # fmt: skip


def to_delta_merged(place: Place) -> Apply:
    """A Delta table of the newest row of each key."""
    from cometmq.spark.tables.delta import DeltaLakeTable

    table = DeltaLakeTable(
        str(place.root / "delta-merged"), keys=["key"], newest_by=["number"], deleted="deleted"
    )
    return lambda rows, batch: table(changes(rows), batch)


def in_delta_merged(place: Place) -> list[str]:
    """Read by pyarrow, from the files that are left when the log is read from its beginning."""
    import pyarrow.parquet as pq

    root = place.root / "delta-merged"
    names: set[str] = set()
    for path in sorted((root / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        names -= {action["remove"]["path"] for action in actions if "remove" in action}
        names |= {action["add"]["path"] for action in actions if "add" in action}
    found: list[str] = []
    for name in names:
        table = pq.read_table(root / unquote(name), columns=["key", "body"], partitioning=None)
        found += [f"{row['key']} {row['body']}" for row in table.to_pylist()]
    return found


def to_iceberg_merged(place: Place) -> Apply:
    """An Iceberg table of the newest row of each key."""
    from cometmq.spark.tables.iceberg import IcebergTable

    table = IcebergTable(
        "killed.merged", properties=catalogue(place), keys=["key"], newest_by=["number"],
        deleted="deleted",
    )  # fmt: skip
    return lambda rows, batch: table(changes(rows), batch)


def in_iceberg_merged(place: Place) -> list[str]:
    """Read by pyiceberg."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog("default", **catalogue(place)).load_table("killed.merged")
    rows = table.scan(selected_fields=("key", "body")).to_arrow().to_pylist()
    return [f"{row['key']} {row['body']}" for row in rows]


def to_postgres_merged(place: Place) -> Apply:
    """The rows of a table whose changes come in Canal's envelopes."""
    from cometmq.spark.tables.postgres import PostgresTable

    return from_envelopes(PostgresTable(place.postgres, f"{name_of(place)}_merged", **MERGED))


def to_mysql_merged(place: Place) -> Apply:
    """The same in MariaDB."""
    from cometmq.spark.tables.mysql import MySqlTable

    return from_envelopes(MySqlTable(place.mysql, f"{name_of(place)}_merged", **MERGED))


MERGED: dict[str, Any] = {
    "keys": ["id"], "newest_by": ["queue_offset", "item"], "deleted": "deleted",
}  # fmt: skip


def from_envelopes(table: Apply) -> Apply:
    """Give a table what Canal's envelopes say."""
    from pyspark.sql import functions as f

    from cometmq.spark.values.envelopes import table_changes

    def apply(rows: DataFrame, batch: int) -> None:
        row = f.struct(f.col("key").alias("id"), f.col("body").alias("text"))
        envelope = f.struct(
            f.lit("shop").alias("database"), f.lit("items").alias("table"),
            f.when(f.col("deleted"), "DELETE").otherwise("UPDATE").alias("type"),
            f.lit(False).alias("isDdl"), f.lit(1).alias("es"), f.array(row).alias("data"),
        )  # fmt: skip
        messages = changes(rows).select(f.to_json(envelope).alias("body"), "queue_offset")
        found = table_changes(
            messages, "id string, text string", envelope="canal", table="shop.items"
        )
        table(found.select("id", "text", "queue_offset", "item", "deleted"), batch)

    return apply


def in_postgres_merged(place: Place) -> list[str]:
    """Read by psycopg."""
    import psycopg

    with psycopg.connect(place.postgres) as connection:
        found = connection.execute(f"SELECT id, text FROM {name_of(place)}_merged").fetchall()
    return [f"{key} {text}" for key, text in found]


def in_mysql_merged(place: Place) -> list[str]:
    """Read by PyMySQL."""
    found = from_mysql(place, f"SELECT id, text FROM {name_of(place)}_merged")
    return [f"{key} {text}" for key, text in found]


TOPIC_STREAM = "KilledInto"
"""Written by ``writeStream``: ids of query, micro-batch and task."""

TOPIC_EACH = "KilledIntoEach"
"""Written by ``foreachBatch``: ids of the place where a row was read."""


def into_topic(frame: DataFrame, place: Place) -> DataStreamWriter:
    """A topic on the campaign's broker, which drops repeated ids there."""
    writer = frame.select("body").writeStream.format("rocketmq")
    return writer.option("nameservers", place.namesrv).option("topic", TOPIC_STREAM)


def to_topic(place: Place) -> Apply:
    """The same by a function."""
    from pyspark.sql.functions import lit

    from cometmq.spark.write.writer import topic_sink

    write = topic_sink({"nameservers": place.namesrv, "topic": TOPIC_EACH})
    return lambda rows, batch: write(rows.withColumn("broker_name", lit("broker-a")), batch)


def make_topics(place: Place) -> None:
    """The topics that streams are written to."""
    with Client(place.namesrv) as client:
        for topic in (TOPIC_STREAM, TOPIC_EACH):
            make_topic(client, topic, 3)


def in_topic(topic: str) -> Callable[[Place], list[str]]:
    """All messages of a topic."""

    def bodies(place: Place) -> list[str]:
        with Client(place.namesrv) as client:
            return [
                message.body.decode()
                for queue in client.queues(topic)
                for message in read_whole(client, queue)
            ]

    return bodies


SINKS: dict[str, Sink] = {
    "parquet": Sink(in_parquet, to_parquet),
    "delta": Sink(in_delta, to_delta),
    "iceberg": Sink(in_iceberg, to_iceberg),
    "postgres": Sink(in_postgres, to_postgres),
    "mysql": Sink(in_mysql, to_mysql),
    "delta-merged": Sink(in_delta_merged, to_delta_merged, expected=last_of_each_key),
    "iceberg-merged": Sink(in_iceberg_merged, to_iceberg_merged, expected=last_of_each_key),
    "postgres-merged": Sink(in_postgres_merged, to_postgres_merged, expected=last_of_each_key),
    "mysql-merged": Sink(in_mysql_merged, to_mysql_merged, expected=last_of_each_key),
    "topic": Sink(in_topic(TOPIC_STREAM), attach=into_topic, make=make_topics),
    "topic-each": Sink(in_topic(TOPIC_EACH), to_topic, make=make_topics),
}


def streams(names: Sequence[str]) -> list[str]:
    """The streams that some sinks need: TABLES for all that are tables, and one for each other."""
    tables = [TABLES] if any(SINKS[name].table for name in names) else []
    return tables + [name for name in names if SINKS[name].attach]


def start(stream: str, names: Sequence[str], frame: DataFrame, place: Place) -> DataStreamWriter:
    """The writer of a stream, its checkpoint named."""
    if stream == TABLES:
        tables = [table(place) for name in names if (table := SINKS[name].table)]
        writer = frame.writeStream.foreachBatch(_into_all(tables))
    else:
        attach = SINKS[stream].attach
        assert attach is not None
        writer = attach(frame, place)
    return writer.option("checkpointLocation", str(place.root / f"{stream}-checkpoint"))


def _into_all(tables: Sequence[Apply]) -> Apply:
    def apply(rows: DataFrame, batch: int) -> None:
        rows.persist()
        for table in tables:
            table(rows, batch)
        rows.unpersist()

    return apply
