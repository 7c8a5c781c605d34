"""From a topic's route to the queues that may be written and read, and a table of routes.

Pure: the table is told the time and says what to ask for; it asks nobody itself
(upstream: MQClientInstance.topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from cometmq.message.model import MessageQueue
from cometmq.protocol.route import MASTER_ID, TopicRoute, readable, writable

Brokers = dict[str, dict[int, str]]


def publish_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Queues that may be written: those of brokers that have a master, or what the topic's order
    configuration fixes."""
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    masters = {broker.broker_name for broker in route.broker_datas if broker.master()}
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if writable(data.perm) and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    )


def subscribe_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Queues that may be read, in the order that all members of a group agree on."""
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if readable(data.perm)
        for queue_id in range(data.read_queue_nums)
    )


def _ordered_queues(topic: str, text: str) -> tuple[MessageQueue, ...]:
    """``brokerA:4;brokerB:4`` as queues, in that order; parts that cannot be read are left out."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        name, _, count = part.partition(":")
        if name and count.strip().isdecimal():
            queues += (MessageQueue(topic, name, at) for at in range(int(count)))
    return tuple(queues)


def auto_create_route(default: TopicRoute, queue_count: int) -> TopicRoute:
    """The route that a new topic will have, from that of AUTO_CREATE_TOPIC: at most
    ``queue_count`` queues a broker."""
    capped = [
        structs.replace(
            data,
            read_queue_nums=min(queue_count, data.read_queue_nums),
            write_queue_nums=min(queue_count, data.read_queue_nums),
        )
        for data in default.queue_datas
    ]
    return TopicRoute(default.broker_datas, capped, {}, None)


def moved_route(route: TopicRoute, fresh: TopicRoute) -> TopicRoute:
    """A route with its brokers where ``fresh`` has them, that of a topic to be created. Of one that
    moved only the queues are written that it will create; those that the other lacks stay."""
    there = {broker.broker_name: broker for broker in fresh.broker_datas}
    moved = {
        broker.broker_name
        for broker in route.broker_datas
        if there.get(broker.broker_name, broker) != broker
    }
    writable_queues = {
        data.broker_name: data.write_queue_nums
        for data in fresh.queue_datas
        if data.broker_name in moved
    }
    return structs.replace(
        route,
        broker_datas=[there.get(broker.broker_name, broker) for broker in route.broker_datas],
        queue_datas=[
            structs.replace(
                data,
                write_queue_nums=min(
                    data.write_queue_nums,
                    writable_queues.get(data.broker_name, data.write_queue_nums),
                ),
            )
            for data in route.queue_datas
        ],
    )


def brokers_of(routes: Iterable[TopicRoute]) -> Brokers:
    """Broker name to broker id to address, over several routes."""
    found: Brokers = {}
    for route in routes:
        for broker in route.broker_datas:
            ids = found.setdefault(broker.broker_name, {})
            ids.update({int(key): address for key, address in broker.broker_addrs.items()})
    return found


def pull_address(ids: Mapping[int, str], suggested_id: int) -> tuple[int, str] | None:
    """Where to pull from: the suggested broker id, else the next one, else any that is left.

    Gives its id and address; None when the broker is gone.
    """
    if suggested_id in ids:
        return suggested_id, ids[suggested_id]
    if suggested_id != MASTER_ID and suggested_id + 1 in ids:
        return suggested_id + 1, ids[suggested_id + 1]
    return next(iter(sorted(ids.items())), None)


@dataclass(slots=True)
class KnownTopic:
    """What is known of one topic. ``guessed`` routes stand for a topic that does not exist yet."""

    route: TopicRoute
    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    guessed: bool
    used_ms: int


class RouteTable:
    """Routes by topic. Times are monotonic milliseconds."""

    def __init__(self, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms
        self._topics: dict[str, KnownTopic] = {}
        self._brokers: Brokers = {}

    @property
    def brokers(self) -> Brokers:
        """Every broker that any known route names."""
        return self._brokers

    def get(self, topic: str, now_ms: int) -> KnownTopic | None:
        """What is known of ``topic``; counts as a use of it."""
        known = self._topics.get(topic)
        if known is not None:
            known.used_ms = now_ms
        return known

    def peek(self, topic: str) -> KnownTopic | None:
        """What is known of ``topic``, which is no use of it."""
        return self._topics.get(topic)

    def put(
        self, topic: str, route: TopicRoute, now_ms: int, *, guessed: bool = False
    ) -> tuple[KnownTopic, bool]:
        """Take a route that was just answered; also says whether it differs from the one before."""
        # Behind all others: where routes disagree about a broker, the last answer counts.
        before = self._topics.pop(topic, None)
        if before is not None and before.route == route and before.guessed == guessed:
            self._topics[topic] = before
            self._brokers = {**self._brokers, **brokers_of([route])}
            return before, False
        known = KnownTopic(
            route,
            publish_queues(topic, route),
            () if guessed else subscribe_queues(topic, route),
            guessed,
            before.used_ms if before is not None else now_ms,
        )
        self._topics[topic] = known
        self._brokers = brokers_of(each.route for each in self._topics.values())
        return known, True

    def topics(self) -> list[str]:
        """Topics to ask the name server for again."""
        return list(self._topics)

    def expire(self, now_ms: int, held: Iterable[str] = ()) -> list[str]:
        """Forget topics that nobody used for the expiry time, except ``held`` ones; gives them."""
        keep = set(held)
        gone = [
            topic
            for topic, known in self._topics.items()
            if topic not in keep and known.used_ms + self._expiry_ms <= now_ms
        ]
        for topic in gone:
            del self._topics[topic]
        if gone:
            self._brokers = brokers_of(each.route for each in self._topics.values())
        return gone
