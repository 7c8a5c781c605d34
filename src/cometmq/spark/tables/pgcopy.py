"""The executors' side of a PostgreSQL table: each task copies its rows into a staging table.

A Python data source is used as the writer, because it passes Arrow batches to the tasks and returns
to the driver one message per task, that of the attempt that counts.
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

#: Spark hides the value of an option whose name contains this word. The conninfo may have a
#: password.
_PLAN: Final = "secret_plan"
_ANSWER: Final = "answer"
_FORMAT: Final = "cometmq_postgres_staging"


@dataclass(frozen=True, slots=True)
class StagingSource:
    """Target of the tasks' copies: the staging table, its columns, and the column for the attempt's
    id."""

    conninfo: str
    schema: str
    staging: str
    columns: tuple[str, ...]
    task_column: str


@dataclass
class Copied(WriterCommitMessage):
    """An attempt's id and the number of rows it copied."""

    task: str
    rows: int


class StagingFormat(DataSource):
    """A private data source for this module."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        plan = json.loads(self.options[_PLAN])
        plan["columns"] = tuple(plan["columns"])
        return StagingWriter(StagingSource(**plan), Path(self.options[_ANSWER]))


class StagingWriter(DataSourceArrowWriter):
    """Copies on the executors; on the driver, passes on the tasks' results."""

    def __init__(self, source: StagingSource, answer: Path) -> None:
        self._source = source
        self._answer = answer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Copied:
        """Copy the rows of one attempt of a task. If it raises psycopg.Error, nothing is copied."""
        task = str(uuid.uuid4())
        return Copied(task, copy(self._source, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the ids and row counts to a file. Spark calls this in a process on the driver's
        machine."""
        told = {each.task: each.rows for each in messages if isinstance(each, Copied)}
        self._answer.write_text(json.dumps(told), encoding="utf-8")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: rows of failed attempts are dropped with the staging table."""


def copy(source: StagingSource, task: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Copy batches in one transaction and return the number of rows."""
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
    """Have the executors copy rows. Return the number of rows per attempt that counts, by its
    id."""
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
