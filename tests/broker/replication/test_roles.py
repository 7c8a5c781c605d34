"""A master and its slaves as brokers: what a slave has, serves and refuses; what sends wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.replication.roles import SlavePart
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.store.replica import kept_offset
from tests.broker.replicated import group, hurry, master_of, slave_of, until_copied
from tests.broker.serving import BrokerClient, pull_fields, running_broker
from tests.replication.pairs import assert_same, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repeated every few seconds follows at once."""
    hurry(monkeypatch)


async def until_async(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():
            await asyncio.sleep(0.01)


async def test_a_slave_has_the_log_and_serves_it(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        client = await master.connect()
        for number in range(20):
            await client.send(str(number).encode())
        slave = await made.start(1)
        for number in range(20, 40):
            await client.send(str(number).encode())
        await until_copied(master, slave)
        assert_same(master.broker.store, slave.broker.store)
        reader = await slave.connect()
        _, records = await reader.pull()
        assert [record.body for record in records] == [str(n).encode() for n in range(32)]


async def test_a_slave_takes_no_sends(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        slave = await made.start(1)
        await until(lambda: bool(slave.broker.replication.part.where()))
        client = await slave.connect()
        refused = await client.send()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark is not None
        assert f"ask the master 127.0.0.1:{master.broker.port}" in refused.remark


async def test_offsets_and_topics_follow_the_master(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        slave = await made.start(1)
        client = await master.connect()
        await client.send(b="t2")
        await client.send()
        offset: dict[str, Any] = {"consumerGroup": "g", "topic": "t", "queueId": "1"}
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **offset, commitOffset="1")
        reader = await slave.connect()

        async def followed() -> bool:
            head, _ = await reader.ask(RequestCode.QUERY_CONSUMER_OFFSET, **offset)
            return head.code == 0 and head.ext["offset"] == "1"

        await until_async(followed)
        assert "t2" in slave.broker.topics.table
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t2")
        await until(lambda: "t2" not in slave.broker.topics.table)
        assert "t" in slave.broker.topics.table


@pytest.mark.parametrize("unseen", [False, True])
async def test_a_topic_made_anew_begins_anew_at_the_slave(tmp_path: Path, unseen: bool) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        client = await master.connect()
        for queue_id in ("0", "1"):
            for _ in range(3):
                await client.send(b"former", e=queue_id)
        slave = await made.start(1)
        await until_copied(master, slave)
        part = slave.broker.replication.part
        assert isinstance(part, SlavePart)
        address, store = part.tables.master, slave.broker.store
        if unseen:
            # The slave asks for tables only after the topic is there again.
            part.tables.master = ""
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        if not unseen:
            await until(lambda: "t" not in store.queues.known)
            assert "t" not in slave.broker.topics.table
        await client.send(b"new", e="0")
        await until(lambda: store.dispatched_offset == master.broker.store.written_offset)
        part.tables.master = address
        part.tables.soon()
        await until(lambda: store.queues.known.get("t") == {0})
        await until_copied(master, slave)
        reader = await slave.connect()
        _, records = await reader.pull(queueId="0")
        assert [record.body for record in records] == [b"new"]
        assert store.queue("t", 0).max_offset == 1
        for each in (slave, master):
            each.close_clients()
            await each.broker.stop()
        async with running_broker(tmp_path / "1") as again:
            assert again.broker.store.queues.known.get("t") == {0}
            assert again.broker.store.queue("t", 0).max_offset == 1


async def test_a_consumer_ahead_of_the_slave_is_not_set_back(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        client = await master.connect()
        for _ in range(3):
            await client.send()
        slave = await made.start(1)
        await until_copied(master, slave)
        reader = await slave.connect()
        head, _ = await reader.pull(offset=50)
        assert head.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert head.ext["nextBeginOffset"] == "50"
        head, _ = await client.pull(offset=50)
        assert head.code == ResponseCode.PULL_OFFSET_MOVED


async def test_who_is_ahead_of_a_slave_waits_there_while_the_master_is_gone(
    tmp_path: Path,
) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        client = await master.connect()
        await client.send()
        slave = await made.start(1, shortPollingTimeMills="300")
        await until_copied(master, slave)
        reader = await slave.connect()
        master.close_clients()
        await master.broker.stop()
        await until(lambda: not slave_of(slave).is_connected)
        reader.post(RequestCode.PULL_MESSAGE, **_held(50))
        await until(lambda: slave.broker.pull.handler.longpoll.count == 1)
        async with asyncio.timeout(60):
            head, _ = await reader.frame()
        assert (head.code, head.ext["nextBeginOffset"]) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            "50",
        )


async def test_a_slave_that_is_not_to_be_read_is_read_while_its_master_is_gone(
    tmp_path: Path,
) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        client = await master.connect()
        await client.send(b"kept")
        slave = await made.start(1, slaveReadEnable="false")
        await until_copied(master, slave)
        reader = await slave.connect()
        head, records = await reader.pull()
        assert (head.code, records) == (ResponseCode.PULL_RETRY_IMMEDIATELY, [])
        assert head.ext["suggestWhichBrokerId"] == "0"
        assert head.ext["nextBeginOffset"] == "0"
        master.close_clients()
        await master.broker.stop()

        async def served() -> bool:
            _, found = await reader.pull()
            return [record.body for record in found] == [b"kept"]

        await until_async(served)


async def test_who_is_far_behind_is_sent_to_a_slave_and_stays_there(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        far = {"accessMessageInMemoryMaxRatio": "0"}
        master = await made.start(0, **far)
        client = await master.connect()
        for _ in range(3):
            await client.send()

        async def suggested(at: BrokerClient) -> str:
            head, records = await at.pull()
            assert records
            return str(head.ext["suggestWhichBrokerId"])

        assert await suggested(client) == "0"
        slave = await made.start(1, **far)
        await until_copied(master, slave)
        await until(master_of(master).has_a_near_slave)
        assert await suggested(client) == "1"
        assert await suggested(await slave.connect()) == "1"
        for expression, code in (("none IS NULL", 0), ("none = 'x'", 20)):
            head, _ = await client.pull(expressionType="SQL92", subscription=expression)
            assert (head.code, head.ext["suggestWhichBrokerId"]) == (code, "1")
        near = await made.start(2)
        await until_copied(master, near)
        assert await suggested(await near.connect()) == "0"


async def test_a_held_pull_at_a_slave_wakes_when_the_message_arrives(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        client = await master.connect()
        await client.send()
        slave = await made.start(1)
        await until_copied(master, slave)
        reader = await slave.connect()
        reader.post(RequestCode.PULL_MESSAGE, **_held(1))
        await until(lambda: slave.broker.pull.handler.longpoll.count == 1)
        await client.send(b"news")
        async with asyncio.timeout(60):
            head, _ = await reader.frame()
        assert (head.code, head.ext["nextBeginOffset"]) == (0, "2")


def _held(offset: int) -> dict[str, Any]:
    return pull_fields(offset, sysFlag="6", suspendTimeoutMillis="20000")


async def test_sends_to_a_sync_master_wait_for_a_slave(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0, brokerRole="SYNC_MASTER", slaveTimeout="300")
        client = await master.connect()
        assert (await client.send()).code == ResponseCode.SLAVE_NOT_AVAILABLE
        slave = await made.start(1)
        await until_copied(master, slave)
        await until(lambda: master_of(master).has_enough)
        for _ in range(20):
            assert (await client.send()).code == 0
            assert slave.broker.store.written_offset == master.broker.store.written_offset
        connection = slave_of(slave)._connection
        assert connection is not None
        connection._transport.pause_reading()  # type: ignore[union-attr]
        assert (await client.send()).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        # Who does not want to wait does not.
        assert (await client.send(i="UNIQ_KEY\x01U1\x02WAIT\x01false")).code == 0
        connection._transport.resume_reading()  # type: ignore[union-attr]

        async def waits_no_more() -> bool:
            return (await client.send()).code == 0

        await until_async(waits_no_more)
        assert_same(master.broker.store, slave.broker.store)


@pytest.mark.parametrize("policy", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_sync_master_with_two_slaves_and_syncs(tmp_path: Path, policy: str) -> None:
    async with group(tmp_path) as made:
        flush = {"flushDiskType": policy}
        master = await made.start(0, brokerRole="SYNC_MASTER", inSyncReplicas="3", **flush)
        client = await master.connect()
        slaves = [await made.start(number, **flush) for number in (1, 2)]
        await until(lambda: master_of(master).has_enough)
        for _ in range(10):
            assert (await client.send()).code == 0
            end = master.broker.store.written_offset
            assert all(kept_offset(slave.broker.store) == end for slave in slaves)


async def test_a_promoted_slave_goes_on_where_the_master_ended(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        master = await made.start(0)
        client = await master.connect()
        for _ in range(5):
            await client.send()
        slave = await made.start(1)
        await until_copied(master, slave)
        for each in (slave, master):
            each.close_clients()
            await each.broker.stop()
        async with running_broker(tmp_path / "1", namesrvAddr=made.namesrv) as promoted:
            again = await promoted.connect()
            assert (await again.send()).ext["queueOffset"] == "5"
