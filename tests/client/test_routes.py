"""Routes become the queues that may be written and read; the table forgets what nobody uses. Name
servers are asked in turn, with one question a topic at a time. Queues as bodies carry them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client.config import ClientConfig
from cometmq.client.routes import (
    RouteTable,
    auto_create_route,
    brokers_of,
    by_queue,
    key_of,
    moved_route,
    publish_queues,
    pull_address,
    queue_of,
    subscribe_queues,
)
from cometmq.client.session import Session
from cometmq.core.errors import BadRequest, BrokerRefused, CometError, NotConnected, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol.bodies import BrokerData, QueueData, TopicRoute
from cometmq.protocol.codes import RequestCode
from tests.client.fake_broker import FakeCluster, fake_cluster, open_session
from tests.client.scripted import Answer, scripted_peer


def route(*queues: QueueData, masters: str = "ab", order: str | None = None) -> TopicRoute:
    brokers = [
        BrokerData(name, {"0" if name in masters else "1": f"{name}:1"}, "c") for name in "abc"
    ]
    return TopicRoute(brokers, list(queues), {}, order)


def names(queues: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_only_writable_queues_of_brokers_with_a_master_are_written() -> None:
    given = route(QueueData("b", 3, 2, 6), QueueData("a", 1, 1, 2), QueueData("c", 4, 4, 6))
    assert names(publish_queues("t", given)) == ["a0", "b0", "b1"]
    assert names(publish_queues("t", route(QueueData("a", 4, 4, 4)))) == []


def test_readable_queues_are_read_whoever_holds_them() -> None:
    given = route(QueueData("c", 2, 4, 4), QueueData("a", 1, 0, 6), QueueData("b", 8, 8, 2))
    assert names(subscribe_queues("t", given)) == ["a0", "c0", "c1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b:2;a:1", ["b0", "b1", "a0"]),
        ("a:1;;nonsense;b:x;c:1", ["a0", "c0"]),
    ],
)
def test_an_order_configuration_wins_for_writing(text: str, expected: list[str]) -> None:
    given = route(QueueData("a", 4, 4, 6), order=text)
    assert names(publish_queues("t", given)) == expected
    assert names(subscribe_queues("t", given)) == ["a0", "a1", "a2", "a3"]


def test_a_topic_to_be_created_has_a_capped_number_of_queues() -> None:
    default = route(QueueData("a", 8, 8, 7), QueueData("b", 2, 8, 7))
    made = auto_create_route(default, 4)
    assert names(publish_queues("t", made)) == ["a0", "a1", "a2", "a3", "b0", "b1"]


def test_a_broker_that_moved_is_written_as_far_as_it_creates_queues() -> None:
    given = route(QueueData("a", 8, 8, 6), QueueData("b", 8, 8, 6), QueueData("c", 8, 8, 6))
    fresh = TopicRoute(
        [
            BrokerData("a", {"0": "new:1"}, "c"),
            given.broker_datas[1],
            BrokerData("z", {"0": "z:1"}),
        ],
        [QueueData(name, 4, 4, 7) for name in "abz"],
    )
    moved = moved_route(given, fresh)
    assert [each.broker_addrs for each in moved.broker_datas] == [
        {"0": "new:1"},
        {"0": "b:1"},
        {"1": "c:1"},
    ]
    assert [(each.read_queue_nums, each.write_queue_nums) for each in moved.queue_datas] == [
        (8, 4),
        (8, 8),
        (8, 8),
    ]


def test_brokers_of_several_routes_are_joined() -> None:
    one = TopicRoute([BrokerData("a", {"0": "h:1"})], [])
    two = TopicRoute([BrokerData("a", {"1": "h:2"}), BrokerData("b", {"0": "h:3"})], [])
    assert brokers_of([one, two]) == {"a": {0: "h:1", 1: "h:2"}, "b": {0: "h:3"}}


@pytest.mark.parametrize(
    ("ids", "suggested", "expected"),
    [
        ({0: "m", 1: "s"}, 0, (0, "m")),
        ({0: "m", 1: "s"}, 1, (1, "s")),
        ({0: "m", 2: "t"}, 1, (2, "t")),
        ({0: "m"}, 1, (0, "m")),
        ({2: "t", 1: "s"}, 0, (1, "s")),
        ({}, 0, None),
    ],
)
def test_where_to_pull_from(
    ids: dict[int, str], suggested: int, expected: tuple[int, str] | None
) -> None:
    assert pull_address(ids, suggested) == expected


def test_the_table_says_what_changed() -> None:
    table = RouteTable(expiry_ms=100)
    assert table.get("t", 0) is None
    given = route(QueueData("a", 1, 1, 6))
    known, changed = table.put("t", given, 0)
    assert changed
    assert names(known.publish) == ["a0"]
    assert table.put("t", route(QueueData("a", 1, 1, 6)), 5) == (known, False)
    assert set(table.brokers) == {"a", "b", "c"}


def test_a_guess_gives_way_to_the_real_route() -> None:
    table = RouteTable(expiry_ms=100)
    given = route(QueueData("a", 1, 1, 6))
    guess, _ = table.put("t", given, 0, guessed=True)
    assert guess.publish
    assert not guess.subscribe
    known, changed = table.put("t", given, 1)
    assert changed
    assert names(known.subscribe) == ["a0"]


def test_unused_topics_are_forgotten() -> None:
    table = RouteTable(expiry_ms=100)
    for topic in ("used", "held", "unused"):
        table.put(topic, route(QueueData("a", 1, 1, 6)), 0)
    table.get("used", 50)
    assert table.expire(99) == []
    assert table.expire(100, held=["held"]) == ["unused"]
    assert table.topics() == ["used", "held"]
    assert table.expire(1000) == ["used", "held"]
    assert table.brokers == {}


def test_where_routes_disagree_the_last_answer_counts() -> None:
    """A master moved, and another topic's route is of before."""
    table = RouteTable(1_000)

    def at(address: str) -> TopicRoute:
        return TopicRoute(
            [BrokerData("a", {"0": address}, "c")], [QueueData("a", 1, 1, 6)], {}, None
        )

    table.put("t", at("old:1"), 0)
    table.put("u", at("old:1"), 0)
    table.put("t", at("new:1"), 1)
    assert table.brokers["a"] == {0: "new:1"}
    table.put("t", at("new:1"), 2)
    assert table.brokers["a"] == {0: "new:1"}


QUEUE = MessageQueue("t", "a", 3)


def test_a_queue_and_back() -> None:
    assert queue_of(key_of(QUEUE)) == QUEUE


def test_tables_by_queue() -> None:
    assert by_queue({'{"topic":"t","brokerName":"a","queueId":3}': 7}) == {QUEUE: 7}


@pytest.mark.parametrize("key", ["", "x", "{}", '{"topic":"t","brokerName":"a","queueId":-1}'])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(CometError):
        by_queue({key: 7})


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
