"""The fixtures that a user's pytest finds by itself."""

import asyncio
import subprocess
import sys
from pathlib import Path

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.testing.cluster import Cluster, cluster_in_thread

#: What the promise "in well under half a second" may cost on a machine that does other things too.
START_MS_MAX = 500


async def send(namesrv: str) -> int:
    async with Client(namesrv) as client:
        return (await client.send("t", b"x")).queue_offset


def test_a_blocking_test_gets_a_cluster(cometmq_cluster: Cluster) -> None:
    assert asyncio.run(send(cometmq_cluster.namesrv)) == 0


async def test_an_asyncio_test_gets_one_too_and_it_is_empty(cometmq_cluster: Cluster) -> None:
    assert await send(cometmq_cluster.namesrv) == 0


async def test_the_session_s_cluster_is_another_one(
    cometmq_session_cluster: Cluster, cometmq_cluster: Cluster
) -> None:
    assert cometmq_session_cluster.broker != cometmq_cluster.broker
    assert await send(cometmq_session_cluster.namesrv) == 0


def test_a_cluster_starts_in_well_under_half_a_second(tmp_path: Path) -> None:
    clock = SystemClock()
    times = []
    for number in range(3):
        begun_ms = clock.monotonic_ms()
        with cluster_in_thread(tmp_path / str(number)) as cluster:
            asyncio.run(send(cluster.namesrv))
            times.append(clock.monotonic_ms() - begun_ms)
    assert min(times) < START_MS_MAX


def test_pytest_finds_the_plugin_and_it_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(
        "import sys\n"
        "def test_it(request):\n"
        "    assert request.config.pluginmanager.has_plugin('cometmq')\n"
        "    loaded = [name for name in sys.modules if name.startswith('cometmq')]\n"
        "    assert set(loaded) <= {'cometmq', 'cometmq.testing', 'cometmq.testing.plugin'}\n"
        "def test_fixture(cometmq_cluster):\n"
        "    assert cometmq_cluster.namesrv.startswith('127.0.0.1:')\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
