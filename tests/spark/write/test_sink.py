"""Frames to topics and back, by batch and by stream, each row once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.client.blocking import Client
from cometmq.spark.session import activate
from cometmq.spark.write.writer import topic_sink
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.spark.topics import fill_all, make_topic

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that drops repeated ids."""
    settings = {"dropRepeatedIdsTopics": "*"}
    with cluster_in_thread(tmp_path_factory.mktemp("guarded"), **settings) as found:
        yield found


def topic(cluster: Cluster, name: str, queues: int = 4) -> str:
    with Client(cluster.namesrv) as client:
        make_topic(client, name, queues)
    return name


def write(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    frame.write.format("rocketmq").mode("append").options(
        nameservers=cluster.namesrv, **options
    ).save()


def read(spark: SparkSession, cluster: Cluster, name: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameservers", cluster.namesrv)
    return reader.option("topic", name).load()


def test_what_was_written_is_read_again(spark: SparkSession, cluster: Cluster) -> None:
    name = topic(cluster, "WriteColumns")
    frame = spark.createDataFrame(
        [
            (name, b"one", "red", ["a", "b"], {"x": "1", "TAGS": "no"}, 7, "k1"),
            (name, b"two", None, None, None, None, "k1"),
            (name, b"", "blue", [], {}, 0, None),
        ],
        "topic string, body binary, tags string, keys array<string>, "
        "properties map<string,string>, flag int, order_key string",
    )
    write(frame, cluster)
    rows = {bytes(row.body): row for row in read(spark, cluster, name).collect()}
    assert set(rows) == {b"one", b"two", b""}
    one, two = rows[b"one"], rows[b"two"]
    assert (one.tags, one.keys, one.flag, one.properties["x"]) == ("red", "a b", 7, "1")
    assert (two.tags, two.keys, two.flag) == (None, None, 0)
    assert one.queue_id == two.queue_id
    assert len({row.msg_id for row in rows.values()}) == 3
    assert all(row.msg_id.startswith("7F") and len(row.msg_id) == 32 for row in rows.values())


def test_other_threads_write_after_they_made_the_session_active(
    spark: SparkSession, cluster: Cluster
) -> None:
    name = topic(cluster, "WriteThreads")
    frame = spark.createDataFrame([(name, b"one")], "topic string, body binary")

    def write_active() -> None:
        activate(spark)
        write(frame, cluster)

    with ThreadPoolExecutor(1) as other:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            other.submit(write, frame, cluster).result()
        other.submit(write_active).result()
    assert read(spark, cluster, name).count() == 1


def test_many_rows_arrive_once_and_keys_keep_their_order(
    spark: SparkSession, cluster: Cluster
) -> None:
    name = topic(cluster, "WriteMany", 3)
    frame = spark.range(0, 8_000, numPartitions=2).select(
        F.col("id").cast("string").alias("body"),
        (F.col("id") % 7).cast("string").alias("order_key"),
    )
    write(frame, cluster, topic=name)
    rows = read(spark, cluster, name).select("queue_id", "queue_offset", "body").collect()
    assert sorted(int(row.body) for row in rows) == list(range(8_000))
    for start, stop in ((0, 4_000), (4_000, 8_000)):
        for key in range(7):
            of_key = [row for row in rows if start <= int(row.body) < stop]
            of_key = [row for row in of_key if int(row.body) % 7 == key]
            assert len({row.queue_id for row in of_key}) == 1
            of_key.sort(key=lambda row: row.queue_offset)
            numbers = [int(row.body) for row in of_key]
            assert numbers == sorted(numbers)


def test_a_frame_that_was_read_is_written_back_once_however_often(
    spark: SparkSession, cluster: Cluster
) -> None:
    source, target = topic(cluster, "WriteBackFrom"), topic(cluster, "WriteBackTo")
    with Client(cluster.namesrv) as client:
        queues = make_topic(client, source)
        fill_all(client, queues, 50)
    frame = read(spark, cluster, source)
    for _ in range(2):
        write(frame, cluster, topic=target)
    written = read(spark, cluster, target)
    assert Counter(bytes(row.body) for row in written.collect()) == Counter(
        bytes(row.body) for row in frame.collect()
    )


@pytest.mark.parametrize("kind", ["writeStream", "foreachBatch"])
def test_a_batch_that_comes_again_has_the_same_ids(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    name = topic(cluster, f"WriteAgain{kind}")
    source = tmp_path / "in"
    spark.range(0, 500, numPartitions=2).select(
        F.col("id").cast("string").alias("value")
    ).write.text(str(source))
    checkpoint = tmp_path / "checkpoint"

    def run() -> int:
        frame = spark.readStream.text(str(source)).select(F.col("value").alias("body"))
        # Rows that are equal in all are messages of their own.
        frame = frame.select("body").union(frame.select(F.lit("same").alias("body")))
        if kind == "writeStream":
            writer = frame.writeStream.format("rocketmq").options(
                nameservers=cluster.namesrv, topic=name
            )
        else:
            options = {"nameservers": cluster.namesrv, "topic": name}
            writer = frame.writeStream.foreachBatch(topic_sink(options, name="again"))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        return sum(progress.numInputRows for progress in running.recentProgress)

    assert run() > 0
    first = read(spark, cluster, name).select("msg_id", "body").collect()
    assert len(first) == 1_000
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    assert run() > 0
    again = read(spark, cluster, name).select("msg_id", "body").collect()
    assert Counter(bytes(row.body) for row in again) == Counter(bytes(row.body) for row in first)


def test_what_spark_adds_to_the_options_disturbs_no_sink(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    name = topic(cluster, "WriteNamed")
    given = {"nameservers": cluster.namesrv, "topic": name}
    spark.createDataFrame([("a",)], "body string").write.format("rocketmq").mode("append").options(
        **given
    ).save("somewhere")
    source = tmp_path / "in"
    spark.createDataFrame([("b",)], "body string").write.text(str(source))
    frame = spark.readStream.text(str(source)).select(F.col("value").alias("body"))
    writer = frame.writeStream.format("rocketmq").options(**given).queryName("named")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start("elsewhere").awaitTermination()
    assert {bytes(row.body) for row in read(spark, cluster, name).collect()} == {b"a", b"b"}


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("'x' body, 1 other", {"topic": "T"}, "no column 'other'"),
        ("1 body", {"topic": "T"}, "column 'body' is int, not binary or string"),
        ("'x' tags", {"topic": "T"}, "needs a column 'body'"),
        ("'x' body", {}, "no topic is given"),
        ("'x' body", {"topic": "T", "tpoic": "U"}, "tpoic"),
    ],
)
def test_what_cannot_be_written_is_told_before_any_task(
    spark: SparkSession, cluster: Cluster, columns: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        write(spark.sql(f"select {columns}"), cluster, **options)


def test_a_row_that_cannot_be_sent_fails_its_task_and_is_named(
    spark: SparkSession, cluster: Cluster
) -> None:
    name = topic(cluster, "WriteBad")
    frame = spark.createDataFrame([("fine",), (None,)], "body string").coalesce(1)
    with pytest.raises(PySparkException, match="row 1 of the task, for topic 'WriteBad'"):
        write(frame, cluster, topic=name)
