"""Archives that are Iceberg tables."""

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.jobs import archive, redact, search
from cometmq.spark.jobs.icebergarchive import IcebergArchive, parts_of
from cometmq.spark.jobs.inputs import read_archive
from cometmq.spark.options import BadOption
from cometmq.testing.cluster import Cluster
from tests.spark.topics import fill_all, make_topic

pytestmark = pytest.mark.spark

TARGET = "iceberg://lake/archive.messages"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue of the configuration, in a file."""
    given = {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/lake.db",
        "WAREHOUSE": f"file://{tmp_path}",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    # pyiceberg reads its configuration when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return tmp_path


def test_each_run_adds_what_is_new(
    spark: SparkSession, cometmq_session_cluster: Cluster, lake: Path
) -> None:
    namesrv = cometmq_session_cluster.namesrv
    options = archive.ArchiveOptions(
        nameservers=namesrv, topics=("IcebergArchive", "IcebergArchive2"), target=TARGET,
        checkpoint=str(lake / "checkpoint"),
    )  # fmt: skip
    with pytest.raises(BadOption, match="there is no archive"):
        read_archive(spark, TARGET)
    with Client(namesrv) as client:
        queues = make_topic(client, "IcebergArchive", 2)
        others = make_topic(client, "IcebergArchive2", 1)
        fill_all(client, [*queues, *others], 20)
        assert archive.run(spark, options) == archive.ArchiveReport(TARGET, 60, 1)
        assert archive.run(spark, options) == archive.ArchiveReport(TARGET)
        fill_all(client, queues, 5, start=20)
        assert archive.run(spark, options) == archive.ArchiveReport(TARGET, 10, 1)
        fill_all(client, queues, 2, start=25)
    stored = archive.ArchiveOptions(
        stores=(str(cometmq_session_cluster.store),), brokers=("broker-a",),
        topics=("IcebergArchive",), target=TARGET,
    )  # fmt: skip
    assert archive.run(spark, stored).messages == 4
    rows = read_archive(spark, TARGET).where("topic = 'IcebergArchive'").collect()
    expected = sorted(f"{queue}-{at}" for queue in range(2) for at in range(27))
    assert sorted(row.keys for row in rows) == expected
    assert {row.properties["KEYS"] for row in rows} == set(expected)
    # Iceberg's own reader has the same rows, and its partitions are those of an archive.
    table = load_catalog("lake").load_table("archive.messages")
    assert [field.name for field in table.spec().fields] == ["topic", "day"]
    found = table.scan(row_filter="topic == 'IcebergArchive'").to_arrow()
    assert sorted(found["keys"].to_pylist()) == expected
    assert table.scan().to_arrow().num_rows == 74
    hits = search.run(spark, search.SearchOptions(archive=TARGET, key="1-26")).hits
    assert [hit.body for hit in hits] == ["1-26"]


def test_what_an_iceberg_archive_cannot_do_is_said(spark: SparkSession, lake: Path) -> None:
    live = archive.ArchiveOptions(nameservers="127.0.0.1:1", topics=("T",), target=TARGET)
    with pytest.raises(BadOption, match="'checkpoint'"):
        archive.run(spark, live)
    joined = archive.ArchiveOptions(target=TARGET, compact=True)
    with pytest.raises(BadOption, match="tools of its catalogue"):
        archive.run(spark, joined)
    erased = redact.RedactOptions(target=TARGET, keys=("K",))
    with pytest.raises(BadOption, match="needs Parquet or Delta"):
        redact.run(spark, erased)


@pytest.mark.parametrize("url", ["iceberg://lake", "iceberg://lake/messages", "iceberg:///a.b"])
def test_a_name_that_is_no_table_is_refused(url: str) -> None:
    with pytest.raises(BadOption, match=r"CATALOG/NAMESPACE\.TABLE"):
        IcebergArchive(url, (), {})


def test_a_namespace_may_have_several_names() -> None:
    assert parts_of("iceberg://lake/shop.archive.messages") == ("lake", "shop.archive.messages")
