"""The life of a message, from traces and from offsets, on a real CometMQ broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.messages import Messages
from cometmq.admin.traces import (
    EventKind,
    GroupTrack,
    LifeEvent,
    MessageLife,
    Traces,
    TrackStatus,
    accepts,
    events_of,
)
from cometmq.client.client import Client
from cometmq.client.tracing import Consumed, ConsumeEnd, Consuming, Trace, TransactionEnded
from cometmq.core.errors import NotFound
from cometmq.protocol.bodies import (
    ConsumerConnections,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.client.shared_broker import fresh_name, fresh_topic


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path_factory.mktemp("traced"), traceTopicEnable=True) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cluster.namesrv, trace=True) as client:
        yield client


@pytest.fixture
def admin(client: Client) -> Admin:
    return Admin(client.session)


async def life_with(traces: Traces, message_id: str, topic: str, events: int) -> MessageLife:
    """The life of a message once it has so many events."""
    async with asyncio.timeout(60):
        while True:
            try:
                life = await traces.life(message_id, topic)
            except NotFound:
                continue
            if len(life.events) >= events:
                return life


async def test_a_traced_message(client: Client, admin: Admin) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    sent = await client.send(topic, b"traced", tag="a")
    async with client.subscribe(topic, group=group, start="first") as subscription:
        message = await anext(subscription)
        async with message.processing():
            pass
    life = await life_with(Traces(admin), sent.message_id, "", 3)
    assert life.message is not None
    assert life.message.body == b"traced"
    assert [each.kind for each in life.events] == [
        EventKind.SENT,
        EventKind.STORED,
        EventKind.CONSUMED,
    ]
    first, stored, last = life.events
    assert (first.group, first.result) == (client.config.producer_group, "ok")
    assert stored.client == life.message.store_address
    assert (last.group, last.result, last.retries) == (group, "success", 0)
    assert last.client.startswith("127.0.0.1:")
    assert life.traced_groups == {group}
    assert [each.offset_id for each in life.sent] == [sent.offset_id]
    assert life.groups == (GroupTrack(group, TrackStatus.CONSUMED, False, 1),)
    by_offset_id = await Traces(admin).life(sent.offset_id)
    assert by_offset_id.events == life.events


async def test_a_message_without_traces(client: Client, admin: Admin) -> None:
    traces = Traces(admin, "no-such-trace-topic")
    topic = await fresh_topic(client, 1)
    groups = [fresh_name(f"g{at}") for at in range(2)]
    for group in groups:
        await admin.update_group(SubscriptionGroupConfig(group))
    sent = [await client.send(topic, b"x", tag="a") for _ in range(2)]
    await admin.commit_group_offsets(groups[0], {sent[0].queue: 2})
    await admin.commit_group_offsets(groups[1], {sent[0].queue: 1})
    life = await life_with(traces, sent[1].message_id, topic, 1)
    assert [each.kind for each in life.events] == [EventKind.STORED]
    assert life.groups == (
        GroupTrack(groups[0], TrackStatus.CONSUMED, False, 2),
        GroupTrack(groups[1], TrackStatus.WAITING, False, 1),
    )
    with pytest.raises(NotFound, match="name its topic, unless it was traced"):
        await traces.life("0" * 31)
    with pytest.raises(NotFound, match=f"in topic '{topic}'"):
        await traces.life("0" * 31, topic)


async def test_groups_that_are_online(client: Client, admin: Admin, tmp_path: Path) -> None:
    topic = await fresh_topic(client, 1)
    group, wide = fresh_name("g"), fresh_name("w")
    sent = await client.send(topic, b"x", tag="a")
    async with (
        Client(client.config.name_servers, offsets_dir=tmp_path) as other,
        client.subscribe(topic, group=group, filter="b", start="first"),
        other.subscribe(topic, group=wide, mode="broadcasting"),
    ):
        (stored,) = [each async for each in Messages(admin).browse(topic)]
        async with asyncio.timeout(60):
            while True:
                tracks = {each.group: each for each in await Traces(admin).tracks(stored)}
                if tracks.get(group, GroupTrack("", TrackStatus.WAITING, True, 0)).offset == 1:
                    break
        assert tracks[group] == GroupTrack(group, TrackStatus.SKIPPED, True, 1)
        assert tracks[wide].status is TrackStatus.BROADCASTING
    assert sent.queue_offset == 0


def test_events_are_joined() -> None:
    start = Consuming("ID", "g", (), 2, "", "R1", 100)
    end = Consumed("ID", "", (), "R1", 0, 9, ConsumeEnd.TIMED_OUT)
    alone = Consumed("ID", "h", (), "R2", 300, 50, ConsumeEnd.SUCCESS)
    open_start = Consuming("ID", "i", (), 0, "", "R3", 400)
    over = TransactionEnded("ID", "t", "p", "", (), "h:1", "TX", None, True, "", 50)
    records: list[tuple[Trace, str]] = [
        (end, "c"),
        (start, "c"),
        (alone, "d"),
        (open_start, "e"),
        (over, "f"),
    ]
    assert events_of(list(records)) == [
        LifeEvent(EventKind.TRANSACTION, 50, "p", "f", "unknown", -1),
        LifeEvent(EventKind.CONSUMED, 100, "g", "c", "timed-out", 9, 2),
        LifeEvent(EventKind.CONSUMED, 250, "h", "d", "success", 50),
        LifeEvent(EventKind.CONSUMED, 400, "i", "e", "started", -1),
    ]
    old = Consumed("ID", "", (), "R9", 0, 9, ConsumeEnd.FAILED)
    assert events_of([(old, "c")])[0].at_ms == -1


@pytest.mark.parametrize(
    ("subscription", "expected"),
    [
        (SubscriptionData("t", "a || b"), True),
        (SubscriptionData("t", "b"), False),
        (SubscriptionData("t", "||"), True),
        (SubscriptionData("t", "x > 1", expression_type="SQL92"), True),
        (SubscriptionData("other", "b"), True),
    ],
)
async def test_filters(
    client: Client, admin: Admin, subscription: SubscriptionData, expected: bool
) -> None:
    topic = await fresh_topic(client, 1)
    await client.send(topic, b"", tag="a")
    (stored,) = [each async for each in Messages(admin).browse(topic)]
    name = topic if subscription.topic == "t" else "other"
    table = {name: subscription}
    connected = ConsumerConnections([], table, "", "", "")
    assert accepts(connected, stored) is expected
