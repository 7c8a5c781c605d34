"""Replication between a master and its slaves, promotion, and the takeover of an address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.replication.addresstakeover import AddressAdmin, Addresses
from cometmq.broker.replication.promotion import PromotionAdmin, Rivals
from cometmq.broker.replication.roles import (
    MasterPart,
    MasterTables,
    Rejoin,
    SlavePart,
    as_slave,
    forget_notes,
)
from cometmq.net.router import handlers_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from cometmq.broker.config import BrokerRole
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.broker.topics.registration import Registration
    from cometmq.net.client import Remoting
    from cometmq.net.router import Handler
    from cometmq.net.tls import ServerTls

__all__ = ["Addresses", "Rejoin", "ReplicationService", "as_slave", "forget_notes"]


class ReplicationService:
    """The broker's part in replication (``part``), the search for other masters of its name, and
    the handlers of promotions and takeovers.

    ``listen`` makes the broker serve a further socket. ``rejoin`` and ``promote`` ask for a restart
    (supervisor.py).
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        addresses: Addresses,
        delay: DelayDelivery,
        registration: Registration,
        remoting: Remoting,
        listen: Callable[[socket.socket], Awaitable[None]],
        rejoin: Rejoin,
        promote: Callable[[BrokerRole], None] | None,
    ) -> None:
        config, clock = context.config, context.clock
        self._context = context
        self._addresses = addresses
        self._registration = registration
        self.part: MasterPart | SlavePart
        if config.is_slave:
            self.part = SlavePart(context, MasterTables(context, delay, remoting), rejoin)
        else:
            self.part = MasterPart(context)
        self.rivals = Rivals(
            config.broker_name,
            {addresses.own, addresses.current},
            registration,
            remoting=remoting,
            clock=clock,
        )
        self._promotion = PromotionAdmin(
            config=config,
            part=self.part,
            promote=promote,
            registration=registration,
            remoting=remoting,
            clock=clock,
        )
        self._takeover = AddressAdmin(
            addresses,
            config=config,
            files=context.store.files,
            clock=clock,
            serve=listen,
            moved=self._moved,
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return handlers_of((self._promotion, self._takeover))

    def settings_changed(self) -> None:
        """Take changed settings into use."""
        self.part.settings_changed()

    async def start(self, listener: socket.socket | None, tls: ServerTls | None) -> None:
        """Start to serve slaves, which connect to ``listener``, or on a slave to follow the master.
        With ``tls`` connections between the two have TLS."""
        if not self._context.config.is_slave:
            self._context.tasks.keep(
                self.rivals.run_forever, name="look for other masters", clock=self._context.clock
            )
        await self.part.start(listener, tls)

    async def close(self) -> None:
        """Disconnect the slaves of a master. Background work ends with the broker's tasks."""
        await self.part.close()

    def facts(self) -> dict[str, str]:
        """Return entries for the broker's runtime information."""
        return {**self.part.facts(), "otherMasters": ",".join(self.rivals.found)}

    async def _moved(self) -> None:
        """Register the current address with name servers."""
        self.rivals.own.add(self._addresses.current)
        await self._registration.move(self._addresses.place())
