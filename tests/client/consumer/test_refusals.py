"""Consumers that may not read say so: real brokers with accounts, and topics that are closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.refusals import Refusals
from cometmq.core.errors import BrokerRefused, ClientError
from cometmq.message.model import MessageQueue
from cometmq.protocol.acl import Credentials
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.protocol.codes import ResponseCode
from cometmq.testing.cluster import Cluster, running_cluster
from tests.client.scripted import eventually

ADMIN = Credentials("admin-key", "secret-of-admin")
READER = Credentials("reader-key", "secret-of-reader")
RULES = """\
accounts:
- accessKey: admin-key
  secretKey: secret-of-admin
  admin: true
- accessKey: reader-key
  secretKey: secret-of-reader
  topicPerms: [open=SUB]
  groupPerms: [mine=SUB]
"""
A, B, OTHER = (MessageQueue("t", name, 0) for name in ("a", "b", "c"))
DENIED = BrokerRefused("h:1", 11, 1, "No default permission for t")
CLOSED = BrokerRefused("h:1", 11, ResponseCode.NO_PERMISSION, "the topic is closed")


@asynccontextmanager
async def guarded(home: Path) -> AsyncIterator[Cluster]:
    """A cluster with accounts, and topics ``open`` and ``closed`` with a message each."""
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(RULES)
    async with running_cluster(home, acl_enable=True, rocketmq_home=str(home)) as cluster:
        async with Client(cluster.namesrv, credentials=ADMIN) as client:
            for topic in ("open", "closed"):
                await Admin(client.session).create_topic(topic, queues=2)
                await client.send(topic, b"1")
        yield cluster


@pytest.mark.parametrize(("topic", "group"), [("open", "theirs"), ("closed", "mine")])
async def test_a_denied_subscription_raises(tmp_path: Path, topic: str, group: str) -> None:
    async with guarded(tmp_path) as cluster, asyncio.timeout(60):
        async with Client(cluster.namesrv, credentials=READER) as client:
            subscription = client.subscribe(topic, group=group, start="first")
            with pytest.raises(BrokerRefused, match="No default permission for"):
                await anext(subscription)
            with pytest.raises(BrokerRefused):  # and again, at once
                await anext(subscription)
            # A member that reads nothing must not hold queues of the group.
            await eventually(lambda: group not in client.session.members)
            await subscription.close()
            with pytest.raises(BrokerRefused, match="No default permission for"):
                await client.subscribe(topic, group=group).run(print)
        async with (
            Client(cluster.namesrv, credentials=READER) as client,
            client.pull_consumer(topic, group=group, start="first") as consumer,
        ):
            with pytest.raises(BrokerRefused, match="No default permission for"):
                await consumer.poll(timeout_ms=5_000)


async def test_a_broadcasting_subscription_raises(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as cluster,
        asyncio.timeout(60),
        Client(
            cluster.namesrv, credentials=READER, offsets_dir=str(tmp_path / "offsets")
        ) as client,
    ):
        subscription = client.subscribe("closed", group="mine", mode="broadcasting")
        with pytest.raises(BrokerRefused, match="No default permission for"):
            await anext(subscription)


async def test_a_group_that_may_not_consume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_cluster(tmp_path) as cluster,
        asyncio.timeout(60),
        Client(cluster.namesrv) as client,
    ):
        await Admin(client.session).create_topic("t", queues=2)
        reading = client.subscribe("t", group="before", start="first")
        await client.send("t", b"1")
        message = await anext(reading)
        message.ack()
        # A paused group waits, whether it has read before or not.
        admin = Admin(client.session)
        await admin.update_group(SubscriptionGroupConfig("late", consume_enable=False))
        late = client.subscribe("t", group="late", start="first")
        waiting = asyncio.create_task(anext(late))
        await eventually(lambda: "no permission, late" in caplog.text)
        await admin.update_group(SubscriptionGroupConfig("late"))
        assert (await waiting).body == b"1"
        await admin.update_group(SubscriptionGroupConfig("before", consume_enable=False))
        await client.send("t", b"2")
        await eventually(lambda: "no permission, before" in caplog.text)
        await admin.update_group(SubscriptionGroupConfig("before"))
        assert (await anext(reading)).body == b"2"


def test_one_queue_that_may_be_read_is_enough() -> None:
    refusals = Refusals({"t"})
    refusals.expect("t", [A, B], [A, B])
    refusals.queue_failed(A, DENIED)
    assert refusals.error is None
    refusals.queue_failed(B, CLOSED)
    assert refusals.error is None
    refusals.queue_failed(B, ClientError("away"))
    assert refusals.error is None
    refusals.queue_failed(B, DENIED)
    assert str(refusals.error) == str(DENIED)
    refusals.queue_read(B)
    refusals.queue_failed(B, DENIED)
    assert refusals.error is None


def test_queues_that_moved_to_another_member_do_not_count() -> None:
    refusals = Refusals({"t"})
    refusals.expect("t", [A, B], [A, B, OTHER])
    refusals.queue_failed(A, DENIED)
    refusals.expect("t", [OTHER], [A, B, OTHER])
    refusals.queue_failed(B, DENIED)
    assert refusals.error is None
    refusals.expect("t", [], [A, B, OTHER])
    assert refusals.error is None


def test_every_topic_has_to_be_refused() -> None:
    refusals = Refusals({"t", "u"})
    refusals.topic_failed("t", DENIED)
    assert refusals.error is None
    refusals.topic_failed("%RETRY%g", DENIED)
    assert refusals.error is None
    refusals.topic_failed("u", ClientError("away"))
    assert refusals.error is None
    refusals.topic_failed("u", DENIED)
    assert str(refusals.error) == str(DENIED)


def test_a_topic_that_may_be_read_after_all_is_not_refused() -> None:
    refusals = Refusals({"t"})
    refusals.topic_failed("t", DENIED)
    refusals.expect("t", [A], [A])
    assert refusals.error is None


def test_another_member_may_read_where_this_one_is_denied() -> None:
    refusals = Refusals({"t"})
    refusals.expect("t", [A], [A, B])
    refusals.queue_failed(A, DENIED)
    assert refusals.error is None
    refusals.expect("t", [A], [A])
    assert str(refusals.error) == str(DENIED)
