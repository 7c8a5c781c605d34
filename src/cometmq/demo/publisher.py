"""From the outbox to the topic: send, then mark; never the other way round.

Changes of one row leave one after another, so that they reach their queue in order; rows of a page
leave side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from cometmq.demo.base import BaseData, Outgoing
    from cometmq.demo.board import Board
    from cometmq.outbox.worker import Worker

PAGE_CHANGES: Final = 256


class Sender(Protocol):
    """What the publisher needs of a client."""

    async def send(
        self, topic: str, body: bytes, *, tag: str, keys: Sequence[str], order_key: str
    ) -> object:
        """Send one message and wait until the broker has stored it."""
        ...


class Publisher:
    """Sends what waits in the outbox of ``base``, whose calls run in ``worker``."""

    def __init__(
        self, base: BaseData, worker: Worker, sender: Sender, topic: str, board: Board
    ) -> None:
        self._base = base
        self._worker = worker
        self._sender = sender
        self._topic = topic
        self._board = board

    async def publish_page(self, *, mark: bool = True) -> int:
        """Send one page of the outbox; gives the number of messages, 0 when nothing waited.

        Without ``mark`` the page stays in the outbox, as after a crash between the two.
        """
        page = await self._worker.call(self._base.unsent, PAGE_CHANGES)
        if not page:
            return 0
        rows: dict[tuple[str, str], list[Outgoing]] = {}
        for message in page:
            rows.setdefault((message.table, message.key), []).append(message)
        async with asyncio.TaskGroup() as group:
            for messages in rows.values():
                group.create_task(self._send_row(messages))
        self._count(page)
        if mark:
            await self._worker.call(self._base.mark_sent, [message.change for message in page])
        return len(page)

    async def publish_all(self) -> None:
        """Send until nothing waits in the outbox."""
        while await self.publish_page():
            pass

    async def _send_row(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            await self._sender.send(
                self._topic,
                message.body,
                tag=message.op,
                keys=[message.key],
                order_key=message.key,
            )

    def _count(self, page: Sequence[Outgoing]) -> None:
        board = self._board
        new = sum(message.change > board.published_up_to for message in page)
        board.published_up_to = max(board.published_up_to, page[-1].change)
        board.published += new
        board.published_again += len(page) - new
