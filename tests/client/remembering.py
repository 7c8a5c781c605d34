"""A consumer for tests that look at what a running consumer does."""

from __future__ import annotations

import asyncio

from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from tests.client.scripted import eventually


class Consumer:
    """A member of a group of its own that remembers what it got, and may be told to fail."""

    def __init__(self, client: Client, topic: str, *, ordered: bool = False) -> None:
        self.group = f"g-{topic}"
        self.client_id = client.client_id
        self.seen: list[bytes] = []
        self.fails = False
        self._subscription = client.subscribe(
            topic, group=self.group, start="first", ordered=ordered
        )
        self._running: asyncio.Task[None]

    async def _handle(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)
        if self.fails:
            raise ValueError("as asked")

    async def __aenter__(self) -> Consumer:
        self._running = asyncio.create_task(self._subscription.run(self._handle))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._subscription.close()
        await self._running

    async def got(self, count: int, *, deadline_s: float) -> list[bytes]:
        """All that it has seen, once that is at least ``count``."""
        await eventually(
            lambda: len(self.seen) >= count, f"{count} messages", deadline_s=deadline_s
        )
        return self.seen
