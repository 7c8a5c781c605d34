"""Hands messages of all assigned queues to whoever asks, queues taking turns.

At most ``concurrency`` messages are handed out at a time, and of one queue at most ``per_queue``
(one, when order matters: the next one waits for it even where the queue is read anew meanwhile).
``may_give`` can hold a queue back (its lock is not held).
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
        may_give: Callable[[InFlight], bool] | None = None,
    ) -> None:
        self._clock = clock
        self._concurrency = concurrency
        self._per_queue = per_queue
        self._may_give = may_give
        #: Queues that may have something to give; each leaves when its turn finds nothing.
        self._turns: deque[InFlight] = deque()
        self._in_turn: set[InFlight] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._handed_out = 0
        #: Queues whose only message is handed out, when one at a time is.
        self._busy: set[InFlight] = set()
        self._closed = False

    @property
    def handed_out(self) -> int:
        """Messages that are handed out and not settled."""
        return self._handed_out

    def is_out(self, inflight: InFlight) -> bool:
        """Whether the one message that a queue may have out is, though it may be forgotten."""
        return inflight in self._busy

    def offer(self, inflight: InFlight) -> None:
        """A queue may have something to give."""
        if self._line_up(inflight):
            self._wake_next()

    def take_now(self) -> tuple[InFlight, StoredMessage] | None:
        """The next message and its queue; None when there is none yet, too many are out, or it is
        closed."""
        if self._closed or self._handed_out >= self._concurrency:
            return None
        turns = self._turns
        while turns:
            inflight = turns[0]
            message = self._take_from(inflight)
            if message is None:
                turns.popleft()
                self._in_turn.discard(inflight)
                continue
            self._handed_out += 1
            if inflight.ready_count and not self.is_out(inflight):
                turns.rotate(-1)
            else:
                turns.popleft()
                self._in_turn.discard(inflight)
            self._wake_next()
            return inflight, message
        return None

    def take_run(self) -> InFlight | None:
        """The queue whose turn it is, if a run of its messages may be worked through here and now
        (:meth:`InFlight.run`). It gets no other turn until :meth:`end_run`."""
        turns = self._turns
        if not turns or self._may_give is not None or self._handed_out >= self._concurrency:
            return None
        inflight = turns[0]
        if inflight.dropped or inflight in self._busy or not inflight.can_run:
            return None
        turns.popleft()
        self._in_turn.discard(inflight)
        return inflight

    def end_run(self, inflight: InFlight) -> None:
        """A run has ended; its queue is at the end of the line, if it has more."""
        self._line_up(inflight)

    def break_run(self, inflight: InFlight) -> StoredMessage | None:
        """Hand out the next message of a queue whose run ends in front of it, for work on it goes
        on; others may take what there is besides."""
        message = self._take_from(inflight)
        if message is not None:
            self._handed_out += 1
            self._line_up(inflight)
            self._wake_next()
        return message

    def wake_other(self) -> None:
        """The caller takes nothing for a while, though there may be something."""
        self._wake_next()

    async def take(self) -> tuple[InFlight, StoredMessage] | None:
        """The next message and its queue; None when closed."""
        while not self._closed:
            found = self.take_now()
            if found is not None:
                return found
            await self._wait()
        return None

    async def wait(self) -> bool:
        """Wait until :meth:`take_now` may give something; False when closed."""
        if not self._closed and not (self._turns and self._handed_out < self._concurrency):
            await self._wait()
        return not self._closed

    def release(self, inflight: InFlight) -> None:
        """A message of a queue, taken before, is settled or given back."""
        self._handed_out -= 1
        self._busy.discard(inflight)
        self._line_up(inflight)
        self._wake_next()

    def close(self) -> None:
        """Nothing is handed out any more; everybody who waits is told."""
        self._closed = True
        self._turns.clear()
        self._in_turn.clear()
        while self._waiters:
            self._wake()

    def _line_up(self, inflight: InFlight) -> bool:
        """Give a queue its turn, if it has something; False when it has one already."""
        if inflight in self._in_turn or not inflight.ready_count:
            return False
        self._turns.append(inflight)
        self._in_turn.add(inflight)
        return True

    def _take_from(self, inflight: InFlight) -> StoredMessage | None:
        """A message of a queue; with None it is offered again when one of its messages is
        released, or when its lock is back."""
        if inflight.dropped or inflight.taken_count >= self._per_queue or self.is_out(inflight):
            return None
        if self._may_give is not None and not self._may_give(inflight):
            return None
        message = inflight.take(self._clock.monotonic_ms())
        if message is not None and self._per_queue == 1:
            self._busy.add(inflight)
        return message

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            if self._handed_out < self._concurrency:
                await waiter  # for messages, which may take any time
                return
            async with asyncio.timeout(_HINT_AFTER_S):
                await waiter
        except TimeoutError:
            log.warning(
                "messages_not_settled count=%d hint=%s",
                self._handed_out,
                "leave message.processing() or call message.ack() to get further ones",
            )
        except asyncio.CancelledError:
            self._wake_next()  # whoever woke this waiter meant to wake somebody
            raise

    def _wake_next(self) -> None:
        """Wake one who waits, if there may be something for it."""
        if self._waiters and self._turns and self._handed_out < self._concurrency:
            self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
