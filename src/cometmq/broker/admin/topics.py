"""Administration of topics and their queues (upstream: AdminBrokerProcessor.java)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.topics.table import MAX_QUEUES, check_name
from cometmq.core.clock import join_in_slices
from cometmq.core.errors import BadRequest, StoreCorrupt
from cometmq.message.names import is_system_topic
from cometmq.protocol.bodies import (
    GroupList,
    QueueEntries,
    QueueEntry,
    TopicConfig,
    TopicList,
    table_pieces,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply
from cometmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

if TYPE_CHECKING:
    from cometmq.broker.admin.offsets import LongAnswers
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.pull.filterdata import FilterTable
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import AllTopics, CreateTopic, QueryConsumeQueue, Topic
    from cometmq.store.maintenance.retention import Deletion
    from cometmq.store.queue.consumequeue import ConsumeQueue

log = logging.getLogger(__name__)

#: Maximum number of queue entries in one response.
MAX_ENTRIES: Final = 1_024
_PERMISSIONS: Final = range(16)
_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})


class TopicAdmin:
    """Serves the codes that create, delete, list and describe topics.

    ``tables`` lets only one response with a whole table be built at a time.
    """

    def __init__(self, context: BrokerContext, tables: LongAnswers) -> None:
        self._whole_tables = tables
        self._appender = context.appender
        self._store = context.store
        self._topics = context.tables.topics
        self._offsets = context.tables.offsets
        self._members = context.tables.members
        self._stats = context.stats
        self._clock = context.clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.list_all,
            RequestCode.GET_TOPIC_CONFIG: self.describe,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.list_system,
        }

    async def create(self, peer: Peer, request: Request[CreateTopic]) -> Reply:
        """Create or change a topic; answer once it is on the device and name servers have its
        route."""
        header = request.header
        check_name(header.topic)
        self._refuse_system(header.topic)
        for name, count in (
            ("readQueueNums", header.read_queue_nums),
            ("writeQueueNums", header.write_queue_nums),
        ):
            if not 0 <= count <= MAX_QUEUES:
                raise BadRequest(
                    ResponseCode.SYSTEM_ERROR, f"{name} {count} is not between 0 and {MAX_QUEUES}"
                )
        if header.perm not in _PERMISSIONS or header.topic_filter_type not in _FILTER_TYPES:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"perm {header.perm} is not a sum of 4 (read), 2 (write) and 1 (inherit), "
                f"topicFilterType {header.topic_filter_type!r} SINGLE_TAG or MULTI_TAG",
            )
        log.info("topic update requested topic=%s peer=%s", header.topic, peer.address)
        self._topics.put(
            TopicConfig(
                header.topic,
                header.read_queue_nums,
                header.write_queue_nums,
                header.perm,
                header.topic_filter_type,
                header.topic_sys_flag or 0,
                truth(header.order),
            )
        )
        await self._topics.saved()
        await self._topics.announced()
        return Reply()

    async def delete(self, peer: Peer, request: Request[Topic]) -> Reply:
        """Delete a topic with its queues and the offsets of all groups in them.

        Offsets that stayed would make groups skip the messages of a new topic with this name.
        """
        topic = request.header.topic
        check_name(topic)
        self._refuse_system(topic)
        log.info("topic deletion requested topic=%s peer=%s", topic, peer.address)
        await self._delete(topic)
        return Reply()

    async def clean_unused(self, peer: Peer, _request: Request[Any]) -> Reply:
        """Delete the queues of topics that the topic table does not have, and all groups' offsets
        in them (upstream: DefaultMessageStore.cleanUnusedTopic). A table that was lost or replaced
        by an older one leaves such queues."""
        unused = [
            topic
            for topic in self._store.queues.known
            if topic not in self._topics and not is_system_topic(topic)
        ]
        for topic in unused:
            if await self._delete(topic, only_unknown=True):
                log.warning("unused topic deleted topic=%s peer=%s", topic, peer.address)
        return Reply()

    async def _delete(self, topic: str, *, only_unknown: bool = False) -> bool:
        """Delete a topic; with ``only_unknown`` only if the topic table does not have it.

        Return whether it was deleted.
        """
        made: list[Deletion] = []

        def forget() -> None:
            # A send may have created the topic while this request waited for the end of a turn.
            if not (only_unknown and topic in self._topics):
                made.append(self._forget(topic))

        await self._appender.between_turns(forget)
        if not made:
            return False
        await self._topics.saved()
        await self._offsets.saved()
        await self._store.deletions.settle(made[0])
        return True

    def _forget(self, topic: str) -> Deletion:
        """Delete the topic, its offsets and its statistics, so that a new topic with this name
        starts empty."""
        store = self._store
        deletion = store.deletions.delete(topic)
        self._topics.delete(topic)
        if deletion.pending:
            log_start = store.log.segments.start
            self._topics.remember_deletion(topic, end=deletion.end, log_start=log_start)
        self._offsets.delete_topic(topic)
        self._stats.forget_topic(topic)
        return deletion

    async def list_all(self, _peer: Peer, request: Request[AllTopics]) -> Reply:
        """Return every topic with its configuration, not reduced by ``brokerPermission``, because a
        slave needs the same table as its master."""
        topics, with_deleted = self._topics, truth(request.header.cometmq_deleted)
        async with self._whole_tables.one():
            pieces = table_pieces(
                topics.data_version,
                "topicConfigTable",
                topics.values(),
                deleted=topics.former_ends() if with_deleted else None,
            )
            return Reply(body=await join_in_slices(pieces, self._clock))

    def describe(self, _peer: Peer, request: Request[Topic]) -> Reply:
        """Return the configuration of one topic."""
        topic = request.header.topic
        config = self._topics.get(topic)
        if config is None:
            raise BadRequest(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return Reply(body=encode_json(config))

    async def groups(self, _peer: Peer, request: Request[Topic]) -> Reply:
        """Return the groups that subscribe to a topic or have offsets in it."""
        topic = request.header.topic
        found = {*self._members.groups_of(topic), *self._offsets.groups_of(topic)}
        return Reply(body=encode_json(GroupList(sorted(found))))

    def list_system(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the topics that belong to the broker itself."""
        return Reply(body=encode_json(TopicList(sorted(self._topics.system_names))))

    def _refuse_system(self, topic: str) -> None:
        if self._topics.is_system(topic):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"The topic[{topic}] is conflict with system topic."
            )


class QueueAdmin:
    """Serves QUERY_CONSUME_QUEUE. ``filters`` are the stored filters of consumer groups."""

    def __init__(self, context: BrokerContext, filters: FilterTable) -> None:
        self._store = context.store
        self._members = context.tables.members
        self._filters = filters

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.QUERY_CONSUME_QUEUE: self.entries}

    async def entries(self, _peer: Peer, request: Request[QueryConsumeQueue]) -> Reply:
        """Return entries of a queue, and the subscription and the stored filter of a group.

        Returns at most MAX_ENTRIES, and none for an index outside the queue.
        """
        header = request.header
        topic, queue_id, index = header.topic, header.queue_id, header.index
        queue = self._store.find_queue(topic, queue_id)
        if queue is None:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        count = min(header.count, MAX_ENTRIES, queue.max_offset - index)
        raw: bytes | bytearray = b""
        if count > 0 and index >= queue.min_offset:
            raw = await _read(queue, index, count)
        whole = len(raw) // QUEUE_ENTRY_BYTES * QUEUE_ENTRY_BYTES
        found = [QueueEntry(*entry) for entry in QUEUE_ENTRY.iter_unpack(raw[:whole])]
        wanted, data = None, None
        if header.consumer_group is not None:
            group = self._members.group(header.consumer_group)
            wanted = group.subscriptions.get(topic) if group is not None else None
            stored = self._filters.get(topic, header.consumer_group)
            data = encode_json(stored).decode() if stored is not None else "null"
            if wanted is None:
                data = f"{header.consumer_group}@{topic} is not online!"
        body = QueueEntries(queue.max_offset, queue.min_offset, found, wanted, data)
        return Reply(body=encode_json(body))


async def _read(queue: ConsumeQueue, index: int, count: int) -> bytes | bytearray:
    """Return entries of a queue, read in a thread unless they are in memory."""
    found = queue.read_at_once(index, count)
    if found is not None:
        return found
    try:
        return await asyncio.to_thread(queue.fetch, index, count)
    except StoreCorrupt:
        if index < queue.min_offset:
            return b""  # the file expired in the meantime
        raise
