"""Answers with one part for each queue: built one at a time, in slices, at most one frame long.

A topic may have 65 536 queues, and a connection may ask for them many times at once. An answer
stays in memory until it is complete, so the broker builds only one of them at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import Slices
from cometmq.core.errors import BadRequest
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.framer import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

#: Limit of all parts together; the rest of the frame is for its header and the enclosing JSON.
ANSWER_MAX_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)


class LongAnswers:
    """Builds long answers, one at a time."""

    def __init__(self, clock: Clock, max_bytes: int = ANSWER_MAX_BYTES) -> None:
        self.clock = clock
        self._max_bytes = max_bytes
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[LongAnswer]:
        """Wait until no other long answer is being built, then yield an empty one."""
        async with self._lock:
            yield LongAnswer(self.clock, self._max_bytes)


class LongAnswer:
    """Parts of the answer under construction."""

    __slots__ = ("_bytes_left", "_max_bytes", "_parts", "_slices")

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        self._slices = Slices(clock)
        self._parts: list[bytes] = []
        self._max_bytes = self._bytes_left = max_bytes

    async def add(self, part: bytes) -> None:
        """Append one part, and yield to the event loop if this turn has lasted long enough.

        Raise BadRequest if the parts together are longer than a frame allows.
        """
        self._bytes_left -= len(part) + 1
        if self._bytes_left < 0:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"the answer would be longer than {self._max_bytes} bytes, more than a client "
                "accepts: ask for one group or one topic",
            )
        self._parts.append(part)
        await self._slices.pause()

    async def pause(self) -> None:
        """Yield to the event loop if this turn has lasted long enough."""
        await self._slices.pause()

    def take(self) -> bytes:
        """Return the parts added since the last call, joined by commas."""
        taken = b",".join(self._parts)
        self._parts.clear()
        return taken
