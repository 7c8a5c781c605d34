"""Reads of several tiers as Spark makes them, without Spark, and archives for them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.spark.read.options import parse as parse_live
from cometmq.spark.read.reader import TopicReader
from cometmq.spark.schema import NAMES, arrow_schema
from cometmq.spark.tables.datafiles import LocalFolder
from cometmq.spark.tables.parquet import BatchLog, DataFile
from cometmq.spark.tables.sink import Mark
from cometmq.spark.tiers.options import parse
from cometmq.spark.tiers.reader import TieredReader

Row = dict[str, Any]


def rows(options: Mapping[str, object], names: tuple[str, ...] = NAMES) -> list[Row]:
    """All rows of a read of several tiers, sorted by place if they have one."""
    reader = TieredReader(parse(texts(options)), names)
    return in_order(_read(reader, reader.partitions()))


def live_rows(namesrv: str, topic: str, **options: object) -> list[Row]:
    """All rows of a read over the network alone."""
    reader = TopicReader(
        parse_live(texts({"nameservers": namesrv, "topic": topic, **options})), NAMES
    )
    return in_order(_read(reader, reader.partitions()))


def in_order(found: Sequence[Row]) -> list[Row]:
    """Rows by place."""
    return sorted(found, key=lambda row: tuple(map(row.get, PLACE)))


def texts(options: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark passes them."""
    return {name: str(value) for name, value in options.items()}


PLACE = ("topic", "broker_name", "queue_id", "queue_offset")


def places(found: Sequence[Row]) -> list[tuple[str, int, int]]:
    """Broker, queue and offset of rows."""
    return [(row["broker_name"], row["queue_id"], row["queue_offset"]) for row in found]


def archive(folder: Path, found: Sequence[Row], batch: int = 0) -> Path:
    """Add rows of one or more topics to an archive, in their order, one file for each topic."""
    root = LocalFolder(folder)
    root.publish("_schema.json", b"{}")
    files = []
    for topic, chosen in groupby(found, key=lambda row: row["topic"]):
        name = f"data/batch={batch:08}-q-00000000/topic={topic}/day=2026-01-31/part.parquet"
        path = folder / name
        path.parent.mkdir(parents=True)
        table = pa.Table.from_pylist(list(chosen), arrow_schema())
        pq.write_table(table.drop_columns(["topic"]), path, row_group_size=16)
        files.append(DataFile(name, path.stat().st_size))
    assert BatchLog(root).commit(Mark("q", batch), files)
    return folder


def some(found: Sequence[Row], queue_id: int, offsets: Collection[int]) -> list[Row]:
    """The rows of one queue with these offsets."""
    return [row for row in found if row["queue_id"] == queue_id and row["queue_offset"] in offsets]


def _read(reader: Any, partitions: Sequence[Any]) -> list[Row]:
    return list(_rows(reader, partitions))


def _rows(reader: Any, partitions: Sequence[Any]) -> Iterator[Row]:
    for partition in partitions:
        for batch in reader.read(partition):
            yield from batch.to_pylist()
