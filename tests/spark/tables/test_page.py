"""The examples of the page about tables run as they stand."""

import json
import os
import re
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.tables.mysql import connected, rows_of
from cometmq.spark.tables.parquet import ParquetTable
from cometmq.spark.tables.sink import Mark
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark

PAGE = (ROOT / "docs" / "spark" / "tables.md").read_text(encoding="utf-8")
STATES = ("new", "paid", "gone")


def test_examples(
    spark: SparkSession,
    postgres: str,
    mysql: str,
    cometmq_session_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        make_topic(client, "orders", 1)
        for version, state in enumerate(STATES):
            for number in range(3 if state == "gone" else 5):
                body = json.dumps({"id": f"o{number}", "state": state, "version": version})
                client.send("orders", body.encode(), tag=state, keys=[f"o{number}"])
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    # A relative path is Spark's at its start, and ours at the time of the call.
    here = os.path.relpath(tmp_path)
    text = "\n".join(blocks).replace("127.0.0.1:9876", cometmq_session_cluster.namesrv)
    text = text.replace("host=127.0.0.1 dbname=shop", postgres).replace("/data/", f"{tmp_path}/")
    text = text.replace("mysql://shop@127.0.0.1:3306/shop", mysql)
    for name in set(re.findall(r'"([a-z]+-(?:table|checkpoint|orders))"', text)):
        text = text.replace(f'"{name}"', f'"{here}/{name}"')
    found: dict[str, object] = {"spark": spark}
    exec(compile(text, "tables.md", "exec"), found)
    archive, paid = found["archive"], found["paid"]
    assert isinstance(archive, ParquetTable)
    assert archive.read(spark).count() == 13
    assert str(paid).endswith("paid-orders")
    with psycopg.connect(postgres) as connection:
        rows = connection.execute("SELECT id, state, version FROM orders ORDER BY id").fetchall()
    assert rows == [("o3", "paid", 1), ("o4", "paid", 1)]
    with connected(mysql) as server:
        assert rows_of(server, "SELECT id, state, version FROM orders ORDER BY id") == rows
    merged = [("o3", "paid", 1), ("o4", "paid", 1)]
    assert sorted(
        DeltaTable(tmp_path / "states-table").to_pyarrow_table().to_pylist(), key=str
    ) == [dict(zip(("id", "state", "version"), row, strict=True)) for row in merged]
    catalogue = {"type": "sql", "uri": f"sqlite:///{tmp_path}/states.db"}
    iceberg = load_catalog("default", **catalogue).load_table("shop.states").scan().to_arrow()
    assert sorted(zip(*iceberg.to_pydict().values(), strict=True)) == merged
    counted = found["Counted"]()  # type: ignore[operator]
    assert counted.apply(spark.range(3), Mark("q", 0))
    assert not counted.apply(spark.range(3), Mark("q", 0))
    assert counted.counts == {Mark("q", 0): 3}
