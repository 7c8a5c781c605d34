"""Push consumer: one member of a consumer group, from joining to leaving.

    Fetcher         pulls messages into an InFlight for each assigned queue
    Dispatch        hands out messages of the queues in turn
    Settler         acknowledges or retries processed messages
    OffsetStore     commits the offsets of settled messages

Subscription is the result of ``client.subscribe``: it iterates over the messages of a push consumer
or runs a handler (upstream: DefaultMQPushConsumerImpl.java).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.arguments import check_function, check_number
from cometmq.client.consumer.acknowledgements import ConsumerSettler, RetryInPlace, SendBack
from cometmq.client.consumer.adminrequests import DirectConsumption, Resets
from cometmq.client.consumer.fetcher import Fetcher
from cometmq.client.consumer.inflight import Dispatch
from cometmq.client.consumer.offsets import StartPositions, offsets_of
from cometmq.client.consumer.options import check_filters
from cometmq.client.consumer.rebalance import Plan, QueueLocks, Rebalancer
from cometmq.client.consumer.received import ReceivedMessage, Run
from cometmq.client.consumer.runninginfo import Moment, queue_progress, running_info, stacks
from cometmq.client.pull import Puller
from cometmq.client.status import SubscriptionStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.consumer.received import Rest
    from cometmq.client.consumer.refusals import Refusals
    from cometmq.client.hooks import ConsumeHook
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session
    from cometmq.client.status import QueueProgress
    from cometmq.message.model import MessageQueue, StoredMessage
    from cometmq.protocol.bodies import ConsumerData, DirectResult, RunningInfo

log = logging.getLogger(__name__)

#: Default of the time that close() waits for messages that are being processed.
DRAIN_MS: Final = 10_000
_DRAIN_STEP_MS: Final = 10
_STUCK_CHECK_MS: Final = 60_000
_RENEW_AGAIN_MS: Final = 3_000
#: No offset, because the queue is being released or its lock was lost. After a lost lock, reading
#: continues at the broker's offset once the lock is held again.
_NOWHERE: Final = -1
#: Messages delivered before the task yields, because a handler that never waits blocks the loop.
_MESSAGES_A_TURN: Final = 64
#: A coroutine function, or a plain one, which blocks the loop and should therefore be short.
Handler = Callable[[ReceivedMessage], Awaitable[Any] | None]


class PushConsumer:
    """Member of ``options.group``: start it, take messages, close it."""

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
        self._offsets = offsets_of(session, options)
        self._locks = QueueLocks(session, self.group) if self._is_locking() else None
        self._dispatch = Dispatch(
            session.clock,
            concurrency=options.concurrency,
            per_queue=1 if options.ordered else options.concurrency,
            may_give=None if self._locks is None else self._may_give,
        )
        policy = (
            RetryInPlace(session, options, producer)
            if options.ordered
            else SendBack(session, options, producer)
        )
        self._settler = ConsumerSettler(session, options, self._dispatch, policy, hooks)
        self._direct = DirectConsumption(
            session.clock, self._dispatch, self._settler, ordered=options.ordered
        )
        self._rebalancer = Rebalancer(session, options, self)
        puller = Puller(session)
        self._starts = StartPositions(session, options, self._offsets, puller)
        self._fetcher = Fetcher(
            session,
            options,
            self._starts,
            offer=self._dispatch.offer,
            locks=self._locks,
            stats=self._settler.stats,
        )
        self._started_ms = session.clock.wall_ms()
        self._releasing: set[MessageQueue] = set()
        self._resets = Resets(
            self._fetcher,
            self._offsets,
            self._releasing,
            until_idle=self._until_idle,
            is_closed=lambda: self._closed,
            # The queue may belong to another member after the reset.
            moved=self._rebalancer.soon,
        )
        self._loops: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Join the group.

        Raises AlreadyInUse if this client is already a member, and BrokerRefused if a broker does
        not support the filter.
        """
        await check_filters(self._session, self._options)
        await self._starts.joining()
        await self._session.add_member(self)
        spawn = self._session.tasks.spawn
        self._loops.append(spawn(self._rebalancer.run(), name=f"rebalance {self.group}"))
        self._loops.append(spawn(self._keep_offsets(), name=f"offsets {self.group}"))
        self._loops.append(spawn(self._end_if_refused(), name=f"refusals {self.group}"))
        if self._locks is not None:
            self._loops.append(spawn(self._renew_locks(), name=f"locks {self.group}"))
        elif not self._options.broadcasting and not self._options.ordered:
            self._loops.append(spawn(self._release_stuck(), name=f"stuck {self.group}"))

    def take_now(self) -> ReceivedMessage | None:
        """Return the next message; None if :meth:`take` would have to wait."""
        taken = self._dispatch.take_now()
        return None if taken is None else self._received(*taken)

    async def take(self) -> ReceivedMessage | None:
        """Wait for the next message and return it; None once the consumer is closed."""
        taken = await self._dispatch.take()
        return None if taken is None else self._received(*taken)

    def take_run(self) -> Run | None:
        """Return the next messages of a queue as a run.

        Return None if there are none, or if they must be taken one by one.
        """
        if self._direct or self._settler.is_watched:
            return None
        inflight = self._dispatch.take_run()
        return (
            None if inflight is None else Run(self._clock, self._dispatch, self._settler, inflight)
        )

    async def wait(self) -> bool:
        """Wait until there may be a message; return False once the consumer is closed."""
        return await self._dispatch.wait()

    def wake_other(self) -> None:
        """Wake another waiter, because the caller takes no message for a while."""
        self._dispatch.wake_other()

    def _received(self, inflight: InFlight, message: StoredMessage) -> ReceivedMessage:
        return ReceivedMessage(self._direct.settler_of(inflight), inflight, message)

    async def close(self, timeout_ms: int = DRAIN_MS) -> int:
        """Stop handing out messages, wait for those in progress, store offsets, leave the group.

        The wait ends after ``timeout_ms``. Return the number of messages not finished by then.
        """
        if self._closed:
            return 0
        self._closed = True
        self._dispatch.close()
        for task in self._loops:
            task.cancel()
        self._fetcher.stop_pulling()
        await self._drain(lambda: self._settler.working == 0, timeout_ms)
        unfinished = self._settler.working
        ends = [self._fetcher.stop(queue) for queue in self._fetcher.queues()]
        # Do not release the lock of a queue with a message that is still being processed: until it
        # expires, no other member reads the queue.
        at_work = {each.queue for each in ends if self._settler.working and not self._is_idle(each)}
        for inflight in ends:
            self._finish(inflight)
        await self._offsets.persist(unchanged_too=True)
        if self._locks is not None:
            for inflight in ends:
                if inflight.queue not in at_work:
                    await self._locks.release(inflight.queue)
        await self._session.remove_member(self)
        return unfinished

    # ------------------------------------------------------------------ session.Member

    def describe(self) -> ConsumerData:
        return self._options.describe()

    def topics(self) -> frozenset[str]:
        return self._options.topics

    def rebalance_soon(self) -> None:
        self._rebalancer.soon()

    # ------------------------------------------------------------------ adminrequests.Operated

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        return {
            inflight.queue: inflight.committable
            for inflight in self._fetcher.inflights()
            if inflight.queue.topic == topic and inflight.next_offset != _NOWHERE
        }

    def running_info(self, *, with_stacks: bool) -> RunningInfo:
        clock = self._clock
        now = Moment(clock.wall_ms(), clock.monotonic_ms())
        return running_info(
            self._options,
            self._config,
            [(each, self._is_locked(each)) for each in self._fetcher.inflights()],
            {
                topic: self._settler.stats.of(topic).rates(now.monotonic_ms)
                for topic in sorted(self._options.topics)
            },
            started_ms=self._started_ms,
            now=now,
            stacks=stacks() if with_stacks else None,
        )

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        await self._resets.reset(topic, offsets)

    async def consume_directly(self, message: StoredMessage) -> DirectResult:
        return await self._direct.consume(self._session.namespace.unwrap_message(message))

    def progress(self) -> list[QueueProgress]:
        """Return the progress in each queue that is read, sorted by queue."""
        found = [
            queue_progress(each, self._session.namespace, each.committable)
            for each in self._fetcher.inflights()
            if each.next_offset != _NOWHERE
        ]
        return sorted(found, key=lambda each: each.queue)

    # ------------------------------------------------------------------ rebalance.Assignee

    def assigned(self, topic: str | None = None) -> list[MessageQueue]:
        """Return the queues that are read, of one topic or of all."""
        return self._fetcher.queues(topic)

    async def apply(self, change: Plan) -> bool:
        for queue in change.drop:
            inflight = self._fetcher.stop(queue)
            self._releasing.add(queue)
            self._session.tasks.spawn(self._give_up(inflight), name=f"give up {queue}")
        wanted = [queue for queue in change.add if queue not in self._releasing]
        if self._locks is not None:
            # Queues that another member still holds are added by a later round.
            held = await self._locks.acquire(wanted)
            wanted = [queue for queue in wanted if queue in held]
        started = await asyncio.gather(*map(self._fetcher.start, wanted))
        return sum(started) == len(change.add)

    async def _give_up(self, inflight: InFlight) -> None:
        """Release a dropped queue: store its offset, then release its lock.

        The lock is not released if a message of the queue is still being processed.
        """
        queue = inflight.queue
        try:
            await self._until_idle(inflight)
            is_idle = self._is_idle(inflight)
            self._finish(inflight)
            await self._offsets.persist([queue])
            self._offsets.forget(queue)
            if self._locks is not None and is_idle:
                await self._locks.release(queue)
        finally:
            self._releasing.discard(queue)

    def _finish(self, inflight: InFlight) -> None:
        """Note the offset of a queue that is released; settling its messages then has no effect."""
        self._note_offset(inflight)
        inflight.reset(_NOWHERE)

    def _note_offset(self, inflight: InFlight) -> None:
        if inflight.next_offset != _NOWHERE:
            self._offsets.update(inflight.queue, inflight.committable)

    # ------------------------------------------------------------------ refusals

    @property
    def refusals(self) -> Refusals:
        """Topics that this consumer may not read."""
        return self._fetcher.refusals

    async def _end_if_refused(self) -> None:
        """Leave the group once reading is refused, so that other members get the queues."""
        await self.refusals.wait()
        self._fetcher.stop_pulling()
        self._dispatch.close()
        for task in self._loops:
            if task is not asyncio.current_task():
                task.cancel()
        await self._session.remove_member(self)

    # ------------------------------------------------------------------ periods

    async def persist_offsets(self) -> None:
        """Store the offsets of all queues; failures are logged."""
        for inflight in self._fetcher.inflights():
            self._note_offset(inflight)
        await self._offsets.persist()

    async def _keep_offsets(self) -> None:
        while True:
            await self._clock.sleep_ms(self._config.offset_persist_interval_ms)
            self._settler.stats.sample(self._clock.monotonic_ms())
            await self.persist_offsets()

    async def _renew_locks(self) -> None:
        locks = self._locks
        assert locks is not None
        interval_ms = pause_ms = self._config.lock_renewal_interval_ms
        while True:
            await self._clock.sleep_ms(pause_ms)
            # Released queues stay locked while one of their messages is being processed.
            renewed = await locks.renew({*self._fetcher.queues(), *self._releasing})
            # After a failure, locks would expire before the next regular renewal.
            pause_ms = interval_ms if renewed else min(interval_ms, _RENEW_AGAIN_MS)
            for inflight in self._fetcher.inflights():
                if locks.held(inflight.queue):
                    self._dispatch.offer(inflight)
                else:
                    log.warning("lock_lost queue=%s", inflight.queue)
                    # The lock's new owner stores the offset from now on, not this member.
                    inflight.reset(_NOWHERE)
                    self._offsets.forget(inflight.queue)

    async def _release_stuck(self) -> None:
        timeout_ms = self._config.consume_timeout_ms
        while True:
            await self._clock.sleep_ms(min(_STUCK_CHECK_MS, timeout_ms))
            now_ms = self._clock.monotonic_ms()
            for inflight in self._fetcher.inflights():
                for message in inflight.stuck(now_ms, timeout_ms):
                    await self._settler.expired(inflight, message)

    # ------------------------------------------------------------------ parts

    def _is_locking(self) -> bool:
        return self._options.ordered and not self._options.broadcasting

    def _may_give(self, inflight: InFlight) -> bool:
        return inflight in self._direct or self._is_locked(inflight)

    def _is_locked(self, inflight: InFlight) -> bool:
        return self._locks is not None and self._locks.held(inflight.queue)

    async def _until_idle(self, inflight: InFlight) -> None:
        """Wait until no message of an ordered queue is being processed, for a limited time."""
        if self._locks is None:
            return
        longest_ms = self._config.consume_timeout_ms
        await self._drain(lambda: self._is_idle(inflight) or self._closed, longest_ms)

    def _is_idle(self, inflight: InFlight) -> bool:
        return not inflight.taken_count and not self._dispatch.is_out(inflight)

    async def _drain(self, is_done: Callable[[], bool], longest_ms: int) -> None:
        deadline_ms = self._clock.monotonic_ms() + longest_ms
        while not is_done() and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep_ms(_DRAIN_STEP_MS)


class Subscription:
    """Membership in a consumer group. It joins the group when it is first used.

    Iterate over it (several tasks may share the iteration), or :meth:`run` a handler. At most
    ``concurrency`` messages are in progress; when one of them is settled, the next one is
    delivered. Offsets are committed up to the oldest message that is not settled. Use it as an
    async context manager, or :meth:`close` it, to leave the group before the client closes.

    If no broker has ever let it read, because a permission is missing, iteration and :meth:`run`
    raise BrokerRefused. If it loses a permission later, it keeps trying.
    """

    def __init__(
        self,
        session: Session,
        producer: Producer,
        options: SubscribeOptions,
        hooks: Sequence[ConsumeHook] = (),
    ) -> None:
        self.options = options
        self.closed = False
        self._session = session
        self._consumer = PushConsumer(session, producer, options, hooks)
        self._in_a_row = 0
        self._has_joined = False
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[int] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "joined" if self._has_joined else "not joined yet"
        queues = len(self._consumer.assigned())
        return f"<Subscription of {self.options}, {state}, {queues} queues>"

    async def __aenter__(self) -> Subscription:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = self._take_now() or await self._take()
        if message is None:
            raise StopAsyncIteration
        return message

    def _take_now(self) -> ReceivedMessage | None:
        """Return the next message; None if the task must wait for one, or must yield."""
        if self._in_a_row == _MESSAGES_A_TURN:
            return None
        self._in_a_row += 1
        return self._consumer.take_now()

    async def _take(self) -> ReceivedMessage | None:
        """Wait for the next message and return it; None once the subscription is closed."""
        await self._rest()
        message = await self._consumer.take()
        if message is None:
            self._raise_if_refused()
        return message

    async def _wait(self) -> bool:
        """Wait until there may be a message; return False once the subscription is closed."""
        await self._rest()
        is_open = await self._consumer.wait()
        if not is_open:
            self._raise_if_refused()
        return is_open

    def _raise_if_refused(self) -> None:
        error = self._consumer.refusals.error
        if error is not None:
            raise error

    async def _rest(self) -> None:
        """Yield to other tasks after _MESSAGES_A_TURN messages. Join the group if necessary."""
        if self._in_a_row == _MESSAGES_A_TURN:
            self._consumer.wake_other()
            await self._session.clock.sleep_ms(0)
        self._in_a_row = 0
        if not self._has_joined:
            await self.start()

    async def start(self) -> None:
        """Join the group now. Raises AlreadyInUse if this client is already a member."""
        if self.closed:
            return
        if self._starting is None:
            name = f"join {self.options.group}"
            self._starting = self._session.tasks.spawn(self._consumer.start(), name=name)
        await asyncio.shield(self._starting)
        self._has_joined = True

    async def run(self, handler: Handler, *, reraise: bool = False) -> None:
        """Call ``handler`` with every message until the subscription is closed.

        Up to ``concurrency`` handlers run at a time. If a handler returns, its message is
        acknowledged. If it raises, the message is retried, and with ``reraise`` the exception also
        ends the run.
        """
        check_function("handler", handler)
        name = f"handler {self.options.group}"
        workers = [
            self._session.tasks.spawn(self._work(handler, reraise), name=f"{name} {number}")
            for number in range(self.options.concurrency)
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, handler: Handler, reraise: bool) -> None:
        # Does the same as `async for` and `async with`, without a coroutine for each of their
        # steps.
        while True:
            stopped = self._run_through(handler)
            message = stopped[0] if stopped else self._take_now()
            if message is None:
                if not await self._wait():
                    return
                continue
            block = message.processing(reraise=reraise)
            block.begin()
            try:
                result = stopped[1] if stopped else handler(message)
                if isinstance(result, BaseException):
                    raise result
                if result is not None:
                    await result
            except BaseException as error:
                # Break the reference cycle: the error refers to this frame, which refers to the
                # error.
                stopped = result = None
                if not await block.fail(error):
                    raise
            else:
                block.succeed()

    def _run_through(self, handler: Handler) -> Rest | None:
        """Call ``handler`` with the available messages, as long as calls complete without waiting.

        Returns the message whose call did not complete and the rest of its work, or None.
        """
        while (left := _MESSAGES_A_TURN - self._in_a_row) > 0:
            run = self._consumer.take_run()
            if run is None:
                break
            given, rest = run.work(handler, left)
            self._in_a_row += given
            if rest is not None:
                return rest
        return None

    def status(self) -> SubscriptionStatus:
        """Return the queues that are read and the progress in them, without a request."""
        unwrap = self._session.namespace.unwrap
        topics = sorted(map(unwrap, self.options.topics - {self.options.retry_topic}))
        error = self._consumer.refusals.error
        return SubscriptionStatus(
            unwrap(self.options.group),
            tuple(topics),
            tuple(self._consumer.progress()),
            "" if error is None else str(error),
        )

    async def close(self, timeout_ms: int = DRAIN_MS) -> int:
        """Stop delivering, wait up to ``timeout_ms`` for messages in progress, store offsets, and
        leave the group.

        Iterations and handlers end. Returns the number of messages that were not finished in time;
        they are delivered again. A call during another one waits for that one. Do not call it
        inside ``message.processing()``: it would wait for that message.
        """
        check_number("timeout_ms", timeout_ms)
        self.closed = True
        if self._closing is None:
            name = f"leave {self.options.group}"
            self._closing = self._session.tasks.spawn(self._leave(timeout_ms), name=name)
        # Concurrent callers wait for the same task; cancelling one of them does not stop it.
        return await asyncio.shield(self._closing)

    async def _leave(self, timeout_ms: int) -> int:
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        return await self._consumer.close(timeout_ms)
