"""Who reads which queue: asks a broker for the group's members, computes this one's share, says
what to give up and what to take on.

Runs every 20 s and whenever a broker says that the group changed (upstream: RebalanceImpl.java).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.consumer.allocate import share
from cometmq.client.consumer.failures import note
from cometmq.core.errors import BrokerRefused, ClientError, CometError, RouteNotFound
from cometmq.protocol.bodies import ConsumerIds
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.headers import ConsumerGroup

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.namespace import Namespace
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue

log = logging.getLogger(__name__)

#: After a round that could not be completed.
_AGAIN_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Queues of one topic to give up, then queues to take on."""

    drop: tuple[MessageQueue, ...]
    add: tuple[MessageQueue, ...]


def plan(current: Iterable[MessageQueue], goal: Iterable[MessageQueue]) -> Plan:
    """The way from the ``current`` queues of a topic to this member's share."""
    have, wanted = set(current), set(goal)
    return Plan(tuple(sorted(have - wanted)), tuple(sorted(wanted - have)))


#: Is told the queues that were taken on and those that were given up, the latter once their offsets
#: are stored.
AssignmentListener = Callable[[frozenset["MessageQueue"], frozenset["MessageQueue"]], None]


def tell(listener: AssignmentListener, change: Plan, namespace: Namespace) -> None:
    """Tell of a change that was carried out, in users' names; what that raises is logged."""
    unwrap = namespace.unwrap_queue
    try:
        listener(frozenset(map(unwrap, change.add)), frozenset(map(unwrap, change.drop)))
    except Exception as error:
        log.exception("assignment_listener_failed added=%d", len(change.add))
        note(error)


class Assignee(Protocol):
    """Who reads the queues."""

    def assigned(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` that it reads now."""
        ...

    async def apply(self, change: Plan) -> bool:
        """Carry a plan out; False when part of it must be tried again."""
        ...


class Rebalancer:
    """Keeps one consumer at its share."""

    def __init__(self, session: Session, options: SubscribeOptions, assignee: Assignee) -> None:
        self._session = session
        self._options = options
        self._assignee = assignee
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Something changed: do not wait for the period."""
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
        """Go over all topics once; False when one could not be completed."""
        told: dict[str, list[str]] = {}
        results = [await self._topic(topic, told) for topic in sorted(self._options.topics)]
        return all(results)

    async def _topic(self, topic: str, told: dict[str, list[str]]) -> bool:
        try:
            queues = await self._session.subscribe_queues(topic)
            mine = list(queues)
            if not self._options.broadcasting:
                mine = await self._share(topic, queues, told)
        except CometError as error:
            # The retry topic comes into being with the group's first heartbeat.
            expected = isinstance(error, RouteNotFound) and topic == self._options.retry_topic
            level = logging.DEBUG if expected else logging.WARNING
            log.log(level, "rebalance_skipped topic=%s error=%s", topic, error)
            return False
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
        self, topic: str, queues: tuple[MessageQueue, ...], told: dict[str, list[str]]
    ) -> list[MessageQueue]:
        options, me = self._options, self._session.client_id
        members = await self._members(queues, told)
        try:
            return share(options.allocation, options.group, topic, queues, members, me)
        except Exception as error:  # a strategy may be anybody's
            raise ClientError(f"the allocation strategy failed: {error!r}") from error

    async def _members(
        self, queues: tuple[MessageQueue, ...], told: dict[str, list[str]]
    ) -> list[str]:
        """The group's client ids, as one of the topic's brokers knows them, or ``told`` of another
        topic in this round: what changes after that begins another one."""
        if not queues:
            return []
        for queue in queues:
            if (ids := told.get(queue.broker_name)) is not None:
                return ids
        queue = random.choice(queues)
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        group = ConsumerGroup(consumer_group=self._options.group)
        address, response = await self._session.replicas.ask(queue, code, group)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused(address, code, response.code, response.remark or "")
        ids = parse_json(response.body, ConsumerIds).consumer_id_list
        if self._session.client_id not in ids:
            await self._session.heartbeat()
            raise BrokerRefused(address, code, 1, "it does not know this member yet")
        told[queue.broker_name] = ids
        return ids
