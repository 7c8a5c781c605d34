"""Data files that executors write in an attempt at a batch, before the table includes them.

    ROOT/data/batch=00000012-QUERY-ATTEMPT/...parquet

Every attempt has its own folder, so that two drivers, each of which takes itself for the active
one, cannot touch each other's files. The files of failed attempts are removed after the query's
next batch, when they can no longer be committed.
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
#: Few other readers support INT96, Spark's default, and it has no statistics.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class Attempts:
    """The attempts of one sink in this process; removes what attempts of earlier processes left."""

    def __init__(self) -> None:
        self._settled: set[str] = set()
        self._unsure: set[str] = set()

    def begin(self, mark: Mark) -> str:
        """Return the name of a new attempt."""
        if mark.query not in self._settled:
            self._unsure.add(mark.query)
        self._settled.discard(mark.query)
        return f"batch={mark.batch:08}-{mark.query}-{uuid.uuid4().hex[:8]}"

    def settle(self, folder: Folder, mark: Mark, is_dead: Callable[[str, int], bool]) -> None:
        """Remove the query's dead attempts after its batch was committed.

        ``is_dead`` decides by name and batch whether an attempt can no longer be committed. The
        folder is listed only if an attempt may have failed.
        """
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
    """Have the executors write rows as Parquet, and return the files of the attempt.

    Failed attempts of a task leave no files: Spark moves a task's files into place when it is done.
    """
    name = f"{DATA}/{attempt}"
    with _setting(rows.sparkSession, *_TIMESTAMPS):
        writer = rows.write.mode("errorifexists").options(**options)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.parquet(folder.url(name))
    return [file for file in folder.files(name) if _is_data(file.name)]


def attempt_of(file: str) -> str:
    """Return the attempt that wrote a file of the table."""
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
