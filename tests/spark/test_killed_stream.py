"""Driver and JVM are killed inside a micro-batch of Spark's own sink; afterwards every message is
there once. In every run the sinks of test_standalone.py are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.spark.read.test_stream import bodies, expected, stream, to_parquet
from tests.spark.topics import fill_all, make_topic

pytestmark = [pytest.mark.spark, pytest.mark.deep]

TOPIC = "Killed"
WAIT_S = 120


def logged(folder: Path, kind: str) -> int:
    """How many batches a checkpoint has in its log of ``offsets`` or of ``commits``."""
    return sum(path.name.isdigit() for path in (folder / "checkpoint" / kind).glob("*"))


def follow_and_kill(cluster: Cluster, folder: Path, commits: int) -> None:
    """Run a stream until it is inside a batch after at least ``commits`` others, and kill it."""
    command = [sys.executable, "-m", "tests.spark.follow", cluster.namesrv, TOPIC, str(folder)]
    with (folder / "follow.log").open("ab") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + WAIT_S
        while not commits <= logged(folder, "commits") < logged(folder, "offsets"):
            assert child.poll() is None, (folder / "follow.log").read_text()[-2000:]
            assert time.monotonic() < deadline, (folder / "follow.log").read_text()[-2000:]
            time.sleep(0.002)
    finally:
        # The JVM is in the child's process group.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)


def test_each_message_once_after_kills(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, TOPIC, 4)
        fill_all(client, queues, 150)
    follow_and_kill(cometmq_session_cluster, tmp_path, commits=0)
    assert logged(tmp_path, "commits") == 0
    follow_and_kill(cometmq_session_cluster, tmp_path, commits=4)
    assert 4 <= logged(tmp_path, "commits") < 15
    frame = stream(
        spark,
        cometmq_session_cluster,
        TOPIC,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="40",
    )
    assert to_parquet(frame, tmp_path) > 0
    assert bodies(spark, tmp_path) == expected(4, 150)
