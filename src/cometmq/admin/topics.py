"""Topics: listed, created, described (upstream: DefaultMQAdminExtImpl.java).

A topic is created on the master of every broker set that the name servers know, because a producer
that cannot reach one of them then has others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from cometmq.core.errors import BrokerRefused, NotConnected
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import ClusterInfo, QueueKey, TopicList, TopicStatsRead
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.route import PERM_READ, PERM_WRITE, BrokerData

if TYPE_CHECKING:
    from cometmq.client.session import Session
    from cometmq.protocol.frame import Response

#: Prefixes of topics that brokers make for themselves or for a group's retries.
SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "rmq_sys_")
SYSTEM_TOPICS = frozenset(
    {
        *("TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest"),
        *("SCHEDULE_TOPIC_XXXX", "DefaultCluster_REPLY_TOPIC"),
    }
)


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of a topic: it holds offsets ``[min_offset, max_offset)``; ``last_store_ms`` is
    the wall time of its newest message, 0 when it never had one."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_store_ms: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic over all its brokers; ``perms`` are permission bits by broker name."""

    topic: str
    perms: dict[str, int]
    queues: tuple[QueueState, ...]


def is_system(topic: str) -> bool:
    """Whether brokers made the topic for themselves."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)


async def list_topics(session: Session) -> list[str]:
    """The topics that the name servers know, sorted. Raises ClientError."""
    response = await _ask(session, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
    return sorted(set(parse_json(response.body, TopicList).topic_list))


async def masters(session: Session) -> dict[str, str]:
    """Broker name to the address of its master. Raises ClientError."""
    response = await _ask(session, RequestCode.GET_BROKER_CLUSTER_INFO, None)
    brokers = parse_json(response.body, ClusterInfo).broker_addr_table.values()
    addresses = {b.broker_name: BrokerData(b.broker_name, b.broker_addrs).master() for b in brokers}
    return {name: address for name, address in addresses.items() if address is not None}


async def create_topic(
    session: Session,
    topic: str,
    *,
    queues: int = 8,
    perm: int = PERM_READ | PERM_WRITE,
    order: bool = False,
    broker_names: Sequence[str] = (),
) -> dict[str, str]:
    """Create ``topic``, or change it where it exists; gives the brokers that took it, by name.

    Without ``broker_names`` on every master. Raises ClientError: NotConnected when a broker is
    unknown or gone, BrokerRefused when one does not take it; others may have taken it by then.
    """
    known = await masters(session)
    chosen = {name: known.get(name) for name in broker_names or known}
    header = h.CreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=perm,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=order,
    )
    taken: dict[str, str] = {}
    if not chosen:
        raise NotConnected("name server", "it knows no broker: start one and let it register")
    for name, address in chosen.items():
        if address is None:
            raise NotConnected(name, f"no such broker; known are {', '.join(known) or 'none'}")
        await session.remoting.call(
            address,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            header,
            timeout_ms=session.config.request_timeout_ms,
        )
        taken[name] = address
    return taken


async def describe_topic(session: Session, topic: str) -> TopicState:
    """Where ``topic`` lives and what its queues hold. Raises RouteNotFound, NotConnected and the
    other ClientErrors."""
    route = await session.route(topic)
    perms = {queue.broker_name: queue.perm for queue in route.queue_datas}
    brokers = [broker for broker in route.broker_datas if broker.broker_name in perms]
    parts = await asyncio.gather(*(_queues_of(session, topic, broker) for broker in brokers))
    return TopicState(topic, perms, tuple(queue for part in parts for queue in part))


async def _queues_of(session: Session, topic: str, broker: BrokerData) -> list[QueueState]:
    address = broker.master()
    if address is None:
        raise NotConnected(broker.broker_name, "its master is gone")
    response = await session.remoting.call(
        address,
        RequestCode.GET_TOPIC_STATS_INFO,
        h.Topic(topic),
        timeout_ms=session.config.request_timeout_ms,
    )
    table = parse_json(response.body, TopicStatsRead).offset_table
    found = [(msgspec.json.decode(key, type=QueueKey), state) for key, state in table.items()]
    return [
        QueueState(
            key.broker_name,
            key.queue_id,
            state.min_offset,
            state.max_offset,
            state.last_update_timestamp,
        )
        for key, state in sorted(found, key=lambda pair: pair[0])
    ]


async def _ask(session: Session, code: RequestCode, header: h.Header | None) -> Response:
    response = await session.ask_name_server(code, header)
    if response.code != ResponseCode.SUCCESS:
        raise BrokerRefused("name server", code, response.code, response.remark or "")
    return response
