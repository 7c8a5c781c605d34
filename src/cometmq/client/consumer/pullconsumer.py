"""Polling consumer: the application requests messages, seeks in its queues and commits offsets
(upstream: DefaultLitePullConsumerImpl.java).

Queues come from the group's rebalance, or the application assigns them. In the second case the
consumer is not a member of the group and only stores its offsets under the group's name. The
messages of a poll count as processed when the next poll begins. Automatic commits include only
processed messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.client.consumer.fetcher import Fetcher
from cometmq.client.consumer.inflight import Dispatch
from cometmq.client.consumer.offsets import StartPositions, offsets_of
from cometmq.client.consumer.options import check_filters
from cometmq.client.consumer.rebalance import AssignmentListener, Plan, Rebalancer, plan, tell
from cometmq.client.consumer.runninginfo import Moment, queue_progress, running_info, stacks
from cometmq.client.pull import Puller
from cometmq.client.status import SubscriptionStatus
from cometmq.core.errors import SettingsError
from cometmq.message.model import MessageView

if TYPE_CHECKING:
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.consumer.refusals import Refusals
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue, StoredMessage
    from cometmq.protocol.bodies import ConsumerData, RunningInfo


log = logging.getLogger(__name__)


class Progress:
    """Processed and unprocessed messages of all queues of one polling consumer."""

    def __init__(self) -> None:
        #: Offset of the first message in progress of each queue.
        self._open: dict[InFlight, int] = {}

    def begin(self, inflight: InFlight, message: StoredMessage) -> None:
        """Record that a message was returned by a poll."""
        self._open.setdefault(inflight, message.queue_offset)

    def finish(self) -> None:
        """Record that all messages returned so far are processed."""
        self._open.clear()

    def forget(self, inflight: InFlight) -> None:
        """Drop the state of a queue that was released or moved to another offset."""
        self._open.pop(inflight, None)

    def done(self, inflight: InFlight) -> int:
        """Return the offset before which all messages of the queue are processed."""
        return self._open.get(inflight, inflight.committable)

    def undone(self) -> dict[MessageQueue, int]:
        """Return the first offset in progress of each queue that has messages in progress."""
        return {
            inflight.queue: offset
            for inflight, offset in self._open.items()
            if not inflight.dropped
        }

    def positions(self, inflights: Iterable[InFlight]) -> dict[MessageQueue, int]:
        """Return the offset of the next message of each queue that a poll returns."""
        return {inflight.queue: inflight.committable for inflight in inflights}


DEFAULT_MAX_MESSAGES: Final = 32
DEFAULT_TIMEOUT_MS: Final = 5_000


class PullConsumer:
    """Consumer of a group's share of ``topics``, or of the queues passed to :meth:`assign`.

    Use it as an async context manager, or call :meth:`start` and :meth:`close`. Only one task may
    poll; any task may read and move positions. Methods raise SettingsError for queues that are not
    assigned.
    """

    def __init__(
        self,
        session: Session,
        options: SubscribeOptions,
        *,
        auto_commit: bool = True,
        on_assignment: AssignmentListener | None = None,
    ) -> None:
        self.options = options
        self.group = options.group
        self.closed = False
        self._session = session
        self._config = session.config
        self._clock = session.clock
        self._auto_commit = auto_commit
        self._on_assignment = on_assignment
        self._offsets = offsets_of(session, options)
        # A polled message is settled at once, so one message at a time is enough.
        self._dispatch = Dispatch(
            session.clock, concurrency=1, per_queue=1, may_give=self._is_running
        )
        self._puller = Puller(session)
        self._starts = StartPositions(session, options, self._offsets, self._puller)
        self._fetcher = Fetcher(
            session,
            options,
            self._starts,
            offer=self._dispatch.offer,
            may_pull=self._may_pull,
            is_member=False,
        )
        self._rebalancer = Rebalancer(session, options, self)
        self._paused: set[MessageQueue] = set()
        self._progress = Progress()
        self._loops: list[asyncio.Task[None]] = []
        self._started = False
        self._started_ms = session.clock.wall_ms()

    def __repr__(self) -> str:
        state = "closed, " if self.closed else ""
        return f"<PullConsumer of {self.options}, {state}{len(self._fetcher.queues())} queues>"

    async def __aenter__(self) -> PullConsumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self._take_back()
        await self.close()

    async def start(self) -> None:
        """Join the group, if there are topics to share.

        Raises AlreadyInUse (a ValueError) if this client is already a member, and BrokerRefused if
        a broker rejects a filter.
        """
        if self._started or self.closed:
            return
        self._started = True
        try:
            await self._join()
        except BaseException:
            self._started = False
            raise
        if self._auto_commit:
            name = f"offsets {self.group}"
            self._loops.append(self._session.tasks.spawn(self._keep_offsets(), name=name))

    async def _join(self) -> None:
        if not self.options.filters:
            return
        await check_filters(self._session, self.options)
        await self._starts.joining()
        await self._session.add_member(self)
        name = f"rebalance {self.group}"
        self._loops.append(self._session.tasks.spawn(self._rebalancer.run(), name=name))

    async def close(self) -> None:
        """Leave the group. With automatic commits all polled messages are committed."""
        if self.closed:
            return
        self.closed = True
        self._dispatch.close()
        for task in self._loops:
            task.cancel()
        self._fetcher.stop_pulling()
        if self._auto_commit:
            self._progress.finish()
            self._note_done()
            await self._offsets.persist()
        for queue in self._fetcher.queues():
            self._fetcher.stop(queue)
        if self.options.filters and self._started:
            await self._session.remove_member(self)

    # ------------------------------------------------------------------ messages

    async def poll(
        self,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_messages: int = DEFAULT_MAX_MESSAGES,
    ) -> list[MessageView]:
        """Return up to ``max_messages`` messages, in order within each queue.

        The call returns as soon as there are any messages. It returns an empty list after
        ``timeout_ms``, or once the consumer is closed. The messages of the previous poll count as
        processed. Raises BrokerRefused after ``timeout_ms`` if no broker has ever let the consumer
        read, because a permission is missing.
        """
        await self.start()
        self._progress.finish()
        found = self._take(max_messages)
        if found or timeout_ms <= 0:
            return found
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                first = await self._dispatch.take()
        except TimeoutError:
            if (error := self.refusals.error) is not None:
                raise error from None
            return found
        if first is not None:
            found = [self._hand_out(*first), *self._take(max_messages - 1)]
        return found

    def status(self) -> SubscriptionStatus:
        """Return the queues that are read and the progress in them, without a request.

        The messages of the last poll are in progress.
        """
        unwrap = self._session.namespace.unwrap
        error = self.refusals.error
        queues = [
            queue_progress(each, self._session.namespace, self._progress.done(each))
            for each in self._fetcher.inflights()
            if each.next_offset >= 0
        ]
        return SubscriptionStatus(
            unwrap(self.group),
            tuple(sorted(map(unwrap, self.options.topics))),
            tuple(sorted(queues, key=lambda each: each.queue)),
            "" if error is None else str(error),
        )

    @property
    def refusals(self) -> Refusals:
        """Topics that this consumer may not read."""
        return self._fetcher.refusals

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Yield messages one by one until the consumer is closed.

        A message counts as processed when the next one is requested.
        """
        while not self.closed:
            for message in await self.poll(max_messages=1):
                yield message

    def _take(self, count: int) -> list[MessageView]:
        found: list[MessageView] = []
        while len(found) < count and (taken := self._dispatch.take_now()) is not None:
            found.append(self._hand_out(*taken))
        return found

    def _hand_out(self, inflight: InFlight, message: StoredMessage) -> MessageView:
        self._progress.begin(inflight, message)
        inflight.settle(message)
        self._dispatch.release(inflight)
        return MessageView(message)

    def _is_running(self, inflight: InFlight) -> bool:
        return inflight.queue not in self._paused

    def _may_pull(self, inflight: InFlight) -> bool:
        held = sum(each.count for each in self._fetcher.inflights())
        return self._is_running(inflight) and held < self._config.max_polled_messages

    def _take_back(self) -> None:
        """Read again from the first message of the last poll, because the block raised."""
        for queue, offset in self._progress.undone().items():
            self._fetcher.start_at(queue, offset)
        self._progress.finish()

    # ------------------------------------------------------------------ queues

    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the queues that are read now, with user names."""
        return tuple(map(self._session.namespace.unwrap_queue, sorted(self._fetcher.queues())))

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read only these queues, each from the group's offset, or from the start position.

        Raises SettingsError for a consumer that shares topics, ClientError if a broker cannot be
        reached.
        """
        if self.options.filters:
            raise SettingsError(
                "topics",
                "this consumer subscribes to topics: its queues are assigned by the rebalance",
            )
        await self.start()
        wanted = map(self._session.namespace.wrap_queue, queues)
        change = plan(self._fetcher.queues(), wanted)
        for queue in change.drop:
            await self._give_up(self._fetcher.stop(queue))
        starts = await asyncio.gather(*map(self._starts.of, change.add))
        for queue, offset in zip(change.add, starts, strict=True):
            self._fetcher.start_at(queue, offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop delivering and pulling messages of these queues until :meth:`resume`."""
        self._paused.update(self._find(queue).queue for queue in queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Continue with queues that were paused."""
        for queue in queues:
            inflight = self._find(queue)
            self._paused.discard(inflight.queue)
            self._dispatch.offer(inflight)

    def paused(self) -> tuple[MessageQueue, ...]:
        """Return the queues that are paused."""
        return tuple(map(self._session.namespace.unwrap_queue, sorted(self._paused)))

    # ------------------------------------------------------------------ positions

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that a poll returns of ``queue``."""
        return self._find(queue).committable

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at ``offset``. Raises SettingsError if it is outside the queue's offsets."""
        inflight = self._find(queue)
        low, high = await asyncio.gather(
            self._puller.min_offset(queue), self._puller.max_offset(queue)
        )
        if not low <= offset <= high:
            raise SettingsError(
                "offset", f"{offset} is outside the range {low} to {high} of {queue}"
            )
        self._move(inflight, offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue at the oldest message of these queues, or of all assigned queues."""
        for inflight in self._these(queues):
            self._move(inflight, await self._puller.min_offset(inflight.queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue after the last message of these queues, or of all assigned queues."""
        for inflight in self._these(queues):
            self._move(inflight, await self._puller.max_offset(inflight.queue))

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Continue at the first message stored at ``timestamp_ms`` (wall time) or later.

        This applies to these queues, or to all assigned queues.
        """
        for inflight in self._these(queues):
            self._move(inflight, await self._puller.offset_at(inflight.queue, timestamp_ms))

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset that :meth:`seek_to_time` would continue at. Raises ClientError."""
        return await self._puller.offset_at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group in ``queue``; None if there is none.

        Raises ClientError.
        """
        return await self._offsets.peek(self._session.namespace.wrap_queue(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all polled messages, or the given ``offsets``.

        An offset is that of the first message that is not processed. Raises ClientError if a broker
        cannot be reached, and OSError if the file of a broadcasting consumer cannot be written.
        """
        if offsets is None:
            self._progress.finish()
            done = self._progress.positions(self._fetcher.inflights())
        else:
            done = {self._find(queue).queue: offset for queue, offset in offsets.items()}
        await self._offsets.store(done)

    def _move(self, inflight: InFlight, offset: int) -> None:
        if not inflight.dropped:
            self._progress.forget(inflight)
            self._fetcher.start_at(inflight.queue, offset)

    def _find(self, queue: MessageQueue) -> InFlight:
        inflight = self._fetcher.find(self._session.namespace.wrap_queue(queue))
        if inflight is None:
            raise SettingsError("queue", f"{queue} is not assigned to this consumer")
        return inflight

    def _these(self, queues: tuple[MessageQueue, ...]) -> list[InFlight]:
        return [self._find(queue) for queue in queues] if queues else self._fetcher.inflights()

    def _note_done(self) -> None:
        for inflight in self._fetcher.inflights():
            self._note(inflight)

    def _note(self, inflight: InFlight) -> None:
        self._offsets.update(inflight.queue, self._progress.done(inflight))

    async def _keep_offsets(self) -> None:
        while True:
            await self._clock.sleep_ms(self._config.offset_persist_interval_ms)
            self._note_done()
            await self._offsets.persist()

    # ------------------------------------------------------------------ session.Member

    def describe(self) -> ConsumerData:
        return self.options.describe()

    def topics(self) -> frozenset[str]:
        return self.options.topics

    def rebalance_soon(self) -> None:
        self._rebalancer.soon()

    # ------------------------------------------------------------------ adminrequests.Inspected

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        read = [each for each in self._fetcher.inflights() if each.queue.topic == topic]
        return {each.queue: each.committable for each in read}

    def running_info(self, *, with_stacks: bool) -> RunningInfo:
        return running_info(
            self.options,
            self._config,
            [(each, False) for each in self._fetcher.inflights()],
            {},
            started_ms=self._started_ms,
            now=Moment(self._clock.wall_ms(), self._clock.monotonic_ms()),
            stacks=stacks() if with_stacks else None,
        )

    # ------------------------------------------------------------------ rebalance.Assignee

    def assigned(self, topic: str) -> list[MessageQueue]:
        return self._fetcher.queues(topic)

    async def apply(self, change: Plan) -> bool:
        for queue in change.drop:
            await self._give_up(self._fetcher.stop(queue))
        started = await asyncio.gather(*map(self._fetcher.start, change.add))
        if self._on_assignment is not None:
            tell(self._on_assignment, change, self._session.namespace)
        return all(started)

    async def _give_up(self, inflight: InFlight) -> None:
        if self._auto_commit:
            self._note(inflight)
            await self._offsets.persist([inflight.queue])
        self._progress.forget(inflight)
        self._paused.discard(inflight.queue)
        self._offsets.forget(inflight.queue)
