"""Handling of sends: check, append and acknowledge messages, and build the responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.send.answers import SendAnswers
from cometmq.broker.send.handler import SendHandler
from cometmq.broker.send.redirect import SendRedirect
from cometmq.broker.send.reply import ReplyHandler
from cometmq.broker.send.sendback import SendBackHandler
from cometmq.net.router import handlers_of

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.dedup import Deduplicator
    from cometmq.broker.hooks import SendHooks
    from cometmq.broker.scheduled import ScheduleService
    from cometmq.broker.transactions import TransactionService
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.framer import BulkHandler

__all__ = ["SendAnswers", "SendService"]


class SendService:
    """Service for sends, replies to request messages, and messages that consumers send back."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        scheduled: ScheduleService,
        transactions: TransactionService,
        deduplicator: Deduplicator | None,
        answers: SendAnswers,
        hooks: SendHooks,
    ) -> None:
        self.handler = SendHandler(
            context,
            answers=answers,
            redirect=SendRedirect(
                context,
                levels=scheduled.levels,
                timers=scheduled.rules,
                transactions=transactions.open,
            ),
            transactions=transactions.open,
            hooks=hooks,
            deduplicator=deduplicator,
        )
        self._reply = ReplyHandler(context)
        self._send_back = SendBackHandler(context, levels=scheduled.levels, hooks=hooks)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return handlers_of((self.handler, self._reply, self._send_back))

    def bulk_handlers(self) -> dict[int, BulkHandler[Peer]]:
        """Return the functions that serve undecoded frames, by request code."""
        return self.handler.bulk_handlers()
