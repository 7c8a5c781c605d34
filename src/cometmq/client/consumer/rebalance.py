"""Rebalance: fetches the members of the group, computes this member's share of the queues, and
applies the change. It runs every 20 s, and whenever a broker reports that the group changed
(upstream: RebalanceImpl.java).

An ordered consumer also needs the broker's lock on a queue, and reads the queue only while it holds
the lock. A lock expires on its broker after 60 s. The client lets it expire earlier, so that two
members never use it at the same time (upstream: RebalanceImpl.lock, RebalanceLockManager.java).
Only one lock or unlock request to a broker is in flight at a time, because a broker with several
threads may process two of them in either order.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.consumer.allocate import share
from cometmq.client.consumer.callbackerrors import note
from cometmq.client.routes import key_of, queue_of
from cometmq.core.errors import BrokerRefused, ClientError, CometError, RouteNotFound
from cometmq.protocol.bodies import ConsumerIds, QueueLockRequest, QueueLockResponse
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.headers import ConsumerGroup

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.consumer.refusals import Refusals
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue
    from cometmq.message.names import Namespace

log = logging.getLogger(__name__)

#: Pause after a round that could not be completed.
_AGAIN_MS: Final = 1_000
#: Called with the queues that were added and the queues that were removed. With automatic commits,
#: the offsets of removed queues are stored before the call.
AssignmentListener = Callable[[frozenset["MessageQueue"], frozenset["MessageQueue"]], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Queues of one topic to remove, and queues to add after that."""

    drop: tuple[MessageQueue, ...]
    add: tuple[MessageQueue, ...]


def plan(current: Iterable[MessageQueue], goal: Iterable[MessageQueue]) -> Plan:
    """Return the change from the ``current`` queues of a topic to this member's share ``goal``."""
    have, wanted = set(current), set(goal)
    return Plan(tuple(sorted(have - wanted)), tuple(sorted(wanted - have)))


def tell(listener: AssignmentListener, change: Plan, namespace: Namespace) -> None:
    """Call the listener with an applied change, with user names; log its exceptions."""
    unwrap = namespace.unwrap_queue
    try:
        listener(frozenset(map(unwrap, change.add)), frozenset(map(unwrap, change.drop)))
    except Exception as error:
        log.exception("assignment_listener_failed added=%d", len(change.add))
        note(error)


class Assignee(Protocol):
    """Consumer whose queues a rebalancer changes."""

    @property
    def refusals(self) -> Refusals:
        """Topics and queues that the consumer may not read."""
        ...

    def assigned(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` that the consumer reads now."""
        ...

    async def apply(self, change: Plan) -> bool:
        """Apply a plan; return False if a part of it must be tried again."""
        ...


class Rebalancer:
    """Keeps the queues of one consumer equal to its share of the topics' queues."""

    def __init__(self, session: Session, options: SubscribeOptions, assignee: Assignee) -> None:
        self._session = session
        self._options = options
        self._assignee = assignee
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Run the next round at once, because the group or a route changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Rebalance until cancelled."""
        while True:
            self._wanted.clear()
            done = await self.round()
            pause_ms = self._session.config.rebalance_interval_ms if done else _AGAIN_MS
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def round(self) -> bool:
        """Rebalance all topics once; return False if one could not be completed."""
        member_ids: dict[str, list[str]] = {}
        results = [await self._topic(topic, member_ids) for topic in sorted(self._options.topics)]
        return all(results)

    async def _topic(self, topic: str, member_ids: dict[str, list[str]]) -> bool:
        try:
            queues = await self._session.subscribe_queues(topic)
            mine = list(queues)
            if not self._options.broadcasting:
                mine = await self._share(topic, queues, member_ids)
        except CometError as error:
            # The retry topic may be missing until the first heartbeat of the group creates it.
            expected = isinstance(error, RouteNotFound) and topic == self._options.retry_topic
            log.debug("rebalance_skipped topic=%s error=%s", topic, error)
            if not expected:
                self._session.outages.failed(error, topic)
            self._assignee.refusals.topic_failed(topic, error)
            return False
        self._session.outages.topic_works(topic)
        self._assignee.refusals.expect(topic, mine, queues)
        change = plan(self._assignee.assigned(topic), mine)
        if not change.drop and not change.add:
            return True
        log.info(
            "rebalanced group=%s topic=%s dropped=%d added=%d now=%d",
            self._options.group,
            topic,
            len(change.drop),
            len(change.add),
            len(mine),
        )
        return await self._assignee.apply(change)

    async def _share(
        self, topic: str, queues: tuple[MessageQueue, ...], member_ids: dict[str, list[str]]
    ) -> list[MessageQueue]:
        options, me = self._options, self._session.client_id
        members = await self._members(queues, member_ids)
        try:
            return share(options.allocation, options.group, topic, queues, members, me)
        except Exception as error:  # the strategy may be a user's function
            raise ClientError(f"the allocation strategy failed: {error!r}") from error

    async def _members(
        self, queues: tuple[MessageQueue, ...], member_ids: dict[str, list[str]]
    ) -> list[str]:
        """Return the client ids of the group, from one of the topic's brokers.

        If a broker denies permission, ask the next one, which may know this client's account.
        ``member_ids`` caches the ids by broker name for the topics of one round. A change after
        that causes another round.
        """
        if not queues:
            return []
        for queue in queues:
            if (ids := member_ids.get(queue.broker_name)) is not None:
                return ids
        by_broker = {queue.broker_name: queue for queue in queues}
        names = random.sample(sorted(by_broker), len(by_broker))
        for name in names[:-1]:
            try:
                return await self._members_at(by_broker[name], member_ids)
            except BrokerRefused as error:
                if not error.is_denial:
                    raise
        return await self._members_at(by_broker[names[-1]], member_ids)

    async def _members_at(self, queue: MessageQueue, member_ids: dict[str, list[str]]) -> list[str]:
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        group = ConsumerGroup(consumer_group=self._options.group)
        try:
            address, response = await self._session.replicas.ask(queue, code, group)
        except BrokerRefused as error:
            if error.address in self._session.refused_heartbeats:
                await self._heartbeat(error.address)
            raise
        ids = parse_json(response.body, ConsumerIds).consumer_id_list
        if self._session.client_id not in ids:
            await self._heartbeat(address)
            raise BrokerRefused(address, code, 1, "the broker does not know this member yet")
        member_ids[queue.broker_name] = ids
        return ids

    async def _heartbeat(self, address: str) -> None:
        """Send heartbeats. If the broker at ``address`` refuses its heartbeat, raise that error: it
        is the reason why the broker does not know this member."""
        await self._session.heartbeat()
        refused = self._session.refused_heartbeats.get(address)
        if refused is not None:
            raise refused


class QueueLocks:
    """Locks on the queues of one group that brokers granted to this client."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._until_ms: dict[MessageQueue, int] = {}
        self._epochs: dict[MessageQueue, int] = {}
        self._released: set[MessageQueue] = set()
        self._calls: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def held(self, queue: MessageQueue) -> bool:
        """Return whether this client may process the queue now."""
        return self._until_ms.get(queue, 0) > self._session.clock.monotonic_ms()

    def epoch(self, queue: MessageQueue) -> int:
        """Return how often the lock was acquired, renewals not counted.

        State of the queue from a lower epoch may be outdated.
        """
        return self._epochs.get(queue, 0)

    async def acquire(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Acquire or renew locks; return the queues whose lock is held now.

        If a broker cannot be reached, its queues keep their locks until these expire.
        """
        wanted = set(queues)
        self._released -= wanted
        await self.renew(wanted)
        return {queue for queue in wanted if self.held(queue)}

    async def renew(self, queues: Iterable[MessageQueue]) -> bool:
        """Renew locks as :meth:`acquire` does, but skip queues that were released.

        Returns False if a broker could not be reached.
        """
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            by_broker.setdefault(queue.broker_name, []).append(queue)
        return all(await asyncio.gather(*(self._lock(*each) for each in by_broker.items())))

    async def release(self, queue: MessageQueue) -> None:
        """Release the lock of a queue for another member.

        A failure is only logged, because the lock expires anyway.
        """
        self._released.add(queue)
        async with self._calls[queue.broker_name]:
            if self._until_ms.pop(queue, None) is None:
                return
            try:
                await self._call(RequestCode.UNLOCK_BATCH_MQ, [queue])
            except ClientError as error:
                log.debug("unlock_failed queue=%s error=%s", queue, error)
                self._session.outages.failed(error, queue.topic)

    async def _lock(self, broker_name: str, wanted: list[MessageQueue]) -> bool:
        async with self._calls[broker_name]:
            queues = [queue for queue in wanted if queue not in self._released]
            if not queues:
                return True
            try:
                body = await self._call(RequestCode.LOCK_BATCH_MQ, queues)
                granted = set(map(queue_of, parse_json(body, QueueLockResponse).lock_ok_mq_set))
            except ClientError as error:
                log.debug("lock_failed broker=%s error=%s", broker_name, error)
                self._session.outages.failed(error, queues[0].topic)
                return False
            self._note(queues, granted)
            return True

    def _note(self, queues: list[MessageQueue], granted: set[MessageQueue]) -> None:
        until_ms = self._session.clock.monotonic_ms() + self._session.config.lock_expiry_ms
        for queue in queues:
            if queue not in granted:
                self._until_ms.pop(queue, None)
                continue
            # If the lock had expired here, another member may have held it meanwhile.
            if not self.held(queue):
                self._epochs[queue] = self.epoch(queue) + 1
            self._until_ms[queue] = until_ms

    async def _call(self, code: RequestCode, queues: list[MessageQueue]) -> bytes:
        body = QueueLockRequest(
            consumer_group=self._group,
            client_id=self._session.client_id,
            mq_set=list(map(key_of, queues)),
        )
        address = await self._session.master_of(queues[0])
        response = await self._session.remoting.call(
            address,
            code,
            None,
            encode_json(body),
            timeout_ms=self._session.config.request_timeout_ms,
        )
        self._session.outages.answered(address, code, queues[0].topic)
        return response.body
