"""The files that executors write for a try at a batch, before the table counts them.

    ROOT/data/batch=00000012-QUERY-ATTEMPT/...parquet

Every attempt has a folder of its own, so that two drivers that both take themselves for the living
one cannot touch each other's files. What an attempt left that was not the one to count is removed
after the query's next batch, when nothing can make it count any more.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.tables.folders import Folder, StoredFile
    from cometmq.spark.tables.sink import Mark

DATA: Final = "data"
_ATTEMPT: Final = re.compile(r"batch=(\d+)-(.+)-[0-9a-f]{8}")
#: Spark's own default, INT96, is read by few others and has no statistics.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class Attempts:
    """The attempts of one sink in this process, and what earlier processes' may have left."""

    def __init__(self) -> None:
        self._settled: set[str] = set()
        self._unsure: set[str] = set()

    def begin(self, mark: Mark) -> str:
        """A new attempt's name."""
        if mark.query not in self._settled:
            self._unsure.add(mark.query)
        self._settled.discard(mark.query)
        return f"batch={mark.batch:08}-{mark.query}-{uuid.uuid4().hex[:8]}"

    def settle(self, folder: Folder, mark: Mark, is_dead: Callable[[str, int], bool]) -> None:
        """The batch counts: remove the query's attempts of which ``is_dead`` says, by name and
        batch, that they cannot. Looks only where something may have been left."""
        if mark.query in self._unsure:
            for name in folder.names(DATA):
                known = _ATTEMPT.fullmatch(name)
                if known and known[2] == mark.query and is_dead(name, int(known[1])):
                    folder.remove(f"{DATA}/{name}")
            self._unsure.discard(mark.query)
        self._settled.add(mark.query)


def write_files(
    rows: DataFrame,
    folder: Folder,
    attempt: str,
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> list[StoredFile]:
    """Have the executors write rows as Parquet; the files that the attempt has then.

    A failed try of a task leaves none: Spark moves what a task wrote once the task is done.
    """
    name = f"{DATA}/{attempt}"
    with _setting(rows.sparkSession, *_TIMESTAMPS):
        writer = rows.write.mode("errorifexists").options(**options)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.parquet(folder.url(name))
    return [file for file in folder.files(name) if _is_data(file.name)]


def attempt_of(file: str) -> str:
    """The attempt that wrote a file of the table."""
    return file.split("/")[1]


def _is_data(file: str) -> bool:
    return not file.rpartition("/")[2].startswith(("_", "."))


@contextmanager
def _setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    before = spark.conf.get(key)
    assert before is not None
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, before)
