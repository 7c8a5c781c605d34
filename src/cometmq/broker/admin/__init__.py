"""Requests by which operators inspect and change a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.admin.acl import AclAdmin
from cometmq.broker.admin.broker import BrokerAdmin, StoreAdmin
from cometmq.broker.admin.clients import ClientAdmin, RelayHandler
from cometmq.broker.admin.groups import GroupAdmin
from cometmq.broker.admin.offsets import LongAnswers, ProgressAdmin, ResetHandler
from cometmq.broker.admin.settings import SettingsAdmin
from cometmq.broker.admin.topics import QueueAdmin, TopicAdmin
from cometmq.broker.lookup import QueryHandler
from cometmq.net.router import handlers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.acl.control import AccessControl
    from cometmq.broker.admin.broker import Described
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.pull.filterdata import FilterTable
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.net.router import Handler


class AdminService:
    """Service for operators and their tools. ``access`` is None without access control.
    ``filters`` are the stored filters of consumer groups. ``described`` parts add entries to the
    runtime information; an item is None if this broker does not have the part."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        delay: DelayDelivery,
        access: AccessControl | None,
        filters: FilterTable,
        described: Sequence[Described | None],
    ) -> None:
        answers = LongAnswers(context.clock)
        # Separate from ``answers``: slaves ask for whole tables, and wait only 5 s for them.
        tables = LongAnswers(context.clock)
        self.settings = SettingsAdmin(context)
        self.broker = BrokerAdmin(context, delay, [part for part in described if part is not None])
        self._parts = (
            QueryHandler(config=context.config, store=context.store),
            StoreAdmin(context),
            self.broker,
            self.settings,
            TopicAdmin(context, tables),
            QueueAdmin(context, filters),
            GroupAdmin(context, delay, tables),
            ProgressAdmin(context, answers),
            ResetHandler(context, answers),
            AclAdmin(context, access),
            RelayHandler(context),
            ClientAdmin(context, answers),
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return handlers_of(self._parts)
