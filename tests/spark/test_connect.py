"""Spark Connect: a server with CometMQ, and clients that do not need it."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from cometmq.admin.node import lasting_port
from cometmq.client.blocking import Client
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.compat.anchor import JavaServer
from tests.packaging.tools import locked_packages
from tests.spark.topics import fill_all, make_topic

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
LOCK = ROOT / "requirements" / "connect.lock"
RUN_S = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, as ``start-connect-server.sh`` starts one."""
    port = lasting_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = ["env", *(f"{name}={value}" for name, value in variables(ROOT / "src").items())]
    command += [str(program), "--master", "local[2]"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--class", SERVER, "spark-internal"]
    running = JavaServer("connect", command, tmp_path_factory.mktemp("connect"), port)
    running.start()
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        running.stop()


def variables(*paths: Path) -> dict[str, str]:
    """Variables of a process of Spark: it imports from the paths, and from what a client of Spark
    Connect needs."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, [locked_packages(LOCK), *paths])),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(program: str, *words: str, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    # Without -S, the environment's Python would find CometMQ by itself.
    return subprocess.run(
        [sys.executable, "-S", str(HERE / program), *words],
        env=os.environ | variables(Path(sysconfig.get_paths()["purelib"]), *paths), check=False,
        capture_output=True, text=True, timeout=RUN_S,
    )  # fmt: skip


def test_a_client_reads_writes_and_streams_without_cometmq(
    cometmq_session_cluster: Cluster, server: str, tmp_path: Path
) -> None:
    namesrv, topic = cometmq_session_cluster.namesrv, "SparkConnect"
    with Client(namesrv) as client:
        fill_all(client, make_topic(client, topic, 2), 10)
    stored = [f"{queue}-{number}" for queue in range(2) for number in range(10)]
    done = run("connect_client.py", server, namesrv, topic, str(tmp_path), paths=[])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "has_cometmq": False,
        "read": stored,
        "filtered": 10,
        "streamed": stored,
        "streamed_again": sorted([*stored, *(f"copy-0-{number}" for number in range(10))]),
    }


def test_a_table_says_that_it_needs_a_classic_session(
    cometmq_session_cluster: Cluster, server: str, tmp_path: Path
) -> None:
    namesrv, topic = cometmq_session_cluster.namesrv, "SparkConnectTable"
    with Client(namesrv) as client:
        fill_all(client, make_topic(client, topic, 1), 1)
    words = (server, namesrv, topic, str(tmp_path))
    done = run("connect_tables.py", *words, paths=[ROOT / "src"])
    assert done.returncode != 0
    assert "tables need a classic session, and this is one of Spark Connect" in done.stderr
    assert not (tmp_path / "table").exists()
