"""Hands out messages of all assigned queues, in turn.

At most ``concurrency`` messages are out at a time, and of one queue at most ``per_queue``.
``per_queue`` is 1 for ordered consumers: the next message of the queue waits even if the queue was
reset and read again in the meantime. ``may_give`` can hold a queue back, for example while its lock
is not held.
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
    """Hands out messages of queues, and counts those that are not settled."""

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
        #: Queues that may have ready messages, in turn; a queue leaves when it has none.
        self._turns: deque[InFlight] = deque()
        self._in_turn: set[InFlight] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._handed_out = 0
        #: Queues with a message handed out, if ``per_queue`` is 1.
        self._busy: set[InFlight] = set()
        self._closed = False

    @property
    def handed_out(self) -> int:
        """Number of messages that are handed out and not settled."""
        return self._handed_out

    def is_out(self, inflight: InFlight) -> bool:
        """Return whether a queue with ``per_queue`` 1 has its message out.

        The message counts until :meth:`release`, even if the queue has forgotten it.
        """
        return inflight in self._busy

    def offer(self, inflight: InFlight) -> None:
        """Line up a queue that may have ready messages."""
        if self._line_up(inflight):
            self._wake_next()

    def take_now(self) -> tuple[InFlight, StoredMessage] | None:
        """Hand out the next message; return it with its queue.

        Returns None if there is none yet, if ``concurrency`` messages are out, or once closed.
        """
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
            # A queue with more messages goes to the end of the line.
            if inflight.ready_count and not self.is_out(inflight):
                turns.rotate(-1)
            else:
                turns.popleft()
                self._in_turn.discard(inflight)
            self._wake_next()
            return inflight, message
        return None

    def take_run(self) -> InFlight | None:
        """Return the next queue if its messages may be processed as a run (:meth:`InFlight.run`).

        Returns None if they must be taken one by one. The queue gets no other turn until
        :meth:`end_run`.
        """
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
        """Line up a queue again after its run has ended, if it has more messages."""
        self._line_up(inflight)

    def break_run(self, inflight: InFlight) -> StoredMessage | None:
        """Hand out the message before which the run of a queue ended, and wake another waiter.

        Processing of that message continues after the run.
        """
        message = self._take_from(inflight)
        if message is not None:
            self._handed_out += 1
            self._line_up(inflight)
            self._wake_next()
        return message

    def wake_other(self) -> None:
        """Wake another waiter, because the caller takes no message for a while."""
        self._wake_next()

    async def take(self) -> tuple[InFlight, StoredMessage] | None:
        """Wait for the next message; return it with its queue, or None once closed."""
        while not self._closed:
            found = self.take_now()
            if found is not None:
                return found
            await self._wait()
        return None

    async def wait(self) -> bool:
        """Wait until :meth:`take_now` may return a message; return False once closed."""
        if not self._closed and not (self._turns and self._handed_out < self._concurrency):
            await self._wait()
        return not self._closed

    def release(self, inflight: InFlight) -> None:
        """Count a message of a queue as settled or given back."""
        self._handed_out -= 1
        self._busy.discard(inflight)
        self._line_up(inflight)
        self._wake_next()

    def close(self) -> None:
        """Stop handing out messages and wake all waiters."""
        self._closed = True
        self._turns.clear()
        self._in_turn.clear()
        while self._waiters:
            self._wake()

    def _line_up(self, inflight: InFlight) -> bool:
        """Line up a queue if it has ready messages; return False if it is not added."""
        if inflight in self._in_turn or not inflight.ready_count:
            return False
        self._turns.append(inflight)
        self._in_turn.add(inflight)
        return True

    def _take_from(self, inflight: InFlight) -> StoredMessage | None:
        """Take a message from a queue; return None if it may not hand out one now.

        The queue is lined up again when one of its messages is released or when its lock is held
        again.
        """
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
                "messages_not_acknowledged count=%d hint=%s",
                self._handed_out,
                "leave message.processing() or call message.ack() to receive more",
            )
        except asyncio.CancelledError:
            self._wake_next()  # this waiter may have been woken already: pass that on
            raise

    def _wake_next(self) -> None:
        """Wake one waiter if there may be a message for it."""
        if self._waiters and self._turns and self._handed_out < self._concurrency:
            self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
