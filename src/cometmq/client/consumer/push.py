"""One member of a consumer group: reads its queues ahead and keeps them within bounds.

Each assigned queue has a loop of long polls that fills an InFlight; the dispatch hands messages
out; the settler takes them back; offsets follow what is settled (upstream:
DefaultMQPushConsumerImpl.java).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.client.consumer.concurrent import SendBack
from cometmq.client.consumer.dispatch import Dispatch
from cometmq.client.consumer.inflight import InFlight, Limits
from cometmq.client.consumer.offsets import LocalOffsets, RemoteOffsets, offsets_path
from cometmq.client.consumer.orderly import RetryInPlace
from cometmq.client.consumer.queuelocks import QueueLocks
from cometmq.client.consumer.rebalance import Plan, Rebalancer
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.consumer.settling import ConsumerSettler
from cometmq.client.pull import Puller, PullResult, PullStatus
from cometmq.core.errors import BrokerRefused, CometError
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.client.consumer.offsets import OffsetStore
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.hooks import ConsumeHook
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.bodies import ConsumerData

log = logging.getLogger(__name__)

#: How long a stop, or giving up an ordered queue, waits for messages in work.
_DRAIN_MS: Final = 10_000
_DRAIN_STEP_MS: Final = 10
_FIRST_PAUSE_MS: Final = 100
_STUCK_CHECK_MS: Final = 60_000
#: No offset: of a queue that is given up, or whose lock was lost and that is read on where its
#: broker says when the lock is back.
_NOWHERE: Final = -1
#: The broker has not seen this member's subscription: a heartbeat tells it.
_SUBSCRIPTION_CODES: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)


@dataclass(slots=True)
class _Reading:
    """One assigned queue and the task that pulls it."""

    inflight: InFlight
    loop: asyncio.Task[None]


class PushConsumer:
    """A member of ``options.group``. Start it, take messages, close it."""

    def __init__(
        self,
        session: Session,
        producer: Producer,
        options: SubscribeOptions,
        hooks: Sequence[ConsumeHook] = (),
    ) -> None:
        self.group = options.group
        self._session = session
        self._config = session.config
        self._clock = session.clock
        self._options = options
        self._puller = Puller(session)
        self._offsets = self._make_offsets()
        self._locks = QueueLocks(session, self.group) if self._is_locking() else None
        self._dispatch = Dispatch(
            session.clock,
            concurrency=options.concurrency,
            per_queue=1 if options.ordered else options.concurrency,
            may_give=None if self._locks is None else self._is_locked,
        )
        policy = (
            RetryInPlace(session, options, producer)
            if options.ordered
            else SendBack(session, options)
        )
        self._settler = ConsumerSettler(session, options, self._dispatch, policy, hooks)
        self._rebalancer = Rebalancer(session, options, self)
        self._limits = Limits(
            self._config.max_queue_messages,
            self._config.max_queue_bytes,
            self._config.max_queue_span,
        )
        self._reading: dict[MessageQueue, _Reading] = {}
        self._releasing: set[MessageQueue] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Join the group. Raises ValueError when this client is in it already."""
        for topic in self._options.filters:
            await self._session.refresh(topic)
        await self._session.add_member(self)
        spawn = self._session.tasks.spawn
        self._loops.append(spawn(self._rebalancer.run(), name=f"rebalance {self.group}"))
        self._loops.append(spawn(self._keep_offsets(), name=f"offsets {self.group}"))
        if self._locks is not None:
            self._loops.append(spawn(self._renew_locks(), name=f"locks {self.group}"))
        elif not self._options.broadcasting and not self._options.ordered:
            self._loops.append(spawn(self._release_stuck(), name=f"stuck {self.group}"))

    def take_now(self) -> ReceivedMessage | None:
        """The next message; None when :meth:`take` would have to wait."""
        taken = self._dispatch.take_now()
        return None if taken is None else ReceivedMessage(self._settler, taken[0], taken[1])

    async def take(self) -> ReceivedMessage | None:
        """The next message; None once the consumer is closed."""
        taken = await self._dispatch.take()
        return None if taken is None else ReceivedMessage(self._settler, taken[0], taken[1])

    async def close(self) -> None:
        """Stop giving messages, wait a while for those in work, store offsets, leave the group."""
        if self._closed:
            return
        self._closed = True
        self._dispatch.close()
        for task in self._loops:
            task.cancel()
        for reading in self._reading.values():
            reading.loop.cancel()
        await self._drain(lambda: self._settler.working == 0)
        for reading in self._reading.values():
            reading.inflight.dropped = True
            self._finish(reading.inflight)
        await self._offsets.persist(unchanged_too=True)
        if self._locks is not None:
            for queue in list(self._reading):
                await self._locks.release(queue)
        self._reading.clear()
        await self._session.remove_member(self)

    # ------------------------------------------------------------------ session.Member

    def describe(self) -> ConsumerData:
        return self._options.describe()

    def topics(self) -> frozenset[str]:
        return self._options.topics

    def rebalance_soon(self) -> None:
        self._rebalancer.soon()

    # ------------------------------------------------------------------ rebalance.Assignee

    def assigned(self, topic: str | None = None) -> list[MessageQueue]:
        """The queues read now, of one topic or of all."""
        return [queue for queue in self._reading if topic is None or queue.topic == topic]

    async def apply(self, change: Plan) -> bool:
        for queue in change.drop:
            reading = self._reading.pop(queue)
            reading.loop.cancel()
            reading.inflight.dropped = True
            self._releasing.add(queue)
            self._session.tasks.spawn(self._give_up(reading.inflight), name=f"give up {queue}")
        wanted = [queue for queue in change.add if queue not in self._releasing]
        if self._locks is not None:
            # What another member still has is taken on by a later round.
            held = await self._locks.acquire(wanted)
            wanted = [queue for queue in wanted if queue in held]
        started = await asyncio.gather(*(self._start(queue) for queue in wanted))
        return sum(started) == len(change.add)

    async def _start(self, queue: MessageQueue) -> bool:
        """Begin to read a queue; False when nobody says where."""
        try:
            offset = await self._first_offset(queue)
        except CometError as error:
            log.warning("queue_not_started queue=%s error=%s", queue, error)
            return False
        if not self._closed:
            inflight = InFlight(queue, offset)
            loop = self._session.tasks.spawn(self._pull(inflight), name=f"pull {queue}")
            self._reading[queue] = _Reading(inflight, loop)
        return True

    async def _give_up(self, inflight: InFlight) -> None:
        """Hand a dropped queue over: what was done before is stored before it is let go."""
        queue = inflight.queue
        try:
            if self._locks is not None:
                await self._drain(lambda: inflight.taken_count == 0)
            self._finish(inflight)
            await self._offsets.persist([queue])
            self._offsets.forget(queue)
            if self._locks is not None:
                await self._locks.release(queue)
        finally:
            self._releasing.discard(queue)

    def _finish(self, inflight: InFlight) -> None:
        """Note how far a queue was consumed; what is done later than that counts no more."""
        self._note_offset(inflight)
        inflight.reset(_NOWHERE)

    def _note_offset(self, inflight: InFlight) -> None:
        if inflight.next_offset != _NOWHERE:
            self._offsets.update(inflight.queue, inflight.committable)

    async def _first_offset(self, queue: MessageQueue) -> int:
        """Where to begin: the stored offset, else what the options say."""
        stored = await self._offsets.load(queue)
        if stored is not None:
            return stored
        start_ms = self._options.start_ms()
        if queue.topic == self._options.retry_topic or self._options.start == "first":
            return 0
        if start_ms is not None:
            return await self._puller.search_offset(queue, start_ms)
        return await self._puller.max_offset(queue)

    # ------------------------------------------------------------------ pulling

    async def _pull(self, inflight: InFlight) -> None:
        """Read one queue until it is dropped."""
        queue = inflight.queue
        epoch = self._locks.epoch(queue) if self._locks is not None else 0
        told = inflight.committable
        failures = 0
        while not inflight.dropped:
            if inflight.is_full(self._limits):
                await self._clock.sleep_ms(self._config.pull_flow_pause_ms)
                continue
            try:
                if self._locks is not None:
                    if not self._locks.held(queue) and not await self._locks.acquire([queue]):
                        await self._clock.sleep_ms(self._config.pull_error_pause_ms)
                        continue
                    if self._locks.epoch(queue) != epoch:
                        # Somebody else may have read the queue in between.
                        epoch = self._locks.epoch(queue)
                        inflight.reset(await self._first_offset(queue))
                        told = inflight.committable
                asked, done = inflight.next_offset, inflight.committable
                # An offset that says nothing new could overtake a newer one in the broker.
                result = await self._pull_once(inflight, None if done == told else done)
                told = done
                if inflight.next_offset == asked:  # else it was reset while the pull was held
                    self._take_in(inflight, result)
                failures = 0
            except CometError as error:
                await self._pull_failed(inflight, error, failures)
                failures += 1

    async def _pull_once(self, inflight: InFlight, commit_offset: int | None) -> PullResult:
        queue = inflight.queue
        wanted = self._options.filter_of(queue.topic)
        return await self._puller.pull(
            queue,
            inflight.next_offset,
            group=self.group,
            max_messages=self._config.pull_batch_messages,
            subscription=wanted.expression,
            sub_version=self._options.version,
            commit_offset=None if self._options.broadcasting else commit_offset,
            suspend_ms=self._config.pull_suspend_ms,
            subscription_known=True,
        )

    def _take_in(self, inflight: InFlight, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "offset_moved queue=%s from=%d to=%d min=%d max=%d",
                inflight.queue,
                inflight.next_offset,
                result.next_offset,
                result.min_offset,
                result.max_offset,
            )
            inflight.reset(result.next_offset)
        else:
            messages = result.messages
            wanted = self._options.filter_of(inflight.queue.topic)
            if not wanted.matches_all:  # a broker filters by hash, which two tags can share
                messages = [message for message in messages if wanted.accepts(message.tag)]
            if namespace := self._session.namespace:
                messages = [namespace.unwrap_message(message) for message in messages]
            inflight.add(messages, result.next_offset)
            self._dispatch.offer(inflight)

    async def _pull_failed(self, inflight: InFlight, error: CometError, before: int) -> None:
        """Wait after a failed pull, longer with each one ``before`` it: a broker that was only
        restarted is read on soon, one that is away is left alone."""
        log.warning("pull_failed queue=%s error=%s", inflight.queue, error)
        if isinstance(error, BrokerRefused) and error.code in _SUBSCRIPTION_CODES:
            self._session.heartbeat_soon()
        longest_ms = self._config.pull_error_pause_ms
        await self._clock.sleep_ms(min(longest_ms, _FIRST_PAUSE_MS << min(before, 16)))
        if not isinstance(error, BrokerRefused):
            await self._session.refresh(inflight.queue.topic)

    # ------------------------------------------------------------------ periods

    async def persist_offsets(self) -> None:
        """Store how far every queue is consumed; failures are logged."""
        for reading in self._reading.values():
            self._note_offset(reading.inflight)
        await self._offsets.persist()

    async def _keep_offsets(self) -> None:
        while True:
            await self._clock.sleep_ms(self._config.offset_persist_interval_ms)
            await self.persist_offsets()

    async def _renew_locks(self) -> None:
        assert self._locks is not None
        while True:
            await self._clock.sleep_ms(self._config.lock_renewal_interval_ms)
            held = await self._locks.acquire(self._reading)
            for queue, reading in list(self._reading.items()):
                if queue in held:
                    self._dispatch.offer(reading.inflight)
                else:
                    log.warning("lock_lost queue=%s", queue)
                    # Its new owner's offset counts from now on, not what was known here.
                    reading.inflight.reset(_NOWHERE)
                    self._offsets.forget(queue)

    async def _release_stuck(self) -> None:
        timeout_ms = self._config.consume_timeout_ms
        while True:
            await self._clock.sleep_ms(min(_STUCK_CHECK_MS, timeout_ms))
            now_ms = self._clock.monotonic_ms()
            for reading in list(self._reading.values()):
                for message in reading.inflight.stuck(now_ms, timeout_ms):
                    await self._settler.expired(reading.inflight, message)

    # ------------------------------------------------------------------ parts

    def _make_offsets(self) -> OffsetStore:
        if not self._options.broadcasting:
            return RemoteOffsets(self._session, self.group)
        config = self._config
        return LocalOffsets(
            offsets_path(config.offsets_dir, self._session.ip, config.instance_name, self.group)
        )

    def _is_locking(self) -> bool:
        return self._options.ordered and not self._options.broadcasting

    def _is_locked(self, inflight: InFlight) -> bool:
        assert self._locks is not None
        return self._locks.held(inflight.queue)

    async def _drain(self, is_done: Callable[[], bool]) -> None:
        deadline_ms = self._clock.monotonic_ms() + _DRAIN_MS
        while not is_done() and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep_ms(_DRAIN_STEP_MS)
