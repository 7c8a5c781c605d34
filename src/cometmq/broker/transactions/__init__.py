"""Transactions: half messages, their commit or rollback, and checks with their producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.transactions.checkback import CheckBack
from cometmq.broker.transactions.endtransaction import Transactions
from cometmq.broker.transactions.resuming import ResumeHandler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.context import BrokerContext
    from cometmq.net.router import Handler


class TransactionService:
    """The open transactions (``open``), and the checks with their producers (``checkback``)."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self.open = Transactions(context)
        self.checkback = CheckBack(context, self.open)
        self._resuming = ResumeHandler(context, self.open)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {**self.open.handlers(), **self._resuming.handlers()}

    async def recover(self) -> None:
        """Find the open transactions in the store. Raise StoreCorrupt if that fails."""
        await self.checkback.recover()

    def start(self) -> None:
        """Begin to check open transactions."""
        self._context.tasks.keep(
            self.checkback.run_forever, name="check transactions", clock=self._context.clock
        )

    async def close(self) -> None:
        """Commit the offsets of both internal topics and write the state file.

        Call this after the last append, and before the table of consumer offsets is closed.
        """
        await self.checkback.close()

    def facts(self) -> Mapping[str, str]:
        """Return entries for the broker's runtime information."""
        return self.checkback.facts()
