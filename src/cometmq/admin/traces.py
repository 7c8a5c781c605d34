"""The life of a message: sent, stored, consumed by which groups and with which result.

Clients with tracing write records to the trace topic; brokers index them by message id. The rest is
derived from what brokers know, as ``mqadmin`` does: the stored message itself, and, for each group
of its topic, whether the committed offset is past the message.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.admin.groups import Groups
from cometmq.client.tracing import (
    Consumed,
    Consuming,
    Sent,
    TransactionEnded,
    decode_traces,
)
from cometmq.core.errors import NotFound, RouteNotFound
from cometmq.filter import tags
from cometmq.message.names import RETRY_PREFIX, TRACE_TOPIC

if TYPE_CHECKING:
    from cometmq.admin.api import Admin
    from cometmq.message.model import StoredMessage
    from cometmq.protocol.bodies import ConsumerConnections

#: Trace messages read for one message; brokers return at most 64.
_TRACES_MAX: Final = 64
_CONCURRENT: Final = 8


class EventKind(Enum):
    """Kind of an event in the life of a message."""

    SENT = "sent"
    STORED = "stored"
    CONSUMED = "consumed"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One event. ``at_ms`` is ms since the epoch; it and ``cost_ms`` are -1 if not known.

    ``client`` is the address of the client, for STORED that of the broker. ``result`` is a word:

        SENT          ``ok``, ``not-durable``
        STORED        ``ok``
        CONSUMED      the name of a ConsumeEnd in lower case, or ``started``
        TRANSACTION   ``committed``, ``rolled-back``, ``unknown``
    """

    kind: EventKind
    at_ms: int
    group: str
    client: str
    result: str
    cost_ms: int
    retries: int = 0


class TrackStatus(Enum):
    """State of one message in a group, by the group's offsets.

    SKIPPED means that its offset is past the message, but its filter does not accept the message.
    """

    CONSUMED = "consumed"
    SKIPPED = "skipped"
    WAITING = "waiting"
    BROADCASTING = "broadcasting"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GroupTrack:
    """One group of the topic; ``offset`` is its committed offset in the queue of the message."""

    group: str
    status: TrackStatus
    is_online: bool
    offset: int | None


@dataclass(frozen=True, slots=True)
class MessageLife:
    """Everything known about a message; ``message`` is None if no broker has it any more.

    ``sent`` are the trace records of its sends. ``groups`` are the groups of its topic, with the
    state that their offsets show.
    """

    message_id: str
    message: StoredMessage | None
    sent: tuple[Sent, ...]
    events: tuple[LifeEvent, ...]
    groups: tuple[GroupTrack, ...]

    @property
    def traced_groups(self) -> set[str]:
        """Groups whose consumers traced this message."""
        return {each.group for each in self.events if each.kind is EventKind.CONSUMED}


class Traces:
    """Reads traces: ``Traces(admin)``. ``topic`` is the topic that clients trace to."""

    def __init__(self, admin: Admin, topic: str = TRACE_TOPIC) -> None:
        self._admin = admin
        self._topic = topic

    async def life(self, message_id: str, topic: str = "") -> MessageLife:
        """Return the life of a message, by its unique key or its offset id.

        Without ``topic``, a unique key is found only if its send was traced. Raises NotFound if
        neither the message nor a trace of it is found. Also raises NotConnected, RequestTimedOut
        and BrokerRefused.
        """
        traces = await self.records(message_id)
        sent = [each for each, _ in traces if isinstance(each, Sent)]
        names = [topic] if topic else sorted({each.topic for each in sent}) or [""]
        message: StoredMessage | None = None
        for name in names:
            message = message or await self._find(message_id, name)
        if message is not None and not traces and message.unique_key not in ("", message_id):
            traces = await self.records(message.unique_key)
            sent = [each for each, _ in traces if isinstance(each, Sent)]
        if message is None and not traces:
            where = f"in topic {topic!r}" if topic else "(name its topic, unless it was traced)"
            raise NotFound("message", message_id, f"neither it nor a trace of it is found {where}")
        events = events_of(traces)
        groups: list[GroupTrack] = []
        if message is not None:
            stored = message.store_ms, "", message.store_address, "ok"
            events.append(LifeEvent(EventKind.STORED, *stored, -1, message.reconsume_times))
            groups = await self.tracks(message)
        events.sort(key=lambda event: event.at_ms)
        return MessageLife(message_id, message, tuple(sent), tuple(events), tuple(groups))

    async def records(
        self, message_id: str
    ) -> list[tuple[Sent | Consuming | Consumed | TransactionEnded, str]]:
        """Return the trace records of a message, each with the address of the client.

        Returns [] if nothing was traced, or if the trace topic does not exist.
        """
        try:
            found = await self._admin.messages_by_key(
                self._topic, message_id, max_messages=_TRACES_MAX
            )
        except RouteNotFound:
            return []
        return [
            (trace, message.born_address)
            for message in found
            for trace in decode_traces(message.body)
            if trace.message_id == message_id
        ]

    async def tracks(self, message: StoredMessage) -> list[GroupTrack]:
        """Return the state of a message in each group of its topic, by the group's offset.

        A message in the retry topic of a group concerns that group alone.
        """
        try:
            if message.topic.startswith(RETRY_PREFIX):
                names = [message.topic.removeprefix(RETRY_PREFIX)]
            else:
                names = await self._admin.groups_of(message.topic)
        except RouteNotFound:
            return []
        gate = asyncio.Semaphore(_CONCURRENT)

        async def one(group: str) -> GroupTrack:
            async with gate:
                return await self._track(message, group)

        return list(await asyncio.gather(*map(one, names)))

    async def _find(self, message_id: str, topic: str) -> StoredMessage | None:
        try:
            return await self._admin.message_by_id(message_id, topic)
        except RouteNotFound:
            return None

    async def _track(self, message: StoredMessage, group: str) -> GroupTrack:
        try:
            connected = await Groups(self._admin).members(group)
        except NotFound:
            connected = None
        is_online = connected is not None
        if connected is not None and connected.message_model == "BROADCASTING":
            return GroupTrack(group, TrackStatus.BROADCASTING, is_online, None)
        if not message.broker_name:
            return GroupTrack(group, TrackStatus.UNKNOWN, is_online, None)
        offset = await self._admin.group_offset(group, message.queue)
        if offset is None or offset <= message.queue_offset:
            return GroupTrack(group, TrackStatus.WAITING, is_online, offset)
        accepted = connected is None or accepts(connected, message)
        status = TrackStatus.CONSUMED if accepted else TrackStatus.SKIPPED
        return GroupTrack(group, status, is_online, offset)


def accepts(connected: ConsumerConnections, message: StoredMessage) -> bool:
    """Return whether the subscription of a group accepts the tag of a message.

    SQL92 expressions, and topics to which it no longer subscribes, count as accepting.
    """
    subscription = connected.subscription_table.get(message.topic)
    if subscription is None or (subscription.expression_type or "TAG") != "TAG":
        return True
    try:
        return tags.parse(subscription.sub_string).accepts(message.tag)
    except ValueError:
        return True


def events_of(
    traces: list[tuple[Sent | Consuming | Consumed | TransactionEnded, str]],
) -> list[LifeEvent]:
    """Return one event for each send, consumption and end of a transaction, by time.

    The start and the end of a consumption are joined by their request id; a trace may have only
    one of them.
    """
    events: list[LifeEvent] = []
    starts: dict[str, tuple[Consuming, str]] = {}
    for trace, client in traces:
        match trace:
            case Sent():
                result = "ok" if trace.succeeded else "not-durable"
                at_ms, cost_ms = trace.started_ms, trace.cost_ms
                events.append(
                    LifeEvent(EventKind.SENT, at_ms, trace.group, client, result, cost_ms)
                )
            case Consuming():
                starts[trace.request_id] = trace, client
            case TransactionEnded():
                words = {True: "committed", False: "rolled-back", None: "unknown"}
                result = words[trace.committed]
                events.append(
                    LifeEvent(EventKind.TRANSACTION, trace.at_ms, trace.group, client, result, -1)
                )
            case Consumed():
                pass
    for trace, client in traces:
        if isinstance(trace, Consumed):
            start, _ = starts.pop(trace.request_id, (None, ""))
            events.append(_consumption(trace, start, client))
    for start, client in starts.values():
        at_ms, retries = start.started_ms, start.reconsume_times
        events.append(
            LifeEvent(EventKind.CONSUMED, at_ms, start.group, client, "started", -1, retries)
        )
    return sorted(events, key=lambda event: event.at_ms)


def _consumption(end: Consumed, start: Consuming | None, client: str) -> LifeEvent:
    at_ms = start.started_ms if start else end.ended_ms - end.cost_ms if end.ended_ms else -1
    group = end.group or (start.group if start else "")
    retries = start.reconsume_times if start else 0
    result = end.end.name.lower().replace("_", "-")
    return LifeEvent(EventKind.CONSUMED, at_ms, group, client, result, end.cost_ms, retries)
