"""Reads stored messages without joining a group, and stores copies of them elsewhere.

Browsing reads the queues of a topic between two positions and merges them by store time. It holds
at most one response of each queue; with many queues, it requests fewer messages at a time. Tailing
first browses the stored messages and then follows the ends of the queues, also of those that are
added later.

Lookups are by offset id, unique key, key and place (queue and offset). A copy keeps the message's
body, flag and own properties, but no properties that describe the place and the deliveries of the
original.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.client.pull import PullStatus
from cometmq.client.sendrequests import SendStatus
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    CometError,
    NotConnected,
    NotFound,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.filter import tags
from cometmq.message import properties as props
from cometmq.message.model import MessageQueue, StoredMessage
from cometmq.message.names import AUTO_CREATE_TOPIC, CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import QueueEntries
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.fields import from_ext

if TYPE_CHECKING:
    from cometmq.admin.api import Admin
    from cometmq.client.pull import PullResult
    from cometmq.client.session import Session
    from cometmq.protocol.bodies import DirectResult

log = logging.getLogger(__name__)

#: Maximum number of messages that browsing holds of all queues; at least one of each queue.
HELD_MESSAGES_MAX: Final = 4_096
#: Above this size of held bodies, each request asks for one message only.
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
PULL_MESSAGES_MAX: Final = 32
#: Number of concurrent pulls.
_CONCURRENT: Final = 16
_LONG_POLL_MS: Final = 10_000
#: Time after which a tail looks for new queues again, and after which it repeats a failed pull.
_ROUTE_AGAIN_MS: Final = 10_000
_PULL_AGAIN_MS: Final = 1_000
#: Maximum number of responses that a tail holds before the caller takes them.
_READY_MAX: Final = 64
_PRODUCER_GROUP: Final = "TOOLS_PRODUCER"
#: Maximum number of ends of transactions that are held at one time.
ENDS_MAX: Final = 500_000
#: Group whose offsets show how far brokers have checked half messages.
_CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"


class PositionKind(Enum):
    """Ways to name a place in every queue of a topic."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """Place in every queue: ``value`` is an offset, or a store time in ms since the epoch."""

    kind: PositionKind
    value: int = 0


#: The oldest stored message of each queue, and the end of each queue.
EARLIEST: Final = Position(PositionKind.EARLIEST)
LATEST: Final = Position(PositionKind.LATEST)


def at_offset(offset: int) -> Position:
    """Return the position of an offset, the same in each queue."""
    return Position(PositionKind.OFFSET, offset)


def at_time(moment_ms: int) -> Position:
    """Return the position of the first message stored at a time (ms since the epoch) or later."""
    return Position(PositionKind.TIME, moment_ms)


@dataclass(frozen=True, slots=True)
class Selection:
    """Part of a topic: a broker name and queue ids (none: all), and a filter.

    ``filter`` is a tag expression, or a SQL92 expression if ``sql`` is set. Only brokers with
    ``enablePropertyFilter`` accept SQL92.
    """

    broker: str = ""
    queues: frozenset[int] = frozenset()
    filter: str = "*"
    sql: bool = False

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue is part of the selection, whatever its filter."""
        in_broker = self.broker in ("", queue.broker_name)
        return in_broker and (not self.queues or queue.queue_id in self.queues)


EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class Stored:
    """Place of a copy: its message id and offset id, its queue and offset, and how safe it is."""

    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus


@dataclass(slots=True)
class _Reader:
    """Reading position in one queue, and the messages that were pulled but not taken yet."""

    queue: MessageQueue
    offset: int
    end: int
    waiting: list[StoredMessage] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.offset >= self.end


class Messages:
    """Operations on stored messages: ``Messages(admin)``.

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, BrokerRefused
    when it refuses, and RouteNotFound for an unknown topic.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._session: Session = admin.session

    # ------------------------------------------------------------------ reading in order

    async def queues(self, topic: str, selection: Selection = EVERYTHING) -> list[MessageQueue]:
        """Return the selected queues of a topic, sorted.

        Raises RouteNotFound, also if its brokers do not allow to read any queue, and NotFound for a
        broker or a queue that the topic does not have.
        """
        every = await self._session.subscribe_queues(topic)
        if not every:
            raise RouteNotFound(topic, "its brokers do not allow to read it: give it permission 6")
        found = [queue for queue in every if selection.has(queue)]
        if selection.broker and not any(each.broker_name == selection.broker for each in every):
            known = ", ".join(sorted({each.broker_name for each in every}))
            problem = f"topic {topic!r} has no queue there (it is on {known})"
            raise NotFound("broker", selection.broker, problem)
        missing = selection.queues.difference(queue.queue_id for queue in found)
        if missing:
            ids = ", ".join(map(str, sorted(missing)))
            raise NotFound("queue", ids, f"topic {topic!r} has no such queue")
        return sorted(found)

    async def offsets(
        self, queues: Collection[MessageQueue], position: Position
    ) -> dict[MessageQueue, int]:
        """Return the offset in each queue at a position; it is within the queue."""
        gate = asyncio.Semaphore(_CONCURRENT)

        async def find(queue: MessageQueue) -> int:
            async with gate:
                return await self.offset_at(queue, position)

        found = await asyncio.gather(*map(find, queues))
        return dict(zip(queues, found, strict=True))

    async def offset_at(self, queue: MessageQueue, position: Position) -> int:
        """Return the offset of one queue at a position; it is within the queue."""
        puller = self._admin.puller
        match position.kind:
            case PositionKind.EARLIEST:
                return await puller.min_offset(queue)
            case PositionKind.LATEST:
                return await puller.max_offset(queue)
            case PositionKind.TIME:
                return await puller.offset_at(queue, position.value)
            case PositionKind.OFFSET:
                low, high = await puller.min_offset(queue), await puller.max_offset(queue)
                return min(max(position.value, low), high)

    async def browse(
        self,
        topic: str,
        start: Position = EARLIEST,
        end: Position = LATEST,
        selection: Selection = EVERYTHING,
        *,
        begins: Mapping[MessageQueue, int] | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Yield the messages of a topic from ``start`` to before ``end``, by store time.

        ``begins`` has offsets that take the place of ``start`` in some queues, so that a reader can
        continue where it stopped. The order within a queue is that of its offsets. Both positions
        are looked up first, so messages that arrive later are not included. Messages that are
        deleted meanwhile are skipped.
        """
        queues = await self.queues(topic, selection)
        given = begins or {}
        rest = [queue for queue in queues if queue not in given]
        found = {**given, **await self.offsets(rest, start)}
        ends = await self.offsets(queues, end)
        readers = [_Reader(queue, found[queue], ends[queue]) for queue in queues]
        async for message in self._merged(readers, selection):
            yield message

    async def tail(
        self,
        topic: str,
        start: Position = LATEST,
        selection: Selection = EVERYTHING,
    ) -> AsyncIterator[StoredMessage]:
        """Yield the messages of a topic from ``start`` on, without an end.

        Messages that are already stored come by store time, later ones as they arrive. A broker
        that cannot be reached is tried again every second. Queues that are added later are read
        from their beginning.
        """
        queues = await self.queues(topic, selection)
        begins = await self.offsets(queues, start)
        ends = await self.offsets(queues, LATEST)
        readers = [_Reader(queue, begins[queue], ends[queue]) for queue in queues]
        async for message in self._merged(readers, selection):
            yield message
        follower = _Follower(self, topic, selection)
        try:
            # The offset of a reader is past all that it read, including what the filter left out.
            follower.begin({each.queue: max(each.offset, begins[each.queue]) for each in readers})
            while True:
                for message in await follower.take():
                    yield message
        finally:
            follower.close()

    async def pull(
        self, queue: MessageQueue, offset: int, count: int, selection: Selection, suspend_ms: int
    ) -> tuple[PullResult, list[StoredMessage]]:
        """Pull once; return the response and those of its messages that the selection accepts."""
        result = await self._admin.puller.pull(
            queue,
            offset,
            max_messages=count,
            subscription=selection.filter,
            expression_type="SQL92" if selection.sql else "TAG",
            suspend_ms=suspend_ms,
        )
        found = result.messages
        # Brokers compare hashes of tags, so compare the tags themselves.
        if not selection.sql and selection.filter not in ("", tags.ALL):
            accepts = tags.parse(selection.filter).accepts
            found = [message for message in found if accepts(message.tag)]
        return result, found

    async def _merged(
        self, readers: list[_Reader], selection: Selection
    ) -> AsyncIterator[StoredMessage]:
        """Yield the messages of all readers by store time."""
        held_bytes = 0
        count = min(PULL_MESSAGES_MAX, max(1, HELD_MESSAGES_MAX // max(1, len(readers))))
        gate = asyncio.Semaphore(_CONCURRENT)

        async def fill(reader: _Reader) -> None:
            nonlocal held_bytes
            async with gate:
                few = 1 if held_bytes > HELD_BYTES_MAX else count
                await self._fill(reader, few, selection)
            held_bytes += sum(message.size_bytes for message in reader.waiting)
            reader.waiting.reverse()

        await asyncio.gather(*map(fill, readers))
        heap: list[tuple[int, int, int]] = []
        for at, reader in enumerate(readers):
            if reader.waiting:
                heap.append((*_order(reader.waiting[-1]), at))
        heapq.heapify(heap)
        while heap:
            *_, at = heap[0]
            reader = readers[at]
            message = reader.waiting.pop()
            held_bytes -= message.size_bytes
            yield message
            if not reader.waiting:
                await fill(reader)
            if reader.waiting:
                heapq.heapreplace(heap, (*_order(reader.waiting[-1]), at))
            else:
                heapq.heappop(heap)

    async def _fill(self, reader: _Reader, count: int, selection: Selection) -> None:
        """Pull until a reader has messages or has reached its end."""
        while not reader.waiting and not reader.is_done:
            offset = reader.offset
            wanted = min(count, reader.end - offset)
            result, found = await self.pull(reader.queue, offset, wanted, selection, 0)
            if result.status is PullStatus.NOTHING_NEW and result.next_offset <= offset:
                reader.offset = reader.end  # the queue was deleted, or ends earlier by now
                return
            if result.status is PullStatus.OFFSET_MOVED and result.next_offset < offset:
                reader.offset = reader.end
                return
            if not result.leads_on_from(offset):
                raise NotConnected(
                    reader.queue.broker_name, f"pull at offset {offset} makes no progress"
                )
            reader.offset = result.next_offset
            reader.waiting = [each for each in found if each.queue_offset < reader.end]

    # ------------------------------------------------------------------ single messages

    async def by_id(self, message_id: str, topic: str = "") -> StoredMessage:
        """Return the message with an offset id or, within ``topic``, with a unique key.

        Raises NotFound.
        """
        found = await self._admin.message_by_id(message_id, topic)
        if found is None:
            place = f"in topic {topic!r}" if topic else "(a unique key needs its topic)"
            raise NotFound("message", message_id, f"no broker has it {place}")
        return found

    async def by_unique_key(
        self, topic: str, key: str, *, since_ms: int = 0
    ) -> list[StoredMessage]:
        """Return the messages of a topic with a unique key, which copies share, oldest first.

        Only messages stored at ``since_ms`` or later are returned.
        """
        return await self._admin.messages_by_unique_key(topic, key, begin_ms=since_ms)

    async def by_place(self, queue: MessageQueue, offset: int) -> StoredMessage:
        """Return the message at an offset of a queue. Raises NotFound."""
        result, found = await self.pull(queue, offset, 1, EVERYTHING, 0)
        if not found or found[0].queue_offset != offset:
            place = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@{offset}"
            problem = f"the queue holds offsets {result.min_offset} to {result.max_offset}"
            raise NotFound("message", place, problem)
        return found[0]

    async def queue_entries(
        self, queue: MessageQueue, offset: int, count: int, group: str = ""
    ) -> QueueEntries:
        """Return entries of a consume queue: place and size in the log, and hash of the tag.

        With ``group``, also return its subscription; Java brokers say whether it accepts each
        entry. Brokers return fewer entries than ``count`` if that is large.
        """
        header = h.QueryConsumeQueue(queue.topic, queue.queue_id, offset, count, group or None)
        address = await self._session.master_of(queue)
        response = await self._admin.call(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return parse_json(response.body, QueueEntries)

    # ------------------------------------------------------------------ copies, consumption

    async def copy(
        self,
        message: StoredMessage,
        topic: str = "",
        *,
        queue: MessageQueue | None = None,
        message_id: str = "",
    ) -> Stored:
        """Store a copy of a message in ``topic`` (empty: its own); return its place.

        The copy gets a unique key of its own unless ``message_id`` sets one. It is delivered at
        once, also if the original was delayed.
        """
        kept = {
            name: value
            for name, value in message.properties.items()
            if name in _COPIED or name not in props.RESERVED
        }
        now_ms = self._session.clock.wall_ms()
        kept[props.UNIQ_KEY] = message_id or self._session.unique_keys.next(now_ms)
        kept.setdefault(props.ORIGIN_MESSAGE_ID, message.message_id)
        return await self.store(message, kept, topic or message.topic, queue)

    async def store(
        self,
        message: StoredMessage,
        properties: dict[str, str],
        topic: str,
        queue: MessageQueue | None = None,
    ) -> Stored:
        """Store the body of a message with other properties in a topic; return the place.

        Without ``queue``, a queue of the message's own broker is preferred.
        """
        if queue is None:
            queues = await self._session.publish_queues(topic)
            near = [each for each in queues if each.broker_name == message.broker_name]
            queue = (near or queues)[message.queue_offset % len(near or queues)]
        header = h.SendMessageV2(
            producer_group=_PRODUCER_GROUP,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self._session.config.default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=message.born_ms,
            flag=message.flag,
            properties=props.encode_text(properties),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker_name,
        )
        address = await self._session.master_of(queue)
        code = RequestCode.SEND_MESSAGE_V2
        response = await self._session.remoting.request(
            address, code, header, message.body, timeout_ms=self._admin.timeout_ms
        )
        status = _STATUS.get(response.code)
        if status is None:
            raise BrokerRefused(address, code, response.code, response.remark or "")
        at = from_ext(h.SendMessageResponse, response.ext)
        place = MessageQueue(topic, queue.broker_name, at.queue_id)
        return Stored(properties[props.UNIQ_KEY], at.msg_id, place, at.queue_offset, status)

    async def consume(
        self, message: StoredMessage, group: str, client_id: str = ""
    ) -> DirectResult:
        """Have a member of a group process a message now; return the result.

        Without ``client_id``, the first of the connected members processes it. Raises NotFound when
        the group has no connected member, or none of that id.
        """
        await self._admin.require_group(group)
        connected = await self._admin.consumer_connections(group)
        members = sorted(each.client_id for each in connected.connection_set) if connected else []
        if not members:
            raise NotFound("group", group, "it has no connected consumer: start one")
        if client_id and client_id not in members:
            raise NotFound("consumer", client_id, f"group {group!r} has {', '.join(members)}")
        consumers = self._admin.consumers
        return await consumers.consume_directly(group, client_id or members[0], message.offset_id)

    async def round_trips(
        self, topic: str, *, broker: str = "", count: int = 1, size_bytes: int = 128
    ) -> list[RoundTrip]:
        """Send messages one after another and return the time that each took.

        The queues of the topic, or of ``broker``, take turns. A failed send is a result too, with
        its error. Every broker has a topic of its own name, which is meant for this.
        """
        queues = [
            queue
            for queue in await self._session.publish_queues(topic)
            if broker in ("", queue.broker_name)
        ]
        if not queues:
            raise NotFound("broker", broker, f"topic {topic!r} has no writable queue there")
        found: list[RoundTrip] = []
        clock = self._session.clock
        probe = StoredMessage(
            topic, 0, 0, 0, b"a" * size_bytes, {}, 0, 0, clock.wall_ms(), b"", 0, b"", 0, 0, 0
        )
        for at in range(count):
            queue = queues[at % len(queues)]
            key = self._session.unique_keys.next(clock.wall_ms())
            begun_ns, error = clock.monotonic_ns(), None
            try:
                await self.store(probe, {props.UNIQ_KEY: key}, topic, queue)
            except ClientError as problem:
                error = problem
            found.append(RoundTrip(queue, (clock.monotonic_ns() - begun_ns) / 1e6, error))
        return found

    # ------------------------------------------------------------------ transactions

    async def half_messages(
        self, *, start: Position = EARLIEST, given_up: bool = False
    ) -> AsyncIterator[HalfMessage]:
        """Yield the stored half messages of transactions, oldest first, ended ones included.

        A checked half message is stored again, so its unique key can occur several times. With
        ``given_up``, yield those that brokers gave up, because no producer answered their checks.
        Nothing is yielded if no broker has such messages.
        """
        topic = CHECK_MAX_TIME_TOPIC if given_up else HALF_TOPIC
        try:
            async for message in self.browse(topic, start):
                yield half_message(message)
        except RouteNotFound:
            return

    async def open_transactions(self) -> list[HalfMessage]:
        """Return the half messages of transactions that have not ended, oldest first.

        Brokers record ends in a topic of their own, and commit offsets in both topics that show how
        far they have checked. Raises CometError if more than ENDS_MAX transactions ended since.
        """
        try:
            queues = await self.queues(HALF_TOPIC)
        except RouteNotFound:
            return []
        found: list[HalfMessage] = []
        for queue in queues:
            ended = await self._ended(queue)
            start = await self._admin.group_offset(_CHECK_GROUP, queue) or 0
            selection = Selection(queue.broker_name, frozenset({queue.queue_id}))
            found += [
                half_message(message)
                async for message in self.browse(HALF_TOPIC, at_offset(start), LATEST, selection)
                if message.queue_offset not in ended
            ]
        return sorted(found, key=lambda half: _order(half.message))

    async def resume_check(self, half: HalfMessage) -> None:
        """Have its broker check the transaction of a half message again, from the first check on.

        Meant for a transaction that was given up.
        """
        message = half.message
        address = await self._session.master_of(message.queue)
        header = h.ResumeCheckHalfMessage(message.offset_id)
        await self._admin.call(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    async def _ended(self, queue: MessageQueue) -> set[int]:
        """Return the offsets of half messages in a queue whose transactions have ended."""
        try:
            ops = [each for each in await self.queues(OP_HALF_TOPIC) if _same_place(each, queue)]
        except RouteNotFound:
            return set()
        ended: set[int] = set()
        for each in ops:
            start = await self._admin.group_offset(_CHECK_GROUP, each) or 0
            selection = Selection(each.broker_name, frozenset({each.queue_id}))
            async for note in self.browse(OP_HALF_TOPIC, at_offset(start), LATEST, selection):
                # RocketMQ 5 records several ends in one message.
                words = note.body.split(b",")
                ended.update(int(word) for word in words if word.isdigit() and len(word) < 20)
                if len(ended) > ENDS_MAX:
                    raise CometError(
                        f"{queue.broker_name}: more than {ENDS_MAX:,} transactions ended since its "
                        "last check: ask again after transactionCheckInterval"
                    )
        return ended


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Duration of one send; ``error`` is None if the message was stored."""

    queue: MessageQueue
    duration_ms: float
    error: ClientError | None


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """Message of a transaction before its end; ``checks`` is how often its producer was asked."""

    message: StoredMessage
    topic: str
    queue_id: int
    producer_group: str
    transaction_id: str
    checks: int


def half_message(message: StoredMessage) -> HalfMessage:
    """Return a record of the half topic with its real topic and queue."""
    found = message.properties
    return HalfMessage(
        message,
        found.get(props.REAL_TOPIC, ""),
        _number(found.get(props.REAL_QID, ""), -1),
        found.get(props.PRODUCER_GROUP, ""),
        found.get(props.TRANSACTION_ID, "") or found.get(props.UNIQ_KEY, ""),
        _number(found.get(props.TRANSACTION_CHECK_TIMES, ""), 0),
    )


def _order(message: StoredMessage) -> tuple[int, int]:
    """Return the sort key of a message: its store time, then its place in the broker's log."""
    return message.store_ms, message.physical_offset


def _same_place(one: MessageQueue, other: MessageQueue) -> bool:
    return (one.broker_name, one.queue_id) == (other.broker_name, other.queue_id)


def _number(text: str, default: int) -> int:
    return int(text[:18]) if text.isascii() and text.isdigit() else default


_STATUS: Final = {status.value: status for status in SendStatus}
#: Reserved properties that belong to the message itself, not to its place or its deliveries.
_COPIED: Final = frozenset(
    {props.KEYS, props.TAGS, props.SHARDING_KEY, props.BUYER_ID, props.ORIGIN_MESSAGE_ID}
)


class _Follower:
    """Pulls the ends of all queues of a topic and hands over the messages that arrive."""

    def __init__(self, messages: Messages, topic: str, selection: Selection) -> None:
        self._messages = messages
        self._session: Session = messages._session
        self._topic = topic
        self._selection = selection
        self._ready: asyncio.Queue[list[StoredMessage] | CometError] = asyncio.Queue(_READY_MAX)
        self._tasks: dict[MessageQueue | None, asyncio.Task[None]] = {}

    def begin(self, offsets: dict[MessageQueue, int]) -> None:
        """Follow queues from these offsets on, and queues that the topic gets later."""
        for queue, offset in offsets.items():
            self._follow(queue, offset)
        spawn = self._session.tasks.spawn
        self._tasks[None] = spawn(self._look_for_queues(), name=f"queues of {self._topic}")

    async def take(self) -> list[StoredMessage]:
        """Return the messages that have arrived, by store time; wait for some."""
        ready = [await self._ready.get()]
        while not self._ready.empty():
            ready.append(self._ready.get_nowait())
        found: list[StoredMessage] = []
        for each in ready:
            if isinstance(each, CometError):
                raise each
            found += each
        found.sort(key=_order)
        return found

    def close(self) -> None:
        """Stop all pulls."""
        for task in self._tasks.values():
            task.cancel()

    def _follow(self, queue: MessageQueue, offset: int) -> None:
        name = f"tail {queue.topic}-{queue.queue_id}"
        self._tasks[queue] = self._session.tasks.spawn(self._pull(queue, offset), name=name)

    async def _pull(self, queue: MessageQueue, offset: int) -> None:
        while True:
            try:
                result, found = await self._messages.pull(
                    queue, offset, PULL_MESSAGES_MAX, self._selection, _LONG_POLL_MS
                )
            except (NotConnected, RequestTimedOut) as error:
                log.warning("tail_pull_failed queue=%s error=%s", queue, error)
                await self._session.clock.sleep_ms(_PULL_AGAIN_MS)
                continue
            except CometError as error:
                await self._ready.put(error)
                return
            if not result.leads_on_from(offset):
                await self._session.clock.sleep_ms(_PULL_AGAIN_MS)
            offset = result.next_offset
            if found:
                await self._ready.put(found)

    async def _look_for_queues(self) -> None:
        while True:
            await self._session.clock.sleep_ms(_ROUTE_AGAIN_MS)
            try:
                await self._session.route(self._topic)
                for queue in await self._session.subscribe_queues(self._topic):
                    if queue not in self._tasks and self._selection.has(queue):
                        begin = await self._messages.offset_at(queue, EARLIEST)
                        self._follow(queue, begin)
            except ClientError as error:
                log.warning("tail_route_failed topic=%s error=%s", self._topic, error)
