"""Rows as MySQL's literals, statements of a bounded size, and tasks that copy all or nothing."""

import datetime
import decimal
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pymysql
import pytest
from pyspark.sql import types as t

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.mysql import (
    TYPES,
    RowTooLarge,
    arguments,
    connected,
    copy,
    inserts,
    literals,
    rows_of,
    run,
)
from cometmq.spark.tables.staging import StagingSource, TypeUnknown

# The server comes from the fixtures of Spark's tests; no session is needed here.
TASK = str(uuid.UUID(int=7))


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (t.ByteType(), "tinyint"),
        (t.DecimalType(12, 3), "decimal(12,3)"),
        (t.BinaryType(), "longblob"),
        (t.TimestampType(), "datetime(6)"),
        (t.VarcharType(7), "longtext"),
        (t.ArrayType(t.IntegerType()), "json"),
    ],
)
def test_types(kind: t.DataType, found: str) -> None:
    assert TYPES.of("c", kind) == found


def test_a_type_without_counterpart() -> None:
    with pytest.raises(TypeUnknown, match=r"'c' of type interval .* MySQL"):
        TYPES.of("c", t.DayTimeIntervalType())


def test_a_url_has_all_that_a_connection_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = arguments("mysql://a%40b:c%2Fd@db:3307/my%20shop?ssl_ca=/ca.pem&read_timeout=5")
    assert found == {
        "host": "db", "port": 3307, "user": "a@b", "password": "c/d", "database": "my shop",
        "connect_timeout": 10, "read_timeout": 5, "write_timeout": 60,
        "ssl_ca": "/ca.pem", "ssl_verify_cert": True, "ssl_verify_identity": True,
    }  # fmt: skip
    monkeypatch.setenv("MYSQL_PWD", "sesame")
    assert arguments("mysql://a@db/shop")["password"] == "sesame"
    assert arguments("mysql://a@db/shop")["port"] == 3306
    monkeypatch.setenv("MYSQL_PWD", "a%41b")
    assert arguments("mysql://a@db/shop")["password"] == "a%41b"


@pytest.mark.parametrize(
    "url", ["postgresql://sesame@h/d", "mysql://sesame@h", "mysql://h/d?sesame", "mysql://h/d?a=b",
            "mysql://sesame@h/d?read_timeout=0", "mysql://a:sesame/2@db/shop",
            "mysql://a:12/sesame@db/shop"],
)  # fmt: skip
def test_a_url_without_sense_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SettingsError, match="url") as refused:
        arguments(url)
    assert "sesame@" not in str(refused.value)
    assert "sesame/" not in str(refused.value)


def test_statements_are_bounded() -> None:
    rows = [b"(1)", b"(22)", b"(3)"]
    assert list(inserts(b"I ", rows, 100)) == [b"I (1),(22),(3)"]
    assert list(inserts(b"I ", rows, 10)) == [b"I (1),(22)", b"I (3)"]
    assert list(inserts(b"I ", rows, 6)) == [b"I (1)", b"I (22)", b"I (3)"]
    assert list(inserts(b"I ", [], 6)) == []
    with pytest.raises(RowTooLarge, match="6 bytes, and the server's max_allowed_packet is 5"):
        list(inserts(b"I ", rows, 5))


def test_literals(mysql: str) -> None:
    at = datetime.datetime(2026, 3, 1, 7, 8, 9, 123456)
    east = datetime.timezone(datetime.timedelta(hours=8))
    tiny = decimal.Decimal("0.0000000012345678901234567890")
    batch = pa.record_batch(
        {
            "text": pa.array(["", "a'\\\"\n%s ü🚀"]),
            "body": pa.array([b"", b"\x00\xff"]),
            "at": pa.array([None, at.replace(tzinfo=east)], pa.timestamp("us", "Asia/Shanghai")),
            "local": pa.array([at, None], pa.timestamp("us")),
            "share": pa.array([0.1, 1e300]),
            "exact": pa.array([tiny, None], pa.decimal128(38, 28)),
            "sure": pa.array([True, None]),
            "day": pa.array([at.date(), None]),
        }
    )
    with connected(mysql) as connection:
        first, second = literals(batch, TASK, connection.escape)
        assert first == (
            b"('',X'',NULL,'2026-03-01 07:08:09.123456',0.1e0,0.0000000012345678901234567890,1,"
            b"'2026-03-01',X'00000000000000000000000000000007')"
        )
        [found] = rows_of(connection, "SELECT " + second[1:-1].decode().replace("%", "%%"))
    assert found == (
        "a'\\\"\n%s ü🚀", b"\x00\xff", "2026-02-28 23:08:09.123456", None, 1e300, None, None, None,
        uuid.UUID(TASK).bytes,
    )  # fmt: skip


@pytest.fixture
def source(mysql: str) -> StagingSource:
    name = f"Stage% {uuid.uuid4().hex[:8]}"
    with connected(mysql) as connection:
        create = "CREATE TABLE `{}` (`a `` b` LONGTEXT, n INT, task BINARY(16)) CHARSET utf8mb4"
        run(connection, create.format(name.replace("%", "%%")))
    return StagingSource(mysql, "shop", name, ("a ` b", "n"), "task")


def batches(*rows: list[tuple[str | None, int]]) -> Iterator[pa.RecordBatch]:
    for each in rows:
        texts, numbers = [row[0] for row in each], [row[1] for row in each]
        yield pa.record_batch(
            [pa.array(texts, pa.string()), pa.array(numbers, pa.int64())], ["a", "n"]
        )


def stored(source: StagingSource) -> list[tuple[object, ...]]:
    with connected(source.conninfo) as connection:
        name = source.staging.replace("%", "%%")
        return rows_of(connection, f"SELECT * FROM `{name}` ORDER BY n")


def test_copy(source: StagingSource) -> None:
    given = batches([("", 1), (None, 2)], [], [("ü🚀\n%s", 3)])
    assert copy(source, TASK, given) == 3
    task = uuid.UUID(TASK).bytes
    assert stored(source) == [("", 1, task), (None, 2, task), ("ü🚀\n%s", 3, task)]
    assert copy(source, TASK, batches()) == 0


def test_more_than_a_packet_is_copied_in_several_statements(source: StagingSource) -> None:
    large = "ü" * 400_000
    assert copy(source, TASK, batches([(large, n) for n in range(25)])) == 25
    assert [row[1] for row in stored(source) if row[0] == large] == list(range(25))
    with pytest.raises(RowTooLarge) as refused:
        copy(source, TASK, batches([("a", 26)], [("x" * 17_000_000, 27)]))
    assert refused.value.size_bytes > 17_000_000
    assert len(stored(source)) == 25


def test_a_task_that_fails_leaves_nothing(source: StagingSource) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches([("a", 1)])
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        copy(source, TASK, failing())
    # Servers that are not strict would cut it.
    with pytest.raises(pymysql.err.DataError, match="Out of range"):
        copy(source, TASK, batches([("a", 1)], [("b", 2**40)]))
    assert stored(source) == []
