"""Administration of consumer groups, and the connections of producers by group (upstream:
AdminBrokerProcessor.java, ProducerManager.java). Members serves the connections of consumers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cometmq.core.clock import Slices, join_in_slices
from cometmq.core.errors import BadRequest
from cometmq.message.names import is_legal_name
from cometmq.protocol.bodies import (
    ClientConnection,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
    SubscriptionGroupConfig,
    table_pieces,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, encode_json, parse_json
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply

if TYPE_CHECKING:
    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.consumers.members import Members
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.broker.stats import BrokerStats
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import GroupName, ProducerGroup

log = logging.getLogger(__name__)


class ClientAdmin:
    """Serves GET_PRODUCER_CONNECTION_LIST and GET_ALL_PRODUCER_INFO."""

    def __init__(self, *, members: Members, clock: Clock) -> None:
        self._members = members
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def producers(self, _peer: Peer, request: Request[ProducerGroup]) -> Reply:
        """Return the connections of one producer group."""
        name = request.header.producer_group
        members = self._members.table.producers.get(name)
        if members is None:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        clients = [
            ClientConnection(member.client_id, peer.address, member.language, member.version)
            for peer, member in members.items()
        ]
        return Reply(body=encode_json(ProducerConnections(clients)))

    async def all_producers(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the connections of every producer group."""
        slices = Slices(self._clock)
        # Heartbeat times are monotonic; tools expect wall-clock times.
        began_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        data: dict[str, list[ProducerInfo]] = {}
        for group, members in list(self._members.table.producers.items()):
            data[group] = [
                ProducerInfo(
                    member.client_id,
                    peer.address,
                    member.language,
                    member.version,
                    began_ms + member.seen_ms,
                )
                for peer, member in members.items()
            ]
            await slices.pause()
        return Reply(body=encode_json(ProducerTable(data)))


class GroupAdmin:
    """Serves the codes that create, delete and list groups, and that return whole offset tables."""

    def __init__(
        self,
        *,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        delivery: DelayDelivery,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._delivery = delivery
        self._stats = stats
        self._clock = clock

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
        """Create or change a group; answer once the change is on the device."""
        config = parse_json(
            request.body, SubscriptionGroupConfig, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES
        )
        if not is_legal_name(config.group_name):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"group name {config.group_name[:140]!r} is illegal: use up to 127 of "
                "%|a-zA-Z0-9_-",
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
        pieces = table_pieces(groups.data_version, "subscriptionGroupTable", groups.values())
        return Reply(body=await join_in_slices(pieces, self._clock))

    async def all_offsets(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the offsets of every group, as the text of their file."""
        return Reply(body=await self._offsets.text())

    async def delay_offsets(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the progress of each delay level, as the text of its file."""
        return Reply(body=self._delivery.text())
