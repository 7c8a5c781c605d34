"""Routes kept and refreshed, heartbeats to those who must know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client.session import Session
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import ClientError, NotConnected, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol.bodies import ConsumerData, SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.client.fake_broker import FakeCluster, fake_cluster, open_session, quick_config
from tests.client.scripted import Answer, eventually

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


class FakeMember:
    def __init__(self, group: str, *topics: str) -> None:
        self.group = group
        self._topics = frozenset(topics)
        self.rebalances = 0

    def describe(self) -> ConsumerData:
        subscriptions = tuple(SubscriptionData(topic) for topic in sorted(self._topics))
        return ConsumerData(self.group, subscription_data_set=subscriptions)

    def topics(self) -> frozenset[str]:
        return self._topics

    def rebalance_soon(self) -> None:
        self.rebalances += 1


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(brokers=2) as cluster:
        cluster.create("t", 2)
        yield cluster


async def test_a_route_is_asked_for_once(cluster: FakeCluster) -> None:
    async with open_session(cluster, route_poll_interval_ms=60_000) as session:
        many = await asyncio.gather(*(session.publish_queues("t") for _ in range(20)))
        assert many[0] == session.known_publish_queues("t") == await session.subscribe_queues("t")
        assert [queue.broker_name for queue in many[0]] == ["broker-0"] * 2 + ["broker-1"] * 2
        assert len(cluster.namesrv.received(ROUTE)) == 1
        assert session.master_address("broker-1") == cluster.brokers[1].peer.address
        assert session.replicas.to_pull_from("broker-0", 1) == (0, cluster.brokers[0].peer.address)
        assert session.replicas.to_pull_from("nobody", 0) is None
        assert await session.master_of(many[0][0]) == cluster.brokers[0].peer.address


async def test_brokers_of_a_topic_that_nobody_knows_are_found_by_another(
    cluster: FakeCluster,
) -> None:
    clock = VirtualClock()
    async with Session(quick_config(cluster), clock=clock) as session:
        queues = await session.publish_queues("t")
        before, after = (broker.peer.address for broker in cluster.brokers)
        cluster.topics.pop("t")
        one, other = cluster.brokers
        one.peer, other.peer = other.peer, one.peer
        await session.refresh("t")
        assert session.master_address("broker-0") == before
        # With topics made by sends, there is one that all brokers have.
        cluster.create("TBW102", 8)
        asked = len(cluster.namesrv.received(ROUTE))
        await session.refresh("t")
        # It was unknown a moment ago.
        assert len(cluster.namesrv.received(ROUTE)) == asked + 1
        clock.advance(1_000)
        await session.refresh("t")
        assert session.master_address("broker-0") == after
        assert session.known_publish_queues("t") == queues
        # Of one without known brokers there is nothing to find.
        asked = len(cluster.namesrv.received(ROUTE))
        await session.refresh("missing")
        assert len(cluster.namesrv.received(ROUTE)) == asked + 1


async def test_a_topic_that_does_not_exist(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        with pytest.raises(RouteNotFound, match="missing"):
            await session.subscribe_queues("missing")
        with pytest.raises(RouteNotFound):
            await session.publish_queues("missing")
        with pytest.raises(RouteNotFound):
            await session.route("missing")
        assert session.known_publish_queues("missing") == ()


async def test_a_topic_that_its_first_message_will_create(cluster: FakeCluster) -> None:
    cluster.create("TBW102", 8)
    async with open_session(cluster, route_poll_interval_ms=60_000) as session:
        queues = await session.publish_queues("new")
        assert len(queues) == 8
        with pytest.raises(RouteNotFound):
            await session.subscribe_queues("new")
        cluster.create("new", 1)
        assert len(await session.subscribe_queues("new")) == 2
        assert len(session.known_publish_queues("new")) == 2


async def test_a_topic_without_a_queue_to_write(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        broker.registered = False
    async with open_session(cluster) as session:
        with pytest.raises(RouteNotFound, match="none of its queues"):
            await session.publish_queues("t")
        with pytest.raises(NotConnected, match="no route contains a master"):
            await session.master_of(MessageQueue("t", "broker-0", 0))


async def test_routes_follow_the_cluster(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        member = FakeMember("g", "t")
        await session.add_member(member)
        assert len(await session.publish_queues("t")) == 4
        before = member.rebalances
        cluster.create("t", 3)
        await eventually(lambda: len(session.known_publish_queues("t")) == 6)
        assert member.rebalances > before


async def test_a_known_route_outlives_the_name_server(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        queues = await session.publish_queues("t")
        await cluster.namesrv.close()
        await session.refresh("t")
        assert session.known_publish_queues("t") == queues
        with pytest.raises(ClientError):
            await session.route("t")


async def test_unused_topics_are_no_longer_polled(cluster: FakeCluster) -> None:
    async with open_session(cluster, route_poll_interval_ms=10, route_expiry_ms=50) as session:
        await session.publish_queues("t")
        await eventually(lambda: not session._routes.topics())


async def test_heartbeats_say_who_is_here(cluster: FakeCluster) -> None:
    async with open_session(cluster, heartbeat_interval_ms=60_000) as session:
        await session.publish_queues("t")
        session.add_producer("pg")
        await session.add_member(FakeMember("g", "t"))
        for broker in cluster.brokers:
            beat = broker.heartbeats[-1]
            assert beat.client_id == session.client_id
            assert [data.group_name for data in beat.producer_data_set] == ["pg"]
            assert [data.group_name for data in beat.consumer_data_set] == ["g"]
        with pytest.raises(ValueError, match="already"):
            await session.add_member(FakeMember("g"))


async def test_a_client_without_groups_sends_no_heartbeats(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        await session.publish_queues("t")
        await session.heartbeat()
        assert not any(broker.heartbeats for broker in cluster.brokers)


async def test_heartbeats_repeat_and_survive_failures(cluster: FakeCluster) -> None:
    async with open_session(cluster, heartbeat_interval_ms=20) as session:
        await session.publish_queues("t")
        session.add_producer("pg")
        first, second = cluster.brokers
        await first.peer.close()
        await eventually(lambda: len(second.heartbeats) > 3)
        await first.peer.listen(first.peer.port)
        await eventually(lambda: first.heartbeats)


async def test_a_new_broker_is_greeted_at_once(cluster: FakeCluster) -> None:
    cluster.brokers[1].registered = False
    async with open_session(cluster, heartbeat_interval_ms=60_000) as session:
        await session.publish_queues("t")
        await session.add_member(FakeMember("g", "t"))
        assert cluster.brokers[0].heartbeats
        cluster.brokers[1].registered = True
        await eventually(lambda: cluster.brokers[1].heartbeats)


async def test_a_change_of_the_group_reaches_its_member(cluster: FakeCluster) -> None:
    async with open_session(cluster, route_poll_interval_ms=60_000) as session:
        await session.publish_queues("t")
        member, other = FakeMember("g", "t"), FakeMember("h", "t")
        await session.add_member(member)
        await session.add_member(other)
        await eventually(lambda: member.rebalances)
        before = member.rebalances
        cluster.brokers[0].notify("h")
        cluster.brokers[0].members["unknown"] = cluster.brokers[0].members["h"]
        cluster.brokers[0].notify("unknown")
        cluster.brokers[0].notify("g")
        await eventually(lambda: member.rebalances > before)


async def test_who_leaves_says_so(cluster: FakeCluster) -> None:
    session = Session(quick_config(cluster))
    session.start()
    session.start()
    await session.publish_queues("t")
    session.add_producer("pg")
    member = FakeMember("g", "t")
    await session.add_member(member)
    await session.remove_member(member)
    await session.remove_member(member)
    assert not any(broker.members["g"] for broker in cluster.brokers)
    await session.close()
    gone = [r.header for b in cluster.brokers for r in b.peer.received(35)]
    assert [header.consumer_group for header in gone].count("g") == 2
    assert [header.producer_group for header in gone].count("pg") == 2


async def test_leaving_does_not_wait_for_brokers_that_fail(cluster: FakeCluster) -> None:
    def refuse(_: Request[Any]) -> Answer:
        return Answer(1, remark="no")

    async with open_session(cluster) as session:
        await session.publish_queues("t")
        member = FakeMember("g", "t")
        await session.add_member(member)
        cluster.brokers[0].peer.on(RequestCode.UNREGISTER_CLIENT, refuse)
        cluster.brokers[1].peer.break_off()
        await session.remove_member(member)


async def test_clients_have_ids_of_their_own(cluster: FakeCluster) -> None:
    one, two = Session(quick_config(cluster)), Session(quick_config(cluster))
    assert one.client_id != two.client_id
    assert one.client_id.startswith("127.0.0.1@")
    assert Session(quick_config(cluster, client_id="me")).client_id == "me"
    assert one.unique_keys.next(0) != two.unique_keys.next(0)
