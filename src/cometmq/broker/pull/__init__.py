"""Pulls: checks, filters, reads and long polling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.pull.filterdata import FilterTable
from cometmq.broker.pull.filtering import Filters
from cometmq.broker.pull.handler import PullHandler
from cometmq.broker.pull.newtexts import NewTexts
from cometmq.net.router import handlers_of

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.hooks import ConsumeHooks
    from cometmq.broker.pull.handler import ReplicationRole
    from cometmq.net.eventloop import Watchdog
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.framer import BulkHandler


class PullService:
    """Service for pulls and for the filters of consumer groups."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        hooks: ConsumeHooks,
        role: ReplicationRole,
        watchdog: Watchdog,
    ) -> None:
        self._context = context
        texts = NewTexts(context.clock.monotonic_ms())
        self.stored_filters = FilterTable(
            context.directory, context.config, context.store.bit_maps, texts
        )
        members = context.tables.members
        members.on_subscribed.append(self.stored_filters.subscribed)
        members.on_group_gone.append(self.stored_filters.group_gone)
        self.filters = Filters(context, self.stored_filters, texts)
        self.handler = PullHandler(
            context, filters=self.filters, hooks=hooks, role=role, watchdog=watchdog
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return handlers_of((self.handler, self.filters))

    def bulk_handlers(self) -> dict[int, BulkHandler[Peer]]:
        """Return the functions that serve undecoded frames, by request code."""
        return self.handler.bulk_handlers()

    def settings_changed(self) -> None:
        """Take changed settings into use."""
        self.handler.settings_changed()

    def start(self) -> None:
        """Begin the background work."""
        keep, clock = self._context.tasks.keep, self._context.clock
        keep(self.handler.longpoll.expire_forever, name="expire held pulls", clock=clock)
        keep(self.stored_filters.clean_forever, name="clean consumer filters", clock=clock)
