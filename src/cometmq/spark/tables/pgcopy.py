"""The executors' side of a PostgreSQL table: each task copies its rows into a staging table.

Spark's writer of Python data sources brings Arrow batches to the tasks and, of each task, the word
of the one attempt that counts back to the driver.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from cometmq.spark.tables.pgcolumns import csv_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: Spark shows no option whose name has this word in it: the conninfo may hold a password.
_PLAN: Final = "secret_plan"
_ANSWER: Final = "answer"
_FORMAT: Final = "cometmq_postgres_staging"


@dataclass(frozen=True, slots=True)
class StagingSource:
    """Where tasks copy to: the staging table, its columns, and that of the attempt's id."""

    conninfo: str
    schema: str
    staging: str
    columns: tuple[str, ...]
    task_column: str


@dataclass
class Copied(WriterCommitMessage):
    """An attempt's id and how many rows it copied."""

    task: str
    rows: int


class StagingFormat(DataSource):
    """The data source that only this module names."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        plan = json.loads(self.options[_PLAN])
        plan["columns"] = tuple(plan["columns"])
        return StagingWriter(StagingSource(**plan), Path(self.options[_ANSWER]))


class StagingWriter(DataSourceArrowWriter):
    """Copies on the executors; on the driver, hands over what the tasks told."""

    def __init__(self, source: StagingSource, answer: Path) -> None:
        self._source = source
        self._answer = answer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Copied:
        """One attempt of a task. Raises psycopg.Error; then nothing of it is there."""
        task = str(uuid.uuid4())
        return Copied(task, copy(self._source, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver's machine, in a process of Spark's."""
        told = {each.task: each.rows for each in messages if isinstance(each, Copied)}
        self._answer.write_text(json.dumps(told), encoding="utf-8")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: rows of attempts that nobody names go with the staging table."""


def copy(source: StagingSource, task: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Copy batches in one transaction; how many rows they had."""
    import psycopg
    from psycopg import sql

    table = sql.Identifier(*filter(None, (source.schema, source.staging)))
    names = [sql.Identifier(name) for name in (*source.columns, source.task_column)]
    command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        table, sql.SQL(", ").join(names)
    )
    rows = 0
    with (
        psycopg.connect(source.conninfo) as connection,
        connection.cursor() as cursor,
        cursor.copy(command) as target,
    ):
        for batch in batches:
            if batch.num_rows:
                target.write(csv_of(_with_task(batch, source.task_column, task)))
                rows += batch.num_rows
    return rows


def staged(rows: DataFrame, source: StagingSource) -> dict[str, int]:
    """Have the executors copy rows; how many each attempt that counts copied, by its id."""
    spark = rows.sparkSession
    spark.dataSource.register(StagingFormat)
    with tempfile.TemporaryDirectory(prefix="cometmq-copied-") as folder:
        answer = Path(folder) / "tasks.json"
        writer = rows.write.format(_FORMAT).mode("append")
        writer.option(_PLAN, json.dumps(asdict(source))).option(_ANSWER, str(answer)).save()
        found: dict[str, int] = json.loads(answer.read_bytes())
    return found


def _with_task(batch: pa.RecordBatch, column: str, task: str) -> Any:
    import pyarrow as pa

    return batch.append_column(column, pa.array([task] * batch.num_rows, pa.string()))
