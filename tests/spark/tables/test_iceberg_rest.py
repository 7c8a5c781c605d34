"""An Iceberg table in a real REST catalogue: once, whatever becomes of a commit's answer."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Transaction
from pyspark.sql import SparkSession

from cometmq.spark.tables import icebergcommit
from cometmq.spark.tables.iceberg import IcebergTable
from cometmq.spark.tables.sink import Mark
from tests.compat.anchor import JavaServer
from tests.icebergrest import Losing, Loss, losing, running_catalogue, start, url_of
from tests.spark.tables.changes import Changes, check_merges, check_new_columns, rows_of

pytestmark = [pytest.mark.compat, pytest.mark.spark]

BY_KEY: dict[str, Any] = {"keys": ["Key"], "newest_by": ["n"], "deleted": "gone"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    """A REST catalogue."""
    with running_catalogue(tmp_path_factory.mktemp("catalogue")) as found:
        yield found


@pytest.fixture
def way(server: JavaServer) -> Iterator[Losing]:
    """A way to the catalogue on which answers are lost."""
    with losing(server.port) as found:
        yield found


@pytest.fixture
def name() -> str:
    """A table that nobody has."""
    return f"shop.t{uuid.uuid4().hex[:12]}"


def at(port: int) -> dict[str, str]:
    """The properties of a catalogue."""
    return {"type": "rest", "uri": url_of(port)}


def found(server: JavaServer, name: str) -> list[dict[str, Any]]:
    """The rows of a table, as another reader sees them."""
    with load_catalog("default", **at(server.port)) as catalogue:
        rows: list[dict[str, Any]] = catalogue.load_table(name).scan().to_arrow().to_pylist()
    return sorted(rows, key=str)


@contextmanager
def table_at(port: int, name: str, **more: Any) -> Iterator[IcebergTable]:
    """A table whose connections end with the block."""
    table = IcebergTable(name, properties=at(port), **more)
    try:
        yield table
    finally:
        if table._catalog is not None:
            table._catalog.close()


def test_merges_and_new_columns(spark: SparkSession, server: JavaServer, name: str) -> None:
    with table_at(server.port, name, **BY_KEY) as table:
        check_merges(table, lambda: found(server, name), spark)
    other = f"{name}_wide"
    with table_at(server.port, other, **BY_KEY, add_columns=True) as table:
        check_new_columns(table, lambda: found(server, other), spark)
    changes, third = Changes(seed=7), f"{name}_random"
    with table_at(server.port, third, **BY_KEY) as table:
        for batch in range(3):
            assert table.apply(rows_of(spark, changes.batch(40)), Mark("q", batch))
    rows = {(row["Key"], row["n"], row["text"]) for row in found(server, third)}
    assert rows == changes.expected


@pytest.mark.parametrize("loss", ["after", "gave up", "sent twice", "silence"])
def test_the_answer_to_a_commit_is_lost(
    spark: SparkSession,
    server: JavaServer,
    way: Losing,
    name: str,
    loss: Loss,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if loss == "silence":
        monkeypatch.setattr(icebergcommit, "ANSWER_TIMEOUT_S", 5)
    with table_at(way.server_port, name) as table:
        assert table.apply(spark.range(0, 3), Mark("q", 0))
        way.loss = loss
        assert table.apply(spark.range(3, 6), Mark("q", 1))
        assert way.losses == 1
        assert not table.apply(spark.range(3, 6), Mark("q", 1))
        # The files stay when the next batches remove what is left of others.
        assert table.apply(spark.range(6, 7), Mark("q", 2))
    assert [row["id"] for row in found(server, name)] == list(range(7))
    merged = f"{name}_merged"
    with table_at(way.server_port, merged, **BY_KEY) as table:
        first = [("a", 1, "one", False), ("b", 1, "one", False)]
        assert table.apply(rows_of(spark, first), Mark("q", 0))
        way.loss = loss
        second = [("a", 2, "two", False), ("b", 2, None, True), ("c", 1, "one", None)]
        assert table.apply(rows_of(spark, second), Mark("q", 1))
        assert way.losses == 2
        assert table.last(spark, "q") == 1
    rows = [(row["Key"], row["n"], row["text"]) for row in found(server, merged)]
    assert rows == [("a", 2, "two"), ("c", 1, "one")]


def test_a_commit_does_not_arrive(
    spark: SparkSession, server: JavaServer, way: Losing, name: str
) -> None:
    with table_at(way.server_port, name) as table:
        assert table.apply(spark.range(0, 3), Mark("q", 0))
        way.loss = "before"
        with pytest.raises(OSError, match=r"aborted|closed"):
            table.apply(spark.range(3, 6), Mark("q", 1))
        assert table.last(spark, "q") == 0
        # As Spark repeats it.
        assert table.apply(spark.range(3, 6), Mark("q", 1))
    assert [row["id"] for row in found(server, name)] == list(range(6))


def test_the_catalogue_is_killed(spark: SparkSession, server: JavaServer, name: str) -> None:
    with table_at(server.port, name) as table:
        assert table.apply(spark.range(0, 3), Mark("q", 0))
        server.stop(signal.SIGKILL)
        try:
            with pytest.raises(OSError, match="refused"):
                table.apply(spark.range(3, 6), Mark("q", 1))
        finally:
            start(server)
        assert not table.apply(spark.range(0, 3), Mark("q", 0))
        assert table.apply(spark.range(3, 6), Mark("q", 1))
    assert [row["id"] for row in found(server, name)] == list(range(6))


def test_the_catalogue_is_killed_inside_a_commit(
    spark: SparkSession, server: JavaServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are written, and the commit finds nobody; nor does the look at the table."""
    adding = Transaction.add_files

    def killing(*words: Any, **more: Any) -> None:
        adding(*words, **more)
        server.stop(signal.SIGKILL)

    with table_at(server.port, name) as table:
        assert table.apply(spark.range(0, 3), Mark("q", 0))
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "add_files", killing)
            with pytest.raises(Exception, match="could not be read"):
                table.apply(spark.range(3, 6), Mark("q", 1))
        start(server)
        assert table.apply(spark.range(3, 6), Mark("q", 1))
    assert [row["id"] for row in found(server, name)] == list(range(6))


def test_two_drivers(
    spark: SparkSession, server: JavaServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was presumed dead, and commits what the other has committed since it looked."""
    with table_at(server.port, name) as first, table_at(server.port, name) as second:
        assert first.apply(spark.range(0, 3), Mark("q", 0))
        adding, meanwhile = Transaction.add_files, [(spark.range(3, 6), Mark("q", 1))]

        def late(*words: Any, **more: Any) -> None:
            if meanwhile:
                assert first.apply(*meanwhile.pop())
            adding(*words, **more)

        monkeypatch.setattr(Transaction, "add_files", late)
        assert not second.write(spark.range(3, 6), Mark("q", 1))
        # Another query's commit is no obstacle.
        meanwhile.append((spark.range(6, 7), Mark("p", 0)))
        assert second.write(spark.range(7, 8), Mark("q", 2))
    assert [row["id"] for row in found(server, name)] == list(range(8))
