"""What a client says of itself, and what it tells of outages."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

import cometmq
from cometmq.client.client import Client
from cometmq.client.outages import OutageEvent, Outages
from cometmq.client.status import QueueProgress, SubscriptionStatus, Unavailable
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import NotConnected, NotOpen, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually

QUEUE = MessageQueue("t", "b", 0)


@pytest.fixture
async def client(cometmq_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cometmq_cluster.namesrv) as client:
        yield client


async def test_connections_subscriptions_and_lag(client: Client) -> None:
    assert client.status().connections == ()
    assert "not connected" in str(client.status())
    await cometmq.Admin(client.session).create_topic("orders", queues=2)
    for number in range(10):
        await client.send("orders", b"%d" % number)
    subscription = client.subscribe("orders", group="billing", start="first", concurrency=1)
    message = await anext(subscription)

    def found() -> SubscriptionStatus:
        return client.status().subscriptions[0]

    await eventually(lambda: found().lag == 10 and len(found().queues) == 3)
    assert (found().group, found().topics, found().refused) == ("billing", ("orders",), "")
    queues = [each.queue for each in found().queues]
    assert [(each.topic, each.queue_id) for each in queues] == [
        *[("%RETRY%billing", 0), ("orders", 0), ("orders", 1)],
    ]
    assert sum(each.processing for each in found().queues) == 1
    assert sum(each.waiting for each in found().queues) == 9
    message.ack()
    for _ in range(9):
        (await anext(subscription)).ack()
    assert found().lag == 0
    _, *queues_of_orders = found().queues
    assert all(each.committed == each.position == each.end == 5 for each in queues_of_orders)
    status = client.status()
    assert status.problem == ""
    assert {each.address for each in status.connections} >= set(client.config.name_servers)
    text = str(status)
    assert text.startswith(f"client {client.client_id} of {client.config.name_servers[0]}\n")
    assert "billing of orders: 3 queues, lag 0, 0 in progress, 0 waiting" in text
    assert msgspec.to_builtins(status)["subscriptions"][0]["group"] == "billing"
    await subscription.close()
    assert client.status().subscriptions == ()


async def test_pull_consumers(client: Client) -> None:
    await cometmq.Admin(client.session).create_topic("orders", queues=1)
    await client.send_many([cometmq.Message("orders", b"body")] * 5)
    async with (
        client.pull_consumer("orders", group="shared", start="first") as shared,
        client.pull_consumer(group="by-hand", start="first") as by_hand,
    ):
        await by_hand.assign(await client.queues("orders"))
        for consumer in (shared, by_hand):
            assert len(await consumer.poll(max_messages=2)) == 2
        for found in client.status().pull_consumers:
            [queue] = found.queues
            assert (queue.committed, queue.processing, queue.waiting) == (0, 2, 3)
            assert (queue.end, found.lag) == (5, 5)
        for consumer in (shared, by_hand):
            assert len(await consumer.poll(max_messages=2)) == 2
        first, second = client.status().consumers
        assert (first.lag, second.lag) == (3, 3)
        assert str(first).startswith("shared of orders: 1 queues, lag 3, 2 in progress, 1 waiting")
        assert str(second).startswith("by-hand of assigned queues: 1 queues, lag 3")
        assert "by-hand" in str(client.status())
    assert client.status().pull_consumers == ()


async def test_names_are_those_of_the_namespace(cometmq_cluster: Cluster) -> None:
    async with Client(cometmq_cluster.namesrv, namespace="tenant") as client:
        await client.send("orders", b"body")
        subscription = client.subscribe("orders", group="billing", start="first")
        await anext(subscription)
        [found] = client.status().subscriptions
        assert (found.group, found.topics) == ("billing", ("orders",))
        assert {each.queue.topic for each in found.queues} == {"orders", "%RETRY%billing"}


async def test_what_is_unavailable_and_events(cometmq_cluster: Cluster) -> None:
    events: list[OutageEvent] = []
    async with Client("127.0.0.1:1", send_timeout_ms=500) as client:
        client.outage_hooks.append(events.append)
        with pytest.raises(cometmq.ClientError):
            await client.send("orders", b"body")
        await eventually(lambda: client.status().unavailable)
        assert "127.0.0.1:1 unavailable for" in client.status().problem
        assert client.status().problem in str(client.status())
    assert events[0].address == "127.0.0.1:1"
    assert not events[0].available
    assert events[0].error


def test_an_outage_is_told_at_its_begin_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    outages = Outages(clock)
    events: list[OutageEvent] = []

    def fail(event: OutageEvent) -> None:
        raise ValueError("a hook of the user")

    outages.listeners += [fail, events.append]
    outages.failed(NotConnected("a:1", "gone"))
    outages.failed(RouteNotFound("t", "create it"), "t")
    clock.advance(3_000)
    outages.failed(NotConnected("a:1", "still gone"))
    assert outages.current() == (
        Unavailable("", "a:1", 3, 2, "a:1: still gone"),
        Unavailable("t", "", 3, 1, "topic 't': create it"),
    )
    assert [str(each) for each in outages.current()] == [
        "a:1 unavailable for 3 s: a:1: still gone",
        "t unavailable for 3 s: topic 't': create it",
    ]
    outages.has_route("t")
    outages.answered("a:1", 10)
    assert outages.current() == ()
    assert [(each.topic, each.address, each.available) for each in events] == [
        ("", "a:1", False),
        ("t", "", False),
        ("t", "", True),
        ("", "a:1", True),
    ]
    assert events[-1].seconds == 3
    assert "hook_failed" in caplog.text


def test_a_lag_is_not_known_before_the_first_pull() -> None:
    new = QueueProgress(QUEUE, 3, 3, -1, 0, 0)
    old = QueueProgress(QUEUE, 3, 9, 10, 2, 4)
    assert new.lag is None
    assert old.lag == 7
    assert SubscriptionStatus("g", ("t",), (new, old)).lag == 7
    assert SubscriptionStatus("g", ("t",), (old, old)).lag == 14
    assert "lag unknown" in str(SubscriptionStatus("g", ("t",), (new,)))
    ended = SubscriptionStatus("g", ("t",), (), "no permission")
    assert str(ended).endswith("ended: no permission")


def test_the_blocking_client(cometmq_cluster: Cluster) -> None:
    client = cometmq.BlockingClient(cometmq_cluster.namesrv)
    with pytest.raises(NotOpen):
        client.status()
    with client:
        client.send("orders", b"body")
        assert client.status().problem == ""
        assert len(client.status().connections) == 2


async def test_readiness_of_a_service(client: Client) -> None:
    await client.send("orders", b"body")
    async with client.subscribe("orders", group="g", start="first") as subscription:
        running = asyncio.create_task(subscription.run(lambda message: None))
        await eventually(lambda: client.status().subscriptions[0].lag == 0)
        assert client.status().problem == ""
    await running
