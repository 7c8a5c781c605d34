"""Topics into an archive: every message once, over any number of runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cometmq.client.blocking import Client
from cometmq.spark.jobs import archive
from cometmq.spark.jobs.archive import table_at
from cometmq.spark.jobs.inputs import read_archive
from cometmq.spark.options import BadOption, NoArchive
from cometmq.spark.schema import COLUMNS
from cometmq.spark.tables.sink import Mark
from cometmq.testing.cluster import Cluster
from tests.spark.topics import fill_all, make_topic

pytestmark = pytest.mark.spark


def test_each_run_adds_what_is_new_over_the_wire_or_from_the_store(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    target = str(tmp_path / "archive")
    namesrv = cometmq_session_cluster.namesrv
    options = archive.ArchiveOptions(nameservers=namesrv, topics=("Archive",), target=target)
    with Client(namesrv) as client:
        queues = make_topic(client, "Archive", 2)
        fill_all(client, queues, 20)
        assert archive.run(spark, options) == archive.ArchiveReport(target, 40, 1)
        assert archive.run(spark, options) == archive.ArchiveReport(target)
        fill_all(client, queues, 5, start=20)
        stored = archive.ArchiveOptions(
            stores=(str(cometmq_session_cluster.store),),
            brokers=("broker-a",),
            topics=("Archive",),
            target=target,
        )
        assert archive.run(spark, stored).messages == 10
        assert archive.run(spark, stored).messages == 0
    rows = read_archive(spark, target).collect()
    assert sorted(row.keys for row in rows) == sorted(
        f"{queue}-{at}" for queue in range(2) for at in range(25)
    )
    assert {row.topic for row in rows} == {"Archive"}
    days = {datetime.fromisoformat(row.day).date() for row in rows}
    assert max(days) <= datetime.now(UTC).date()
    folders = {path.parent.name for path in (tmp_path / "archive" / "data").rglob("*.parquet")}
    assert folders == {f"day={day}" for day in days}


def planted(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    """Messages of two topics, one a minute from the epoch on, each of about 500 bytes."""
    columns = [f.lit(None).cast(each.spark).alias(each.name) for each in COLUMNS]
    text = f.concat_ws("", *(f.sha2(f.concat("id", f.lit(n)), 512) for n in "abcd"))
    known = {
        "topic": f.when(f.col("id") % 2 == 0, "Even").otherwise("%RETRY%odd"),
        "broker_name": f.lit("broker-a"),
        "queue_id": f.lit(0),
        "queue_offset": f.col("id"),
        "msg_id": f.col("id").cast("string"),
        "body": f.encode(text, "utf-8"),
        "store_timestamp": f.timestamp_millis(f.col("id") * 60_000),
    }
    source = spark.range(start, start + count, numPartitions=8)
    rows = source.select(*columns, "id")
    return rows.select(
        *(known.get(each.name, f.col(each.name)).alias(each.name) for each in COLUMNS)
    )


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_batch_is_added_once_and_small_files_are_joined(
    spark: SparkSession, tmp_path: Path, kind: Literal["parquet", "delta"]
) -> None:
    options = archive.ArchiveOptions(target=str(tmp_path), hours=True, format=kind)
    archiver = archive.Archiver(table_at(options.target, kind, hours=True), options)
    for batch in range(3):
        archiver.add(planted(spark, 40, 40 * batch), Mark("q", batch))
    archiver.add(planted(spark, 40), Mark("q", 0))
    assert archiver.report() == archive.ArchiveReport(options.target, 120, 3, 1)

    def held() -> list[str]:
        rows = read_archive(spark, options.target)
        assert {row.hour for row in rows.select("hour").collect()} == {"00", "01"}
        return sorted((row.msg_id for row in rows.collect()), key=int)

    everything = [str(at) for at in range(120)]
    assert held() == everything
    joined = archive.ArchiveOptions(target=str(tmp_path), compact=True)
    report = archive.run(spark, joined)
    assert (report.files_before, report.files_after) == (8, 4)
    assert held() == everything
    archiver.add(planted(spark, 10, 120), Mark("q", 3))
    assert read_archive(spark, options.target).count() == 130
    report = archive.run(spark, joined)
    assert (report.files_before, report.files_after) == (6, 6)
    assert read_archive(spark, options.target).where("topic = '%RETRY%odd'").count() == 65


def test_tasks_are_joined_and_split_to_the_size(spark: SparkSession, tmp_path: Path) -> None:
    options = archive.ArchiveOptions(target=str(tmp_path), file_bytes=300_000)
    rows = planted(spark, 1_400).where("topic = 'Even'")
    table = table_at(options.target, "parquet", hours=False)
    archive.Archiver(table, options).add(rows, Mark("q", 0))
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.parquet")]
    assert len(sizes) < 8
    assert max(sizes) < 450_000
    small = archive.ArchiveOptions(target=str(tmp_path), file_bytes=100_000, compact=True)
    assert archive.run(spark, small).files_before == len(sizes)
    offsets = read_archive(spark, options.target).select("queue_offset").collect()
    assert len(offsets) == 700


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"archive": "x", "stores": ("x",)},
        {"nameservers": "a:1", "stores": ("x",)},
        {"nameservers": "a:1", "until_ms": 5},
    ],
)
def test_options_that_do_not_go_together(spark: SparkSession, words: dict[str, object]) -> None:
    with pytest.raises(BadOption):
        archive.run(spark, archive.ArchiveOptions(target="/nowhere", **words))  # type: ignore[arg-type]


def test_no_archive_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="there is no archive"):
        read_archive(spark, str(tmp_path))


def test_only_a_missing_archive_is_begun(
    spark: SparkSession,
    cometmq_session_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = stored(cometmq_session_cluster, "ArchiveUnreadable", tmp_path)
    with Client(cometmq_session_cluster.namesrv) as client:
        fill_all(client, make_topic(client, "ArchiveUnreadable", 1), 5)
    with pytest.raises(NoArchive):
        read_archive(spark, options.target)

    def refused(*_: object) -> DataFrame:
        raise BadOption("archive", "rows were deleted")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "read_archive", refused)
        with pytest.raises(BadOption, match="rows were deleted"):
            archive.run(spark, options)
    with pytest.raises(NoArchive):
        read_archive(spark, options.target)
    assert archive.run(spark, options).messages == 5


def test_a_commit_that_comes_late_is_seen_by_its_mark(
    spark: SparkSession,
    cometmq_session_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes after the next run has read what the archive has."""
    options = stored(cometmq_session_cluster, "ArchiveLate", tmp_path)
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "ArchiveLate", 1)
        fill_all(client, queues, 5)
        assert archive.run(spark, options).messages == 5
        fill_all(client, queues, 5, start=5)

    def late(session: SparkSession, path: str) -> DataFrame:
        rows = read_archive(session, path)
        monkeypatch.undo()
        assert archive.run(spark, options).messages == 5
        return rows

    monkeypatch.setattr(archive, "read_archive", late)
    assert archive.run(spark, options) == archive.ArchiveReport(options.target, known=1)
    found = [row.keys for row in read_archive(spark, options.target).collect()]
    assert sorted(found) == [f"0-{at}" for at in range(10)]


def stored(cluster: Cluster, topic: str, folder: Path) -> archive.ArchiveOptions:
    """How a topic is archived from the broker's files."""
    return archive.ArchiveOptions(
        stores=(str(cluster.store),), brokers=("broker-a",), topics=(topic,),
        target=str(folder / "archive"),
    )  # fmt: skip
