"""Answers that have a part for each queue: made one at a time, in slices, at most a frame long.

A topic may have 65 536 queues, and a connection may ask about it many times at once. What is made
of such an answer is held until it is whole, so only one of them is made at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import BadRequest
from cometmq.core.slices import Slices
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.framer import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

#: The parts of an answer; a frame has a header and what stands round the parts, too.
ANSWER_MAX_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)


class LongAnswers:
    """Makes long answers, one at a time."""

    def __init__(self, clock: Clock, max_bytes: int = ANSWER_MAX_BYTES) -> None:
        self.clock = clock
        self._max_bytes = max_bytes
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[LongAnswer]:
        """Wait until no other long answer is made, then give an empty one."""
        async with self._lock:
            yield LongAnswer(self.clock, self._max_bytes)


class LongAnswer:
    """The parts of an answer that is being made."""

    __slots__ = ("_bytes_left", "_max_bytes", "_parts", "_slices")

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        self._slices = Slices(clock)
        self._parts: list[bytes] = []
        self._max_bytes = self._bytes_left = max_bytes

    async def add(self, part: bytes) -> None:
        """Take one more part, and give the loop back when this turn has lasted long enough.

        Raises BadRequest when the parts are longer than a frame.
        """
        self._bytes_left -= len(part) + 1
        if self._bytes_left < 0:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"the answer would be longer than {self._max_bytes} bytes, which no client reads: "
                "ask for one group or one topic",
            )
        self._parts.append(part)
        await self._slices.pause()

    async def pause(self) -> None:
        """Give the loop back when this turn has lasted long enough."""
        await self._slices.pause()

    def take(self) -> bytes:
        """Return the parts since the last call, with commas between them."""
        taken = b",".join(self._parts)
        self._parts.clear()
        return taken
