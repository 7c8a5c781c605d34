"""Routes of topics and names of brokers, from name servers.

Each process caches routes for ROUTE_TTL_MS. Without the cache, a task would query a name server for
each of its ranges. One exchange asks for the routes of all topics.

While no name server answers, :func:`brokers` returns the last known addresses, as RocketMQ's
clients do. A task may run in a process that has fetched no route yet. The plan of a read therefore
sends the addresses to its tasks, and they call :func:`learn`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import ClusterInfo, TopicList, TopicRoute, readable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.spark.brokers.wire import Call, call_many, checked

if TYPE_CHECKING:
    from cometmq.protocol.frame import Response
    from cometmq.spark.brokers.access import Access

log = logging.getLogger(__name__)

ROUTE_TTL_MS: Final = 10_000

AWAY_MS: Final = 2_000
"""Time for which name servers that did not answer are not asked again, if the address of the broker
is known."""

MASTER_ID: Final = 0

_CLUSTER: Final = int(RequestCode.GET_BROKER_CLUSTER_INFO)
_ROUTE: Final = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
_clock: Final = SystemClock()
_routes: Final[dict[tuple[str, tuple[str, ...], int], tuple[int, TopicRoute]]] = {}
_learned: Final[dict[tuple[str, str, tuple[str, ...]], tuple[tuple[int, str], ...]]] = {}
_away: Final[dict[tuple[str, ...], tuple[int, NameServersAway]]] = {}


class NameServersAway(NotConnected):
    """Raised if no name server answers."""


class Replicas(NamedTuple):
    """Id and address of each broker that has the queues of a topic on one broker name, the master
    (id 0) first."""

    topic: str
    broker_name: str
    addresses: tuple[tuple[int, str], ...]


def routes(
    topics: Iterable[str], access: Access, *, age_max_ms: int = ROUTE_TTL_MS
) -> dict[str, TopicRoute]:
    """Return the routes of the topics, at most ``age_max_ms`` old.

    A topic that the name servers do not know is missing. Raises NameServersAway, BrokerRefused.
    """
    wanted = list(dict.fromkeys(topics))
    now_ms = _clock.monotonic_ms()
    found: dict[str, TopicRoute] = {}
    for topic in wanted:
        known = _routes.get(_key(topic, access))
        if known is not None and now_ms - known[0] < age_max_ms:
            found[topic] = known[1]
    stale = [topic for topic in wanted if topic not in found]
    for topic, route in _ask_routes(stale, access).items():
        _routes[_key(topic, access)] = (now_ms, route)
        found[topic] = route
    return found


def prefetch(topics: Iterable[str], access: Access) -> None:
    """Cache the routes of several topics in one exchange. Raises nothing: if no name server
    answers, the cache stays as it is."""
    with suppress(ClientError):
        _check_away(access)
        routes(topics, access)


def queues(topics: Sequence[str], access: Access) -> list[MessageQueue]:
    """Return every readable queue of the topics, in order. Raises RouteNotFound, NotConnected."""
    known = routes(topics, access, age_max_ms=0)
    for topic in topics:
        if topic not in known:
            raise unknown(topic, access)
    return queues_of(known)


def queues_of(known: Mapping[str, TopicRoute]) -> list[MessageQueue]:
    """Return the readable queues in the routes of topics, in order."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for topic, route in known.items()
        for data in route.queue_datas
        if readable(data.perm)
        for queue_id in range(data.read_queue_nums)
    )


def brokers(queue: MessageQueue, access: Access, *, fresh: bool = False) -> list[tuple[int, str]]:
    """Return id and address of each broker that has a queue, the master (id 0) first.

    While no name server answers, they are the last known ones; if none are known, NameServersAway
    is raised. Raises RouteNotFound if the topic has no route, and NotConnected if the broker is not
    in it. ``fresh`` bypasses the cache of routes.
    """
    try:
        _check_away(access)
        known = routes([queue.topic], access, age_max_ms=0 if fresh else ROUTE_TTL_MS)
    except NameServersAway as error:
        last = last_known(queue, access)
        if last is None:
            raise
        if access.nameservers not in _away:
            log.warning("name_servers_away broker=%s error=%r", queue.broker_name, str(error))
        if not _is_away(access):
            _away[access.nameservers] = (_clock.monotonic_ms() + AWAY_MS, error)
        return list(last.addresses)
    _away.pop(access.nameservers, None)
    if queue.topic not in known:
        raise unknown(queue.topic, access)
    found = _replicas(known[queue.topic], queue)
    if found is None:
        raise NotConnected(queue.broker_name, f"no such broker in the route of {queue.topic}")
    return list(found.addresses)


def last_known(queue: MessageQueue, access: Access) -> Replicas | None:
    """Return the brokers of a queue that this process last knew, without asking a name server."""
    _, route = _routes.get(_key(queue.topic, access), (0, None))
    found = None if route is None else _replicas(route, queue)
    if found is not None:
        return found
    learned = _learned.get((queue.topic, queue.broker_name, access.nameservers))
    return None if learned is None else Replicas(queue.topic, queue.broker_name, learned)


def learn(replicas: Iterable[Replicas], access: Access) -> None:
    """Remember brokers that another process knew, for use while no name server answers."""
    for each in replicas:
        _learned[each.topic, each.broker_name, access.nameservers] = each.addresses


def _replicas(route: TopicRoute, queue: MessageQueue) -> Replicas | None:
    for data in route.broker_datas:
        if data.broker_name == queue.broker_name and data.broker_addrs:
            found = sorted((int(key), address) for key, address in data.broker_addrs.items())
            return Replicas(queue.topic, queue.broker_name, tuple(found))
    return None


def _is_away(access: Access) -> bool:
    return access.nameservers in _away and _clock.monotonic_ms() < _away[access.nameservers][0]


def _check_away(access: Access) -> None:
    """Raise the last failure of the name servers again if it is less than AWAY_MS old."""
    if _is_away(access):
        raise _away[access.nameservers][1]


def addresses(queue: MessageQueue, access: Access, *, fresh: bool = False) -> list[str]:
    """Return the addresses from which a queue can be read: its master first, then slaves by broker
    id.

    Raises RouteNotFound, and NotConnected if the broker is not in the route.
    """
    return [address for _, address in brokers(queue, access, fresh=fresh)]


def topic_names(access: Access) -> frozenset[str]:
    """Return all topics that the name servers know, including system and retry topics.

    Raises NotConnected if no name server answers, BrokerRefused.
    """
    return _names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, access)


def cluster_names(access: Access) -> frozenset[str]:
    """Return the names of clusters and brokers. Each is also the name of a system topic.

    Raises NotConnected if no name server answers, BrokerRefused.
    """
    return _names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, access)


def masters(access: Access) -> frozenset[str]:
    """Return the names of the brokers whose master is registered.

    Slaves register no topics, so a route may lack the queues of a broker of which only slaves are
    registered. Raises NameServersAway, BrokerRefused.
    """
    address, (answer,) = ask_name_server([(_CLUSTER, None)], access)
    found = parse_json(checked(address, _CLUSTER, answer).body, ClusterInfo)
    return frozenset(
        name
        for name, broker in found.broker_addr_table.items()
        if str(MASTER_ID) in broker.broker_addrs
    )


def unknown(topic: str, access: Access) -> RouteNotFound:
    """Return the error for a topic that is in no route."""
    asked = ";".join(access.nameservers)
    return RouteNotFound(topic, f"no name server has a route for it; create it first ({asked})")


def ask_name_server(calls: Sequence[Call], access: Access) -> tuple[str, list[Response]]:
    """Return the address and the responses of the first name server that answers. Raises
    NameServersAway."""
    problems: list[str] = []
    for address in access.nameservers:
        try:
            return address, call_many(address, calls, access)
        except (NotConnected, RequestTimedOut) as error:
            problems.append(str(error))
    raise NameServersAway(";".join(access.nameservers), f"no name server answers: {problems}")


def _names(code: RequestCode, access: Access) -> frozenset[str]:
    address, (answer,) = ask_name_server([(int(code), None)], access)
    return frozenset(parse_json(checked(address, code, answer).body, TopicList).topic_list)


def _ask_routes(topics: Sequence[str], access: Access) -> dict[str, TopicRoute]:
    if not topics:
        return {}
    calls: list[Call] = [(_ROUTE, h.Topic(topic=topic)) for topic in topics]
    address, answers = ask_name_server(calls, access)
    return {
        topic: parse_json(checked(address, _ROUTE, answer).body, TopicRoute)
        for topic, answer in zip(topics, answers, strict=True)
        if answer.code != ResponseCode.TOPIC_NOT_EXIST
    }


def _key(topic: str, access: Access) -> tuple[str, tuple[str, ...], int]:
    return topic, access.nameservers, os.getpid()
