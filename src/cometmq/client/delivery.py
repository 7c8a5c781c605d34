"""Delivery of packed requests to brokers: chooses the queue, limits attempts and time, runs hooks.

After a failed attempt another broker is tried, if there is one. An order key, a queue or a selector
of the user determines the queue of every attempt; other messages use the queues in turn. With
``send_latency_fault``, brokers that were slow or failed are avoided for a while, and those that
could not be reached are probed (upstream: DefaultMQProducerImpl.sendDefaultImpl,
MQClientAPIImpl.java, TopicPublishInfo.selectOneMessageQueue, SelectMessageQueueByHash.java,
MQFaultStrategy.java, LatencyFaultToleranceImpl.java).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.client.hooks import ForbiddenHook, SendAttempt, SendHook, run_after, run_before
from cometmq.client.sendrequests import SendResult, SendStatus, read_results
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    MessageIllegal,
    NotConnected,
    RequestTimedOut,
)
from cometmq.message.model import MessageQueue
from cometmq.message.record import TRANSACTION_MASK
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import TopicQueue
from cometmq.speedups import java_hash

if TYPE_CHECKING:
    from cometmq.client.sendrequests import Packed
    from cometmq.client.session import Session
    from cometmq.message.model import Message
    from cometmq.net.client import Outcome

log = logging.getLogger(__name__)

#: Response codes after which another broker may accept the message; any other code is final.
RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
#: Pause before the same broker is tried again, multiplied by the number of attempts made.
_SAME_BROKER_PAUSE_MS: Final = 100
#: Latency that a failed send counts as having.
FAILURE_LATENCY_MS: Final = 30_000
#: Minimum latency, and its penalty: the time for which the broker is avoided.
_PENALTIES_MS: Final = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)
#: Picks one of a topic's queues for a message, or for the first one of a batch. It is called for
#: every attempt.
QueueSelector = Callable[[Sequence["MessageQueue"], "Message"], "MessageQueue"]


def by_key(queues: Sequence[MessageQueue], order_key: str) -> MessageQueue:
    """Return the queue of ``order_key``, the same that a Java producer's hash selector picks."""
    remainder = abs(java_hash(order_key)) % len(queues)
    return queues[remainder]


class RoundRobin:
    """Round-robin over the queues of each topic, starting at a random queue."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def turn_of(self, topic: str, count: int) -> int:
        """Return the index of the next queue of a topic with ``count`` queues."""
        start = self._next.get(topic)
        if start is None:
            start = random.randrange(count)
        start %= count
        self._next[topic] = (start + 1) % count
        return start

    def pick(
        self,
        queues: Sequence[MessageQueue],
        *,
        avoid_broker: str | None = None,
        faults: FaultScores | None = None,
        now_ms: int = 0,
    ) -> MessageQueue:
        """Return the next queue of a topic; ``queues`` are its queues, at least one.

        A queue on another broker than ``avoid_broker`` is preferred. With ``faults``, a queue on an
        available broker is returned; if there is none, one on the broker that ``least_bad``
        returns.
        """
        topic = queues[0].topic
        count = len(queues)
        start = self.turn_of(topic, count)
        if avoid_broker is None and faults is None:
            return queues[start]
        for step in range(count):
            queue = queues[(start + step) % count]
            if queue.broker_name == avoid_broker:
                continue
            if faults is None or faults.is_available(queue.broker_name, now_ms):
                self._next[topic] = (start + step + 1) % count
                return queue
        if faults is None:
            return queues[start]
        name = faults.least_bad(sorted({queue.broker_name for queue in queues}), now_ms)
        own = [queue for queue in queues if queue.broker_name == name]
        return own[start % len(own)]


def penalty_ms(latency_ms: float) -> int:
    """Return the time for which a broker with this latency is avoided; 0 for a fast one."""
    return next((penalty for least, penalty in _PENALTIES_MS if latency_ms >= least), 0)


@dataclass(frozen=True, slots=True)
class _Score:
    """End of a broker's penalty. ``unreachable`` is a queue of the broker if it could not be
    reached.
    """

    until_ms: int
    unreachable: MessageQueue | None = None


class FaultScores:
    """Penalties of brokers by name."""

    __slots__ = ("_scores",)

    def __init__(self) -> None:
        self._scores: dict[str, _Score] = {}

    def answered(self, broker_name: str, latency_ms: float, now_ms: int) -> None:
        """Record that a broker took ``latency_ms`` to serve a send."""
        penalty = penalty_ms(latency_ms)
        if penalty:
            self._scores[broker_name] = _Score(now_ms + penalty)
        else:
            self._scores.pop(broker_name, None)

    def refused(self, broker_name: str, now_ms: int) -> None:
        """Record that a broker responded that it cannot accept messages now."""
        self._scores[broker_name] = _Score(now_ms + penalty_ms(FAILURE_LATENCY_MS))

    def unreachable(self, queue: MessageQueue, now_ms: int) -> None:
        """Record that the broker of a queue did not respond or could not be reached."""
        self._scores[queue.broker_name] = _Score(now_ms + penalty_ms(FAILURE_LATENCY_MS), queue)

    def to_probe(self, now_ms: int) -> list[MessageQueue]:
        """Return one queue of each broker that is avoided because it could not be reached."""
        return [
            score.unreachable
            for score in self._scores.values()
            if score.unreachable is not None and score.until_ms > now_ms
        ]

    def is_back(self, broker_name: str) -> None:
        """Record that a broker that could not be reached responds again."""
        self._scores.pop(broker_name, None)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Return whether the broker may be chosen."""
        score = self._scores.get(broker_name)
        return score is None or score.until_ms <= now_ms

    def least_bad(self, broker_names: list[str], now_ms: int) -> str:
        """Return the broker to use when all of ``broker_names`` are avoided.

        Reachable brokers come first; among equals, the one whose penalty ends first.
        """
        nothing = _Score(now_ms)
        scores = {name: self._scores.get(name, nothing) for name in broker_names}
        return min(
            scores,
            key=lambda name: (scores[name].unreachable is not None, scores[name].until_ms),
        )


class Prober:
    """Probes the unreachable brokers of one producer, while there are any."""

    def __init__(self, session: Session, faults: FaultScores) -> None:
        self._session = session
        self._faults = faults
        self._running: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Start probing, because a broker could not be reached."""
        if self._running is None or self._running.done():
            self._running = self._session.tasks.spawn(self._run(), name="probe brokers")

    async def _run(self) -> None:
        clock = self._session.clock
        while self._faults.to_probe(clock.monotonic_ms()):
            await clock.sleep_ms(self._session.config.probe_interval_ms)
            queues = self._faults.to_probe(clock.monotonic_ms())
            await asyncio.gather(*map(self._probe, queues))

    async def _probe(self, queue: MessageQueue) -> None:
        address = self._session.master_address(queue.broker_name)
        if address is None:
            return  # no route has the broker, so no send uses it
        try:
            await self._session.remoting.request(
                address,
                RequestCode.GET_MAX_OFFSET,
                TopicQueue(topic=queue.topic, queue_id=queue.queue_id),
                timeout_ms=self._session.config.probe_timeout_ms,
            )
        except ClientError as error:
            log.info("broker_still_unreachable broker=%s error=%s", queue.broker_name, error)
        else:  # any response shows that it is up
            log.info("broker_reachable_again broker=%s", queue.broker_name)
            self._faults.is_back(queue.broker_name)


@dataclass(frozen=True, slots=True)
class Begun:
    """Send whose first attempt, to ``queue`` at ``address``, was made by PlainSends.

    ``outcome`` is a response, a NotConnected for a lost connection, or None for a timeout. The send
    began at ``begun_ms`` and has ``timeout_ms`` for all its attempts.
    """

    queue: MessageQueue
    address: str
    outcome: Outcome
    begun_ms: int
    timeout_ms: int

    async def results(self, packed: Packed, timeout_ms: int) -> list[SendResult]:
        """Return the results of the attempt, or raise its error."""
        if self.outcome is None:
            raise RequestTimedOut(self.address, packed.code, timeout_ms)
        if isinstance(self.outcome, NotConnected):
            raise NotConnected(self.outcome.address, self.outcome.problem)
        return read_results(self.address, packed, self.queue, self.outcome)


class Delivery:
    """Delivery for one producer group. Hooks may be added at any time."""

    def __init__(self, session: Session, group: str) -> None:
        self.hooks: list[SendHook] = []
        self.forbidden_hooks: list[ForbiddenHook] = []
        self._session = session
        self._config = session.config
        self._clock = session.clock
        self._group = group
        #: Round-robin position in each topic's queues.
        self.turns = RoundRobin()
        self._faults = FaultScores() if session.config.send_latency_fault else None
        self._prober = None if self._faults is None else Prober(session, self._faults)

    async def send(
        self,
        packed: Packed,
        order_key: str | None,
        queue: MessageQueue | QueueSelector | None,
        timeout_ms: int,
        *,
        attempts: int = 0,
        begun: Begun | None = None,
    ) -> list[SendResult]:
        """Send until a broker has stored the messages of the request; return a result for each.

        ``attempts`` is the maximum number of attempts; 0 means that of the settings. ``begun`` is
        the first attempt, if it was made. Raises RouteNotFound, and the last attempt's error if all
        failed.
        """
        self._session.add_producer(self._group)
        budget_ms = timeout_ms or self._config.send_timeout_ms
        begun_ms = self._clock.monotonic_ms() if begun is None else begun.begun_ms
        deadline_ms = begun_ms + budget_ms
        attempts = attempts or self._config.send_retries + 1
        last: str | None = None
        error: ClientError | None = None
        stored: list[SendResult] | None = None
        for number in range(1, attempts + 1):
            is_last = number == attempts
            if begun is not None and number == 1:
                chosen = begun.queue
                attempt = begun.results(packed, self._bounded(budget_ms, is_last))
            else:
                chosen = await self._choose(packed, order_key, queue, last)
                if chosen.broker_name == last:
                    await self._clock.sleep_ms(_SAME_BROKER_PAUSE_MS * (number - 1))
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    break
                attempt = self._attempt(packed, chosen, number, self._bounded(left_ms, is_last))
            last = chosen.broker_name
            try:
                stored = await attempt
            except (BrokerRefused, NotConnected, RequestTimedOut) as failure:
                # If an earlier attempt has stored the message, even if not safely, a later refusal
                # does not fail the send.
                if stored is None and _is_final(failure):
                    raise
                error = failure
                log.debug("send_failed topic=%s attempt=%d error=%s", packed.topic, number, error)
                self._session.outages.failed(error, packed.topic)
                await self._refresh(packed.topic, deadline_ms)
                continue
            if stored[0].status is SendStatus.OK or not self._config.retry_not_stored_ok:
                return stored
            log.warning("send_not_durable topic=%s status=%s", packed.topic, stored[0].status.name)
        if stored is not None:
            return stored
        raise error or RequestTimedOut(last or packed.topic, packed.code, budget_ms)

    def _bounded(self, left_ms: int, is_last: bool) -> int:
        """Return the time limit of one attempt, in ms; the send has ``left_ms`` left."""
        bound_ms = self._config.send_attempt_timeout_ms
        return min(left_ms, bound_ms) if bound_ms and not is_last else left_ms

    async def send_oneway(
        self, packed: Packed, order_key: str | None, queue: MessageQueue | QueueSelector | None
    ) -> None:
        """Send once without waiting for a response. Raises RouteNotFound and NotConnected."""
        self._session.add_producer(self._group)
        chosen = await self._choose(packed, order_key, queue, None)
        await self._attempt(packed, chosen, 1, self._config.send_timeout_ms, oneway=True)

    # ------------------------------------------------------------------ one attempt

    async def _attempt(
        self,
        packed: Packed,
        queue: MessageQueue,
        number: int,
        timeout_ms: int,
        *,
        oneway: bool = False,
    ) -> list[SendResult]:
        address = self._session.master_address(queue.broker_name)
        if address is None:
            address = await self._session.master_of(queue)
        if not self.hooks and not self.forbidden_hooks and self._faults is None:
            return await self._request(packed, queue, address, timeout_ms, oneway)
        attempt = SendAttempt(
            packed.messages,
            packed.unique_keys,
            self._session.namespace.unwrap(self._group),
            self._session.namespace.unwrap_queue(queue),
            address,
            number,
            oneway,
            self._clock.wall_ms(),
            bool(packed.sys_flag & TRANSACTION_MASK),
        )
        for forbids in list(self.forbidden_hooks):
            forbids(attempt)
        run_before(self.hooks, attempt)
        begun_ms = self._clock.monotonic_ms()
        try:
            attempt.results = await self._request(packed, queue, address, timeout_ms, oneway)
            return list(attempt.results)
        except BaseException as error:
            attempt.error = error
            raise
        finally:
            attempt.ended_ms = self._clock.wall_ms()
            run_after(self.hooks, attempt)
            self._score(queue, begun_ms, attempt.error)

    async def _request(
        self, packed: Packed, queue: MessageQueue, address: str, timeout_ms: int, oneway: bool
    ) -> list[SendResult]:
        remoting = self._session.remoting
        header = packed.header(self._group, queue, self._config.default_topic_queues)
        if oneway:
            await remoting.oneway(address, packed.code, header, packed.body, timeout_ms=timeout_ms)
            return []
        response = await remoting.request(
            address, packed.code, header, packed.body, timeout_ms=timeout_ms
        )
        stored = read_results(
            address, packed, self._session.namespace.unwrap_queue(queue), response
        )
        self._session.outages.answered(address, packed.code, packed.topic)
        return stored

    def _score(self, queue: MessageQueue, begun_ms: int, error: BaseException | None) -> None:
        if self._faults is None or self._prober is None:
            return
        name, now_ms = queue.broker_name, self._clock.monotonic_ms()
        if isinstance(error, NotConnected | RequestTimedOut):
            self._faults.unreachable(queue, now_ms)
            self._prober.wake()
        elif isinstance(error, BrokerRefused) and not _is_final(error):
            self._faults.refused(name, now_ms)
        elif error is None or isinstance(error, BrokerRefused):
            # The broker responded. A final refusal is not its fault: no broker would accept the
            # message.
            self._faults.answered(name, now_ms - begun_ms, now_ms)

    async def _refresh(self, topic: str, deadline_ms: int) -> None:
        """Fetch the topic's route again, within the time that the send has left."""
        left_ms = deadline_ms - self._clock.monotonic_ms()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0, left_ms) / 1000):
                await self._session.refresh(topic)

    # ------------------------------------------------------------------ which queue

    async def _choose(
        self,
        packed: Packed,
        order_key: str | None,
        queue: MessageQueue | QueueSelector | None,
        avoid_broker: str | None,
    ) -> MessageQueue:
        if isinstance(queue, MessageQueue):
            return self._session.namespace.wrap_queue(queue)
        queues: Sequence[MessageQueue] = self._session.known_publish_queues(packed.topic)
        if not queues:
            queues = await self._session.publish_queues(packed.topic)
        if queue is not None:
            return self._selected(packed, queues, queue)
        if order_key is not None:
            return by_key(queues, order_key)
        now_ms = 0 if self._faults is None else self._clock.monotonic_ms()
        return self.turns.pick(
            queues, avoid_broker=avoid_broker, faults=self._faults, now_ms=now_ms
        )

    def _selected(
        self, packed: Packed, queues: Sequence[MessageQueue], select: QueueSelector
    ) -> MessageQueue:
        namespace = self._session.namespace
        shown = [namespace.unwrap_queue(queue) for queue in queues]
        chosen = select(shown, packed.messages[0])
        if chosen not in shown:
            raise MessageIllegal(
                f"the queue selector returned {chosen!r}, which is not a queue of the topic"
            )
        return namespace.wrap_queue(chosen)


def _is_final(error: ClientError) -> bool:
    return isinstance(error, BrokerRefused) and error.code not in RETRY_CODES
