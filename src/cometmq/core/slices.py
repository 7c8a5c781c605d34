"""Long work on the event loop, in pieces of bounded time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

#: Longest time between two yields to the event loop.
SLICE_NS: Final = 1_000_000


class Slices:
    """Divides long work: call :meth:`pause` between pieces to keep each turn of the loop short."""

    __slots__ = ("_clock", "_started_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ns = clock.monotonic_ns()

    async def pause(self) -> None:
        """Yield to the event loop if this turn has lasted long enough."""
        if self._clock.monotonic_ns() - self._started_ns > SLICE_NS:
            await self._clock.sleep_ms(0)
            self._started_ns = self._clock.monotonic_ns()


async def join_in_slices(pieces: Iterable[bytes], clock: Clock) -> bytes:
    """Join all pieces; each is built in one turn of the loop, and long work takes several turns."""
    slices = Slices(clock)
    made: list[bytes] = []
    for piece in pieces:
        made.append(piece)
        await slices.pause()
    return b"".join(made)
