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


async def send(namesrv: str, topic: str = "t") -> int:
    async with Client(namesrv) as client:
        return (await client.send(topic, b"x")).queue_offset


def test_a_blocking_test_gets_a_cluster(cometmq_cluster: Cluster) -> None:
    assert asyncio.run(send(cometmq_cluster.namesrv)) == 0


async def test_an_asyncio_test_gets_one_too_and_it_is_empty(cometmq_cluster: Cluster) -> None:
    assert await send(cometmq_cluster.namesrv) == 0


async def test_the_session_s_cluster_is_another_one(
    cometmq_session_cluster: Cluster, cometmq_cluster: Cluster
) -> None:
    assert cometmq_session_cluster.broker != cometmq_cluster.broker
    assert await send(cometmq_session_cluster.namesrv, "of-this-test-alone") == 0


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
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def run_pytest(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


HANDLERS = """
import pytest
from cometmq import BlockingClient, Client


def consumed(where, work, topic, **options):
    with BlockingClient(where) as client:
        client.send(topic, b"2")
        with client.subscribe(topic, group="g-" + topic, start="first") as given:
            message = next(iter(given))
            with message.processing(**options):
                work(message)


def wrong(message):
    assert message.body == b"3"


def bad_row(message):
    raise ValueError("bad row")


def test_wrong_in_a_block(cometmq_cluster):
    consumed(cometmq_cluster.namesrv, wrong, "t")


def test_wrong_with_the_session_cluster(cometmq_session_cluster):
    consumed(cometmq_session_cluster.namesrv, wrong, "wrong")


@pytest.mark.asyncio
async def test_wrong_in_a_handler(cometmq_cluster):
    async with Client(cometmq_cluster.namesrv) as client:
        await client.send("t", b"2")
        subscription = client.subscribe("t", group="g", start="first", concurrency=1)

        async def handler(message):
            client.session.tasks.spawn(subscription.close(), name="close")
            wrong(message)

        await subscription.run(handler)


@pytest.fixture
def late(cometmq_cluster):
    yield
    consumed(cometmq_cluster.namesrv, wrong, "t")


def test_wrong_in_a_fixture_s_end(late):
    pass


@pytest.mark.cometmq_handler_errors(raises=ValueError)
def test_wrong_though_others_may_be(cometmq_cluster):
    consumed(cometmq_cluster.namesrv, bad_row, "t")
    consumed(cometmq_cluster.namesrv, wrong, "u")


def test_its_own_exception_is_told_once(cometmq_cluster):
    consumed(cometmq_cluster.namesrv, wrong, "t")
    raise KeyError("its own")


@pytest.mark.cometmq_handler_errors
def test_right_with_any_error(cometmq_cluster):
    consumed(cometmq_cluster.namesrv, wrong, "t")


@pytest.mark.cometmq_handler_errors(raises=(KeyError, ValueError))
def test_right_with_some_errors(cometmq_cluster):
    consumed(cometmq_cluster.namesrv, bad_row, "t")


def test_right_where_the_test_sees_it(cometmq_session_cluster):
    with pytest.raises(ValueError, match="bad row"):
        consumed(cometmq_session_cluster.namesrv, bad_row, "seen", reraise=True)


def test_right(cometmq_session_cluster):
    consumed(cometmq_session_cluster.namesrv, print, "right")
"""


def test_an_exception_of_a_handler_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(HANDLERS, encoding="utf-8")
    done = run_pytest(tmp_path)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    told = [line.split(" - ") for line in done.stdout.splitlines() if "::" in line]
    told = [[line[0].replace("test_user.py::test_", ""), *line[1:]] for line in told]
    failed = sorted(line[0] for line in told if line[0].startswith(("FAILED", "ERROR")))
    assert failed == [
        "ERROR wrong_in_a_fixture_s_end",
        "FAILED its_own_exception_is_told_once",
        "FAILED wrong_in_a_block",
        "FAILED wrong_in_a_handler",
        "FAILED wrong_though_others_may_be",
        "FAILED wrong_with_the_session_cluster",
    ], text
    assert "6 failed" not in done.stdout
    assert "5 failed, 5 passed, 1 error" in done.stdout, text
    assert "assert b'2' == b'3'" in done.stdout
    assert "@pytest.mark.cometmq_handler_errors(raises=AssertionError)" in done.stdout
