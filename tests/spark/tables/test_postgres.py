"""The PostgreSQL table: appended to or merged into, each batch once, at every step of failure."""

import datetime
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.tables.merge import MergeFailed
from cometmq.spark.tables.postgres import PostgresTable, copy
from cometmq.spark.tables.sink import NO_BATCH, Mark
from cometmq.spark.tables.staging import BATCHES, STAGING, StagingFormat, StagingSource, staged

pytestmark = pytest.mark.spark


@pytest.fixture
def name() -> str:
    """A table of the test's own, in a schema of its own, with a name that must be quoted."""
    return f's{uuid.uuid4().hex[:8]}.Order "lines"'


@pytest.fixture
def database(postgres: str, name: str) -> str:
    schema = name.partition(".")[0]
    with psycopg.connect(postgres) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{postgres} options='-c search_path={schema}'"


def fetch(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(query).fetchall()


def rows_of(database: str, columns: str = "*") -> list[tuple[Any, ...]]:
    return fetch(database, f'SELECT {columns} FROM "Order ""lines""" ORDER BY 1')


def staging(database: str) -> list[str]:
    found = fetch(
        database,
        "SELECT relname FROM pg_class WHERE relkind = 'r' "
        f"AND relnamespace = current_schema::regnamespace AND relname LIKE '{STAGING}%'",
    )
    return [relname for (relname,) in found]


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    return spark.createDataFrame(list(rows), columns).repartition(2)


def test_append_with_all_types(spark: SparkSession, database: str, name: str) -> None:
    at = datetime.datetime(2026, 3, 1, 7, 8, 9, 123456)
    full = (1, 'a,"\n', b"\x00\xff", at, 1.5, True, {"k": "v"}, [1, 2], at.date())
    columns = (
        "id bigint, text string, body binary, at timestamp, share double, sure boolean, "
        "more map<string,string>, list array<int>, day date"
    )
    table = PostgresTable(database, name)
    empty = (2, *[None] * 8)
    assert table.last(spark, "q") == NO_BATCH
    assert table.apply(frame(spark, [full, empty], columns), Mark("q", 0))
    assert not table.apply(frame(spark, [full, empty], columns), Mark("q", 0))
    assert table.last(spark, "q") == 0
    stored = (*full[:3], at.replace(tzinfo=datetime.UTC), *full[4:])
    assert rows_of(database) == [stored, empty]
    assert table.apply(frame(spark, [full], columns), Mark("q", 1))
    assert table.apply(frame(spark, [full], columns), Mark("other", 0))
    assert [row[0] for row in rows_of(database)] == [1, 1, 1, 2]
    assert staging(database) == []


def test_merge_by_key(spark: SparkSession, database: str, name: str) -> None:
    table = PostgresTable(database, name, keys=["id", "Part"], newest_by=["change"], deleted="gone")
    columns = "id int, Part string, change bigint, text string, gone boolean"
    first = [
        (1, "a", 1, "old", False),
        (1, "a", 3, "new", False),
        (1, "a", 2, "between", False),
        (1, "b", 1, "kept", False),
        (2, "a", 1, "made", False),
        (2, "a", 2, None, True),
        (3, "a", 1, "goes later", None),
    ]
    table.apply(frame(spark, first, columns), Mark("q", 0))
    assert rows_of(database) == [
        (1, "a", 3, "new"), (1, "b", 1, "kept"), (3, "a", 1, "goes later"),
    ]  # fmt: skip
    second = [
        (1, "a", 2, "late", False),
        (1, "b", 0, None, True),
        (3, "a", 2, None, True),
        (4, "a", 1, "new", False),
        (1, "b", 1, "the same again", False),
    ]
    table.apply(frame(spark, second, columns), Mark("q", 1))
    assert rows_of(database) == [
        (1, "a", 3, "new"), (1, "b", 1, "the same again"), (4, "a", 1, "new"),
    ]  # fmt: skip


def test_a_table_that_is_there(spark: SparkSession, database: str, name: str) -> None:
    """Its own types and defaults hold; columns that rows lack are left to it."""
    with psycopg.connect(database) as connection:
        connection.execute(
            'CREATE TABLE "Order ""lines""" (id int PRIMARY KEY, text varchar(3), '
            "made timestamptz DEFAULT now(), n bigint GENERATED ALWAYS AS IDENTITY)"
        )
    table = PostgresTable(database, name, keys=["id"])
    table.apply(frame(spark, [(1, "abc")], "id long, text string"), Mark("q", 0))
    table.apply(frame(spark, [(1, "xyz"), (2, None)], "id long, text string"), Mark("q", 1))
    assert rows_of(database, "id, text, made IS NOT NULL, n") == [
        (1, "xyz", True, 1),
        (2, None, True, 3),
    ]
    with pytest.raises(Exception, match="value too long for type character varying"):
        table.apply(frame(spark, [(3, "long")], "id long, text string"), Mark("q", 2))
    assert table.last(spark, "q") == 1
    assert staging(database) == []


def test_two_rows_with_one_key_need_an_order(spark: SparkSession, database: str, name: str) -> None:
    table = PostgresTable(database, name, keys=["id"])
    with pytest.raises(MergeFailed, match="newest_by"):
        table.apply(frame(spark, [(1, "a"), (1, "b")], "id int, t string"), Mark("q", 0))
    assert rows_of(database) == []


def test_each_step_may_fail(
    spark: SparkSession, database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a try left is no row of the table, and gone after the next batch."""
    table = PostgresTable(database, name)
    batch = frame(spark, [(1,), (2,), (3,)], "id int")
    with pytest.raises(Exception, match="task fails"):
        table.apply(
            batch.selectExpr("if(id = 2, raise_error('task fails'), id) as id"), Mark("q", 0)
        )
    assert (rows_of(database), staging(database)) == ([], [])
    # Killed between copying and merging: the staging table stays.
    with monkeypatch.context() as patch:
        patch.setattr(PostgresTable, "_apply", _killed)
        patch.setattr(PostgresTable, "_drop", _killed)
        with pytest.raises(KeyboardInterrupt):
            table.apply(batch, Mark("q", 0))
    assert (rows_of(database), len(staging(database))) == ([], 1)
    assert table.apply(batch, Mark("q", 0))
    assert (rows_of(database), staging(database)) == ([(1,), (2,), (3,)], [])
    # A driver that was thought dead goes on with a batch that another has applied meanwhile.
    assert not table.write(batch, Mark("q", 0))
    assert (rows_of(database), staging(database)) == ([(1,), (2,), (3,)], [])


def _killed(*_: object) -> bool:
    raise KeyboardInterrupt


def test_a_connection_lost_at_commit(
    spark: SparkSession, database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says whether the batch was stored; an unstored one is written by the next try."""
    table = PostgresTable(database, name)
    batch = frame(spark, [(1,), (2,)], "id int")
    real: Callable[..., bool] = PostgresTable._apply

    def stored(*words: Any) -> bool:
        real(*words)
        raise psycopg.OperationalError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresTable, "_apply", stored)
        assert table.apply(batch, Mark("q", 0))
        assert not table.apply(batch, Mark("q", 0))
        patch.setattr(PostgresTable, "_merged", _lost)
        with pytest.raises(psycopg.OperationalError, match="connection lost"):
            table.apply(batch, Mark("q", 1))
    assert rows_of(database) == [(1,), (2,)]
    assert table.apply(batch, Mark("q", 1))
    assert rows_of(database) == [(1,), (1,), (2,), (2,)]


def _lost(*_: object) -> bool:
    raise psycopg.OperationalError("connection lost")


def test_attempts_that_do_not_count_and_rows_that_vanish(
    spark: SparkSession, database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that ran twice counts once; a server that lost staged rows is noticed."""
    table = PostgresTable(database, name)
    batch = frame(spark, [(1,), (2,)], "id int")
    real = staged

    def twice(rows: DataFrame, source: StagingSource, kind: type[StagingFormat]) -> dict[str, int]:
        found = real(rows, source, kind)
        copy(source, str(uuid.uuid4()), iter([pa.record_batch({"id": pa.array([1, 2])})]))
        return found

    def emptied(
        rows: DataFrame, source: StagingSource, kind: type[StagingFormat]
    ) -> dict[str, int]:
        found = real(rows, source, kind)
        with psycopg.connect(database) as connection:
            connection.execute(f'TRUNCATE "{source.staging}"')
        return found

    with monkeypatch.context() as patch:
        patch.setattr("cometmq.spark.tables.staging.staged", emptied)
        with pytest.raises(MergeFailed, match="2 rows were copied for batch 0, 0 are there"):
            table.apply(batch, Mark("q", 0))
        patch.setattr("cometmq.spark.tables.staging.staged", twice)
        assert table.apply(batch, Mark("q", 0))
    assert rows_of(database) == [(1,), (2,)]


def test_staging_tables_of_others_stay(spark: SparkSession, database: str, name: str) -> None:
    table = PostgresTable(database, name)
    batch = frame(spark, [(1,)], "id int")
    table.apply(batch, Mark("q", 0))
    left = f"{table._prefix('other')}0_0badf00d"
    with psycopg.connect(database) as connection:
        connection.execute(f"CREATE TABLE {left} ()")
        connection.execute(f"CREATE TABLE {STAGING}_of_somebody ()")
    table.apply(batch, Mark("q", 1))
    assert len(staging(database)) == 2
    with psycopg.connect(database) as writer:
        writer.execute(f"LOCK TABLE {left} IN ROW EXCLUSIVE MODE")
        assert table.clean() == []
    assert table.clean() == [left]
    assert staging(database) == [f"{STAGING}_of_somebody"]
    assert fetch(database, f"SELECT target, query, batch FROM {BATCHES}") == [(name, "q", 1)]


def test_no_password_is_shown(spark: SparkSession, database: str, name: str) -> None:
    """Neither in the table's name nor in what Spark says of a failed query."""
    table = PostgresTable(f"{database} password=sesame", name)
    assert "sesame" not in f"{table} {table!r}"
    batch = spark.range(3).selectExpr("if(id = 1, raise_error('fails'), id) as id")
    with pytest.raises(Exception, match="fails") as failure:
        table.apply(batch, Mark("q", 0))
    assert "sesame" not in str(failure.value)
