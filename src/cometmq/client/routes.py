"""Routes of topics: requests to the name servers, the queues of a route that may be written or
read, the table of known routes, and queues as keys of protocol bodies (upstream:
MQClientInstance.topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo).

Only NameServers sends requests. The other parts do no I/O, and get the time as an argument.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import structs

from cometmq.core.errors import BrokerRefused, ClientError, CometError, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.net.tasks import ended
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import MASTER_ID, QueueKey, TopicRoute, queue_table, readable, writable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig
    from cometmq.client.outages import Outages
    from cometmq.net.client import Remoting
    from cometmq.protocol.frame import Response

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Requests that every name server and no broker supports.
_ONLY_NAME_SERVERS: Final = frozenset(
    {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO}
)
#: Broker addresses by broker name and broker id.
Brokers = dict[str, dict[int, str]]


def publish_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the queues that may be written.

    These are the queues of the topic's order configuration if it has one, otherwise the writable
    queues of brokers with a master.
    """
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
    """Return the queues that may be read, in an order that is the same for all clients."""
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if readable(data.perm)
        for queue_id in range(data.read_queue_nums)
    )


def _ordered_queues(topic: str, text: str) -> tuple[MessageQueue, ...]:
    """Parse ``brokerA:4;brokerB:4`` into queues, in that order; skip malformed parts."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        name, _, count = part.partition(":")
        if name and count.strip().isdecimal():
            queues += (MessageQueue(topic, name, at) for at in range(int(count)))
    return tuple(queues)


def auto_create_route(default: TopicRoute, queue_count: int) -> TopicRoute:
    """Return the route that a new topic will have, from the route of AUTO_CREATE_TOPIC.

    It has at most ``queue_count`` queues per broker. As in upstream's client, the number of read
    queues of AUTO_CREATE_TOPIC limits the write queues too.
    """
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
    """Return a known route with the broker addresses of ``fresh``.

    ``fresh`` is the route that the topic would get if it were created now. A broker whose addresses
    differ there may have to create the topic, so the result has at most the write queues that it
    would create. Brokers that ``fresh`` lacks stay unchanged.
    """
    current = {broker.broker_name: broker for broker in fresh.broker_datas}
    moved = {
        broker.broker_name
        for broker in route.broker_datas
        if current.get(broker.broker_name, broker) != broker
    }
    writable_queues = {
        data.broker_name: data.write_queue_nums
        for data in fresh.queue_datas
        if data.broker_name in moved
    }
    return structs.replace(
        route,
        broker_datas=[current.get(broker.broker_name, broker) for broker in route.broker_datas],
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
    """Return broker addresses by broker name and broker id, over several routes."""
    found: Brokers = {}
    for route in routes:
        for broker in route.broker_datas:
            ids = found.setdefault(broker.broker_name, {})
            ids.update({int(key): address for key, address in broker.broker_addrs.items()})
    return found


def pull_address(ids: Mapping[int, str], suggested_id: int) -> tuple[int, str] | None:
    """Return the broker id and address to pull from.

    ``ids`` maps the broker ids of one broker name to addresses. The choice is ``suggested_id``; if
    that is a missing slave, the next id; otherwise the lowest id. Returns None if ``ids`` is empty.
    """
    if suggested_id in ids:
        return suggested_id, ids[suggested_id]
    if suggested_id != MASTER_ID and suggested_id + 1 in ids:
        return suggested_id + 1, ids[suggested_id + 1]
    return next(iter(sorted(ids.items())), None)


@dataclass(slots=True)
class KnownTopic:
    """Route and queues of one topic.

    The route of a topic that does not exist yet is ``guessed``: see :func:`auto_create_route`.
    """

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
        """Addresses of the brokers in all known routes."""
        return self._brokers

    def get(self, topic: str, now_ms: int) -> KnownTopic | None:
        """Return the entry of ``topic`` and mark it as used."""
        known = self._topics.get(topic)
        if known is not None:
            known.used_ms = now_ms
        return known

    def peek(self, topic: str) -> KnownTopic | None:
        """Return the entry of ``topic`` without marking it as used."""
        return self._topics.get(topic)

    def put(
        self, topic: str, route: TopicRoute, now_ms: int, *, guessed: bool = False
    ) -> tuple[KnownTopic, bool]:
        """Store a route that was just fetched; return its entry and whether the route changed."""
        # Move the topic to the end: if routes have different addresses of a broker, those of the
        # latest response count.
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
        """Return the topics in the table. The client polls their routes."""
        return list(self._topics)

    def expire(self, now_ms: int, held: Iterable[str] = ()) -> list[str]:
        """Remove and return the topics that were not used for the expiry time.

        Topics in ``held`` stay.
        """
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


def key_of(queue: MessageQueue) -> QueueKey:
    """Return the key of a queue in protocol bodies."""
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def queue_of(key: QueueKey) -> MessageQueue:
    """Return the queue of a key in a protocol body."""
    return MessageQueue(key.topic, key.broker_name, key.queue_id)


def by_queue(table: Mapping[str, T]) -> dict[MessageQueue, T]:
    """Return a table of a protocol body by queue; its keys are queues as JSON.

    Raises CometError for other keys.
    """
    found: dict[MessageQueue, T] = {}
    for key, value in queue_table(table).items():
        if key.queue_id < 0:
            raise CometError(f"queue id {key.queue_id} in an offset table")
        found[queue_of(key)] = value
    return found


def _check_server(address: str, code: int, response: Response) -> None:
    """Raise BrokerRefused if a broker answered a request that only name servers serve."""
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code in _ONLY_NAME_SERVERS:
        raise BrokerRefused(
            address,
            code,
            response.code,
            response.remark or "",
            text=f"{address} is a broker, not a name server: give the address of a name server, "
            "whose port is often 9876",
        )


class NameServers:
    """Name servers of one client. All requests go to one of them as long as it responds."""

    def __init__(self, config: ClientConfig, remoting: Remoting, outages: Outages) -> None:
        self._outages = outages
        self._config = config
        self._remoting = remoting
        self._used = 0
        self._fetches: dict[str, asyncio.Future[TopicRoute | CometError]] = {}

    async def ask(
        self, code: int, header: h.Header | None, body: bytes = b"", *, timeout_ms: int = 0
    ) -> Response:
        """Send a request to the server in use, or to the next ones if it cannot be reached.

        The response may have any code. ``timeout_ms`` 0 means that of the settings. Raises the last
        ClientError if no server can be reached, or if the addresses are those of brokers.
        """
        servers = self._config.name_servers
        error: ClientError | None = None
        for _ in servers:
            used = self._used
            address = servers[used % len(servers)]
            try:
                response = await self._remoting.request(
                    address,
                    code,
                    header,
                    body,
                    timeout_ms=timeout_ms or self._config.request_timeout_ms,
                )
                self._outages.answered(address, code)
                _check_server(address, code, response)
                return response
            except ClientError as failure:
                log.debug("name_server_failed address=%s error=%s", address, failure)
                self._outages.failed(failure)
                error = failure
                if self._used == used:  # another request may have switched already
                    self._used += 1
        assert error is not None
        raise error

    async def route(self, topic: str) -> TopicRoute | CometError:
        """Return the route of ``topic``, or the error: RouteNotFound if the name server has none.

        Concurrent callers for the same topic share one request. An error is returned, not raised,
        so that all of them get it.
        """
        while (fetch := self._fetches.get(topic)) is not None:
            await ended(fetch)
            if not fetch.cancelled():
                return fetch.result()
            # The caller that sent the request was cancelled: one of the others sends it again.
        fetch = self._fetches[topic] = asyncio.get_running_loop().create_future()
        try:
            result = await self._fetch_route(topic)
        except BaseException:
            fetch.cancel()
            raise
        finally:
            del self._fetches[topic]
        fetch.set_result(result)
        return result

    async def _fetch_route(self, topic: str) -> TopicRoute | CometError:
        try:
            response = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, h.Topic(topic=topic))
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                return RouteNotFound(
                    topic,
                    response.remark or "no name server has a route for it: create the topic first",
                )
            if response.code != ResponseCode.SUCCESS:
                remark = response.remark or ""
                code = RequestCode.GET_ROUTEINFO_BY_TOPIC
                servers = self._config.name_servers
                address = servers[self._used % len(servers)]
                return BrokerRefused(address, code, response.code, remark)
            return parse_json(response.body, TopicRoute)
        except CometError as error:
            return error
