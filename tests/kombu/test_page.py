"""The application of docs/how-to/celery.md: a real worker runs its task, by either setting."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cometmq.testing.cluster import Cluster
from tests.client.test_pages import ADDRESS, blocks

pytestmark = pytest.mark.operation

LIMIT_S = 90


def test_its_task_runs(cometmq_cluster: Cluster, tmp_path: Path) -> None:
    program, settings = blocks("how-to/celery.md")
    (tmp_path / "shop.py").write_text(program.replace(ADDRESS, cometmq_cluster.namesrv))
    (tmp_path / "celeryconfig.py").write_text(settings.replace(ADDRESS, cometmq_cluster.namesrv))
    configured = "from shop import app\napp.config_from_object('celeryconfig')\n"
    for number, before in enumerate(("from shop import app, charge\n", configured)):
        call = f"{before}from shop import charge\ncharge.delay('A{number}')\n"
        subprocess.run([sys.executable, "-c", call], cwd=tmp_path, check=True, timeout=LIMIT_S)
    log = tmp_path / "worker.log"
    words = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo", "-l", "INFO"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, cwd=tmp_path, env=dict(os.environ), stdout=out, stderr=out,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT_S
        while not all(f"MainProcess] A{number}" in log.read_text() for number in range(2)):
            assert time.monotonic() < deadline, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    finally:
        process.terminate()
        try:
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait(LIMIT_S)
