"""``cometmq spark`` as people run it: a process of its own, interrupted in the middle."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq.client.blocking import Client
from cometmq.testing.cluster import Cluster
from tests.spark.topics import fill_all, make_topic

pytestmark = pytest.mark.spark


def living(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            state, _, its_group = text.rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(text)
    return found


def test_an_interrupt_stops_a_job_and_its_jvm(
    cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    namesrv, target = cometmq_session_cluster.namesrv, tmp_path / "archive"
    with Client(namesrv) as client:
        fill_all(client, make_topic(client, "Interrupted", 1), 5)
    words = ["spark", "archive", str(target), "-n", namesrv, "--topic", "Interrupted"]
    words += ["--every", "200ms", "--master", "local[1]"]
    job = subprocess.Popen(
        [sys.executable, "-m", "cometmq.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        # A group of its own: as in a terminal, the interrupt reaches the JVM too.
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 240
        while not (target / "_checkpoint" / "metadata").exists() and job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(job.pid, signal.SIGINT)
        _, told = job.communicate(timeout=120)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 130, told
    assert told.rstrip().endswith("cometmq spark archive: interrupted")
    deadline = time.monotonic() + 60
    while left := living(job.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
