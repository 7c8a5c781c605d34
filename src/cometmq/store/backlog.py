"""Committed records that consumers do not see yet: of a turn that waits for the device or to be
written, or of one with more records than a turn of the loop dispatches.

Dispatch goes in the order of the log, so whatever is committed while something waits here waits
behind it. Senders need not: an answer promises what the flush policy says, not that every queue
has its entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.store.runs import end_of, parts_of, take_back, without_queues

if TYPE_CHECKING:
    from collections.abc import Set

    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.dispatch import Dispatcher
    from cometmq.store.runs import Segment

#: Rows that are dispatched before the loop gets a turn of its own, about 1 ms.
ROWS_PER_TURN = 1_024
#: From here on they are dispatched in another turn than the one that wrote them.
MANY_ROWS = 16_384


class Backlog:
    """Segments in front of the dispatcher. ``call_soon`` runs a function in a later turn of the
    loop; without one everything is dispatched at once."""

    __slots__ = ("_again", "_dispatcher", "_limit", "_waiting", "call_soon", "messages")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._waiting: deque[tuple[int, Segment]] = deque()
        self._limit = 0
        self._again = False
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        self.messages = 0

    def take(self, segments: list[Segment], end: int, now_ms: int, *, ready: bool) -> None:
        """Take what a turn committed up to the physical offset ``end``; when it is ``ready``,
        consumers may see it at once."""
        if ready and len(segments) == 1 and not self._waiting:
            first = segments[0]
            if len(first) <= ROWS_PER_TURN:
                self._dispatcher.dispatch(first, end, now_ms)
                return
        for segment in segments:
            for part in parts_of(segment, ROWS_PER_TURN):
                self._waiting.append((end_of(part) if part else end, part))
                self.messages += len(part)
        # Behind the last record there may be the blank that closed its file.
        _, last = self._waiting.pop()
        self._waiting.append((end, last))
        if not ready:
            return
        if self.messages < MANY_ROWS or self.call_soon is None:
            self.release(end, now_ms)
        else:
            self._limit = end
            if not self._again:
                self._put_off(now_ms)

    def release(self, limit: int, now_ms: int) -> None:
        """Dispatch what ends at or before ``limit``, as much of it as a turn may."""
        self._limit = max(limit, self._limit)
        if not self._again:
            self._dispatch(ROWS_PER_TURN if self.call_soon is not None else 1 << 62, now_ms)

    def take_back(self, end: int) -> int:
        """What lies behind the physical offset ``end`` is not stored: its queue offsets are given
        again. Gives the messages."""
        lost, waiting = 0, self._waiting
        while waiting and waiting[-1][0] > end:
            _, segment = waiting.pop()
            lost += len(segment)
            take_back(segment)
        self.messages -= lost
        return lost

    def close(self, now_ms: int) -> None:
        """From now on there are no later turns: dispatch all that is released at once."""
        self.call_soon = None
        self._again = False
        self.release(self._limit, now_ms)

    def _dispatch(self, budget: int, now_ms: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._limit:
            if budget <= 0:
                self._put_off(now_ms)
                return
            end, segment = waiting.popleft()
            self.messages -= len(segment)
            budget -= len(segment)
            self._dispatcher.dispatch(segment, end, now_ms)

    def _put_off(self, now_ms: int) -> None:
        assert self.call_soon is not None
        self._again = True
        self.call_soon(lambda: self._go_on(now_ms))

    def _go_on(self, now_ms: int) -> None:
        self._again = False
        self.release(self._limit, now_ms)

    def forget(self, gone: Set[ConsumeQueue]) -> None:
        """Drop what belongs to queues that go away."""
        kept = [(end, without_queues(segment, gone)) for end, segment in self._waiting]
        self._waiting = deque(kept)
        self.messages = sum(len(segment) for _, segment in kept)
