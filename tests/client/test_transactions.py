"""Transactional messages of our client: on a real broker, and where a broker misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.client.config import ClientConfig
from cometmq.client.sendrequests import Packer
from cometmq.core.errors import BrokerRefused, MessageIllegal
from cometmq.message import properties as props
from cometmq.message.model import Message, MessageView
from cometmq.message.names import Namespace
from cometmq.protocol.codes import RequestCode as Code
from cometmq.testing.cluster import Cluster, running_cluster
from tests.client.fake_broker import FakeBroker, FakeCluster, fake_cluster
from tests.client.scripted import Answer, eventually
from tests.client.shared_broker import fresh_name, fresh_topic, read_all


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    settings = {"transactionTimeOut": 1, "transactionCheckInterval": 100}
    async with running_cluster(tmp_path, **settings) as cluster:
        yield cluster


async def test_a_block_that_succeeds_commits_and_one_that_raises_rolls_back(
    cluster: Cluster,
) -> None:
    async with Client(cluster.namesrv) as client:
        topic = await fresh_topic(client)
        async with client.transaction(topic, b"paid", tag="order", group="shop") as tx:
            assert tx.message_id == tx.result.message_id
        with pytest.raises(ZeroDivisionError):
            async with client.transaction(topic, b"broken", group="shop"):
                raise ZeroDivisionError
        await client.send(topic, b"last")
        found = {message.body: message for message in await read_all(client, topic, 2)}
        assert set(found) == {b"paid", b"last"}
        paid = found[b"paid"]
        assert (paid.message_id, paid.tag) == (tx.message_id, "order")
        assert paid.properties[props.PRODUCER_GROUP] == "shop"


async def test_a_checker_decides_what_was_left_open(cluster: Cluster) -> None:
    async with Client(cluster.namesrv, namespace="tenant") as client:
        topic = await fresh_topic(client)
        asked: list[MessageView] = []

        @client.transaction_checker("shop")
        async def check(message: MessageView) -> bool | None:
            asked.append(message)
            if len(asked) == 1:
                raise ZeroDivisionError
            return None if len(asked) == 2 else message.body == b"good"

        with pytest.raises(ValueError, match="already has a transaction checker"):
            client.transaction_checker("shop")(check)
        async with client.transaction(topic, b"good", group="shop") as good:
            good.leave_open()
        await eventually(lambda: len(asked) >= 3)
        async with client.transaction(topic, b"bad", group="shop") as bad:
            bad.leave_open()
        await eventually(lambda: b"bad" in [message.body for message in asked])
        assert [message.body for message in await read_all(client, topic, 1)] == [b"good"]
        assert {message.topic for message in asked} == {topic}
        assert asked[0].message_id == good.message_id


async def test_a_client_that_only_checks_is_known_to_the_brokers(cluster: Cluster) -> None:
    topic = fresh_name()
    async with (
        Client(cluster.namesrv) as client,
        client.transaction(topic, b"orphan", group="shop") as tx,
    ):
        tx.leave_open()
    async with Client(cluster.namesrv) as other:

        @other.transaction_checker("shop")
        async def check(message: MessageView) -> bool:
            return message.message_id == tx.message_id

        assert [message.body for message in await read_all(other, topic, 1)] == [b"orphan"]


async def test_the_result_is_there_once_the_message_is_sent(cluster: Cluster) -> None:
    async with Client(cluster.namesrv) as client:
        with pytest.raises(RuntimeError, match="async with"):
            _ = client.transaction("t", b"x").result
        with pytest.raises(MessageIllegal, match="leave born_ms at 0"):
            await client.transaction(Message("t", b"x", born_ms=5)).__aenter__()
        with pytest.raises(MessageIllegal, match="cannot be delayed"):
            async with client.transaction(Message("t", b"x", delay_level=1)):
                raise AssertionError("the block ran")


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with fake_cluster() as cluster:
        yield cluster


async def test_a_half_message_that_is_not_safe_runs_no_block(fake: FakeCluster) -> None:
    broker: FakeBroker = fake.brokers[0]
    fake.create("t", 1)
    stored = Answer(10, ext={"msgId": f"{'0' * 30}2A", "queueId": "0", "queueOffset": "3"})
    broker.peer.on(Code.SEND_MESSAGE_V2, lambda _: stored)
    async with Client(fake.namesrv.address) as client:
        with pytest.raises(BrokerRefused, match="FLUSH_DISK_TIMEOUT"):
            async with client.transaction("t", b"x", group="shop"):
                raise AssertionError("the block ran")
        await eventually(lambda: any(r.code == Code.END_TRANSACTION for r in broker.peer.requests))
    (end,) = [r for r in broker.peer.requests if r.code == Code.END_TRANSACTION]
    header = end.header
    assert (header.commit_or_rollback, header.tran_state_table_offset) == (12, 3)
    assert (header.commit_log_offset, header.producer_group, end.oneway) == (42, "shop", True)


async def test_an_end_that_cannot_be_sent_is_left_to_the_brokers_question(
    fake: FakeCluster,
) -> None:
    fake.create("t", 1)
    async with Client(fake.namesrv.address, connect_timeout_ms=200) as client:
        async with asyncio.timeout(60), client.transaction("t", b"x"):
            await fake.brokers[0].peer.close()
        assert not any(r.code == Code.END_TRANSACTION for r in fake.brokers[0].peer.requests)


def test_a_half_message_says_what_it_is() -> None:
    packer = Packer(ClientConfig(("127.0.0.1:1",)), Namespace())
    packed = packer.single(Message("t", b"x"), "U1", 1).prepared("shop")
    found = props.decode_text(packed.properties)
    assert (found["TRAN_MSG"], found["PGROUP"], found["UNIQ_KEY"]) == ("true", "shop", "U1")
    assert packed.sys_flag == 4
