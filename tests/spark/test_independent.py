"""A sender and a judge that share nothing with CometMQ: messages are sent over plain sockets, and
DuckDB reads what Spark wrote of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.tables.parquet import ParquetTable
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.compat.anchor import JavaCluster, fetch_jars
from tests.packaging.tools import locked_packages
from tests.spark.raw_sender import Sent, send_all
from tests.spark.topics import make_topic

LOCK = ROOT / "requirements" / "dbt.lock"
RUN_S = 120
QUEUES = 3
MESSAGES = 2_000
JUDGE = """
import json, sys
import duckdb
rows = duckdb.sql(
    "select queue_id, queue_offset, keys, tags, body, epoch_ms(born_timestamp), flag, "
    "properties['number'], topic, reconsume_times "
    f"from read_parquet({json.loads(sys.argv[1])})"
).fetchall()
json.dump([[*row[:4], row[4].hex(), *row[5:]] for row in rows], sys.stdout)
"""


@pytest.fixture(
    params=[
        pytest.param("own", marks=pytest.mark.spark),
        pytest.param("java", marks=[pytest.mark.spark, pytest.mark.compat]),
    ]
)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A broker of each kind."""
    if request.param == "own":
        yield request.getfixturevalue("cometmq_session_cluster")
        return
    made = JavaCluster(fetch_jars(), tmp_path / "java")
    with made.until_killed():
        yield Cluster(made.namesrv, made.broker, made.store)


def judged(files: list[str]) -> list[list[Any]]:
    """The rows of Parquet files, as DuckDB reads them."""
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, json.dumps(files)],
        env=os.environ | {"PYTHONPATH": str(locked_packages(LOCK)), "TZ": "UTC"},
        check=False, capture_output=True, text=True, timeout=RUN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def expected(topic: str, sent: list[Sent]) -> list[list[Any]]:
    """The rows of the messages that were sent."""
    return sorted(
        [
            *(each.queue, each.offset, each.key, each.tag, each.body.hex(), each.born_ms),
            *(number % 7, str(number), topic, 0),
        ]
        for number, each in enumerate(sent)
    )


def test_what_sockets_send_is_what_another_reader_finds(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    topic = "Independent"
    with Client(broker.namesrv) as client:
        make_topic(client, topic, QUEUES)
    sent = send_all(broker.namesrv, topic, QUEUES, MESSAGES)
    options = {"nameservers": broker.namesrv, "topic": topic}
    batch = spark.read.format("rocketmq").options(**options).load()
    batch.write.parquet(str(tmp_path / "batch"))
    files = [str(path) for path in (tmp_path / "batch").glob("*.parquet")]
    assert sorted(judged(files)) == expected(topic, sent)
    stored = {"store": str(broker.store), "brokerName": "broker-a", "topic": topic}
    found = spark.read.format("rocketmq").options(**stored).load()
    found.write.parquet(str(tmp_path / "store"))
    files = [str(path) for path in (tmp_path / "store").glob("*.parquet")]
    assert sorted(judged(files)) == expected(topic, sent)
    stream = spark.readStream.format("rocketmq").options(**options)
    table = ParquetTable(str(tmp_path / "table"))
    query = (
        stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="700").load()
        .writeStream.foreachBatch(table)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(RUN_S)
    files = [url.removeprefix("file://") for url in table.files(spark)]
    assert sorted(judged(files)) == expected(topic, sent)
