"""The examples of the page about values run as they stand."""

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.tables.parquet import ParquetTable
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark

PAGE = (ROOT / "docs" / "spark" / "values.md").read_text(encoding="utf-8")


def test_examples(
    spark: SparkSession,
    cometmq_cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    namesrv = cometmq_cluster.namesrv
    with Client(namesrv) as client:
        make_topic(client, "orders", 1)
        make_topic(client, "orders-undecodable", 1)
        client.send("orders", b'{"id": 7, "customer": "Ann", "total": 12.5}')
        client.send("orders", b"broken")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    found: dict[str, object] = {"spark": spark}
    text = "\n".join(blocks).replace("127.0.0.1:9876", namesrv)
    text = re.sub(r'"(\w+-(?:table|checkpoint))"', rf'"{tmp_path}/\1"', text)
    exec(compile(text, "values.md", "exec"), found)
    shown = capsys.readouterr().out
    assert "|     Ann|12.50|" in shown
    assert "value: struct" in shown
    assert re.search(r"\| +7\| +0\|", shown)
    assert re.search(r"\| +Ann\| +1\|", shown)
    spark.sql("DROP VIEW orders")
    letters = found["letters"]
    assert isinstance(letters, DataFrame)
    kept = (
        spark.read.format("rocketmq")
        .option("nameservers", namesrv)
        .option("topic", "orders-undecodable")
        .load()
    )
    assert [bytes(row.body) for row in kept.collect()] == [b"broken"]
    rejected, decoded = found["rejected"], found["decoded"]
    assert isinstance(rejected, ParquetTable)
    assert isinstance(decoded, ParquetTable)
    [row] = rejected.read(spark).collect()
    assert bytes(row.body) == b"broken"
    assert row.properties["ORIGIN_TOPIC"] == "orders"
    assert [each.id for each in decoded.read(spark).collect()] == [7]
