"""A slave's copies of its master's tables: topics, groups, consumer offsets and positions of delay
levels (upstream: SlaveSynchronize.java).

They are copied every 10 s, topics first, because a queue without its topic cannot be read. A stale
copy costs little: a consumer that continues at the slave may see its last seconds again.

Deleted topics are removed from the slave's disk too, so that a new topic with the same name starts
empty. A CometMQ master reports the log offset at which the messages of a deleted topic end. A Java
master does not; then the end of the slave's log at the time of the request is used. In both cases
the queues stay until the slave has dispatched its log up to that offset.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from cometmq.broker.topics.table import UNLISTED
from cometmq.core.errors import CometError
from cometmq.protocol.bodies import KvTable, SubscriptionGroupTable, TopicConfigTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.headers import AllTopics

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting
    from cometmq.protocol.headers import Header
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 10_000
TIMEOUT_MS: Final = 5_000


class MasterTables:
    """Keeps a slave's tables equal to its master's.

    ``master`` is the master's address, "" while it is unknown. No request is sent while ``follows``
    returns False, that is, while the master sends no log: at that address there may be a slave by
    now, or an empty broker.
    """

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
        self._has_compared = False
        #: Deleted topics whose queues may still hold messages, and the log offset at which these
        #: end.
        self._former: dict[str, int] = {}
        #: End of the master's log, reported at ``master_end_ms``; -1 before the first report.
        self.master_end = -1
        self.master_end_ms = 0

    @property
    def age_ms(self) -> int:
        """Age of the copies in ms; -1 before the first complete copy."""
        return -1 if self.synced_ms < 0 else self._clock.monotonic_ms() - self.synced_ms

    def soon(self) -> None:
        """Ask the master at once, because it is connected (again)."""
        self._due.set()

    async def run_forever(self, follows: Callable[[], bool]) -> None:
        """Copy the tables every INTERVAL_MS, or at once after :meth:`soon`, until cancelled.

        Nothing is copied while ``follows`` returns False.
        """
        failing = False
        while True:
            address = self.master
            if address and follows():
                try:
                    await self.copy(address)
                    failing = False
                except (CometError, ValueError, OSError) as error:
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
        """Copy all tables once, and ask for the length of the master's log.

        Raise CometError, or ValueError for a malformed answer.
        """
        # Records that arrive later may belong to a topic that the master creates after its answer.
        asked_at = self._store.written_offset
        topics = parse_json(
            await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, AllTopics("true")),
            TopicConfigTable,
        )
        if topics.data_version != self._topics.data_version or not self._has_compared:
            await self._take_topics(topics, asked_at)
        await self._drop_former()
        self._offsets.replace(await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET))
        self._delay.replace(await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET))
        groups = parse_json(
            await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            SubscriptionGroupTable,
        )
        if groups.data_version != self._groups.data_version:
            self._groups.replace(groups.subscription_group_table, groups.data_version)
        self.synced_ms = self._clock.monotonic_ms()
        runtime = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        end = parse_json(runtime, KvTable).table.get("commitLogMaxOffset", "")
        if end.isdecimal() and len(end) < 20:
            self.master_end, self.master_end_ms = int(end), self._clock.monotonic_ms()

    async def _take_topics(self, table: TopicConfigTable, asked_at: int) -> None:
        store, topics = self._store, self._topics
        gone = topics.replace(table.topic_config_table, table.data_version)
        if table.cometmq_deleted is not UNSET:
            # A topic in neither list was unknown to a master that was promoted; its queues stay.
            ends = table.cometmq_deleted
        else:
            # The broker's own topics are left out: not every master lists them.
            known = store.queues.known
            deleted = [topic for topic in gone if topic in known and topic not in UNLISTED]
            ends = dict.fromkeys(deleted, asked_at)
        for topic, end in sorted(ends.items(), key=lambda item: item[1]):
            if topics.life_begin(topic) < end:
                topics.remember_deletion(topic, end=end, log_start=store.log.segments.start)
            self._former[topic] = end
        # Saved before any queue is deleted: a start after a crash finishes the deletion from these
        # notes.
        await topics.saved()
        self._has_compared = True

    async def _drop_former(self) -> None:
        """Delete queues that hold only messages from before the deletion of their topic."""
        store, dropped = self._store, False
        for topic, end in list(self._former.items()):
            # Records that wait for dispatch may belong to the new topic.
            if store.dispatched_offset >= end and store.dispatched_offset == store.written_offset:
                del self._former[topic]
                if topic in store.queues.known:
                    store.deletions.drop_former(topic, end)
                    dropped = True
                    log.info("former_queues_dropped topic=%s end=%d", topic, end)
        if dropped:
            await store.maintenance.note_soon()

    async def _ask(self, address: str, code: RequestCode, header: Header | None = None) -> bytes:
        response = await self._remoting.call(address, code, header, timeout_ms=TIMEOUT_MS)
        return response.body
