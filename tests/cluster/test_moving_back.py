"""From our master back to a Java broker, which copied as its slave: nothing is lost."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from tests.cluster.load import names, patient_client, until
from tests.cluster.logs import assert_same_logs, log_end
from tests.cluster.servers import BrokerProcess
from tests.cluster.test_migration import FILES, GROUP, TOPIC, Sender, read_on
from tests.compat import anchor

pytestmark = pytest.mark.compat

NEVER_MS = "99999999999999"
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


def copied_offset(java: anchor.JavaCluster) -> int:
    """The sum of the group's offsets in the Java broker's file; -1 while it has none, as between
    the removal of the old file and the renaming of the new one."""
    try:
        text = (java.store / "config" / "consumerOffset.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return -1
    found = re.search(rf'"{TOPIC}@{GROUP}":\s*{{([^}}]*)}}', text)
    return -1 if found is None else sum(map(int, re.findall(r":\s*(\d+)", found[1])))


async def committed_offset(admin: Admin) -> int:
    return sum(offset or 0 for offset in (await admin.group_offsets(GROUP, TOPIC)).values())


async def drain(ours: BrokerProcess, java: anchor.JavaCluster, client: Client) -> None:
    """Take no more sends, and return once the slave has all: log, topics and offsets."""
    admin = Admin(client.session)
    await admin.update_broker_config(ours.broker, {"startAcceptSendRequestTimeStamp": NEVER_MS})
    await until(lambda: log_end(ours.store) == log_end(java.store), "the slave has the log")
    stats = await admin.topic_stats(TOPIC)
    count = sum(each.max_offset for each in stats.values())
    async with asyncio.timeout(60):
        while await committed_offset(admin) < count:
            await asyncio.sleep(0.05)
    # A Java slave asks for tables every 10 s.
    await until(lambda: copied_offset(java) == count, "the slave has the offsets")
    assert assert_same_logs(ours.store, java.store) > 0


def become_master(java: anchor.JavaCluster) -> None:
    path = java.home / "conf" / "broker.conf"
    text = path.read_text(encoding="utf-8")
    text = text.replace("brokerRole=SLAVE", "brokerRole=ASYNC_MASTER")
    path.write_text(text.replace("brokerId=1", "brokerId=0"), encoding="utf-8")
    java.broker_server.stop()
    java.start()


async def test_a_java_slave_becomes_the_master(
    jars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        java = anchor.JavaCluster(jars, tmp_path / "java", FILES | SLAVE)
        stack.callback(java.kill)
        await asyncio.to_thread(java.namesrv_server.start)
        ours = BrokerProcess(tmp_path, java.namesrv, settings=FILES)
        stack.callback(ours.kill)
        await asyncio.to_thread(ours.start)
        client = await stack.enter_async_context(patient_client(java.namesrv))
        await Admin(client.session).create_topic(TOPIC, queues=4)
        sender, read = Sender(client), Counter[str]()
        sending = asyncio.create_task(sender.run())
        reading = asyncio.create_task(read_on(client, read))
        await until(lambda: sender.has(500), "some history")
        await asyncio.to_thread(java.broker_server.start)
        await until(lambda: copied_offset(java) > 0, "the slave copies")

        begun_ms = clock.monotonic_ms()
        await drain(ours, java, client)
        drained_ms = clock.monotonic_ms() - begun_ms
        await asyncio.to_thread(ours.terminate)
        await asyncio.to_thread(become_master, java)
        before = len(sender.acked)
        await until(lambda: sender.has(before + 500), "sends to the Java master")
        pause_ms = sender.longest_ms
        sender.over = True
        await sending
        await until(lambda: read.keys() >= set(sender.acked), "all is read")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        async with patient_client(java.namesrv) as fresh:
            stored = set(await names(fresh, TOPIC))
        lost = set(sender.acked) - stored
        with capsys.disabled():
            print(
                f"\nback messages={len(sender.acked)} drained_ms={drained_ms} "
                f"sender_pause_ms={pause_ms} lost={len(lost)} "
                f"redelivered={sum(read.values()) - len(read)}"
            )
        assert lost == set()
