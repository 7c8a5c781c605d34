"""The programs of pages about the source, the sink and tiers run as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.jobs import archive
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.client.test_pages import blocks
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark


def program(page: str, *numbers: int, **words: str) -> str:
    """Some Python blocks of a page, with words of the test in the place of the page's."""
    found = blocks(f"spark/{page}")
    text = "\n".join(found[number] for number in numbers)
    for old, new in words.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def page_text(page: str) -> str:
    """A page as it is written."""
    return (ROOT / "docs" / "spark" / page).read_text(encoding="utf-8")


def count(spark: SparkSession, namesrv: str, topic: str) -> int:
    """The number of messages of a topic."""
    where = {"nameservers": namesrv, "topic": topic}
    return spark.read.format("rocketmq").options(**where).load().count()


@pytest.fixture
def shop(cometmq_cluster: Cluster) -> str:
    """The address of a cluster with the topics of the pages, and five messages."""
    with Client(cometmq_cluster.namesrv) as client:
        for topic in ("orders", "orders-clean", "paid-orders"):
            make_topic(client, topic, 2)
        for number in range(5):
            body = b'{"order_id": "A%d", "status": "paid"}' % number
            client.send("orders", body, tag=("paid", "shipped", "new")[number % 3])
    return cometmq_cluster.namesrv


def run(text: str, namesrv: str, names: dict[str, Any]) -> None:
    exec(compile(text.replace("127.0.0.1:9876", namesrv), "page", "exec"), names)


def test_the_first_page(
    spark: SparkSession, shop: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    text = program("index.md", 0, 1)
    names: dict[str, Any] = {}
    # The tests' session is there already, and Spark's own folder is elsewhere.
    text = text.replace('local_session("look")', "spark").replace(
        '"orders-', f'"{tmp_path}/orders-'
    )
    text = text.replace('"path", "orders"', f'"path", "{tmp_path}/orders"')
    run(text, shop, names | {"spark": spark})
    shown = capsys.readouterr().out
    assert re.search(r"\| *paid\| +2\|", shown)
    assert "new" not in shown
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 5


def test_writing_to_topics(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    rows = [("A17", "paid"), ("A18", "new")]
    names: dict[str, Any] = {
        "spark": spark,
        "orders": spark.createDataFrame(rows, "order_id string, status string"),
        "nameservers": shop,
    }
    run(program("sink.md", 0), shop, names)
    assert count(spark, shop, "orders-clean") == 2

    stream = program("sink.md", 1).replace('"paid-checkpoint"', f'"{tmp_path / "paid"}"')
    run(stream, shop, names)
    try:
        names["query"].processAllAvailable()  # a stream begins at the end of the topic
        with Client(shop) as client:
            client.send("orders", b"{}", tag="new")
            client.send("orders", b"{}", tag="paid")
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert count(spark, shop, "paid-orders") == 1

    run(program("sink.md", 2), shop, names)
    where = {"nameservers": shop, "topic": "orders"}
    read = spark.read.format("rocketmq").options(**where).load()
    names["write"](read.selectExpr("'orders-clean' AS topic", "body"))
    assert count(spark, shop, "orders-clean") == 9

    stream_of = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    names["orders"] = stream_of.options(**where).load().selectExpr("body", "tags")
    sink = program("sink.md", 3).replace('"clean-checkpoint"', f'"{tmp_path / "clean"}"')
    run(sink.replace("orders.writeStream", "query = orders.writeStream"), shop, names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert count(spark, shop, "orders-clean") == 16


def test_a_copy_of_tables(
    spark: SparkSession, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change = re.search(r"^```json\n(.*?)^```$", page_text("index.md"), re.MULTILINE | re.DOTALL)
    assert change is not None
    with Client(shop) as client:
        make_topic(client, "base-data-changes", 2)
        client.send("base-data-changes", change[1].strip().encode())
    names: dict[str, Any] = {"spark": spark}
    run(program("index.md", 2), shop, names)
    assert names["result"].rows == {"regions": 1}
    assert [row.key for row in names["regions"].collect()] == ["AD-02"]


def test_filters_and_accounts(spark: SparkSession, shop: str) -> None:
    names: dict[str, Any] = {"spark": spark, "secret": "a-long-secret"}
    run(program("source.md", 0, 1, 2), shop, names)
    assert names["big"].count() == 0
    assert names["orders"].count() == 5


def test_tiers(
    spark: SparkSession, cometmq_cluster: Cluster, shop: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    target = tmp_path / "archive"
    archive.run(
        spark, archive.ArchiveOptions(nameservers=shop, topics=("orders",), target=str(target))
    )
    with Client(shop) as client:
        client.send("orders", b"{}", tag="paid")
    names: dict[str, Any] = {"spark": spark}
    text = program("tiers.md", 0).replace("/data/archive", str(target))
    stores = "/snapshots/broker-a/store,/snapshots/broker-b/store"
    assert stores in text
    store = tmp_path / "broker-a" / "store"  # the folder has the broker's name
    store.parent.mkdir()
    store.symlink_to(cometmq_cluster.store)
    run(text.replace(stores, str(store)), shop, names)
    assert re.search(r"\| *paid\| +3\|", capsys.readouterr().out)

    text = program("tiers.md", 2).replace("/data/archive", str(target))
    here = '{"orders": {"broker-a": {"0": 120, "1": 118}}}'
    assert here in text
    run(text.replace(here, '{"orders": {"broker-a": {"0": 1, "1": 1}}}'), shop, names)
    assert names["history"].count() == 2
    query = names["live"].writeStream.format("memory").queryName("followed").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert spark.table("followed").count() == 4
