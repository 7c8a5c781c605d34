"""A slave's copies of its master's tables: topics, groups, and how far consumers and delay levels
have got (upstream: SlaveSynchronize.java).

They are asked for every 10 s, topics first: a queue without its topic could not be read. What comes
late costs little: a consumer that goes on at the slave may see its last seconds again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import CometError
from cometmq.protocol.bodies import SubscriptionGroupTable, TopicConfigTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.broker.delay import DelayDelivery
    from cometmq.broker.groups import GroupTable
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.topics import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting
    from cometmq.store.engine import MessageStore

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 10_000
TIMEOUT_MS: Final = 5_000


class MasterTables:
    """Keeps a slave's tables like its master's, whose address is ``master``: "" while it is not
    known."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        delay: DelayDelivery,
        remoting: Remoting,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._remoting = remoting
        self._clock = clock
        self.master = ""
        self._due = asyncio.Event()
        self.synced_ms = -1

    def soon(self) -> None:
        """The master is there (again): ask it now."""
        self._due.set()

    async def run_forever(self) -> None:
        """Ask again and again."""
        failing = False
        while True:
            address = self.master
            if address:
                try:
                    await self.copy(address)
                    failing = False
                except (CometError, ValueError) as error:
                    if not failing:
                        log.warning("tables_not_copied master=%s reason=%s", address, error)
                    failing = True
            self._due.clear()
            try:
                async with asyncio.timeout(INTERVAL_MS / 1000):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def copy(self, address: str) -> None:
        """Copy all tables once. Raises CometError, and ValueError for an answer that is none."""
        topics = parse_json(
            await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG), TopicConfigTable
        )
        if topics.data_version != self._topics.data_version:
            gone = self._topics.replace(topics.topic_config_table, topics.data_version)
            for topic in gone:
                self._forget(topic)
        self._offsets.replace(await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET))
        self._delay.replace(await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET))
        groups = parse_json(
            await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            SubscriptionGroupTable,
        )
        if groups.data_version != self._groups.data_version:
            self._groups.replace(groups.subscription_group_table, groups.data_version)
        self.synced_ms = self._clock.monotonic_ms()

    def _forget(self, topic: str) -> None:
        """A topic was deleted at the master: what the log has of it is of a former life."""
        store = self._store
        if topic in store.known:
            start = store.log.segments.start
            self._topics.remember_deletion(topic, end=store.written_offset, log_start=start)

    async def _ask(self, address: str, code: RequestCode) -> bytes:
        response = await self._remoting.call(address, code, None, timeout_ms=TIMEOUT_MS)
        return response.body
