"""The format as a user meets it."""

import subprocess
import sys

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.schema import NAMES
from cometmq.spark.source import TopicSource
from cometmq.testing.cluster import Cluster
from pyspark_rocketmq import DefaultSource
from tests.spark.topics import fill, make_topic

spark_test = pytest.mark.spark


def test_looking_for_sources_imports_nothing_but_spark() -> None:
    script = "import sys, pyspark_rocketmq; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("cometmq")} == {
        *("cometmq", "cometmq.spark", "cometmq.spark.source"),
    }
    assert not {"pyarrow", "msgspec"} & loaded


@spark_test
def test_the_format_registers_itself(spark: SparkSession, cometmq_session_cluster: Cluster) -> None:
    assert DefaultSource is TopicSource
    with Client(cometmq_session_cluster.namesrv) as client:
        make_topic(client, "SourceSelf", 1)
    read = spark.read.format("rocketmq").option("namesrv", cometmq_session_cluster.namesrv)
    assert tuple(read.option("topic", "SourceSelf").load().columns) == NAMES


@spark_test
@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({}, "option 'topic': is required"),
        ({"topic": "T", "topics": "T"}, "did you mean 'topic'"),
        ({"topic": "SourceNowhere"}, "create it first"),
    ],
)
def test_a_mistake_is_told(
    spark: SparkSession, cometmq_session_cluster: Cluster, extra: dict[str, str], problem: str
) -> None:
    read = spark.read.format("rocketmq").option("nameservers", cometmq_session_cluster.namesrv)
    with pytest.raises(PySparkException, match=problem):
        read.options(**extra).load().collect()


@spark_test
def test_a_schema_prunes(spark: SparkSession, cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        (queue,) = make_topic(client, "SourceSchema", 1)
        fill(client, queue, ["one"], "t")
    read = spark.read.format("rocketmq").option("nameservers", cometmq_session_cluster.namesrv)
    read = read.option("topic", "SourceSchema")
    (row,) = read.schema("body binary, tags string").load().collect()
    assert row.asDict() == {"body": b"one", "tags": "t"}
    with pytest.raises(PySparkException, match="no column 'boddy'"):
        read.schema("boddy binary").load().collect()


@spark_test
def test_a_secret_is_in_no_plan_and_in_no_error(spark: SparkSession) -> None:
    read = spark.read.format("rocketmq").option("nameservers", "127.0.0.1:1").option("topic", "T")
    read = read.option("accessKey", "spark-reader").option("secretKey", "hush-hush")
    frame = read.load()
    with pytest.raises(PySparkException, match="no name server answers") as caught:
        frame.collect()
    frame.createOrReplaceTempView("guarded")
    explained = spark.sql("EXPLAIN EXTENDED SELECT tags FROM guarded").collect()[0][0]
    assert "rocketmq" in explained
    assert "hush-hush" not in explained + str(caught.value)
