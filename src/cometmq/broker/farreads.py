"""Turns of pulls far behind the end: while others send, those who replay take a share.

A consumer that replays asks again as soon as it is answered, and what it asks for is copied out of
the system's memory and compared with its seal: all of the loop's time, if it may, and every send
waits behind it. So while the log grows, a pull that took a while is followed by a rest five times
as long before the next one is read; others wait for that, in order. When nobody sends there is no
rest (docs/decisions/0020-cold-reads.md has the numbers).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.longpoll import HeldPull
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks

#: Of the loop's time, one part in so many goes to pulls far behind the end.
PARTS: Final = 6
#: The log grows as long as it did so within this.
_GROWS_NS: Final = 20_000_000
#: What was not used of the share counts for so long.
_SAVED_NS: Final = 1_000_000
_TICK_MS: Final = 1
MAX_WAITING: Final = 10_000


class Share:
    """The decision, without a clock: a rest lasts until ``free_ns``, as long as the log grows."""

    __slots__ = ("_grew_ns", "_written", "free_ns")

    def __init__(self) -> None:
        self.free_ns = 0
        self._grew_ns = -(1 << 62)
        self._written = -1

    def rests(self, now_ns: int, written: int) -> bool:
        """Whether the next pull has to wait; ``written`` is the end of the log."""
        if written != self._written:
            self._written = written
            self._grew_ns = now_ns
        return now_ns < self.free_ns and now_ns - self._grew_ns < _GROWS_NS

    def spent(self, now_ns: int, took_ns: int) -> None:
        """A pull took so long."""
        self.free_ns = max(self.free_ns, now_ns - _SAVED_NS) + PARTS * took_ns


class FarReads:
    """Pulls that wait for their turn. ``read`` serves one, and counts it with :meth:`spent`;
    ``written`` gives the log's end."""

    def __init__(
        self,
        *,
        clock: Clock,
        tasks: Tasks,
        written: Callable[[], int],
        read: Callable[[HeldPull, bool], None],
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._written = written
        self._read = read
        self._share = Share()
        self._waiting: deque[tuple[HeldPull, bool]] = deque()
        self._serving = False

    @property
    def waiting(self) -> int:
        """How many pulls wait."""
        return len(self._waiting)

    def must_wait(self, now_ns: int) -> bool:
        """Whether a pull far behind the end is to wait; quickly no for a broker that has none."""
        if self._serving or now_ns >= self._share.free_ns:
            return False
        return len(self._waiting) < MAX_WAITING and self._share.rests(now_ns, self._written())

    def wait(self, pull: HeldPull, final: bool) -> None:
        """Read for a pull when it is its turn."""
        self._waiting.append((pull, final))
        if len(self._waiting) == 1:
            self._tasks.spawn(self._serve(), name="far pulls")

    def spent(self, begun_ns: int) -> None:
        """A pull was read far behind the end and answered, which began at that moment."""
        now_ns = self._clock.monotonic_ns()
        share = self._share
        if not share.free_ns:
            # The first one: from now on it shows whether the log grows.
            share.rests(now_ns, self._written())
        share.spent(now_ns, now_ns - begun_ns)

    async def _serve(self) -> None:
        clock, waiting = self._clock, self._waiting
        while waiting:
            await clock.sleep_ms(_TICK_MS)
            while waiting and not self._share.rests(clock.monotonic_ns(), self._written()):
                pull, final = waiting[0]
                self._serving = True
                try:
                    if not pull.peer.closed:
                        self._read(pull, final)
                finally:
                    self._serving = False
                    waiting.popleft()
