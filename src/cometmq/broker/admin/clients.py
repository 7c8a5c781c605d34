"""Connections of producers, by group (upstream: ProducerManager.java, AdminBrokerProcessor.java).
Members serves the connections of consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.core.errors import BadRequest
from cometmq.core.slices import Slices
from cometmq.net.reply import Reply
from cometmq.protocol.bodies import ClientConnection
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.consumerbodies import ProducerConnections, ProducerInfo, ProducerTable
from cometmq.protocol.fastjson import encode_json

if TYPE_CHECKING:
    from cometmq.broker.consumers.members import Members
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import ProducerGroup


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
