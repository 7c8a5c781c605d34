"""Prefetching of messages from the queues that are assigned to a consumer, within limits.

Each queue has a loop of long polls that fills an InFlight. The owner of the fetcher takes the
messages from there (upstream: DefaultMQPushConsumerImpl.pullMessage,
DefaultLitePullConsumerImpl.PullTask).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.client.consumer.inflight import InFlight, Limits
from cometmq.client.consumer.refusals import Refusals
from cometmq.client.pull import PullResult, PullStatus
from cometmq.core.errors import BrokerRefused, CometError
from cometmq.message.model import MessageList
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    import asyncio

    from cometmq.client.consumer.offsets import StartPositions
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.consumer.rebalance import QueueLocks
    from cometmq.client.consumer.runninginfo import ConsumerStats
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue


log = logging.getLogger(__name__)

_FIRST_PAUSE_MS: Final = 100
#: Response codes of a broker without this member's current subscription; a heartbeat updates it.
_SUBSCRIPTION_CODES: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)


@dataclass(slots=True)
class _Fetching:
    """One assigned queue and the task that pulls from it."""

    inflight: InFlight
    loop: asyncio.Task[None]


class Fetcher:
    """Reads queues for one consumer and calls ``offer`` after each pull.

    With ``locks`` a queue is read only while its lock is held. ``may_pull`` returns whether a queue
    may be read now. ``is_member`` is True for a member of a group: heartbeats have sent its
    subscription to the brokers, and pulls commit its offsets.
    """

    def __init__(
        self,
        session: Session,
        options: SubscribeOptions,
        starts: StartPositions,
        *,
        offer: Callable[[InFlight], None],
        may_pull: Callable[[InFlight], bool] | None = None,
        locks: QueueLocks | None = None,
        stats: ConsumerStats | None = None,
        is_member: bool = True,
    ) -> None:
        self._session = session
        self._config = session.config
        self._clock = session.clock
        self._options = options
        self._puller = starts.puller
        self._starts = starts
        self._offer = offer
        self._may_pull = may_pull
        self._locks = locks
        self._stats = stats
        self._is_member = is_member
        self._limits = Limits(
            self._config.max_queue_messages,
            self._config.max_queue_bytes,
            self._config.max_queue_span,
        )
        self._fetching: dict[MessageQueue, _Fetching] = {}
        self._stopped = False
        self.refusals = Refusals(options.filters)

    def queues(self, topic: str | None = None) -> list[MessageQueue]:
        """Return the queues that are read, of one topic or of all."""
        return [queue for queue in self._fetching if topic is None or queue.topic == topic]

    def inflights(self) -> list[InFlight]:
        """Return the messages in flight of each queue."""
        return [fetching.inflight for fetching in list(self._fetching.values())]

    def find(self, queue: MessageQueue) -> InFlight | None:
        """Return the messages in flight of one queue; None if it is not read."""
        fetching = self._fetching.get(queue)
        return None if fetching is None else fetching.inflight

    async def start(self, queue: MessageQueue) -> bool:
        """Start to read a queue at the group's offset; return False if no broker returns it."""
        try:
            offset = await self._starts.of(queue)
        except CometError as error:
            log.debug("queue_not_started queue=%s error=%s", queue, error)
            self._session.outages.failed(error, queue.topic)
            self.refusals.queue_failed(queue, error)
            return False
        if not self._stopped:
            self.start_at(queue, offset)
        return True

    def start_at(self, queue: MessageQueue, offset: int) -> None:
        """Start to read a queue at ``offset``.

        If it is read already, drop its messages in flight.
        """
        known = self._fetching.get(queue)
        if known is None:
            inflight = InFlight(queue, offset)
        else:
            known.loop.cancel()
            inflight = known.inflight
            inflight.reset(offset)
        loop = self._session.tasks.spawn(self._pull(inflight), name=f"pull {queue}")
        self._fetching[queue] = _Fetching(inflight, loop)

    def stop(self, queue: MessageQueue) -> InFlight:
        """Stop reading a queue that is released or reset; return its InFlight."""
        fetching = self._fetching.pop(queue)
        fetching.loop.cancel()
        fetching.inflight.dropped = True
        return fetching.inflight

    def stop_pulling(self) -> None:
        """Stop all pulls; messages that were read stay."""
        self._stopped = True
        for fetching in self._fetching.values():
            fetching.loop.cancel()

    # ------------------------------------------------------------------ pulling

    async def _pull(self, inflight: InFlight) -> None:
        """Read one queue until it is dropped."""
        queue = inflight.queue
        epoch = self._locks.epoch(queue) if self._locks is not None else 0
        reported_offset = inflight.committable
        failures = 0
        while not inflight.dropped:
            if inflight.is_full(self._limits) or not (
                self._may_pull is None or self._may_pull(inflight)
            ):
                await self._clock.sleep_ms(self._config.pull_flow_pause_ms)
                continue
            try:
                if self._locks is not None:
                    if not self._locks.held(queue) and not await self._locks.acquire([queue]):
                        await self._clock.sleep_ms(self._config.pull_error_pause_ms)
                        continue
                    if self._locks.epoch(queue) != epoch:
                        # Another member may have processed messages of the queue meanwhile.
                        epoch = self._locks.epoch(queue)
                        inflight.reset(await self._starts.of(queue))
                        reported_offset = inflight.committable
                asked, done = inflight.next_offset, inflight.committable
                # Do not commit an unchanged offset: it could replace a newer one in the broker. Nor
                # the group's first one in a topic: pulls of several queues are sent at once.
                is_told = done != reported_offset and self._starts.offsets.has_offsets(queue)
                begun_ms = self._clock.monotonic_ms()
                result = await self._pull_once(inflight, done if is_told else None)
                inflight.pulled_ms = self._clock.monotonic_ms()
                self.refusals.queue_read(queue)
                if self._stats is not None and result.found:
                    took_ms = inflight.pulled_ms - begun_ms
                    self._stats.pulled(queue.topic, len(result.found), took_ms)
                if is_told:
                    reported_offset = done
                if inflight.next_offset == asked:  # otherwise it was reset meanwhile
                    self._take_in(inflight, result)
                failures = await self._may_ask_again(result.leads_on_from(asked), failures)
            except CometError as error:
                await self._pull_failed(inflight, error, failures)
                failures += 1

    async def _pull_once(self, inflight: InFlight, commit_offset: int | None) -> PullResult:
        queue = inflight.queue
        wanted = self._options.filter_of(queue.topic)
        tells = self._is_member and not self._options.broadcasting
        return await self._puller.pull(
            queue,
            inflight.next_offset,
            group=self._options.group,
            max_messages=self._config.pull_batch_messages,
            subscription=wanted.expression,
            expression_type=wanted.kind,
            sub_version=self._options.version,
            commit_offset=commit_offset if tells else None,
            suspend_ms=self._config.pull_suspend_ms,
            subscription_known=self._is_member,
        )

    def _take_in(self, inflight: InFlight, result: PullResult) -> None:
        inflight.end = result.max_offset
        if result.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "offset_moved queue=%s from=%d to=%d min=%d max=%d",
                inflight.queue,
                inflight.next_offset,
                result.next_offset,
                result.min_offset,
                result.max_offset,
            )
            # Keep messages before the new offset: a reset would lose them unprocessed.
            inflight.move(result.next_offset)
        else:
            messages = result.found
            wanted = self._options.filter_of(inflight.queue.topic)
            if not wanted.matches_all:  # a broker filters by hash, which two tags can share
                messages = MessageList(each for each in messages if wanted.accepts(each.tag))
            if namespace := self._session.namespace:
                messages = MessageList(map(namespace.unwrap_message, messages))
            inflight.add(messages, result.next_offset)
            self._offer(inflight)

    async def _pull_failed(self, inflight: InFlight, error: CometError, before: int) -> None:
        """Pause after a failed pull, longer with each failure ``before`` it.

        So a broker that was only restarted is read again soon, and one that is down gets few
        requests.
        """
        log.debug("pull_failed queue=%s error=%s", inflight.queue, error)
        self._session.outages.failed(error, inflight.queue.topic)
        self.refusals.queue_failed(inflight.queue, error)
        if isinstance(error, BrokerRefused) and error.code in _SUBSCRIPTION_CODES:
            self._session.heartbeat_soon()
        await self._pause(before)
        if not isinstance(error, BrokerRefused):
            await self._session.refresh(inflight.queue.topic)

    async def _may_ask_again(self, got_on: bool, before: int) -> int:
        """Pause after a pull without progress; return the number of such pulls in a row.

        The first one is repeated without a pause, because a slave suggests its master for the next
        pull. If the master cannot be reached, further pulls go to the slave again.
        """
        if got_on:
            return 0
        if before:
            await self._pause(before - 1)
        return before + 1

    async def _pause(self, before: int) -> None:
        longest_ms = self._config.pull_error_pause_ms
        await self._clock.sleep_ms(min(longest_ms, _FIRST_PAUSE_MS << min(before, 16)))
