"""Where queues are and how far they reach, asked of name servers and brokers.

Used where a read is planned and, through :func:`addresses`, by every task. Routes are kept for some
seconds a process: a task would otherwise ask a name server for each of its ranges.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.route import TopicRoute, readable
from cometmq.spark.brokers.wire import Call, call, call_many, checked

if TYPE_CHECKING:
    from cometmq.protocol.frame import Response
    from cometmq.spark.brokers.access import Access

log = logging.getLogger(__name__)

ROUTE_TTL_MS: Final = 10_000

_clock: Final = SystemClock()
_routes: Final[dict[tuple[str, tuple[str, ...], int], tuple[int, TopicRoute]]] = {}


def route(topic: str, access: Access, *, fresh: bool = False) -> TopicRoute:
    """The topic's route, at most ROUTE_TTL_MS old unless it must be ``fresh``.

    Raises RouteNotFound when the name servers do not know the topic, NotConnected when none of
    them answers.
    """
    key = (topic, access.nameservers, os.getpid())
    known = _routes.get(key)
    now_ms = _clock.monotonic_ms()
    if known is not None and not fresh and now_ms - known[0] < ROUTE_TTL_MS:
        return known[1]
    found = _ask_route(topic, access)
    _routes[key] = (now_ms, found)
    return found


def _ask_route(topic: str, access: Access) -> TopicRoute:
    problems: list[str] = []
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    for address in access.nameservers:
        try:
            answer = call(address, code, h.Topic(topic=topic), access)
        except (NotConnected, RequestTimedOut) as error:
            problems.append(str(error))
            continue
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RouteNotFound(topic, f"no name server knows it; create it first ({address})")
        return parse_json(checked(address, code, answer).body, TopicRoute)
    raise NotConnected(";".join(access.nameservers), f"no name server answers: {problems}")


def queues(topics: Iterable[str], access: Access) -> list[MessageQueue]:
    """Every readable queue of the topics, in order. Raises RouteNotFound, NotConnected."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for topic in topics
        for data in route(topic, access, fresh=True).queue_datas
        if readable(data.perm)
        for queue_id in range(data.read_queue_nums)
    )


def addresses(queue: MessageQueue, access: Access, *, fresh: bool = False) -> list[str]:
    """Where a queue can be read, its master first, then the others by broker id.

    Raises NotConnected when its broker is not in the route.
    """
    for data in route(queue.topic, access, fresh=fresh).broker_datas:
        if data.broker_name == queue.broker_name and data.broker_addrs:
            return [data.broker_addrs[key] for key in sorted(data.broker_addrs, key=int)]
    raise NotConnected(queue.broker_name, f"no such broker in the route of {queue.topic}")


def latest(asked: Sequence[MessageQueue], access: Access) -> dict[MessageQueue, int]:
    """The end of each queue: the offset its next message gets."""
    return _offsets(asked, access, RequestCode.GET_MAX_OFFSET, _topic_queue)


def earliest(asked: Sequence[MessageQueue], access: Access) -> dict[MessageQueue, int]:
    """The oldest message of each queue that the broker still has."""
    return _offsets(asked, access, RequestCode.GET_MIN_OFFSET, _topic_queue)


def near_time(
    asked: Sequence[MessageQueue], moment_ms: int, access: Access
) -> dict[MessageQueue, int]:
    """An offset near the first message stored at ``moment_ms`` or later. Only near: a 4.x broker
    gives the nearest message, on either side, and any one of several of the same millisecond."""

    def header(queue: MessageQueue) -> h.Header:
        return h.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=moment_ms)

    return _offsets(asked, access, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


def _topic_queue(queue: MessageQueue) -> h.Header:
    return h.TopicQueue(topic=queue.topic, queue_id=queue.queue_id)


def _offsets(
    asked: Sequence[MessageQueue],
    access: Access,
    code: RequestCode,
    header: Callable[[MessageQueue], h.Header],
) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for group in _by_broker(asked).values():
        calls = [(int(code), header(queue)) for queue in group]
        address, answers = _ask_broker(group[0], calls, access)
        for queue, answer in zip(group, answers, strict=True):
            found[queue] = int(checked(address, code, answer).ext["offset"])
    return found


def _by_broker(asked: Iterable[MessageQueue]) -> Mapping[tuple[str, str], list[MessageQueue]]:
    groups: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
    for queue in asked:
        groups[queue.topic, queue.broker_name].append(queue)
    return groups


def _ask_broker(
    queue: MessageQueue, calls: Sequence[Call], access: Access
) -> tuple[str, list[Response]]:
    """Ask the master, or whoever of its broker name answers."""
    failure: ClientError | None = None
    for address in addresses(queue, access):
        try:
            return address, call_many(address, calls, access)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("broker_unreachable address=%s error=%r", address, str(error))
            failure = error
    assert failure is not None
    raise failure
