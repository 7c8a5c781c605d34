"""Queries for messages by key, offset and time (upstream: QueryMessageProcessor.java,
AdminBrokerProcessor.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.lookup import bounds, find_bytes
from cometmq.core.errors import BadRequest
from cometmq.net.reply import Reply
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fields import truth
from cometmq.protocol.headers import (
    EarliestStoreTimeResponse,
    QueryMessageResponse,
    QueueOffsetResponse,
)

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import QueryMessage, SearchOffset, TopicQueue, ViewMessage
    from cometmq.store.messagestore import MessageStore


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
        """Return messages by one of their keys.

        The index stores hashes only, so the client compares the keys.
        """
        header = request.header
        wanted = header.max_num
        if truth(header.unique_key_query):
            wanted = self._config.default_query_max_num
        found = await self._store.query_index(
            header.topic, header.key, wanted, header.begin_timestamp, header.end_timestamp
        )
        if not found.records:
            raise BadRequest(
                ResponseCode.QUERY_NOT_FOUND,
                f"can not find message, maybe time range not correct: no key {header.key!r} in "
                f"topic {header.topic} between {header.begin_timestamp} and {header.end_timestamp}",
            )
        answer = QueryMessageResponse(found.last_update_ms, found.last_update_phys)
        return Reply(header=answer, body=b"".join(found.records))

    async def by_offset(self, _peer: Peer, request: Request[ViewMessage]) -> Reply:
        """Return the message at a physical offset."""
        offset = request.header.offset
        record = await find_bytes(self._store, offset)
        if record is None:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        return Reply(body=record)

    async def offset_by_time(self, _peer: Peer, request: Request[SearchOffset]) -> Reply:
        """Return the queue offset for a timestamp."""
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
        """Return the store time of a queue's first message; -1 if the queue is empty."""
        header = request.header
        moment = await self._store.earliest_time(header.topic, header.queue_id)
        return Reply(header=EarliestStoreTimeResponse(moment))
