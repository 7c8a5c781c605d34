"""Each kind of cluster takes and gives messages, cleans up, and passes errors on."""

import asyncio
import threading
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.core.errors import NotConnected, SettingsError
from cometmq.testing.cluster import (
    ProcessCluster,
    cluster_in_thread,
    cluster_settings,
    running_cluster,
)

#: Everything a cluster keeps on disk at its start.
SMALL_BYTES = 16 * 1024 * 1024


async def round_trip(namesrv: str, body: bytes = b"x") -> bytes:
    """Sends one message and reads it back."""
    async with Client(namesrv) as client:
        result = await client.send("trip", body)
        pulled = await client.puller.pull(result.queue, result.queue_offset)
        return pulled.messages[0].body


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


async def test_a_cluster_in_this_loop(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        assert await round_trip(cluster.namesrv, b"loop") == b"loop"
        assert cluster.store == tmp_path / "store"
        assert disk_bytes(tmp_path) < SMALL_BYTES


async def test_a_cluster_starts_again_on_its_store(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        result = await client.send("kept", b"kept")
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        pulled = await client.puller.pull(result.queue, result.queue_offset)
        assert [message.body for message in pulled.messages] == [b"kept"]


async def test_a_cluster_that_failed_inside_is_stopped_too(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with running_cluster(tmp_path):
            raise ZeroDivisionError
    assert asyncio.all_tasks() == before


def test_a_cluster_in_a_thread(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    with cluster_in_thread(tmp_path) as cluster:
        assert asyncio.run(round_trip(cluster.namesrv)) == b"x"
    left = {*threading.enumerate()} - before
    assert not [each for each in left if each.name.startswith("cometmq")]
    with pytest.raises(NotConnected):
        asyncio.run(round_trip(cluster.namesrv))


def test_a_thread_that_cannot_start_raises_here(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="brokerName"),
        cluster_in_thread(tmp_path, brokerNam="a"),
    ):
        pytest.fail("it started")


def test_a_cluster_in_a_process(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        assert asyncio.run(round_trip(cluster.namesrv)) == b"x"
        cluster.restart()
        assert asyncio.run(round_trip(cluster.namesrv)) == b"x"


def test_settings_of_any_spelling_replace_the_small_ones() -> None:
    found = cluster_settings({"mapped_file_size_commit_log": 8192, "flushDiskType": "SYNC_FLUSH"})
    assert found["mapped_file_size_commit_log"] == "8192"
    assert "mappedFileSizeCommitLog" not in found
    assert found["flushDiskType"] == "SYNC_FLUSH"
    assert cluster_settings({"trace_on": False})["trace_on"] == "false"
    assert "maxIndexNum" in cluster_settings({})
