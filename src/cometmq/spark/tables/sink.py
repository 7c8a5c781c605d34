"""The rules that all kinds of tables share: a micro-batch is applied exactly once, and its rows
have the table's columns with the same types.

Spark repeats a micro-batch, with the same number, if it does not know whether the batch was
written: the driver died, or a task failed late. A table therefore records the query and the number
of each batch, in the same atomic step that makes the batch's rows visible. A repeated batch is
recognized by its number.

Each kind of table is a subclass of :class:`TableSink` that returns its last batch, and writes one.
Nullability is not compared: Spark declares almost every column nullable.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.core.errors import CometError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger(__name__)

NO_BATCH: Final = -1
_QUERY_ID: Final = "sql.streaming.queryId"


class ColumnsDiffer(CometError):
    """Raised if rows have other columns than the table. ``differences`` has a sentence for each
    difference."""

    def __init__(self, table: str, differences: list[str]) -> None:
        self.table = table
        self.differences = differences
        super().__init__(f"rows do not fit {table}: {'; '.join(differences)}")


class ClassicSessionNeeded(CometError):
    """Raised if a table is used in a session of Spark Connect, which has no Spark context."""

    def __init__(self) -> None:
        super().__init__(
            "tables need a classic session, and this is one of Spark Connect: run the query with "
            "spark-submit, or write with .format('rocketmq') or one of Spark's own formats"
        )


class Mark(NamedTuple):
    """The id of a query, which stays the same as long as its checkpoint exists, and the number of a
    micro-batch."""

    query: str
    batch: int


class TableSink(ABC):
    """A table that micro-batches are appended to or merged into: ``foreachBatch(sink)``."""

    @abstractmethod
    def last(self, spark: SparkSession, query: str) -> int:
        """Return the highest batch of a query in the table, NO_BATCH before its first."""

    @abstractmethod
    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Make rows and mark visible in one step, or neither if this raises.

        Return False, and change nothing, if the table has the batch in the meantime: another driver
        of the same checkpoint, presumed dead, has written it.
        """

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a micro-batch; called by ``foreachBatch``. Raises ClassicSessionNeeded."""
        spark = rows.sparkSession
        query = context_of(spark).getLocalProperty(_QUERY_ID) or ""
        self.apply(rows, Mark(query, batch))

    def apply(self, rows: DataFrame, mark: Mark) -> bool:
        """Write a batch unless the table has it already. Return whether it was written."""
        if mark.batch <= self.last(rows.sparkSession, mark.query):
            log.info("batch_already_written table=%s query=%s batch=%d", self, *mark)
            return False
        return self.write(rows, mark)


def context_of(spark: SparkSession) -> SparkContext:
    """Return the context of a session. Raises ClassicSessionNeeded."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise ClassicSessionNeeded
    return spark.sparkContext


def fitted(
    rows: DataFrame,
    schema: StructType,
    table: str,
    *,
    may_lack: bool = False,
    extra: Sequence[str] = (),
) -> DataFrame:
    """Return the rows with the table's columns in the table's order, then the columns ``extra``.

    With ``may_lack``, rows may lack columns of the table, which are then null. Raises
    ColumnsDiffer.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    given = StructType([field for field in rows.schema if field.name not in extra])
    lacking = set(schema.names) - set(given.names) if may_lack else set()
    wanted = StructType([field for field in schema if field.name not in lacking])
    found = differences(wanted, given)
    if found:
        raise ColumnsDiffer(table, found)
    if rows.columns == [*schema.names, *extra]:
        return rows
    columns = [
        f.lit(None).cast(field.dataType).alias(field.name)
        if field.name in lacking
        else rows[quoted(field.name)]
        for field in schema
    ]
    return rows.select(*columns, *(rows[quoted(name)] for name in extra))


def new_columns(schema: StructType, rows: StructType, extra: Sequence[str] = ()) -> list[Any]:
    """Return the fields of rows that a table lacks, without ``extra``. They are nullable, also the
    nested ones, because existing rows of the table have no values."""
    return [
        field
        for field in rows.toNullable()
        if field.name not in schema.names and field.name not in extra
    ]


def differences(table: StructType, rows: StructType) -> list[str]:
    """Return the differences between a table's columns and those of rows, as sentences."""
    wanted = {field.name: _comparable(field.dataType) for field in table}
    given = {field.name: _comparable(field.dataType) for field in rows}
    found = [f"column {name!r} is missing" for name in wanted if name not in given]
    found += [f"column {name!r} is not in the table" for name in given if name not in wanted]
    found += [
        f"column {name!r} is {_short(given[name])}, in the table {_short(kind)}"
        for name, kind in wanted.items()
        if name in given and given[name] != kind
    ]
    if len(given) < len(rows.names):
        found.append("two columns have one name")
    return found


def _comparable(kind: DataType) -> str:
    return json.dumps(_without_nulls(json.loads(kind.json())), sort_keys=True)


def _without_nulls(value: object) -> object:
    """Return a type's JSON without nullability and comments."""
    left_out = {"nullable", "containsNull", "valueContainsNull", "metadata"}
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _short(kind: str) -> str:
    return kind.strip('"')


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark's expressions."""
    return f"`{name.replace('`', '``')}`"
