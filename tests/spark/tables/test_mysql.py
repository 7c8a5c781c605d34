"""The MySQL table: appended to or merged into, each batch once, at every step of failure."""

import datetime
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.core.errors import SettingsError
from cometmq.spark.tables import staging as shared
from cometmq.spark.tables.merge import MergeFailed
from cometmq.spark.tables.mysql import (
    MySqlTable,
    connected,
    copy,
    identifier,
    rows_of,
    run,
    transaction,
)
from cometmq.spark.tables.sink import NO_BATCH, ColumnsDiffer, Mark
from cometmq.spark.tables.staging import BATCHES, STAGING, StagingFormat, StagingSource, staged
from tests.compat.anchor import wait_until
from tests.spark.tables.cutting import cutting

pytestmark = pytest.mark.spark

TARGET = "Order `lines` 100%"


@pytest.fixture
def database(mysql: str) -> str:
    """The URL of a database of the test's own."""
    name = f"s{uuid.uuid4().hex[:8]}"
    with connected(mysql) as connection:
        # Its own character set is no reason to lose characters.
        run(connection, f"CREATE DATABASE {name} CHARACTER SET latin1")
    return mysql.replace("/shop?", f"/{name}?")


def fetch(database: str, query: str) -> list[tuple[Any, ...]]:
    with connected(database) as connection:
        return rows_of(connection, query)


def rows_in(database: str, columns: str = "*") -> list[tuple[Any, ...]]:
    return fetch(database, f"SELECT {columns} FROM {identifier(TARGET)} ORDER BY 1, 2")


def make(database: str, columns: str) -> None:
    with connected(database) as connection:
        run(connection, f"CREATE TABLE {identifier(TARGET)} ({columns})")


def staging(database: str) -> list[str]:
    found = fetch(
        database,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
        f"AND table_name LIKE '{STAGING}%%'",
    )
    return sorted(name for (name,) in found)


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    return spark.createDataFrame(list(rows), columns).repartition(2)


def test_append_with_all_types(spark: SparkSession, database: str) -> None:
    at = datetime.datetime(2026, 3, 1, 7, 8, 9, 123456)
    full = (1, "a,'\\\n🚀 ", b"\x00\xff", at, 0.1, True, {"k": "v"}, [1, 2], at.date())
    columns = (
        "id bigint, text string, body binary, at timestamp, share double, sure boolean, "
        "more map<string,string>, list array<int>, day date"
    )
    table = MySqlTable(database, TARGET)
    empty = (2, *[None] * 8)
    assert table.last(spark, "q") == NO_BATCH
    assert table.apply(frame(spark, [full, empty], columns), Mark("q", 0))
    assert not table.apply(frame(spark, [full, empty], columns), Mark("q", 0))
    assert table.last(spark, "q") == 0
    stored = (*full[:6], '{"k":"v"}', "[1,2]", at.date())
    assert rows_in(database) == [stored, empty]
    assert table.apply(frame(spark, [full], columns), Mark("q", 1))
    assert table.apply(frame(spark, [full], columns), Mark("other", 0))
    assert table.apply(frame(spark, [], columns), Mark("q", 2))
    assert [row[0] for row in rows_in(database)] == [1, 1, 1, 2]
    assert staging(database) == []


def test_merge_by_key(spark: SparkSession, database: str) -> None:
    table = MySqlTable(database, TARGET, keys=["id", "Part"], newest_by=["change"], deleted="gone")
    columns = "id int, Part string, change bigint, text string, gone boolean"
    first = [
        (1, "a", 1, "old", False),
        (1, "a", 3, "new", False),
        (1, "a", 2, "between", False),
        (1, "A", 1, "another key", False),
        (1, "a ", 1, "yet another", False),
        (1, "b", 1, "kept", False),
        (2, "a", 1, "made", False),
        (2, "a", 2, None, True),
        (3, "a", 1, "goes later", None),
    ]
    table.apply(frame(spark, first, columns), Mark("q", 0))
    others = [(1, "A", 1, "another key"), (1, "a ", 1, "yet another")]
    assert sorted(rows_in(database)) == sorted(
        [*others, (1, "a", 3, "new"), (1, "b", 1, "kept"), (3, "a", 1, "goes later")]
    )
    second = [
        (1, "a", 2, "late", False),
        (1, "b", 0, None, True),
        (3, "a", 2, None, True),
        (4, "a", 1, "new", False),
        (1, "b", 1, "the same again", False),
    ]
    table.apply(frame(spark, second, columns), Mark("q", 1))
    assert sorted(rows_in(database)) == sorted(
        [*others, (1, "a", 3, "new"), (1, "b", 1, "the same again"), (4, "a", 1, "new")]
    )


def test_an_order_of_two_columns(spark: SparkSession, database: str) -> None:
    """Each row is replaced whole or not at all, though columns are assigned one after another."""
    table = MySqlTable(database, TARGET, keys=["id"], newest_by=["offset", "item"])
    columns = "id int, offset bigint, item int, text string"
    before = [(number, 5, 5, "old") for number in range(7)] + [(7, None, None, "old")]
    table.apply(frame(spark, before, columns), Mark("q", 0))
    given = [(4, 9), (5, 4), (5, 5), (5, 6), (6, 0), (5, None), (None, 9), (1, 1)]
    incoming = [(number, *order, "new") for number, order in enumerate(given)]
    table.apply(frame(spark, incoming, columns), Mark("q", 1))
    replaced = [False, False, True, True, True, True, True, True]
    assert rows_in(database) == [
        new if is_newer else old
        for is_newer, old, new in zip(replaced, before, incoming, strict=True)
    ]


def test_a_table_that_is_there(spark: SparkSession, database: str) -> None:
    """Its own types and defaults hold; columns that rows lack are left to it."""
    make(
        database,
        "id INT UNIQUE NOT NULL, text VARCHAR(3) CHARACTER SET utf8mb4 NOT NULL, "
        "made TIMESTAMP(6) DEFAULT NOW(6), kind ENUM('a%%', 'b'), "
        "n BIGINT AUTO_INCREMENT PRIMARY KEY",
    )
    table = MySqlTable(database, TARGET, keys=["ID"], newest_by=["made"], deleted="gone")
    columns = "ID long, text string, kind string, made timestamp, gone boolean"
    at = datetime.datetime(2026, 3, 1, 7, 8, 9, 500_000)
    later = at + datetime.timedelta(microseconds=1)
    table.apply(frame(spark, [(1, "a🚀c", "a%", at, False)], columns), Mark("q", 0))
    table.apply(
        frame(
            spark,
            [(1, "xyz", "b", later, False), (1, "old", "a%", at, False), (2, None, None, at, True)],
            columns,
        ),
        Mark("q", 1),
    )
    assert rows_in(database, "id, text, made, kind, n") == [(1, "xyz", later, "b", 1)]
    with pytest.raises(Exception, match="Data too long for column"):
        table.apply(frame(spark, [(3, "long", None, at, False)], columns), Mark("q", 2))
    assert table.last(spark, "q") == 1
    columns = "ID long, made timestamp, gone boolean, more string"
    with pytest.raises(ColumnsDiffer, match="'more' is not in the table"):
        table.apply(frame(spark, [(3, at, False, "x")], columns), Mark("q", 2))
    assert staging(database) == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id INT, t INT", "no unique index on id"),
        ("id INT, t INT, INDEX (id)", "no unique index on id"),
        ("id INT, t INT, UNIQUE (id, t)", "no unique index on id"),
        ("id VARCHAR(9), t INT, UNIQUE (id(2))", "no unique index on id"),
        ("id INT PRIMARY KEY, t INT, UNIQUE mail (t)", "another unique index, mail"),
    ],
)
def test_a_table_in_which_keys_are_not_enough(
    spark: SparkSession, database: str, columns: str, said: str
) -> None:
    make(database, columns)
    table = MySqlTable(database, TARGET, keys=["id"], newest_by=["t"])
    with pytest.raises(MergeFailed, match=said):
        table.apply(spark.createDataFrame([(1, 2)], "id int, t int"), Mark("q", 0))
    assert rows_in(database, "COUNT(*), 1") == [(0, 1)]


@pytest.mark.parametrize(
    ("kind", "column", "said"),
    [
        ("timestamp", "DATETIME", "is datetime, which rounds a timestamp"),
        ("timestamp", "TIMESTAMP(3)", r"is timestamp\(3\), which rounds a timestamp"),
        ("double", "BIGINT", "which rounds a double"),
        ("double", "FLOAT", "is float, which rounds a double"),
        ("decimal(9,3)", "DECIMAL(9,2)", "which rounds a decimal"),
    ],
)
def test_an_order_that_the_table_would_round(
    spark: SparkSession, database: str, kind: str, column: str, said: str
) -> None:
    make(database, f"id INT PRIMARY KEY, v {column}")
    table = MySqlTable(database, TARGET, keys=["id"], newest_by=["v"])
    rows = spark.createDataFrame([(1, None)], f"id int, v {kind}")
    with pytest.raises(MergeFailed, match=said):
        table.apply(rows, Mark("q", 0))
    assert rows_in(database, "COUNT(*), 1") == [(0, 1)]


def test_zero_is_a_key_of_a_counted_column_and_null_is_none(
    spark: SparkSession, database: str
) -> None:
    make(database, "id INT AUTO_INCREMENT PRIMARY KEY, v INT")
    table = MySqlTable(database, TARGET, keys=["id"], newest_by=["v"])
    for batch, value in enumerate((1, 2)):
        table.apply(frame(spark, [(0, value), (7, value)], "id int, v int"), Mark("q", batch))
    assert rows_in(database) == [(0, 2), (7, 2)]
    with pytest.raises(MergeFailed, match=r"a key column \(id\) has nulls"):
        table.apply(frame(spark, [(None, 3)], "id int, v int"), Mark("q", 2))
    assert rows_in(database) == [(0, 2), (7, 2)]


def test_long_keys_that_begin_alike_are_not_mixed_up(spark: SparkSession, database: str) -> None:
    table = MySqlTable(database, TARGET, keys=["url"], newest_by=["v"], deleted="gone")
    same = "🚀" * 690
    rows = [(f"{same}{name}", v, v == 3 and name == "a") for v in (1, 2, 3) for name in "ab"]
    table.apply(frame(spark, rows, "url string, v int, gone boolean"), Mark("q", 0))
    assert rows_in(database, "url, v") == [(f"{same}b", 3)]


def test_columns_are_named_as_the_rows_have_them(spark: SparkSession, database: str) -> None:
    table = MySqlTable(database, TARGET, keys=["id"], newest_by=["V"])
    with pytest.raises(SettingsError, match="rows have no column 'V'"):
        table.apply(frame(spark, [(1, 2)], "id int, v int"), Mark("q", 0))


def test_an_engine_without_transactions(spark: SparkSession, database: str) -> None:
    make(database, "id INT PRIMARY KEY")
    with connected(database) as connection:
        run(connection, f"ALTER TABLE {identifier(TARGET)} ENGINE=MyISAM")
    with pytest.raises(MergeFailed, match="no engine with transactions"):
        MySqlTable(database, TARGET).apply(spark.createDataFrame([(1,)], "id int"), Mark("q", 0))
    assert fetch(database, f"SELECT * FROM {identifier(TARGET)}") == []


def test_two_rows_with_one_key_need_an_order(spark: SparkSession, database: str) -> None:
    table = MySqlTable(database, TARGET, keys=["id"])
    with pytest.raises(MergeFailed, match="newest_by"):
        table.apply(frame(spark, [(1, "a"), (1, "b")], "id int, t string"), Mark("q", 0))
    assert rows_in(database) == []
    table.apply(frame(spark, [(1, "a"), (2, "b")], "id int, t string"), Mark("q", 0))
    table.apply(frame(spark, [(1, "c")], "id int, t string"), Mark("q", 1))
    assert rows_in(database) == [(1, "c"), (2, "b")]


def test_each_step_may_fail(
    spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a try left is no row of the table, and gone after the next batch."""
    table = MySqlTable(database, TARGET)
    batch = frame(spark, [(1, 0), (2, 0), (3, 0)], "id int, n int")
    failing = batch.selectExpr("if(id = 2, raise_error('task fails'), id) as id", "n")
    with pytest.raises(Exception, match="task fails"):
        table.apply(failing, Mark("q", 0))
    assert (rows_in(database), staging(database)) == ([], [])
    # Killed between copying and merging: the staging table stays.
    with monkeypatch.context() as patch:
        patch.setattr(MySqlTable, "_apply", _killed)
        patch.setattr(MySqlTable, "_drop", _killed)
        with pytest.raises(KeyboardInterrupt):
            table.apply(batch, Mark("q", 0))
    assert (rows_in(database), len(staging(database))) == ([], 1)
    assert table.apply(batch, Mark("q", 0))
    assert (rows_in(database), staging(database)) == ([(1, 0), (2, 0), (3, 0)], [])


def _killed(*_: object) -> bool:
    raise KeyboardInterrupt


def test_two_drivers_at_once(
    spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have staged the batch and wait to merge it: one does, and the other is told."""
    table = MySqlTable(database, TARGET)
    batch = frame(spark, [(1, 0), (2, 0)], "id int, n int")
    table.apply(batch.limit(0), Mark("q", 0))
    asked: list[tuple[Any, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr(MySqlTable, "_settled", lambda _, *words: asked.append(words))
        patch.setattr(MySqlTable, "_drop", lambda *_: False)
        for _ in range(2):
            table.write(batch, Mark("q", 1))
    with ThreadPoolExecutor(2) as threads, connected(database) as holder:
        with transaction(holder):
            run(holder, f"SELECT batch FROM {BATCHES} FOR UPDATE")
            tries = [threads.submit(table._settled, *words) for words in asked]
            wait_until(lambda: waiting(database) == 2, "both wait")
        assert sorted(each.result() for each in tries) == [False, True]
    assert rows_in(database) == [(1, 0), (2, 0)]
    assert not table.write(batch, Mark("q", 0))
    assert staging(database) == []


def waiting(database: str) -> int:
    """How many transactions wait for a lock."""
    select = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    return int(fetch(database, select)[0][0])


def test_attempts_that_do_not_count_and_rows_that_vanish(
    spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that ran twice counts once; a server that lost staged rows is noticed."""
    table = MySqlTable(database, TARGET)
    batch = frame(spark, [(1, 0), (2, 0)], "id int, n int")
    real = staged

    def twice(rows: DataFrame, source: StagingSource, kind: type[StagingFormat]) -> dict[str, int]:
        found = real(rows, source, kind)
        again = pa.record_batch({"id": pa.array([1, 2]), "n": pa.array([0, 0])})
        copy(source, str(uuid.uuid4()), iter([again]))
        return found

    def emptied(
        rows: DataFrame, source: StagingSource, kind: type[StagingFormat]
    ) -> dict[str, int]:
        found = real(rows, source, kind)
        with connected(database) as connection:
            run(connection, f"DELETE FROM {identifier(source.staging)}")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(shared, "staged", emptied)
        with pytest.raises(MergeFailed, match="2 rows were copied for batch 0, 0 are there"):
            table.apply(batch, Mark("q", 0))
        patch.setattr(shared, "staged", twice)
        assert table.apply(batch, Mark("q", 0))
    assert rows_in(database) == [(1, 0), (2, 0)]


@pytest.mark.parametrize(("where", "is_stored"), [("before", False), ("after", True)])
def test_a_connection_lost_at_commit(
    spark: SparkSession,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Literal["before", "after"],
    is_stored: bool,
) -> None:
    """The record says whether the batch was stored; an unstored one is written by the next try."""
    real, batch = staged, frame(spark, [(1, 0), (2, 0)], "id int, n int")
    address, _, socket = database.partition("unix_socket=")
    with cutting(tmp_path / "s", socket) as way:
        table = MySqlTable(f"{address}unix_socket={way.path}", TARGET)

        def then_cut(
            rows: DataFrame, source: StagingSource, kind: type[StagingFormat]
        ) -> dict[str, int]:
            found = real(rows, source, kind)
            way.cut = where
            return found

        with monkeypatch.context() as patch:
            patch.setattr(shared, "staged", then_cut)
            if is_stored:
                assert table.apply(batch, Mark("q", 0))
            else:
                with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
                    table.apply(batch, Mark("q", 0))
        assert way.cuts == 1
        assert rows_in(database) == ([(1, 0), (2, 0)] if is_stored else [])
        assert table.apply(batch, Mark("q", 0)) is not is_stored
    assert rows_in(database) == [(1, 0), (2, 0)]
    assert staging(database) == []


def test_a_deadlock_is_tried_again(
    spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = MySqlTable(database, TARGET)
    batch = frame(spark, [(1, 0)], "id int, n int")
    real: Callable[..., bool] = MySqlTable._merged
    deadlock = pymysql.err.OperationalError(1213, "Deadlock found")
    failures = [deadlock] * 3

    def deadlocked(*words: Any) -> bool:
        done = real(*words)
        if failures:
            raise failures.pop()
        return done

    monkeypatch.setattr(MySqlTable, "_merged", deadlocked)
    with pytest.raises(pymysql.err.OperationalError, match="Deadlock"):
        table.apply(batch, Mark("q", 0))
    assert rows_in(database) == []
    failures += [deadlock, pymysql.err.OperationalError(1020, "Record has changed")]
    assert table.apply(batch, Mark("q", 0))
    assert rows_in(database) == [(1, 0)]


def test_staging_tables_of_others_stay(spark: SparkSession, database: str) -> None:
    table = MySqlTable(database, TARGET)
    batch = frame(spark, [(1, 0)], "id int, n int")
    table.apply(batch, Mark("q", 0))
    left = f"{table._prefix('other')}0_0badf00d"
    with connected(database) as connection:
        run(connection, f"CREATE TABLE {left} (n INT)")
        run(connection, f"CREATE TABLE {STAGING}_of_somebody (n INT)")
    table.apply(batch, Mark("q", 1))
    assert len(staging(database)) == 2
    with connected(database) as writer, transaction(writer):
        run(writer, f"INSERT INTO {left} VALUES (1)")
        assert table.clean() == []
    assert table.clean() == [left]
    assert staging(database) == [f"{STAGING}_of_somebody"]
    found = fetch(database, f"SELECT target, query, batch FROM {BATCHES}")
    assert found == [(TARGET.encode(), b"q", 1)]


def test_no_password_is_shown(spark: SparkSession, database: str) -> None:
    """Neither in the table's name nor in what Spark says of a failed query."""
    with connected(database) as connection:
        run(connection, "CREATE OR REPLACE USER teller@localhost IDENTIFIED BY 'sesame'")
        run(connection, "GRANT ALL ON *.* TO teller@localhost")
    table = MySqlTable(database.replace("root@", "teller:sesame@"), TARGET)
    assert "sesame" not in f"{table} {table!r}"
    batch = spark.range(3).selectExpr("if(id = 1, raise_error('fails'), id) as id", "0 AS n")
    with pytest.raises(Exception, match="fails") as failure:
        table.apply(batch, Mark("q", 0))
    assert "sesame" not in str(failure.value)
