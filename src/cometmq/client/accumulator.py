"""Collects messages that are sent at the same time into batches (docs/decisions/0074-linger.md).

A lane is the sequence of batches of one topic or of one queue. Messages with an order key or a
queue use the ordered lane of that queue. It has one batch in flight at a time, so a later batch
cannot overtake a retry. Other messages of a topic share a lane without order, which may have
several batches in flight. A batch is sent

- at the end of the turn of the event loop, if its lane has no batch in flight
- otherwise when the response to that batch arrives; in a lane without order also when the batch is
  full or has waited for ``linger_ms``, and without a wait if the time limit of the send is short

So a message does not wait if nothing is in flight, and under load batches grow by themselves.
Messages that cannot be part of a batch are sent alone: delayed ones, those with a birth time or for
a retry topic, and those with a body that is compressed (upstream: ProduceAccumulator.java,
MessageBatch.java, canBatch of DefaultMQProducer.java).

A message may also wait for room in the buffer, or for the route of its topic. Each wait counts
towards the time limit of its send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cometmq.client.arguments import check_topic_type, checked_body, refuse
from cometmq.client.delivery import by_key
from cometmq.client.limits import goes_alone
from cometmq.client.sendrequests import INLINE_COMPRESS_BYTES, SendResult
from cometmq.core.errors import MessageIllegal, NotConnected, RequestTimedOut, fresh_copy
from cometmq.message.properties import MAX_SIZE_BYTES
from cometmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from cometmq.client.delivery import Delivery
    from cometmq.client.plainsends import PlainSends, Posted
    from cometmq.client.sendrequests import Packed, Packer
    from cometmq.client.session import Session
    from cometmq.message.model import Message, MessageQueue
    from cometmq.net.client import Outcome

#: Upper bound, in bytes, of the lengths in a batch entry and the unique key in its properties.
_OVERHEAD_BYTES: Final = 22 + 10 + 56
#: Period in which the deadlines of waiting messages are checked.
_EXPIRY_MS: Final = 50
#: Part of the send's time limit for which a batch of an ordered lane takes further messages while
#: another one is in flight. A batch has one deadline, that of its oldest message.
_OPEN_PART: Final = 0.1
#: Maximum part of the send's time limit that messages of a lane without order may linger.
_LINGER_PART: Final = 0.5
#: Number of lanes above which unused ones are dropped.
_MANY_LANES: Final = 4_096

Sent = asyncio.Future[SendResult]
#: A topic; or a topic and a queue, None for messages without order that set ``wait_store`` False.
LaneKey = str | tuple[str, "MessageQueue | None"]


class _Batch:
    """Messages that are sent in one request.

    ``texts`` maps positions to the property texts of messages that have properties, a flag or an id
    of their own. ``due_ns`` is the end of the time to linger.
    """

    __slots__ = (
        "deadline_ms", "due_ns", "messages", "opened_ms", "size_bytes", "texts",
        "timeout_ms", "waiters",
    )  # fmt: skip

    def __init__(self, now_ns: int, linger_ns: int, timeout_ms: float) -> None:
        self.messages: list[Message] = []
        self.texts: dict[int, str] = {}
        self.waiters: list[Sent] = []
        self.size_bytes = 0
        self.timeout_ms = timeout_ms
        self.opened_ms = now_ns // 1_000_000
        self.deadline_ms = self.opened_ms + timeout_ms
        self.due_ns = now_ns + linger_ns

    def takes(self, message: Message, timeout_ms: float) -> bool:
        """Return whether a message has the same time limit and ``wait_store`` as the batch."""
        return self.timeout_ms == timeout_ms and self.messages[0].wait_store == message.wait_store


class _Lane:
    """Batches of one topic, or of one of its queues in order (``queue`` is set)."""

    __slots__ = ("in_flight", "key", "open", "queue", "ready")

    def __init__(self, key: LaneKey, queue: MessageQueue | None) -> None:
        self.key = key
        self.queue = queue
        #: Batch that takes further messages.
        self.open: _Batch | None = None
        #: Closed batches before ``open`` that wait for the one in flight.
        self.ready: deque[_Batch] = deque()
        self.in_flight = 0


class _Waiting(NamedTuple):
    """Message that is not in a lane yet; ``text`` is None if it is sent alone."""

    message: Message
    text: str | None
    order_key: str | None
    queue: MessageQueue | None
    timeout_ms: float
    deadline_ms: float
    waiter: Sent
    #: Callers that wait until the message is in a lane.
    callers: list[asyncio.Future[None]]

    def let_callers_go(self) -> None:
        """Wake the callers, because the message is in a lane or has failed."""
        for caller in self.callers:
            if not caller.done():
                caller.set_result(None)


class Accumulator:
    """Batches of one producer; ``singles`` sends the messages that are sent alone."""

    def __init__(
        self,
        session: Session,
        delivery: Delivery,
        packer: Packer,
        singles: PlainSends,
    ) -> None:
        config = session.config
        self._session = session
        self._clock = session.clock
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._delivery = delivery
        self._packer = packer
        self._singles = singles
        self._linger_ns = int(max(0.0, config.linger_ms) * 1e6)
        self._batch_messages = config.linger_batch_messages
        self._timeout_ms = config.send_timeout_ms
        self._small_bytes = min(
            config.compress_over_bytes, config.max_message_bytes + 1, INLINE_COMPRESS_BYTES
        )
        # The message that fills a batch must not make it too large for a broker.
        largest = self._small_bytes + MAX_SIZE_BYTES + _OVERHEAD_BYTES
        self._batch_bytes = min(config.linger_batch_bytes, config.max_message_bytes - largest)
        #: Free bytes of the buffer. A message is taken if any are free, so this may be negative.
        self.room_bytes = config.linger_buffer_bytes
        self._lanes: dict[LaneKey, _Lane] = {}
        #: Lanes without order by topic, for the fast path of :meth:`add`. Empty with a namespace,
        #: which is a property of each message.
        self._plain_lanes: dict[str, _Lane] = {}
        #: Lanes whose open batch is sent at the end of this turn of the event loop.
        self._leaving: dict[_Lane, None] = {}
        #: Lanes without order whose open batch waits until it is due, the earliest first.
        self._held: dict[_Lane, None] = {}
        #: Ordered lanes with batches that wait for the one in flight.
        self._queued: dict[_Lane, None] = {}
        #: Messages that wait for room. Empty while there is any.
        self.short: deque[_Waiting] = deque()
        #: Messages that wait for the route of their topic.
        self._unrouted: dict[str, deque[_Waiting]] = {}
        self._sent: dict[_Batch, None] = {}
        self._lingering: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None

    def add(
        self,
        message: Message,
        order_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: float = 0,
    ) -> Sent:
        """Take a message and return the future of its result. Raises MessageIllegal.

        Messages of one order key or one queue are sent in the order in which they are added. A
        message whose future is cancelled before its batch is sent is dropped.
        """
        waiter: Sent = self._create_future()
        body = message.body
        # Fast path for most messages, which have only a topic and a small body.
        if (
            type(body) is bytes
            and (size := len(body)) < self._small_bytes
            and order_key is None
            and queue is None
            and not timeout_ms
            and self.room_bytes > 0
            and not (message.tag or message.keys or message.properties or message.message_id)
            and not (message.delay_level or message.delay_ms or message.deliver_at_ms)
            and not (message.born_ms or message.flag)
            and message.wait_store
        ):
            try:
                lane = self._plain_lanes.get(message.topic)
            except TypeError:  # not hashable, so not a text
                refuse("topic", "str", message.topic)
            if lane is not None:
                batch = lane.open
                if batch is None or batch.timeout_ms != self._timeout_ms:
                    batch = self._begin(lane, self._timeout_ms)
                size += _OVERHEAD_BYTES
                self.room_bytes -= size
                batch.size_bytes = size = batch.size_bytes + size
                messages = batch.messages
                messages.append(message)
                batch.waiters.append(waiter)
                if size >= self._batch_bytes or len(messages) >= self._batch_messages:
                    self._close(lane)
                return waiter
        if type(body) is not bytes:
            message = msgspec.structs.replace(message, body=bytes(checked_body(body)))
        text = self._text(message)
        timeout_ms = timeout_ms or self._timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        waiting = _Waiting(message, text, order_key, queue, timeout_ms, deadline_ms, waiter, [])
        if self.room_bytes <= 0:
            self.short.append(waiting)
            self._watch()
        else:
            self._place(waiting)
        return waiter

    async def wait_for_room(self, sent: Sent) -> None:
        """Wait until ``sent``, the message added last, has room or has failed.

        If the caller is cancelled, so is the message.
        """
        taken: asyncio.Future[None] = self._loop.create_future()
        self.short[-1].callers.append(taken)
        try:
            await taken
        except asyncio.CancelledError:
            sent.cancel()
            raise

    async def flush(self) -> None:
        """Send lingering batches, and wait until all messages added so far are settled."""
        for lane in list(self._held):
            self._leave(lane)
        if waiters := list(self._waiters()):
            await asyncio.wait(waiters)

    # ------------------------------------------------------------------ from messages to batches

    def _text(self, message: Message) -> str | None:
        """Return a message's properties in a batch; None if it is sent alone.

        Raises MessageIllegal.
        """
        check_topic_type(message.topic)
        self._packer.check(message)
        if goes_alone(message) or message.born_ms or len(message.body) >= self._small_bytes:
            return None
        return self._packer.batch_text(message)

    def _place(self, waiting: _Waiting) -> None:
        """Add a message to its lane; if an order key needs an unknown route, fetch that first."""
        message, text, order_key, queue, timeout_ms, deadline_ms, waiter, _ = waiting
        topic = message.topic
        if queue is None and order_key is not None:
            known_as = self._session.namespace.wrap(topic)
            behind = self._unrouted.get(topic)
            queues = self._session.known_publish_queues(known_as)
            if behind is not None or not queues:
                self._learn(waiting, behind)
                return
            queue = self._session.namespace.unwrap_queue(by_key(queues, order_key))
        # A message without order that is sent alone gets a lane of its own, so that it does not end
        # the open batch of others.
        is_apart = text is None and queue is None
        lane = _Lane(topic, None) if is_apart else self._lane(message, queue)
        batch = lane.open
        if text is None or batch is None or not batch.takes(message, timeout_ms):
            batch = self._begin(lane, timeout_ms)
        batch.deadline_ms = min(batch.deadline_ms, deadline_ms)
        self._join(lane, batch, message, text or "", waiter)
        if text is None and lane.open is batch:
            self._close(lane)

    def _lane(self, message: Message, queue: MessageQueue | None) -> _Lane:
        topic = message.topic
        key: LaneKey = topic
        if queue is not None or not message.wait_store:
            key = topic, queue
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key, queue)
            if key is topic and not self._session.namespace:
                self._plain_lanes[topic] = lane
        return lane

    def _begin(self, lane: _Lane, timeout_ms: float) -> _Batch:
        """Open a batch of a lane, after closing the open one."""
        if lane.open is not None:
            self._close(lane)
        now_ns = self._clock.monotonic_ns()
        batch = lane.open = _Batch(now_ns, self._linger_ns, timeout_ms)
        if self._may_wait(lane, batch):
            self._hold(lane)
        else:
            self._leave_soon(lane)
        return batch

    def _may_wait(self, lane: _Lane, batch: _Batch) -> bool:
        """Return whether the open batch waits for a batch in flight."""
        if not lane.in_flight:
            return False
        if lane.queue is not None:
            return True
        return 0 < self._linger_ns <= batch.timeout_ms * 1e6 * _LINGER_PART

    def _join(self, lane: _Lane, batch: _Batch, message: Message, text: str, waiter: Sent) -> None:
        size = len(message.body) + _OVERHEAD_BYTES
        if text or message.message_id or message.flag:
            batch.texts[len(batch.messages)] = text
            size += len(text) if text.isascii() else len(text.encode())
        batch.messages.append(message)
        batch.waiters.append(waiter)
        batch.size_bytes += size
        self.room_bytes -= size
        if batch.size_bytes >= self._batch_bytes or len(batch.waiters) >= self._batch_messages:
            self._close(lane)

    def _learn(self, waiting: _Waiting, behind: deque[_Waiting] | None) -> None:
        """Queue a message until the route of its topic is known; fetch the route if needed."""
        topic = waiting.message.topic
        if behind is None:
            behind = self._unrouted[topic] = deque()
            learning = self._session.tasks.spawn(self._route(topic), name=f"route of {topic}")
            learning.add_done_callback(partial(self._learned, topic))
        behind.append(waiting)
        self.room_bytes -= _size_of(waiting)
        self._watch()

    async def _route(self, topic: str) -> Exception | None:
        try:
            await self._session.publish_queues(self._session.namespace.wrap(topic))
        except Exception as error:  # passed on to the messages that wait
            return error
        return None

    def _learned(self, topic: str, learning: asyncio.Task[Exception | None]) -> None:
        waiting = self._unrouted.pop(topic)
        error = _CLOSED if learning.cancelled() else learning.result()
        for each in waiting:
            self.room_bytes += _size_of(each)
            if error is None and not each.waiter.done():
                self._place(each)
            else:
                _fail(each.waiter, error)
        self._admit()

    def _admit(self) -> None:
        """Place messages that wait for room while there is any."""
        while self.short and self.room_bytes > 0:
            waiting = self.short.popleft()
            if not waiting.waiter.done():
                self._place(waiting)
            waiting.let_callers_go()

    # ------------------------------------------------------------------ when a batch leaves

    def _leave_soon(self, lane: _Lane) -> None:
        """Send the open batch at the end of this turn, so that further messages can join it."""
        if not self._leaving:
            self._loop.call_soon(self._end_turn)
        self._leaving[lane] = None

    def _end_turn(self) -> None:
        leaving, self._leaving = self._leaving, {}
        for lane in leaving:
            if lane.open is None:
                continue
            if self._may_wait(lane, lane.open):  # a full batch was sent in this turn
                self._hold(lane)
            else:
                self._leave(lane)

    def _hold(self, lane: _Lane) -> None:
        """Keep the open batch until the one in flight is settled, or, without order, until due."""
        if lane.queue is not None:
            self._queued[lane] = None
            self._watch()
            return
        self._held[lane] = None
        if self._lingering is None:
            self._lingering = self._session.tasks.spawn(self._linger(), name="lingering batches")

    async def _linger(self) -> None:
        """Send held batches when they are due; end when none is left."""
        try:
            while self._held:
                lane = next(iter(self._held))
                assert lane.open is not None
                left_ns = lane.open.due_ns - self._clock.monotonic_ns()
                if left_ns > 0:
                    await self._clock.sleep_ms(left_ns / 1e6)
                else:
                    self._leave(lane)
        finally:
            self._lingering = None

    def _close(self, lane: _Lane) -> None:
        """Close the open batch to further messages; send it unless it must wait for another."""
        if lane.queue is None or not (lane.in_flight or lane.ready):
            self._leave(lane)
        else:
            assert lane.open is not None
            lane.ready.append(lane.open)
            lane.open = None
            self._queued[lane] = None
            self._watch()

    def _leave(self, lane: _Lane) -> None:
        """Send the open batch."""
        batch, lane.open = lane.open, None
        assert batch is not None
        self._held.pop(lane, None)
        self._depart(lane, batch)

    def _depart(self, lane: _Lane, batch: _Batch) -> None:
        """Send a batch that is no longer open."""
        lane.in_flight += 1
        self._sent[batch] = None
        if len(batch.messages) == 1 and lane.queue is None and self._post(lane, batch):
            return
        topic = batch.messages[0].topic
        task = self._session.tasks.spawn(self._deliver(lane, batch), name=f"batch to {topic}")
        task.add_done_callback(partial(self._ended, lane, batch))

    def _post(self, lane: _Lane, batch: _Batch) -> bool:
        """Send the only message of a batch as a plain send, which needs no task.

        Return False if that is not possible; nothing was sent then.
        """
        (message,), (waiter,) = batch.messages, batch.waiters
        left_ms = int(batch.deadline_ms - self._clock.monotonic_ms())
        if waiter.done() or left_ms <= 0:
            return False
        try:
            posted = self._singles.post(message, left_ms)
        except MessageIllegal:
            return False  # _deliver fails in the same way and passes the error on
        if posted is None:
            return False
        posted.waiter.add_done_callback(partial(self._answered, lane, batch, posted))
        return True

    def _answered(
        self, lane: _Lane, batch: _Batch, posted: Posted, answered: asyncio.Future[Any]
    ) -> None:
        outcome = answered.result()
        if type(outcome) is SendResult:
            if self._session.outages.any_known:
                posted.note_success(self._session.outages)
            self._settle(lane, batch, [outcome])
        else:
            task = self._session.tasks.spawn(
                self._resume(batch, posted, outcome), name=f"send to {batch.messages[0].topic}"
            )
            task.add_done_callback(partial(self._ended, lane, batch))

    async def _resume(
        self, batch: _Batch, posted: Posted, outcome: Outcome
    ) -> list[SendResult] | Exception:
        try:
            return [await self._singles.go_on(batch.messages[0], posted, outcome)]
        except Exception as error:
            return error

    def _go_on(self, lane: _Lane) -> None:
        """Send the next batch of a lane after one was settled; drop the lane if it is unused."""
        if lane.in_flight:
            return
        if lane.ready:
            self._depart(lane, lane.ready.popleft())
        elif lane.open is not None:
            self._held.pop(lane, None)
            self._leave_soon(lane)
        elif len(self._lanes) > _MANY_LANES and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
            if isinstance(lane.key, str):
                self._plain_lanes.pop(lane.key, None)

    # ------------------------------------------------------------------ one batch

    async def _deliver(self, lane: _Lane, batch: _Batch) -> list[SendResult] | Exception | None:
        """Send a batch; return its results or its error, for :meth:`_settle`."""
        self._drop_done(batch)
        messages = batch.messages
        if not messages:
            return None
        try:
            if len(messages) == 1:
                packed = await self._singles.pack(messages[0])
            else:
                packed = self._packed(batch)
            left_ms = int(batch.deadline_ms - self._clock.monotonic_ms())
            if left_ms <= 0:
                return _too_late(messages[0].topic, batch.timeout_ms)
            return await self._delivery.send(packed, None, lane.queue, left_ms)
        except Exception as error:  # of a broker, or of a hook
            return error

    def _packed(self, batch: _Batch) -> Packed:
        now_ms = self._clock.wall_ms()
        messages = batch.messages
        keys = self._session.unique_keys.many(now_ms, len(messages))
        if not batch.texts:
            bodies = [message.body for message in messages]
            return self._packer.plain_batch(messages, bodies, keys, now_ms)
        texts = [""] * len(messages)
        for at, text in batch.texts.items():
            texts[at] = text
            keys[at] = messages[at].message_id or keys[at]
        return self._packer.checked_batch(messages, texts, keys, now_ms)

    def _drop_done(self, batch: _Batch) -> None:
        """Drop the messages that were cancelled or timed out."""
        kept = [at for at, waiter in enumerate(batch.waiters) if not waiter.done()]
        if len(kept) < len(batch.waiters):
            texts = batch.texts
            batch.texts = {new: texts[old] for new, old in enumerate(kept) if old in texts}
            batch.messages = [batch.messages[at] for at in kept]
            batch.waiters = [batch.waiters[at] for at in kept]

    def _ended(
        self,
        lane: _Lane,
        batch: _Batch,
        task: asyncio.Task[list[SendResult] | Exception | None],
    ) -> None:
        self._settle(lane, batch, _CLOSED if task.cancelled() else task.result())

    def _settle(
        self, lane: _Lane, batch: _Batch, found: list[SendResult] | Exception | None
    ) -> None:
        """Set the result or the error of each message of a batch, and go on with the lane."""
        del self._sent[batch]
        if isinstance(found, list):
            for waiter, result in zip(batch.waiters, found, strict=True):
                if not waiter.done():
                    waiter.set_result(result)
        else:
            for waiter in batch.waiters:
                _fail(waiter, found)
        self.room_bytes += batch.size_bytes
        lane.in_flight -= 1
        self._admit()
        self._go_on(lane)

    # ------------------------------------------------------------------ deadlines

    def _watch(self) -> None:
        if self._expiring is None:
            self._expiring = self._session.tasks.spawn(self._expire(), name="waiting messages")

    async def _expire(self) -> None:
        """Fail waiting messages whose time limit has passed; end when no messages wait."""
        try:
            while self.short or self._unrouted or self._queued:
                await self._clock.sleep_ms(_EXPIRY_MS)
                now_ms = self._clock.monotonic_ms()
                for each in (*self.short, *(w for some in self._unrouted.values() for w in some)):
                    if each.deadline_ms <= now_ms:
                        _fail(each.waiter, _too_late(each.message.topic, each.timeout_ms))
                while self.short and self.short[0].waiter.done():
                    self.short.popleft().let_callers_go()
                for lane in list(self._queued):
                    self._expire_lane(lane, now_ms)
        finally:
            self._expiring = None

    def _expire_lane(self, lane: _Lane, now_ms: int) -> None:
        batch = lane.open
        if (
            batch is not None
            and lane.in_flight
            and now_ms - batch.opened_ms > batch.timeout_ms * _OPEN_PART
        ):
            lane.ready.append(batch)
            lane.open = None
        if not lane.ready and lane.open is None:
            del self._queued[lane]
        for batch in lane.ready:
            if batch.deadline_ms <= now_ms:
                for waiter in batch.waiters:
                    _fail(waiter, _too_late(batch.messages[0].topic, batch.timeout_ms))

    def _waiters(self) -> Iterator[Sent]:
        """Yield the futures of all messages that are not settled."""
        for batch in self._sent:
            yield from batch.waiters
        for lane in self._lanes.values():
            for batch in (*lane.ready, *([lane.open] if lane.open else ())):
                yield from batch.waiters
        for waiting in (self.short, *self._unrouted.values()):
            yield from (each.waiter for each in waiting)


_CLOSED: Final = NotConnected("this client", "it is closed")


def _fail(waiter: Sent, error: Exception | None) -> None:
    """Set a copy of an error as the outcome of one message."""
    if not waiter.done():
        waiter.set_exception(fresh_copy(error or _CLOSED))


def _too_late(topic: str, timeout_ms: float) -> RequestTimedOut:
    text = f"topic {topic!r}: a message behind others was not sent within {timeout_ms:g} ms"
    return RequestTimedOut(topic, RequestCode.SEND_BATCH_MESSAGE, int(timeout_ms), text=text)


def _size_of(waiting: _Waiting) -> int:
    return len(waiting.message.body) + len(waiting.text or "") + _OVERHEAD_BYTES
