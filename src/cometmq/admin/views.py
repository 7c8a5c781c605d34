"""Rows of tables and JSON output, made from results of the admin operations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cometmq.protocol.bodies import readable, writable
from cometmq.protocol.codes import version_name

if TYPE_CHECKING:
    from cometmq.admin.api import Broker
    from cometmq.message.model import MessageQueue, StoredMessage
    from cometmq.protocol.bodies import (
        ConsumeOffset,
        ConsumerConnections,
        ProcessQueueInfo,
        TopicOffset,
        TopicRoute,
    )

_BODY_PREVIEW = 200


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker process; rates are messages a second over the last ten seconds."""

    cluster: str
    broker: str
    id: int
    address: str
    version: str
    put_per_second: float
    get_per_second: float


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of a topic."""

    broker: str
    queue: int
    min_offset: int
    max_offset: int
    messages: int
    last_stored: str


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """Progress of a group in one queue."""

    topic: str
    broker: str
    queue: int
    broker_offset: int
    consumer_offset: int
    lag: int
    last_consumed: str


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One connected consumer of a group."""

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True)
class PositionRow:
    """Committed offset of a group in one queue."""

    topic: str
    broker: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Prefetch state of one queue, as its consumer reports it."""

    topic: str
    broker: str
    queue: int
    offset: int
    held: int
    held_mib: int
    locked: bool
    last_pulled: str
    last_consumed: str


@dataclass(frozen=True, slots=True)
class RouteRow:
    """Queues of a topic on one broker."""

    broker: str
    cluster: str
    addresses: str
    read_queues: int
    write_queues: int
    permissions: str


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One stored message; ``body`` is the start of its body as text."""

    message_id: str
    offset_id: str
    topic: str
    broker: str
    queue: int
    offset: int
    tag: str
    keys: str
    stored: str
    born: str
    born_at: str
    stored_at: str
    reconsume_times: int
    size_bytes: int
    body: str


def moment(ms: int) -> str:
    """Format milliseconds since the epoch as ISO 8601 in UTC.

    Returns an empty text for 0 or less, and the number itself if it is out of range: some clients
    send uninitialized memory.
    """
    if ms <= 0:
        return ""
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError):
        return str(ms)
    return when.isoformat(sep=" ", timespec="milliseconds")


def broker_row(broker: Broker, runtime: Mapping[str, str]) -> BrokerRow:
    """Return the row of a broker with its runtime information."""
    return BrokerRow(
        broker.cluster,
        broker.name,
        broker.broker_id,
        broker.address,
        runtime.get("brokerVersionDesc", ""),
        _first_rate(runtime.get("putTps", "")),
        _first_rate(runtime.get("getTransferedTps", "")),
    )


def _first_rate(text: str) -> float:
    """Return the first of three rates ("10s 60s 600s"); 0 when there is none."""
    try:
        return round(float(text.split()[0]), 2)
    except (IndexError, ValueError):
        return 0.0


def queue_rows(stats: Mapping[MessageQueue, TopicOffset]) -> list[QueueRow]:
    """Return one row per queue, in order."""
    return [
        QueueRow(
            queue.broker_name,
            queue.queue_id,
            each.min_offset,
            each.max_offset,
            each.max_offset - each.min_offset,
            moment(each.last_update_timestamp),
        )
        for queue, each in sorted(stats.items())
    ]


def progress_rows(progress: Mapping[MessageQueue, ConsumeOffset]) -> list[ProgressRow]:
    """Return one row per queue, in order."""
    return [
        ProgressRow(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            each.broker_offset,
            each.consumer_offset,
            each.broker_offset - each.consumer_offset,
            moment(each.last_timestamp),
        )
        for queue, each in sorted(progress.items())
    ]


def member_rows(connections: ConsumerConnections) -> list[MemberRow]:
    """Return one row per consumer, ordered by client id."""
    found = sorted(connections.connection_set, key=lambda each: each.client_id)
    return [
        MemberRow(each.client_id, each.client_addr, each.language, version_name(each.version))
        for each in found
    ]


def position_rows(offsets: Mapping[MessageQueue, int]) -> list[PositionRow]:
    """Return one row per queue, in order."""
    return [
        PositionRow(queue.topic, queue.broker_name, queue.queue_id, offset)
        for queue, offset in sorted(offsets.items())
    ]


def held_rows(held: Mapping[MessageQueue, ProcessQueueInfo]) -> list[HeldRow]:
    """Return one row per queue, in order."""
    return [
        HeldRow(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            each.commit_offset,
            each.cached_msg_count,
            each.cached_msg_size_in_mi_b,
            each.locked,
            moment(each.last_pull_timestamp),
            moment(each.last_consume_timestamp),
        )
        for queue, each in sorted(held.items())
    ]


def total_lag(progress: Iterable[ConsumeOffset]) -> int:
    """Return the number of messages that a group has not consumed yet."""
    return sum(max(0, each.broker_offset - each.consumer_offset) for each in progress)


def permissions(perm: int) -> str:
    """Format permissions as ``RW``, ``R-``, ``-W`` or ``--``."""
    return ("R" if readable(perm) else "-") + ("W" if writable(perm) else "-")


def route_rows(route: TopicRoute) -> list[RouteRow]:
    """Return one row for each broker with queues of the topic."""
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    rows: list[RouteRow] = []
    for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
        broker = brokers.get(data.broker_name)
        addresses = sorted(broker.broker_addrs.items()) if broker else []
        rows.append(
            RouteRow(
                data.broker_name,
                broker.cluster if broker else "",
                ", ".join(f"{broker_id}={address}" for broker_id, address in addresses),
                data.read_queue_nums,
                data.write_queue_nums,
                permissions(data.perm),
            )
        )
    return rows


def message_row(message: StoredMessage) -> MessageRow:
    """Return the row of a message: times as text, and the start of its body."""
    body = message.body[:_BODY_PREVIEW].decode("utf-8", "replace")
    if len(message.body) > _BODY_PREVIEW:
        body += f"... ({len(message.body)} bytes)"
    return MessageRow(
        message.message_id,
        message.offset_id,
        message.topic,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.tag,
        " ".join(message.keys),
        moment(message.store_ms),
        moment(message.born_ms),
        message.born_address,
        message.store_address,
        message.reconsume_times,
        message.size_bytes,
        body,
    )
