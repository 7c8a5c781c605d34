"""Consumer groups: settings, offsets, queue locks and online members."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.broker.consumers.groups import GroupTable
from cometmq.broker.consumers.members import Members
from cometmq.broker.consumers.offsets import ConsumerOffsets, OffsetHandler
from cometmq.broker.consumers.queuelocks import QueueLockHandler
from cometmq.core.errors import StoreError
from cometmq.net.router import handlers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.tables import TableDirectory
    from cometmq.broker.topics.table import TopicTable
    from cometmq.net.limits import ServerLimits
    from cometmq.net.router import Handler
    from cometmq.store.messagestore import MessageStore


class ConsumerService:
    """The tables of consumer groups, and the handlers of heartbeats, offsets and queue locks."""

    def __init__(
        self,
        directory: TableDirectory,
        config: BrokerConfig,
        topics: TopicTable,
        store: MessageStore,
        limits: ServerLimits,
    ) -> None:
        self._directory = directory
        self.groups = GroupTable(directory, config, limits)
        self.offsets = ConsumerOffsets(directory, config, limits)
        self.locks = QueueLockHandler(directory)
        self.members = Members(
            topics=topics,
            groups=self.groups,
            clock=directory.clock,
            log_end=lambda: store.written_offset,
        )
        self._offset_handler = OffsetHandler(
            config=config,
            offsets=self.offsets,
            topics=topics,
            members=self.members,
            store=store,
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return handlers_of((self.members, self._offset_handler, self.locks))

    async def save_early(self) -> None:
        """Save the queue locks before the first request."""
        with suppress(StoreError):  # such as a full disk: logged, and the next change retries
            await self.locks.saved()

    def start(self) -> None:
        """Begin the background work."""
        keep, clock = self._directory.tasks.keep, self._directory.clock
        keep(self.members.expire_forever, name="expire clients", clock=clock)
        keep(self.offsets.persist_forever, name="persist consumer offsets", clock=clock)

    def facts(self) -> Mapping[str, str]:
        """Return entries for the broker's runtime information."""
        return self.members.facts()
