"""Moves queues while they are read, because an administrator wants their group elsewhere (upstream:
MQClientInstance.resetOffset)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.offsets import OffsetStore
    from cometmq.client.consumer.reading import QueueReader
    from cometmq.message.model import MessageQueue

log = logging.getLogger(__name__)

_NOWHERE: Final = -1


class Resets:
    """Moves the queues of one reader.

    ``releasing`` names queues that nobody may take on at the moment; those that move are among
    them. ``until_idle`` waits until a queue may be given anew, ``is_closed`` tells that the
    consumer reads no more, and ``moved`` is called when a queue has its new place.
    """

    def __init__(
        self,
        reader: QueueReader,
        offsets: OffsetStore,
        releasing: set[MessageQueue],
        *,
        until_idle: Callable[[InFlight], Awaitable[None]],
        is_closed: Callable[[], bool],
        moved: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._offsets = offsets
        self._releasing = releasing
        self._until_idle = until_idle
        self._is_closed = is_closed
        self._moved = moved
        #: Where the queues on their way go to.
        self._moving: dict[MessageQueue, int] = {}

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in those of the topic's queues that are read. What is in work may
        be finished, to no effect; of two orders for a queue the later one holds."""
        moves = []
        for queue, offset in offsets.items():
            if queue.topic != topic:
                continue
            if queue in self._moving:
                self._moving[queue] = offset
                self._offsets.update(queue, offset)
            elif self._reader.find(queue) is not None:
                self._moving[queue] = offset
                self._releasing.add(queue)
                moves.append(self._move(self._reader.stop(queue)))
        await asyncio.gather(*moves)

    async def _move(self, inflight: InFlight) -> None:
        queue, offset = inflight.queue, _NOWHERE
        try:
            while offset != self._moving[queue]:
                offset = self._moving[queue]
                # First of all, for whatever stores offsets from here on stores this one.
                self._offsets.update(queue, offset)
                await self._offsets.persist([queue], unchanged_too=True)
                await self._until_idle(inflight)
            inflight.reset(_NOWHERE)
            if not self._is_closed():
                log.info("offset_reset queue=%s to=%d", queue, offset)
                self._reader.start_at(queue, offset)
        finally:
            del self._moving[queue]
            self._releasing.discard(queue)
            self._moved()
