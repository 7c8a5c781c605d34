"""The base-data platform at work: commits edits on one side, publishes its outbox on the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.demo.base import BaseData
from cometmq.demo.publisher import Publisher, Sender
from cometmq.outbox.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.core.clock import Clock
    from cometmq.demo.board import Board
    from cometmq.demo.script import Edit


class Source:
    """The platform with its database at ``path``; an async context manager."""

    def __init__(self, path: Path, sender: Sender, topic: str, board: Board, clock: Clock) -> None:
        self.path = path
        self._sender = sender
        self._topic = topic
        self._board = board
        self._clock = clock
        self._worker = Worker("base")
        self._base: BaseData | None = None
        self._news = asyncio.Event()
        self._crash = False
        self._finished = False

    async def __aenter__(self) -> Source:
        self._base = await self._worker.call(BaseData, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._base is not None
        await self._worker.call(self._base.close)
        self._worker.close()

    async def commit(self, edits: Iterable[Edit]) -> int:
        """Make the edits in one transaction; gives the number of changes."""
        assert self._base is not None
        done = await self._worker.call(self._base.apply, edits, self._clock.wall_ms())
        self._board.committed += done
        self._news.set()
        return done

    def crash_publisher(self) -> None:
        """Let the publisher die after its next page is sent and before that is noted."""
        self._crash = True

    def finish(self) -> None:
        """No more edits come: :meth:`publish` ends when the outbox is empty."""
        self._finished = True
        self._news.set()

    async def publish(self) -> None:
        """Publish what is committed, until :meth:`finish`. Raises ClientError when a message is
        not taken; it and all after it stay in the outbox."""
        while True:
            self._news.clear()
            publisher = self._publisher()
            crash = self._crash
            sent = await publisher.publish_page(mark=not crash)
            if sent and crash:
                self._crash = False
                self._board.say(
                    f"the publisher dies after sending {sent} changes and before noting it; "
                    "started again, it sends them a second time"
                )
            if not sent:
                if self._finished:
                    return
                await self._news.wait()

    async def last_changes(self) -> dict[tuple[str, str], int]:
        """The number of the last change of every row, by table and key."""
        assert self._base is not None
        return await self._worker.call(self._base.last_changes)

    def _publisher(self) -> Publisher:
        # A publisher remembers nothing, so a new one for each page is the one after a crash too.
        assert self._base is not None
        return Publisher(self._base, self._worker, self._sender, self._topic, self._board)
