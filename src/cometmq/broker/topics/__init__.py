"""Topics of a broker: their table, and its registration with name servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.topics.registration import Registration
from cometmq.broker.topics.table import TopicTable
from cometmq.core.errors import StoreError

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.tables import TableDirectory
    from cometmq.net.client import Remoting


class TopicService:
    """The table of topics, and the registration with name servers that its changes need."""

    def __init__(self, directory: TableDirectory, config: BrokerConfig, remoting: Remoting) -> None:
        self.registration = Registration(
            config.name_servers, remoting=remoting, clock=directory.clock, tasks=directory.tasks
        )
        self.table = TopicTable(directory, config, announcer=self.registration)

    async def save_early(self) -> None:
        """Save the table before the first append, because deletions are remembered by log offsets.

        Raises StoreError if the log lost its end, and the deletions before it cannot be recorded
        again: the next start would take new messages for those of a deleted topic.
        """
        try:
            await self.table.saved()
        except StoreError:  # a full disk, say: logged; the next change retries
            if self.table.must_be_saved:
                raise
