"""Older versions of Spark do what they can, and say what they cannot. Installs each from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from cometmq.client.blocking import Client
from cometmq.spark import source
from cometmq.spark.options import SparkTooOld
from cometmq.testing.cluster import Cluster
from tests.spark.topics import fill, make_topic

INSTALL_S = 900
RUN_S = 300
ROOT = Path(__file__).parents[2]
#: Reads a topic, with a pushed filter, writes it to itself and reads again; then tries a stream.
PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
given = {"nameservers": sys.argv[1], "topic": sys.argv[2], "startingOffsets": "earliest"}


def messages():
    return spark.read.format("rocketmq").options(**given, pushFilters="true").load()


def attempt(name, call):
    try:
        print(name, call())
    except Exception as error:
        needed = "need pyspark" in str(error)
        print(name, "too old" if needed else f"failed: {error}")


def decoded():
    read = spark.read.format("rocketmq").options(**given, valueFormat="json")
    rows = read.schema("value struct<at:timestamp>, undecodable string").load()
    return rows.where("value is null and undecodable like 'a field has another type%'").count()


def by_function():
    from cometmq.spark.values.decoding import from_rocketmq

    rows = from_rocketmq(messages(), "at timestamp", format="msgpack")
    return rows.where("value is null and undecodable like 'a field has another type%'").count()


def stream():
    found = spark.readStream.format("rocketmq").options(**given).load()
    written = found.writeStream.format("memory").queryName("found").trigger(availableNow=True)
    written.start().awaitTermination()
    return spark.table("found").count()


def write():
    rows = messages().select("topic", "body")
    rows.write.format("rocketmq").mode("append").option("nameservers", sys.argv[1]).save()
    return messages().count()


attempt("read", lambda: messages().count())
attempt("filtered", lambda: messages().where("queue_id = 1").count())
attempt("decoded", decoded)
attempt("by_function", by_function)
attempt("written", write)
attempt("streamed", stream)
"""


@pytest.mark.parametrize(
    ("found", "needed", "is_enough"),
    [("4.0.1", "4.1", False), ("4.1.0", "4.1", True), ("4.3.0", "4.2", True), ("5.0", "4.2", True)],
)
def test_a_version_is_compared_by_its_numbers(
    monkeypatch: pytest.MonkeyPatch, found: str, needed: str, is_enough: bool
) -> None:
    monkeypatch.setattr(pyspark, "__version__", found)
    if is_enough:
        source._need_spark(needed, "streams")
        return
    with pytest.raises(SparkTooOld, match=f"streams need pyspark {needed} or later, .* {found}"):
        source._need_spark(needed, "streams")


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize(
    ("version", "written", "streamed"),
    [("4.0.1", "too old", "too old"), ("4.1.0", "20", "too old"), ("4.2.0", "20", "20")],
)
def test_an_older_spark(
    cometmq_session_cluster: Cluster, tmp_path: Path, version: str, written: str, streamed: str
) -> None:
    namesrv, topic = cometmq_session_cluster.namesrv, f"Spark{version.replace('.', '')}"
    with Client(namesrv) as client:
        for queue in make_topic(client, topic, 2):
            fill(client, queue, [str(at) for at in range(5)])
    python = tmp_path / "environment" / "bin" / "python"
    run([sys.executable, "-m", "venv", str(tmp_path / "environment")], INSTALL_S)
    wanted = (f"pyspark=={version}", "pyarrow", "numpy", "pandas", "msgspec")
    run([str(python), "-m", "pip", "install", "-q", *wanted], INSTALL_S)
    (tmp_path / "program.py").write_text(PROGRAM)
    said = run([str(python), str(tmp_path / "program.py"), namesrv, topic], RUN_S, python)
    found = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    assert found.items() >= {
        ("read", "10"), ("filtered", "5"), ("decoded", "10"),
        *([] if version == "4.0.1" else [("by_function", "10")]),
        ("written", written), ("streamed", streamed),
    }  # fmt: skip


def run(command: list[str], timeout_s: float, python: Path | None = None) -> str:
    """Return what a command prints. Raises CalledProcessError, TimeoutExpired."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    if python is not None:
        environment |= {"PYSPARK_PYTHON": str(python), "PYTHONPATH": f"{ROOT / 'src'}"}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=timeout_s, env=environment
    )
    return done.stdout
