"""Administration of consumer groups (upstream: AdminBrokerProcessor.java)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cometmq.broker.topics.table import MAX_QUEUES
from cometmq.core.clock import join_in_slices
from cometmq.core.errors import BadRequest
from cometmq.message.names import is_legal_name
from cometmq.protocol.bodies import (
    SubscriptionGroupConfig,
    table_pieces,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, parse_json
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply

if TYPE_CHECKING:
    from cometmq.broker.admin.offsets import LongAnswers
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import GroupName

log = logging.getLogger(__name__)


class GroupAdmin:
    """Serves the codes that create, delete and list groups, and that return whole offset tables.

    ``tables`` lets only one response with a whole table be built at a time.
    """

    def __init__(
        self, context: BrokerContext, delivery: DelayDelivery, tables: LongAnswers
    ) -> None:
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._delivery = delivery
        self._tables = tables
        self._stats = context.stats
        self._clock = context.clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.create,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.list_all,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
        }

    async def create(self, peer: Peer, request: Request[Any]) -> Reply:
        """Create or change a group; answer once the change is saved on the device."""
        config = parse_json(
            request.body, SubscriptionGroupConfig, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES
        )
        if not is_legal_name(config.group_name):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"group name {config.group_name[:140]!r} is illegal: use up to 127 of "
                "%|a-zA-Z0-9_-",
            )
        if config.retry_queue_nums > MAX_QUEUES:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"retryQueueNums {config.retry_queue_nums} is over the limit of {MAX_QUEUES}",
            )
        log.info("group update requested group=%s peer=%s", config.group_name, peer.address)
        self._groups.put(config)
        await self._groups.saved()
        return Reply()

    async def delete(self, peer: Peer, request: Request[GroupName]) -> Reply:
        """Delete a group, and its offsets if the request asks for that."""
        header = request.header
        log.info("group deletion requested group=%s peer=%s", header.group_name, peer.address)
        self._groups.delete(header.group_name)
        if truth(header.remove_offset):
            self._offsets.delete_group(header.group_name)
        self._stats.forget_group(header.group_name)
        await self._groups.saved()
        return Reply()

    async def list_all(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return every group with its configuration."""
        groups = self._groups
        async with self._tables.one():
            pieces = table_pieces(groups.data_version, "subscriptionGroupTable", groups.values())
            return Reply(body=await join_in_slices(pieces, self._clock))

    async def all_offsets(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the offsets of every group, as JSON."""
        async with self._tables.one():
            return Reply(body=await self._offsets.text())

    async def delay_offsets(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the progress of each delay level, as JSON."""
        return Reply(body=self._delivery.text())
