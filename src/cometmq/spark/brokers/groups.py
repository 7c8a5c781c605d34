"""Consumer groups: reads their committed offsets, and commits for them so that tools show their
lag.

``mqadmin consumerProgress`` needs more than offsets: the group in the broker's table and a retry
topic named after it, which a consumer's first heartbeat creates. This module creates them if they
are missing. It sends no heartbeat, because that would make the group's real consumers rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import NotConnected
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.spark.brokers import cluster, reach
from cometmq.spark.brokers.wire import Call, call_many, checked

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access

_QUERY: Final = int(RequestCode.QUERY_CONSUMER_OFFSET)
_COMMIT: Final = int(RequestCode.UPDATE_CONSUMER_OFFSET)
_TABLE: Final = int(RequestCode.GET_ALL_CONSUMER_OFFSET)
_GROUPS: Final = int(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
_CREATE_GROUP: Final = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
_CREATE_TOPIC: Final = int(RequestCode.UPDATE_AND_CREATE_TOPIC)


def committed(
    group: str, queues: Iterable[MessageQueue], access: Access
) -> dict[MessageQueue, int]:
    """Return the committed offset of ``group`` for those queues where it has committed one.

    Raises NotConnected, RequestTimedOut, RouteNotFound, BrokerRefused.
    """

    def header(queue: MessageQueue) -> h.Header:
        return h.QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found="false",
        )

    found: dict[MessageQueue, int] = {}
    doubtful: dict[str, list[MessageQueue]] = {}
    for answer in reach.ask(queues, RequestCode.QUERY_CONSUMER_OFFSET, header, access):
        if answer.response.code == ResponseCode.QUERY_NOT_FOUND:
            continue
        offset = int(checked(answer.address, _QUERY, answer.response).ext["offset"])
        found[answer.queue] = offset
        if offset == 0:
            doubtful.setdefault(answer.address, []).append(answer.queue)
    for address, zeros in doubtful.items():
        # A 4.x broker returns 0 for a young queue without a committed offset; its offset table
        # omits it.
        table = _table(address, access)
        for queue in zeros:
            if str(queue.queue_id) not in table.get(f"{queue.topic}@{group}", {}):
                del found[queue]
    return found


def commit(group: str, offsets: Mapping[MessageQueue, int], access: Access) -> None:
    """Commit offsets of ``group`` on the masters of the queues.

    Raises NotConnected (also if a master is away), RequestTimedOut, RouteNotFound, BrokerRefused.
    """
    for address, queues in _masters(offsets, access).items():
        calls: list[Call] = [(_COMMIT, _header(group, queue, offsets[queue])) for queue in queues]
        for answer in call_many(address, calls, access):
            checked(address, _COMMIT, answer)


def ensure(group: str, queues: Iterable[MessageQueue], access: Access) -> None:
    """Create the group and its retry topic on the masters of queues that lack them.

    Raises the errors of :func:`commit`.
    """
    topic = RETRY_PREFIX + group
    route = cluster.routes([topic], access, age_max_ms=0).get(topic)
    names = set() if route is None else {data.broker_name for data in route.queue_datas}
    missing = [queue for queue in queues if queue.broker_name not in names]
    for address in _masters(missing, access):
        (answer,) = call_many(address, [(_GROUPS, None)], access)
        known = parse_json(checked(address, _GROUPS, answer).body, SubscriptionGroupTable)
        if group not in known.subscription_group_table:
            _do(address, (_CREATE_GROUP, None, encode_json(SubscriptionGroupConfig(group))), access)
        _do(address, (_CREATE_TOPIC, _retry_topic(topic)), access)


def _masters(queues: Iterable[MessageQueue], access: Access) -> dict[str, list[MessageQueue]]:
    wanted = list(queues)
    cluster.routes((queue.topic for queue in wanted), access)
    found: dict[str, list[MessageQueue]] = {}
    for queue in wanted:
        broker_id, address = cluster.brokers(queue, access)[0]
        if broker_id != cluster.MASTER_ID:
            raise NotConnected(queue.broker_name, "its master is unavailable")
        found.setdefault(address, []).append(queue)
    return found


def _header(group: str, queue: MessageQueue, offset: int) -> h.Header:
    return h.UpdateConsumerOffset(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )


def _retry_topic(topic: str) -> h.Header:
    return h.CreateTopic(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=1,
        write_queue_nums=1,
        perm=PERM_READ | PERM_WRITE,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order="false",
    )


def _do(address: str, call: Call, access: Access) -> None:
    (answer,) = call_many(address, [call], access)
    checked(address, call[0], answer)


def _table(address: str, access: Access) -> Mapping[str, Mapping[str, int]]:
    """Return a broker's committed offsets by ``topic@group`` and queue id."""
    (answer,) = call_many(address, [(_TABLE, None)], access)
    found: Any = parse_json(checked(address, _TABLE, answer).body)
    table: Mapping[str, Mapping[str, int]] = found.get("offsetTable") or {}
    return table
