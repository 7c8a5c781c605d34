"""Topics of a broker: their table, and its registration with name servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.topics.addressserver import AddressServer
from cometmq.broker.topics.registration import Registration
from cometmq.broker.topics.table import TopicTable
from cometmq.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.tables import TableDirectory
    from cometmq.broker.topics.registration import BrokerPlace
    from cometmq.net.client import Remoting


class TopicService:
    """The table of topics, and the registration with name servers that its changes need."""

    def __init__(self, directory: TableDirectory, config: BrokerConfig, remoting: Remoting) -> None:
        self.registration = Registration(
            config.name_servers, remoting=remoting, clock=directory.clock, tasks=directory.tasks
        )
        self.table = TopicTable(directory, config, announcer=self.registration)
        self._directory = directory
        self._address_server = config.address_server

    async def register(self, place: BrokerPlace, on_master: Callable[[str, str], None]) -> None:
        """Find the name servers if the settings have none, and begin to register, as
        :meth:`Registration.start` does."""
        if self._address_server:
            clock, tasks = self._directory.clock, self._directory.tasks
            server = AddressServer(self._address_server, self.registration, clock)
            await server.ask()
            tasks.keep(server.ask_forever, name="ask for name servers", clock=clock)
        await self.registration.start(place, self.table, on_master)

    async def save_early(self) -> None:
        """Save the table before the first append, because deletions are remembered by log offsets.

        Raises StoreError if the log lost its end, and the deletions before it cannot be recorded
        again: the next start would take new messages for those of a deleted topic.
        """
        try:
            await self.table.saved()
        except StoreError:  # such as a full disk: logged, and the next change retries
            if self.table.must_be_saved:
                raise
