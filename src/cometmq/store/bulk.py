"""A batch of thousands of messages on its way into the log, a slice a turn of the loop.

It lies in the log as a whole, so other records cannot come in between. What takes longest, taking
the body apart, is done before it holds the log. Then its room is reserved, and while its records
are written other messages are appended behind it; their commit waits for the batch. For the
largest body, 170 000 messages, that is 0.1 s.

A task that is cancelled in the middle writes the rest at once: what others appended lies behind it.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING

from cometmq.core.slices import Slices
from cometmq.store.batching import Batch, Shared, prepare
from cometmq.store.runs import Run, run_of

if TYPE_CHECKING:
    from cometmq.store.engine import MessageStore

#: From here on a batch is worth the detour: taken at once, it holds the loop for 2 ms.
BULK_MESSAGES = 1_024
_PIECE_MESSAGES = 512


class Bulk:
    """One such batch. The topic's queue is looked up late: it may be deleted meanwhile."""

    __slots__ = ("_batches", "_place", "_shared", "_store")

    def __init__(self, store: MessageStore, topic: str, queue_id: int, shared: Shared) -> None:
        self._store = store
        self._place = topic, queue_id
        self._shared = shared
        self._batches: deque[Batch] = deque()

    async def prepare(self, body: bytes) -> None:
        """Take the body apart. Raises MessageIllegal for what cannot be stored."""
        queue = self._store.queue(*self._place)
        slices = Slices(self._store.clock)
        position = 0
        while position < len(body) or not self._batches:
            batch, position = prepare(body, queue, self._shared, position, _PIECE_MESSAGES)
            self._batches.append(batch)
            await slices.pause()

    async def put(self) -> list[Run]:
        """Write it, on a turn in which nothing else was appended yet; the commit is the caller's.

        Raises what ``MessageStore.append`` raises, with nothing taken.
        """
        store, batches, shared = self._store, self._batches, self._shared
        queue = store.queue(*self._place)
        count = sum(len(batch.sizes) for batch in batches)
        size_bytes = sum(sum(batch.sizes) for batch in batches)
        phys, offset, now_ms = store.hold(queue, count, size_bytes)
        runs: list[Run] = []
        slices = Slices(store.clock)

        def write_piece() -> None:
            nonlocal phys, offset
            batch = batches.popleft()
            places = list(accumulate(batch.sizes[:-1], initial=phys))
            store.log.fill(batch.pack(queue, shared, offset, places, now_ms))
            runs.append(run_of(queue, offset, places, batch, now_ms))
            phys, offset = places[-1] + batch.sizes[-1], offset + len(places)

        try:
            while batches:
                write_piece()
                await slices.pause()
        finally:
            while batches:
                write_piece()
            store.turn.fill_in(runs)
        return runs
