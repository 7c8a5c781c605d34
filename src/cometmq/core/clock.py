"""Time as an argument: the only module that reads a clock or sleeps.

Wall time stamps messages and decides when a delayed one is due. Monotonic time measures timeouts,
leases and expiry, so that a jump of the wall clock affects none of these. :class:`Slices` divides
long work on the event loop into pieces of bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final, Protocol

#: Longest time between two yields to the event loop.
SLICE_NS: Final = 1_000_000


class Clock(Protocol):
    """Both kinds of time, and a sleep that follows the monotonic one."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        ...

    def wall_ns(self) -> int:
        """Return the nanoseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Return the milliseconds since some fixed moment. The value never decreases."""
        ...

    def monotonic_ns(self) -> int:
        """Return the nanoseconds since the same fixed moment, for measurements."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep for ``duration_ms`` of monotonic time."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    #: Bound directly, to save a Python call: a server reads the time for each request.
    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)


class VirtualClock:
    """A clock that tests move by hand; sleepers wake when it passes their time."""

    __slots__ = ("_monotonic_ms", "_sleepers", "_wall_ms")

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def wall_ms(self) -> int:
        return self._wall_ms

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ms * 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic_ms + duration_ms, waiter))
        await waiter

    def advance(self, duration_ms: int) -> None:
        """Advance both clocks by ``duration_ms``, and wake the sleepers whose time has come."""
        self._wall_ms += duration_ms
        self._monotonic_ms += duration_ms
        due = [waiter for moment, waiter in self._sleepers if moment <= self._monotonic_ms]
        self._sleepers = [pair for pair in self._sleepers if pair[0] > self._monotonic_ms]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)

    def jump_wall(self, offset_ms: int) -> None:
        """Move the wall clock alone, forward or back, as an administrator or NTP would."""
        self._wall_ms += offset_ms


class Slices:
    """Divides long work: call :meth:`pause` between pieces to keep each turn of the loop short.

    After each slice of SLICE_NS, other work gets one turn of the loop, or at least ``rest_ms`` if
    that is set.
    """

    __slots__ = ("_clock", "_rest_ms", "_started_ns")

    def __init__(self, clock: Clock, rest_ms: int = 0) -> None:
        self._clock = clock
        self._rest_ms = rest_ms
        self._started_ns = clock.monotonic_ns()

    async def pause(self) -> None:
        """Yield to the event loop for ``rest_ms`` if this turn has lasted longer than SLICE_NS."""
        if self._clock.monotonic_ns() - self._started_ns > SLICE_NS:
            await self._clock.sleep_ms(self._rest_ms)
            self._started_ns = self._clock.monotonic_ns()


async def join_in_slices(pieces: Iterable[bytes], clock: Clock) -> bytes:
    """Join all pieces, and yield to the event loop between pieces when a turn gets long."""
    slices = Slices(clock)
    made: list[bytes] = []
    for piece in pieces:
        made.append(piece)
        await slices.pause()
    return b"".join(made)
