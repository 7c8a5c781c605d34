"""Link of one kombu connection to a cluster: a client on a loop thread, and received messages.

    loop thread        runs the client, fills a buffer per topic, acknowledges at the broker
    threads of kombu   take messages from the buffers, and settle them
    socket pair        wakes Celery's event loop and threads that wait for messages

A forked process needs a link of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.admin.api import Admin
from cometmq.client.blocking import LoopThread
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused, NotConnected, RouteNotFound, fresh_copy
from cometmq.kombu.naming import topic_of
from cometmq.kombu.transient import TransientReader
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import SubscriptionGroupConfig

if TYPE_CHECKING:
    from cometmq.client.consumer.pushconsumer import Subscription
    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.kombu.options import Options
    from cometmq.message.model import Message

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Maximum number of messages in the buffer of a topic; others stay in the subscription.
_BUFFER: Final = 256
#: Delay before the first delivery from a queue with priorities. The first pulls of its topics are
#: answered in any order, and urgent messages should be delivered first.
_FIRST_PULLS_MS: Final = 200
#: Delay level of a retry that moves the message to the dead-letter queue.
_DEAD_LETTER_LEVEL: Final = -1
#: Maximum number of unacknowledged messages of a queue that kombu may hold.
_HELD: Final = 65_535


class Delivery:
    """A message for kombu.

    ``received`` is None for a message of a temporary queue, which is not acknowledged.
    """

    __slots__ = ("body", "born_ms", "feed", "is_settled", "received", "returns")

    def __init__(
        self,
        body: bytes,
        born_ms: int,
        received: ReceivedMessage | None = None,
        feed: Feed | None = None,
    ) -> None:
        self.body = body
        self.born_ms = born_ms
        self.received = received
        self.feed = feed
        self.is_settled = False
        #: True if settling gives the message back, for redelivery, instead of acknowledging it.
        self.returns = False


class Feed:
    """Messages of one kombu queue: the subscription, and a buffer for each priority step.

    ``topics`` are those of the steps, the highest first.
    """

    def __init__(self, queue: str, subscription: Subscription, topics: list[str]) -> None:
        self.queue = queue
        self.subscription = subscription
        #: Buffers by topic, that of the highest step first.
        self.buffers: dict[str, deque[Delivery]] = {topic: deque() for topic in topics}
        self.lowest = self.buffers[topics[-1]]
        #: Numbers of deliveries that threads of kombu took, and that the loop settled.
        self.taken = self.settled = 0
        #: The error that ended the subscription.
        self.error: Exception | None = None
        #: True if no consumer is left. The subscription ends when no delivery is held.
        self.is_cancelled = False
        #: False until _FIRST_PULLS_MS after the first message; then messages may be taken.
        self.is_open = len(topics) == 1

    @property
    def held(self) -> int:
        """Number of deliveries that were taken and not settled."""
        return self.taken - self.settled

    @property
    def waiting(self) -> int:
        """Number of messages in the buffers."""
        return sum(map(len, self.buffers.values()))

    def take(self) -> Delivery | None:
        """Return the next message, or None. Raises the error that ended the subscription."""
        if self.is_open:
            for buffer in self.buffers.values():
                if buffer:
                    self.taken += 1
                    return buffer.popleft()
        if self.error is not None:
            raise fresh_copy(self.error)
        return None


class Link:
    """Connection to a cluster, usable only in the process that opened it.

    All public methods may be called from any thread, and raise the client's errors.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.pid = os.getpid()
        self._clock = SystemClock()
        self._thread = LoopThread()
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._feeds: dict[str, Feed] = {}
        #: Tasks that leave the group of a queue, by queue.
        self._leaving: dict[str, asyncio.Task[Any]] = {}
        #: Only one caller at a time joins a group.
        self._joining = asyncio.Lock()
        #: Topics that exist.
        self._known: set[str] = set()
        #: Settled deliveries that the loop has not passed to the client yet.
        self._settled: deque[Delivery] = deque()
        self._is_settling = False
        try:
            self._client, self._tasks = self._thread.wait(self._open())
        except BaseException:
            self._thread.close()
            self._awake.close()
            self._waker.close()
            raise
        self._transient = TransientReader(self._client, options.transient_topic, self.wake)

    async def _open(self) -> tuple[Client, Tasks]:
        client = Client(config=self.options.config)
        await client.start()
        try:
            if not await Admin(client.session).brokers(masters_only=True):
                raise NotConnected(client.config.name_servers[0], "it knows no broker")
        except BaseException:
            await client.close()
            raise
        return client, Tasks()

    def close(self) -> None:
        """Leave all groups and close the client; unacknowledged messages are delivered again.

        In a forked process only the sockets are closed, because the loop runs in the parent.
        """
        try:
            if self.pid == os.getpid():
                try:
                    self._thread.wait(self._close())
                finally:
                    self._thread.close()
        finally:
            self._awake.close()
            self._waker.close()

    async def _close(self) -> None:
        self._settle()
        await self._tasks.close()
        await self._client.close()

    # ------------------------------------------------------------------ waiting

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when messages arrive."""
        return self._awake.fileno()

    def wake(self) -> None:
        """Wake the threads and the event loop that wait for messages."""
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            return  # The buffer is full, so the other end is readable already.
        except OSError as error:
            log.debug("wake_failed error=%r", error)

    def clear(self) -> None:
        """Reset the wake-up signal, so that the next wait is for later messages."""
        try:
            self._awake.recv(65_536)
        except BlockingIOError:
            return

    def wait(self, timeout_s: float) -> None:
        """Wait until messages arrive, at most ``timeout_s``."""
        # Poll, then read without blocking: another thread may have cleared the signal in between.
        arrived = select.poll()
        arrived.register(self._awake, select.POLLIN)
        if arrived.poll(max(timeout_s, 0.001) * 1_000):
            self.clear()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.wait(work)

    # ------------------------------------------------------------------ topics

    def has_queue(self, queue: str) -> bool:
        """Return whether the topic of a queue exists."""
        topic = topic_of(queue)
        return topic in self._known or self._run(self._exists(topic))

    async def _exists(self, topic: str) -> bool:
        try:
            session = self._client.session
            await session.route(session.namespace.wrap(topic))
        except RouteNotFound:
            return False
        self._known.add(topic)
        return True

    def create(self, queue: str) -> None:
        """Create the topics of a queue that do not exist."""
        for topic in self._topics(queue):
            if topic not in self._known:
                self._run(self._create(topic, self.options.queues))

    async def _create(self, topic: str, queues: int) -> None:
        if not await self._exists(topic):
            admin = Admin(self._client.session)
            await admin.create_topic(admin.session.namespace.wrap(topic), queues=queues)
            self._known.add(topic)

    def _topics(self, queue: str) -> list[str]:
        return [topic_of(queue, step) for step in reversed(self.options.priority_steps)]

    def group_of(self, queue: str) -> str:
        """Return the consumer group of a queue."""
        return f"{self.options.group}-{topic_of(queue)}"

    def size(self, queue: str) -> int:
        """Return the number of messages that wait: those stored after the group's offsets."""
        return self._run(self._size(queue))

    async def _size(self, queue: str) -> int:
        waiting = 0
        admin = Admin(self._client.session)
        wrap = admin.session.namespace.wrap
        for topic in self._topics(queue):
            try:
                ends = await admin.topic_stats(wrap(topic))
                offsets = await admin.group_offsets(wrap(self.group_of(queue)), wrap(topic))
            except RouteNotFound:
                continue
            for place, end in ends.items():
                done = offsets.get(place)
                waiting += end.max_offset - (end.min_offset if done is None else done)
        return waiting

    def purge(self, queue: str) -> int:
        """Move the group to the end of the queue; return the number of skipped messages."""
        skipped = self.size(queue)
        feed = self._feeds.get(queue)
        if feed is not None:
            # Empty the buffers once. The reset below skips messages that arrive meanwhile.
            for _ in range(feed.waiting):
                waiting = feed.take()
                if waiting is not None:
                    self.settle(waiting)
        self._run(self._purge(queue))
        return skipped

    async def _purge(self, queue: str) -> None:
        admin = Admin(self._client.session)
        wrap = admin.session.namespace.wrap
        group = wrap(self.group_of(queue))
        if not await admin.knows_group(group):
            # Java brokers keep no offsets of a group that nobody joined.
            await admin.update_group(SubscriptionGroupConfig(group_name=group))
        for topic in self._topics(queue):
            if not await self._exists(topic):
                continue
            try:
                await admin.consumers.reset(group, wrap(topic))
            except BrokerRefused:
                # Java brokers (4.9.7) refuse to reset a group without offsets: commit some.
                ends = await admin.topic_stats(wrap(topic))
                offsets = {place: end.max_offset for place, end in ends.items()}
                await admin.commit_group_offsets(group, offsets)

    def delete(self, queue: str) -> None:
        """Delete the topics of a queue."""
        self.stop(queue, at_once=True)
        for topic in self._topics(queue):
            self._known.discard(topic)
            admin = Admin(self._client.session)
            self._run(admin.delete_topic(admin.session.namespace.wrap(topic)))

    # ------------------------------------------------------------------ sending

    def send(self, message: Message) -> None:
        """Send a message, and wait until a broker stored it."""
        self._run(self._client.send(message))

    # ------------------------------------------------------------------ receiving

    def read(self, queue: str) -> Feed:
        """Return the feed of a queue; join its group first if this link is not a member."""
        if queue not in self._feeds:
            self.create(queue)
        return self._run(self._read(queue))

    async def _read(self, queue: str) -> Feed:
        # Check _feeds again, here on the loop: feeds are also removed on the loop.
        async with self._joining:
            feed = self._feeds.get(queue)
            if feed is None:
                feed = self._feeds[queue] = await self._join(queue)
            feed.is_cancelled = False
            return feed

    async def _join(self, queue: str) -> Feed:
        leaving = self._leaving.pop(queue, None)
        if leaving is not None:
            await asyncio.wait((leaving,))
        topics = self._topics(queue)
        subscription = self._client.subscribe(
            dict.fromkeys(topics, "*"),
            group=self.group_of(queue),
            concurrency=_HELD,
            start="first",
        )
        await subscription.start()
        feed = Feed(queue, subscription, topics)
        self._tasks.spawn(self._fill(feed), name=f"feed {queue}")
        return feed

    async def _open_soon(self, feed: Feed) -> None:
        await self._clock.sleep_ms(_FIRST_PULLS_MS)
        feed.is_open = True
        self.wake()

    async def _fill(self, feed: Feed) -> None:
        """Fill the buffers of a feed until its subscription ends."""
        try:
            await self._fill_from_subscription(feed)
        except Exception as error:
            feed.error = error
            self.wake()
            raise

    async def _fill_from_subscription(self, feed: Feed) -> None:
        is_first = not feed.is_open
        async for message in feed.subscription:
            if is_first:
                is_first = False
                self._tasks.spawn(self._open_soon(feed), name=f"open {feed.queue}")
            # A retried message has the retry topic, not that of its step: lowest priority.
            buffer = feed.buffers.get(message.topic, feed.lowest)
            buffer.append(Delivery(message.body, message.born_ms, message, feed))
            self.wake()
            while len(buffer) >= _BUFFER and not feed.subscription.closed:
                await self._clock.sleep_ms(5)

    def take(self, queue: str) -> Delivery | None:
        """Return the next message of a queue, or None.

        A buffered message whose broker queue has moved to another member is given back to it.
        """
        feed = self._feeds.get(queue)
        while feed is not None:
            delivery = feed.take()
            if delivery is None or delivery.received is None or not delivery.received.is_given_up:
                return delivery
            delivery.returns = True
            self.settle(delivery)
        return None

    def settle(self, delivery: Delivery) -> None:
        """Acknowledge a message (or give it back if ``returns`` is set). Does not wait."""
        if delivery.received is None or delivery.is_settled:
            return
        delivery.is_settled = True
        self._settled.append(delivery)
        if not self._is_settling:
            self._is_settling = True
            self._thread.soon(self._settle)

    def _settle(self) -> None:
        self._is_settling = False
        while self._settled:
            delivery = self._settled.popleft()
            received = delivery.received
            if received is not None:
                if delivery.returns:
                    received.give_back()
                else:
                    received.ack()
            self._let_go(delivery)

    def refuse(self, delivery: Delivery) -> None:
        """Move a message that kombu cannot read to the dead-letter queue."""
        if delivery.received is not None and not delivery.is_settled:
            delivery.is_settled = True
            self._run(self._refuse(delivery, delivery.received))

    async def _refuse(self, delivery: Delivery, received: ReceivedMessage) -> None:
        await received.retry(_DEAD_LETTER_LEVEL)
        self._let_go(delivery)

    def _let_go(self, delivery: Delivery) -> None:
        """Count a settled delivery; leave the group if it was the last of a cancelled feed."""
        feed = delivery.feed
        if feed is not None:
            feed.settled += 1
            if feed.is_cancelled and not feed.held:
                self._leave(feed)

    def stop(self, queue: str, *, at_once: bool = False) -> None:
        """Leave the queue's group, ``at_once`` or when kombu has settled all that it took."""
        feed = self._feeds.get(queue)
        if feed is None:
            return
        feed.is_cancelled = True
        if at_once or not feed.held:
            self._run(self._end(feed))

    async def _end(self, feed: Feed) -> None:
        leaving = self._leave(feed)
        if leaving is not None:
            await asyncio.wait((leaving,))

    def _leave(self, feed: Feed) -> asyncio.Task[Any] | None:
        """Begin to leave a cancelled feed's group; None if it was read again or left already."""
        if not feed.is_cancelled or self._feeds.get(feed.queue) is not feed:
            return None
        del self._feeds[feed.queue]
        name = f"leave {feed.queue}"
        leaving = self._leaving[feed.queue] = self._tasks.spawn(
            feed.subscription.close(), name=name
        )
        return leaving

    # ------------------------------------------------------------------ temporary queues

    def declare_temporary(self, queue: str) -> None:
        """Declare a temporary queue, and keep its messages from now on."""
        if not self._transient.is_reading:
            self.create_transient_topic()
            self._run(self._transient.start(self._tasks))
        self._transient.declare(queue)

    def create_transient_topic(self) -> None:
        """Create the topic of temporary queues if it does not exist."""
        topic = self.options.transient_topic
        if topic not in self._known:
            self._run(self._create(topic, 1))

    @property
    def transient(self) -> TransientReader:
        """The reader of this link's temporary queues."""
        return self._transient


__all__ = ["Delivery", "Link"]
