"""Hands messages of all assigned queues to whoever asks, queues taking turns.

At most ``concurrency`` messages are handed out at a time, and of one queue at most ``per_queue``
(one, when order matters). ``may_give`` can hold a queue back (its lock is not held).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.core.clock import Clock
    from cometmq.message.model import StoredMessage

log = logging.getLogger(__name__)

_HINT_AFTER_S: Final = 30


class Dispatch:
    """Messages out, settlements in."""

    def __init__(
        self,
        clock: Clock,
        *,
        concurrency: int,
        per_queue: int,
        may_give: Callable[[InFlight], bool] = lambda _: True,
    ) -> None:
        self._clock = clock
        self._concurrency = concurrency
        self._per_queue = per_queue
        self._may_give = may_give
        self._turns: deque[InFlight] = deque()
        self._in_turn: set[InFlight] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._handed_out = 0
        self._closed = False

    @property
    def handed_out(self) -> int:
        """Messages that are handed out and not settled."""
        return self._handed_out

    def offer(self, inflight: InFlight) -> None:
        """A queue may have something to give."""
        if inflight.ready_count and inflight not in self._in_turn:
            self._turns.append(inflight)
            self._in_turn.add(inflight)
        self._wake()

    async def take(self) -> tuple[InFlight, StoredMessage] | None:
        """The next message and its queue; None when closed."""
        while not self._closed:
            if not self._is_full():
                found = self._next()
                if found is not None:
                    self._handed_out += 1
                    if self._turns:
                        self._wake()
                    return found
            await self._wait()
        return None

    def release(self, inflight: InFlight) -> None:
        """A message of a queue, taken before, is settled or given back."""
        self._handed_out -= 1
        self.offer(inflight)

    def close(self) -> None:
        """Nothing is handed out any more; everybody who waits is told."""
        self._closed = True
        self._turns.clear()
        self._in_turn.clear()
        while self._waiters:
            self._wake()

    def _next(self) -> tuple[InFlight, StoredMessage] | None:
        for _ in range(len(self._turns)):
            inflight = self._turns.popleft()
            self._in_turn.discard(inflight)
            if inflight.dropped or not inflight.ready_count:
                continue
            if inflight.taken_count >= self._per_queue or not self._may_give(inflight):
                continue  # offered again when a message of it is released or its lock is back
            message = inflight.take(self._clock.monotonic_ms())
            if message is None:
                continue
            if inflight.ready_count:
                self._turns.append(inflight)
                self._in_turn.add(inflight)
            return inflight, message
        return None

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            # With free places this waits for messages, which may take any time.
            async with asyncio.timeout(_HINT_AFTER_S if self._is_full() else None):
                await waiter
        except TimeoutError:
            log.warning(
                "messages_not_settled count=%d hint=%s",
                self._handed_out,
                "leave message.processing() or call message.ack() to get further ones",
            )
        except asyncio.CancelledError:
            self._wake()  # whoever woke this waiter meant to wake somebody
            raise

    def _is_full(self) -> bool:
        return self._handed_out >= self._concurrency

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
