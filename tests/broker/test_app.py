"""A broker's start and stop: ports, order, what a failed start leaves."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from cometmq.broker.config import VIP_DISTANCE
from cometmq.core.errors import StoreCorrupt, StoreLocked
from cometmq.net.server import reserve
from cometmq.protocol.registry import REGISTRY, Side
from cometmq.speedups import DESCRIPTION
from tests.broker.serving import BrokerClient, make_broker, running_broker


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        for number in range(10):
            await client.send(str(number).encode())
        assert (tmp_path / "abort").exists()
    assert not (tmp_path / "abort").exists()
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        _, records = await client.pull()
        assert [record.body for record in records] == [str(n).encode() for n in range(10)]
        assert (await client.send()).ext["queueOffset"] == "10"


async def test_the_log_says_which_core_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cometmq.broker.app")
    async with running_broker(tmp_path) as running:
        name, port = running.broker.config.broker_name, running.broker.port
        assert f"broker started name={name} port={port} core={DESCRIPTION}" in caplog.messages


async def test_the_vip_port_serves_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        vip = BrokerClient(
            *await asyncio.open_connection("127.0.0.1", running.broker.port - VIP_DISTANCE)
        )
        assert (await vip.send()).code == 0
        vip.writer.close()


async def test_a_second_broker_on_the_store_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path):
        second = make_broker(tmp_path)
        with pytest.raises(StoreLocked, match="in use by another process"):
            await second.start()
        await second.stop()


async def test_a_failed_start_gives_everything_back(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "topics.json").write_text("{cut off")
    broker = make_broker(tmp_path)
    with pytest.raises(StoreCorrupt, match=r"move .*topics\.json and its \.bak file away"):
        await broker.start()
    reserve("127.0.0.1", broker.port).close()
    (config / "topics.json").unlink()
    async with running_broker(tmp_path):
        pass


async def test_a_taken_port_is_an_error_before_the_store_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = make_broker(tmp_path / "store", listenPort=str(port))
        with pytest.raises(OSError, match="in use"):
            await broker.start()
    assert not (tmp_path / "store").exists()


async def test_the_loop_sleeps_while_a_thread_syncs_for_an_answer(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        lookout, store = running.broker.lookout, running.broker.store
        assert lookout is not None
        assert not lookout.waits
        key = store.sync_waiters.park(1 << 40, 1 << 60, "a send")
        assert lookout.waits
        store.sync_waiters.cancel(key)
        assert not lookout.waits


async def test_a_broker_can_be_told_not_to_look_out(tmp_path: Path) -> None:
    async with running_broker(tmp_path, lookoutMicros="0") as running:
        assert running.broker.lookout is None
        client = await running.connect()
        assert (await client.send()).code == 0


async def test_every_broker_code_of_the_registry_is_served(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        unsupported = []
        for code, spec in REGISTRY.items():
            if Side.BROKER in spec.side:
                head, _ = await client.ask(code)
                while head.opaque != client.opaque or not head.flag & 1:
                    head, _ = await client.frame()
                if head.code == 3:
                    unsupported.append(spec.code.name)
    assert unsupported == []


async def test_a_topic_is_on_the_device_when_its_first_send_is_answered(tmp_path: Path) -> None:
    """A message that waits for its time is in no queue from which a start could find its topic."""
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        properties = "UNIQ_KEY\x01U1\x02DELAY\x013"
        assert (await client.send(b="later", i=properties)).code == 0
        assert '"later"' in (tmp_path / "config" / "topics.json").read_text()
