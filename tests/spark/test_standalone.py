"""A real cluster, which starts once for all of this: what works in one JVM works on its executors,
and what is killed there loses nothing (`make deep` runs many campaigns: tests/spark/killing.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from cometmq.client.blocking import Client
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.spark.jobs.changing import World
from tests.spark.killing import campaign
from tests.spark.sinks import SINKS
from tests.spark.standalone import Standalone
from tests.spark.topics import fill_all, make_topic

pytestmark = pytest.mark.spark

LIMIT_S = 300


def test_source_and_job(
    spark_cluster: Standalone, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    namesrv = cometmq_session_cluster.namesrv
    world = World()
    with Client(namesrv) as client:
        fill_all(client, make_topic(client, "OnCluster", 4), 25)
        make_topic(client, "ChangesOnCluster", 2)
        for _ in range(60):
            key, change = world.change()
            client.send("ChangesOnCluster", change, keys=[key], order_key=key)
    words = [spark_cluster.url, str(tmp_path), namesrv, "OnCluster", "ChangesOnCluster"]
    log = tmp_path / "driver.log"
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster_job", *words],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text()[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["master"] == spark_cluster.url
    assert found["counts"] == {"1": 25, "2": 25, "3": 25}
    assert os.getpid() not in found["daemons"]
    tables = {table for table, _ in world.rows}
    assert found["rows"] == {each: sum(t == each for t, _ in world.rows) for each in tables}
    assert found["applied"] == 60


def test_an_executor_and_something_else(
    spark_cluster: Standalone, postgres: str, mysql: str, tmp_path: Path
) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    chance = Random(seed)
    other = chance.choice(["driver", "jvm", "python worker", "broker"])
    # One database appends and the other merges; both of both would be too much for one batch.
    appends, merges = chance.sample(["postgres", "mysql"], 2)
    sinks = sorted(SINKS.keys() - {f"{appends}-merged", merges})
    servers = {"postgres": postgres, "mysql": mysql}
    with campaign(tmp_path, seed, sinks, spark_cluster, **servers) as found:
        found.round("executor")
        found.round(other)
        found.finish()
        assert set(found.kills) == {"executor", other}
