"""A slave's copies of its master's tables: topics, groups, and how far consumers and delay levels
have got (upstream: SlaveSynchronize.java).

They are asked for every 10 s, topics first: a queue without its topic could not be read. What comes
late costs little: a consumer that goes on at the slave may see its last seconds again.

A topic that was deleted goes from the slave's disk too, and one made anew under its name begins
anew: a master of ours says where in the log the former life ended. A Java master does not, and then
it ends where the slave's log did when it asked for the topics. Either way the queues wait
until the slave has dispatched its log up to there.
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
    """Keeps a slave's tables like its master's, whose address is ``master``: "" while it is not
    known. Nobody is asked as long as ``follows`` says that the master sends no log: at an address
    where a master was, there may be a slave by now, or a broker that has nothing yet."""

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
        self.follows: Callable[[], bool] = lambda: True
        self._due = asyncio.Event()
        self.synced_ms = -1
        self._has_compared = False
        #: Topics whose queues may still hold messages of a former life, and where that ended.
        self._former: dict[str, int] = {}
        #: The end of the master's log, as it said at ``master_end_ms``; -1 until it did.
        self.master_end = -1
        self.master_end_ms = 0

    @property
    def age_ms(self) -> int:
        """How long ago all tables were copied; -1 while they never were."""
        return -1 if self.synced_ms < 0 else self._clock.monotonic_ms() - self.synced_ms

    def soon(self) -> None:
        """The master is there (again): ask it now."""
        self._due.set()

    async def run_forever(self) -> None:
        """Ask again and again."""
        failing = False
        while True:
            address = self.master
            if address and self.follows():
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
        """Copy all tables once, and ask how long the log is.

        Raises CometError, and ValueError for an answer that is none.
        """
        # What comes while the master answers may be of a topic that it makes after its answer.
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
            # One that it lacks besides, a master that was promoted never heard of.
            ends = table.cometmq_deleted
        else:
            # Another master's table may not name what this one's did, of the broker's own.
            deleted = [
                topic for topic in gone if topic in store.queues.known and topic not in UNLISTED
            ]
            ends = dict.fromkeys(deleted, asked_at)
        for topic, end in sorted(ends.items(), key=lambda item: item[1]):
            if topics.life_begin(topic) < end:
                topics.remember_deletion(topic, end=end, log_start=store.log.segments.start)
            self._former[topic] = end
        # Before any queue goes: a start after a crash in between finishes by these notes.
        await topics.saved()
        self._has_compared = True

    async def _drop_former(self) -> None:
        """Take queues off the disk that hold messages of former lives alone."""
        store, dropped = self._store, False
        for topic, end in list(self._former.items()):
            # What waits for dispatch may belong to the topic as it is.
            if store.dispatched_offset >= end and store.dispatched_offset == store.written_offset:
                del self._former[topic]
                if topic in store.queues.known:
                    store.deletions.drop_former(topic, end)
                    dropped = True
                    log.info("former_queues_dropped topic=%s end=%d", topic, end)
        if dropped:
            await store.upkeep.note_soon()

    async def _ask(self, address: str, code: RequestCode, header: Header | None = None) -> bytes:
        response = await self._remoting.call(address, code, header, timeout_ms=TIMEOUT_MS)
        return response.body
