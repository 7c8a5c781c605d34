"""Name servers in turn, and one question a topic at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client.config import ClientConfig
from cometmq.client.session import Session
from cometmq.core.errors import BadRequest, BrokerRefused, NotConnected, RouteNotFound
from cometmq.protocol.bodies import TopicRoute
from cometmq.protocol.codes import RequestCode
from tests.client.fake_broker import FakeCluster, fake_cluster, open_session
from tests.client.scripted import Answer, scripted_peer

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(brokers=2) as cluster:
        cluster.create("t", 2)
        yield cluster


async def test_a_topic_is_asked_for_once_at_a_time(cluster: FakeCluster) -> None:
    async with open_session(cluster, route_poll_interval_ms=60_000) as session:
        servers = session.name_servers
        found = await asyncio.gather(*(servers.route("t") for _ in range(5)), servers.route("u"))
        assert all(isinstance(route, TopicRoute) for route in found[:5])
        assert isinstance(found[5], RouteNotFound)
        assert len(cluster.namesrv.received(ROUTE)) == 2
    assert isinstance(await servers.route("t"), NotConnected)


async def test_who_gives_up_leaves_its_question_to_others(cluster: FakeCluster) -> None:
    async with open_session(cluster, route_poll_interval_ms=60_000) as session:
        servers = session.name_servers
        waits = [asyncio.create_task(servers.route("t")) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        routes = await asyncio.gather(*waits[1:])
        assert all(isinstance(route, TopicRoute) for route in routes)
        assert waits[0].cancelled()
        assert len(cluster.namesrv.received(ROUTE)) <= 2


async def test_the_next_name_server_is_asked_when_one_is_away(cluster: FakeCluster) -> None:
    async with scripted_peer() as gone:
        away = gone.address
    config = ClientConfig((away, cluster.namesrv.address))
    async with Session(config) as session:
        assert await session.publish_queues("t")
        # The one that answered stays in use.
        await session.route("t")
        assert len(cluster.namesrv.received(ROUTE)) == 2
    async with Session(ClientConfig((away,))) as session:
        with pytest.raises(NotConnected):
            await session.publish_queues("t")


async def test_several_who_fail_at_once_all_go_to_the_next_name_server(
    cluster: FakeCluster,
) -> None:
    async with scripted_peer() as gone:
        away = gone.address
    for topic in ("u", "v", "w"):
        cluster.create(topic, 1)
    async with Session(ClientConfig((away, cluster.namesrv.address))) as session:
        found = await asyncio.gather(*(session.publish_queues(topic) for topic in "tuvw"))
        assert all(found)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(Answer(1, remark="broken"), BrokerRefused), (Answer(body=b"{no json"), BadRequest)],
)
async def test_a_name_server_that_answers_nonsense(
    cluster: FakeCluster, answer: Answer, error: type[Exception]
) -> None:
    cluster.namesrv.on(ROUTE, answer)
    async with open_session(cluster) as session:
        with pytest.raises(error):
            await session.publish_queues("t")
