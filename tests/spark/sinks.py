"""The sinks that the kill tests know: how a stream is written to each, and what each holds then."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

COLUMNS = "topic string, queue_id int, queue_offset bigint, body binary"


@dataclass(frozen=True)
class Place:
    """Where a campaign's sinks are: a folder of its own, and servers."""

    folder: str
    namesrv: str
    postgres: str = ""

    @property
    def root(self) -> Path:
        """The folder as a path."""
        return Path(self.folder)


@dataclass(frozen=True)
class Sink:
    """``attach`` gives a writer of frames with COLUMNS; ``bodies`` reads, without Spark, the bodies
    of all messages that the sink holds, repeats included; ``make`` runs once before all."""

    attach: Callable[[DataFrame, Place], DataStreamWriter]
    bodies: Callable[[Place], list[str]]
    make: Callable[[Place], None] = lambda place: None


def to_parquet(frame: DataFrame, place: Place) -> DataStreamWriter:
    """Our table of Parquet files."""
    from cometmq.spark.tables.parquet import ParquetTable

    return frame.writeStream.foreachBatch(ParquetTable(str(place.root / "parquet")))


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


def to_delta(frame: DataFrame, place: Place) -> DataStreamWriter:
    """A Delta table."""
    from cometmq.spark.tables.delta import DeltaLakeTable

    return frame.writeStream.foreachBatch(DeltaLakeTable(str(place.root / "delta")))


def in_delta(place: Place) -> list[str]:
    """Read by deltalake."""
    from deltalake import DeltaTable

    column = DeltaTable(place.root / "delta").to_pyarrow_table(columns=["body"]).column("body")
    return [body.decode() for body in column.to_pylist()]


def to_postgres(frame: DataFrame, place: Place) -> DataStreamWriter:
    """A table that rows are appended to, so that a repeat would be seen."""
    from cometmq.spark.tables.postgres import PostgresTable

    return frame.writeStream.foreachBatch(PostgresTable(place.postgres, postgres_table(place)))


def in_postgres(place: Place) -> list[str]:
    """Read by psycopg."""
    import psycopg

    with psycopg.connect(place.postgres) as connection:
        found = connection.execute(f"SELECT body FROM {postgres_table(place)}").fetchall()
    return [bytes(body).decode() for (body,) in found]


def postgres_table(place: Place) -> str:
    """One for each campaign."""
    return f"killed_{sha256(place.folder.encode()).hexdigest()[:12]}"


SINKS: dict[str, Sink] = {
    "parquet": Sink(to_parquet, in_parquet),
    "delta": Sink(to_delta, in_delta),
    "postgres": Sink(to_postgres, in_postgres),
}
