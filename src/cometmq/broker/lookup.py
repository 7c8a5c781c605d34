"""Lookups in the store that several handlers share, such as bounds of a queue and records at an
offset, and the handlers of queries for messages by key, offset and time (upstream:
QueryMessageProcessor.java, AdminBrokerProcessor.java).

No lookup creates a queue.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cometmq.core.errors import BadRequest, StoreCorrupt
from cometmq.message import properties as props
from cometmq.message.names import WAITING_TOPICS
from cometmq.message.record import BadRecord, decode_one
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import (
    EarliestStoreTimeResponse,
    QueryMessageResponse,
    QueueOffsetResponse,
)
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.message.record import Record
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import QueryMessage, SearchOffset, TopicQueue, ViewMessage
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)


def bounds(store: MessageStore, topic: str, queue_id: int) -> tuple[int, int]:
    """Return the first queue offset that can be read, and the one that the next message gets; 0 and
    0 if there is no such queue."""
    queue = store.find_queue(topic, queue_id)
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def find_entry(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> tuple[int, int, int] | None:
    """Return physical offset, size and tag code of a queue entry; None if it holds no record."""
    queue = store.find_queue(topic, queue_id)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    raw = queue.read(offset, 1)
    if len(raw) < QUEUE_ENTRY_BYTES:
        return None
    physical, size, code = QUEUE_ENTRY.unpack(raw)
    return None if size == HOLE_SIZE else (physical, size, code)


async def find_record(store: MessageStore, physical_offset: int) -> Record | None:
    """Return the record at a physical offset, or None.

    The offset may be arbitrary, because it comes from a client.
    """
    view = await store.fetch_at(physical_offset)
    if view is None:
        return None
    try:
        return decode_one(view)
    except BadRecord as error:
        log.error("record cannot be read offset=%d reason=%s", physical_offset, error)
        return None


async def record_of_queue(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> Record | None:
    """Return the record at a queue offset, or None. A wrong queue entry is repaired first."""
    for is_last in (False, True):
        entry = find_entry(store, topic, queue_id, offset)
        if entry is None:
            return None
        record = await find_record(store, entry[0])
        place = (topic, queue_id, offset)
        if record and (record.topic, record.queue_id, record.queue_offset) == place:
            return record
        if is_last:
            break
        try:
            await store.repairs.repair(store.queue(topic, queue_id), offset)
        except StoreCorrupt:
            break  # the repair logged it
    return None


def check_reader(peer: Peer, request: Request[Any], record: Record) -> None:
    """Raise AclDenied if the sender of a request may not read the topic of the record it asks for.

    A delayed or half message counts as a message of its real topic.
    """
    access = peer.router.access
    if access is None:
        return
    topic = record.topic
    if topic in WAITING_TOPICS:
        topic = props.decode(record.properties).get(props.REAL_TOPIC) or topic
    access.check_reader(peer, request, topic)


async def find_bytes(
    store: MessageStore, physical_offset: int, peer: Peer, request: Request[Any]
) -> bytes | None:
    """Return the bytes of the record that a request asks for; None if there is none.

    The physical offset may be arbitrary. Raises AclDenied if the sender may not read the record's
    topic.
    """
    record = await find_record(store, physical_offset)
    if record is None:
        return None
    check_reader(peer, request, record)
    view = await store.fetch_at(physical_offset)
    return None if view is None else bytes(view)


def first_stored_ms(store: MessageStore, topic: str, queue_id: int) -> int:
    """Return the store time of a queue's first message, in ms.

    Return 0 if the queue is empty, or if that message is so old that it is not in memory.
    """
    low, _ = bounds(store, topic, queue_id)
    entry = find_entry(store, topic, queue_id, low)
    view = None if entry is None else store.message_at(entry[0])
    return 0 if view is None else decode_one(view, check_crc=False).store_ms


def is_young(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Return whether a queue still has its first message, close enough to the log's end to be in
    memory; True for a queue that never had a message.

    (upstream: ConsumerManageProcessor.queryConsumerOffset)
    """
    low, _ = bounds(store, topic, queue_id)
    if low > 0:
        return False
    entry = find_entry(store, topic, queue_id, 0)
    if entry is None:
        return True
    ratio = store.config.access_message_in_memory_max_ratio
    return store.written_offset - entry[0] <= store.files.memory_bytes() * ratio // 100


class QueryHandler:
    """Serves QUERY_MESSAGE, VIEW_MESSAGE_BY_ID and the queries for offsets and times."""

    def __init__(self, *, config: BrokerConfig, store: MessageStore) -> None:
        self._config = config
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.by_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.offset_by_time,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    async def by_key(self, _peer: Peer, request: Request[QueryMessage]) -> Reply:
        """Return messages of a topic by one of their keys.

        The index stores only a hash of topic and key, so other messages may be found too. Those of
        other topics are left out here, because the sender may not be allowed to read them. The
        client compares the keys.
        """
        header = request.header
        wanted = header.max_num
        if truth(header.unique_key_query):
            wanted = self._config.default_query_max_num
        found = await self._store.query_index(
            header.topic, header.key, wanted, header.begin_timestamp, header.end_timestamp
        )
        records = [
            each
            for each in found.records
            if decode_one(each, check_crc=False).topic == header.topic
        ]
        if not records:
            raise BadRequest(
                ResponseCode.QUERY_NOT_FOUND,
                f"can not find message, maybe time range not correct: no key {header.key!r} in "
                f"topic {header.topic} between {header.begin_timestamp} and {header.end_timestamp}",
            )
        answer = QueryMessageResponse(found.last_update_ms, found.last_update_phys)
        return Reply(header=answer, body=b"".join(records))

    async def by_offset(self, peer: Peer, request: Request[ViewMessage]) -> Reply:
        """Return the message at a physical offset."""
        offset = request.header.offset
        record = await find_bytes(self._store, offset, peer, request)
        if record is None:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        return Reply(body=record)

    async def offset_by_time(self, _peer: Peer, request: Request[SearchOffset]) -> Reply:
        """Return the first queue offset stored at or after a timestamp.

        With the boundary type UPPER, return the last one at or before it.
        """
        header = request.header
        offset = await self._store.offset_by_time(
            header.topic,
            header.queue_id,
            header.timestamp,
            upper=(header.boundary_type or "").upper() == "UPPER",
        )
        return Reply(header=QueueOffsetResponse(offset))

    def max_offset(self, _peer: Peer, request: Request[TopicQueue]) -> Reply:
        """Return the queue offset that the next message gets."""
        _, high = bounds(self._store, request.header.topic, request.header.queue_id)
        return Reply(header=QueueOffsetResponse(high))

    def min_offset(self, _peer: Peer, request: Request[TopicQueue]) -> Reply:
        """Return the first queue offset that can be read."""
        low, _ = bounds(self._store, request.header.topic, request.header.queue_id)
        return Reply(header=QueueOffsetResponse(low))

    async def earliest_time(self, _peer: Peer, request: Request[TopicQueue]) -> Reply:
        """Return the store time of a queue's first message, in ms; -1 if the queue is empty."""
        header = request.header
        moment = await self._store.earliest_time(header.topic, header.queue_id)
        return Reply(header=EarliestStoreTimeResponse(moment))
