"""A read of several tiers through Spark: two brokers, and an archive that the job made."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from cometmq.client.blocking import Client
from cometmq.spark.brokers import cluster
from cometmq.spark.jobs import archive
from cometmq.spark.jobs.inputs import read_archive
from cometmq.spark.schema import NAMES
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.compat.anchor import wait_until
from tests.spark.store.s3server import s3_server
from tests.spark.topics import access, fill_all, make_topic

pytestmark = pytest.mark.spark
TOPIC = "Tiered"
BROKERS = ("broker-a", "broker-b")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[str, list[BrokerProcess]]]:
    """The name server of two brokers, and the brokers."""
    with ExitStack() as stack:
        names = NamesrvProcess(tmp_path / "names")
        found = [BrokerProcess(tmp_path, names.namesrv, name=name) for name in BROKERS]
        for node in (names, *found):
            node.start()
            stack.callback(node.kill)
        reached = access(names.namesrv)
        wait_until(lambda: cluster.masters(reached) == {*BROKERS}, "both brokers")
        yield names.namesrv, found


def in_order(frame: DataFrame) -> list[Row]:
    return frame.orderBy("broker_name", "queue_id", "queue_offset").collect()


def test_two_brokers_and_the_job(
    spark: SparkSession, brokers: tuple[str, list[BrokerProcess]], tmp_path: Path
) -> None:
    namesrv, nodes = brokers
    target = str(tmp_path / "archive")
    options = archive.ArchiveOptions(nameservers=namesrv, topics=(TOPIC,), target=target)
    stores = [tmp_path / "copies" / name for name in BROKERS]
    with Client(namesrv) as client:
        queues = make_topic(client, TOPIC, 2)
        fill_all(client, queues, 20)
        archive.run(spark, options)
        fill_all(client, queues, 7, start=20)
        for node, copy in zip(nodes, stores, strict=True):
            shutil.copytree(node.store / "commitlog", copy / "commitlog")
        fill_all(client, queues, 4, start=27)
    live = {"nameservers": namesrv, "topic": TOPIC}
    everything = in_order(spark.read.format("rocketmq").options(**live).load())
    assert len(everything) == 4 * 31

    def tiers(**more: str) -> DataFrame:
        of_stores = {"store": ",".join(map(str, stores)), "brokerName": ",".join(BROKERS)}
        read = spark.read.format("rocketmq").options(archive=target, **live, **of_stores)
        return read.options(**more).load()

    assert in_order(tiers()) == everything
    # What Spark reads of the archive by itself is the part that the archive gives.
    archived = in_order(read_archive(spark, target).select(*NAMES))
    assert archived == [row for row in everything if row.queue_offset < 20]
    alone = spark.read.format("rocketmq").option("archive", target).load()
    assert in_order(alone) == archived
    with s3_server(tmp_path) as s3:
        url = s3.copy(Path(target), "history/archive")
        remote = spark.read.format("rocketmq").option("archive", url).load()
        assert in_order(remote) == archived
    chosen = tiers(startingOffsets="earliest", sqlFilter="KEYS = '1-28' OR KEYS = '0-3'")
    assert in_order(chosen) == [row for row in everything if row["keys"] in ("1-28", "0-3")]
    decoded = tiers(valueFormat="json", valueSchema="n int").where("undecodable is not null")
    assert decoded.count() == len(everything)
    nodes[1].kill()
    left = tiers(missingBroker="warn").groupBy("broker_name").agg(f.count("*").alias("n"))
    # The store has its messages up to 27.
    assert {row["broker_name"]: row["n"] for row in left.collect()} == {
        "broker-a": 2 * 31,
        "broker-b": 2 * 27,
    }
