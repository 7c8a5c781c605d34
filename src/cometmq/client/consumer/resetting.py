"""Resets the offsets of queues that are being read, on an administrator's request (upstream:
MQClientInstance.resetOffset).
"""

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
    """Resets queues of one reader.

    ``releasing`` is the set of queues that a rebalance must not add at the moment; queues being
    reset are added to it. ``until_idle`` waits until a queue may be read again, ``is_closed``
    returns whether the consumer is closed, and ``moved`` is called when a reset has ended.
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
        #: Target offset of each queue that is being reset.
        self._moving: dict[MessageQueue, int] = {}

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in those of the topic's queues that are read.

        Messages in progress may be finished, but do not change the offsets. A later reset of the
        same queue replaces an earlier one.
        """
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
                # Set this first: every later persist then stores the new offset.
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
