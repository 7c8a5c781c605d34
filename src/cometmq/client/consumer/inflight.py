"""Messages of the assigned queues between pull and acknowledgement.

InFlight holds the messages of one queue. They arrive in offset order, are handed out to the
application, and are settled in any order. The first offset that is not settled may be committed:
after a crash, messages from there on are delivered again (upstream: ProcessQueue.java).

The messages of a pull stay one batch until they are handed out one by one. While no message of the
queue is handed out, a part of a batch may be processed as a whole, a run (:meth:`InFlight.run`,
:meth:`InFlight.finish_run`). Only messages that the handler accesses are decoded.

Dispatch hands out the messages of all queues in turn. At most ``concurrency`` messages are handed
out at a time, and at most ``per_queue`` of one queue. ``per_queue`` is 1 for ordered consumers: the
next message of the queue waits, even if the queue was reset and read again meanwhile. ``may_give``
returns whether a queue may hand out messages now; it may not, for example, without its lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import structs

from cometmq.message.model import MessageList

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.message.model import MessageQueue, StoredMessage
    from cometmq.speedups import Records

log = logging.getLogger(__name__)

_HINT_AFTER_S: Final = 30
#: Messages of one pull.
Batch: TypeAlias = "Records[StoredMessage] | MessageList"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the messages in flight of one queue; its pulls pause when one is reached.

    ``span`` limits the difference of the offsets.
    """

    messages: int
    size_bytes: int
    span: int


class InFlight:
    """Messages in flight of ``queue``. Times are monotonic milliseconds."""

    __slots__ = (
        "_batched",
        "_batches",
        "_begin",
        "_held",
        "_order",
        "_ready",
        "_taken",
        "dropped",
        "end",
        "next_offset",
        "pulled_ms",
        "queue",
        "size_bytes",
        "taken_ms",
    )

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        #: Offset at which the next pull begins.
        self.next_offset = next_offset
        #: True once the queue is released or reset: its messages are no longer handed out.
        self.dropped = False
        self.size_bytes = 0
        #: End of the queue according to the last response to a pull; -1 before the first.
        self.end = -1
        #: Time of the last response to a pull, and of the last message handed out; 0 for never.
        self.pulled_ms = 0
        self.taken_ms = 0
        #: Number of messages still in batches, which are later than those of ``_order``; the
        #: batches, none of them empty; and the number of messages taken from the first batch.
        self._batched = 0
        self._batches: deque[Batch] = deque()
        self._begin = 0
        #: Messages taken from batches: sizes of unsettled ones by offset; offsets from the oldest
        #: unsettled one on; those that are ready; those handed out, with the time.
        self._held: dict[int, int] = {}
        self._order: deque[int] = deque()
        self._ready: deque[StoredMessage] = deque()
        self._taken: dict[int, tuple[StoredMessage, int]] = {}

    def __repr__(self) -> str:
        return (
            f"<InFlight {self.queue.topic}-{self.queue.queue_id} ready {self.ready_count} "
            f"taken {len(self._taken)} committable {self.committable}>"
        )

    @property
    def count(self) -> int:
        """Number of messages that are not settled."""
        return len(self._held) + self._batched

    @property
    def ready_count(self) -> int:
        """Number of messages that wait to be handed out."""
        return len(self._ready) + self._batched

    @property
    def taken_count(self) -> int:
        """Number of messages that are handed out and not settled."""
        return len(self._taken)

    @property
    def span(self) -> int:
        """Difference of the offsets of the oldest and the newest message that are not settled."""
        if self._batches:
            last = self._batches[-1]
            return last.offset_at(len(last) - 1) - self.committable
        return self._order[-1] - self._order[0] if self._order else 0

    @property
    def committable(self) -> int:
        """Offset before which all messages are settled."""
        if self._order:
            return self._order[0]
        return self._batches[0].offset_at(self._begin) if self._batches else self.next_offset

    def add(self, batch: Batch, next_offset: int) -> None:
        """Add the messages of a pull, in offset order; the next pull begins at ``next_offset``.

        Messages before the offset of this pull were added already and are skipped. If the broker's
        ``next_offset`` is before the end of these messages, the next pull begins after them, so
        that none is added twice.
        """
        begin = self.next_offset
        if batch and batch.offset_at(0) < begin:
            batch = MessageList(each for each in batch if each.queue_offset >= begin)
        if batch:
            count = len(batch)
            self._batches.append(batch)
            self._batched += count
            self.size_bytes += batch.bytes_of(0, count)
            begin = batch.offset_at(count - 1) + 1
        self.next_offset = max(next_offset, begin)

    def reset(self, next_offset: int) -> None:
        """Drop all messages; pulls continue at ``next_offset``.

        Settling a message that was handed out before has no effect.
        """
        self._batches.clear()
        self._batched = self._begin = 0
        self._held.clear()
        self._order.clear()
        self._ready.clear()
        self._taken.clear()
        self.size_bytes = 0
        self.next_offset = next_offset

    def move(self, next_offset: int) -> None:
        """Continue pulls at ``next_offset``, because the queue now ends or begins there.

        Drop messages from that offset on, as :meth:`reset` does; earlier ones stay.
        """
        while self._batches:
            self._ready.append(self._open())
        while self._ready and self._ready[-1].queue_offset >= next_offset:
            self._ready.pop()
        while self._order and self._order[-1] >= next_offset:
            offset = self._order.pop()
            self._taken.pop(offset, None)
            self.size_bytes -= self._held.pop(offset, 0)
        self.next_offset = next_offset

    def take(self, now_ms: int) -> StoredMessage | None:
        """Hand out the oldest message that is ready; return None if there is none."""
        if self._ready:
            message = self._ready.popleft()
        elif self._batches:
            message = self._open()
        else:
            return None
        self.taken_ms = now_ms
        self._taken[message.queue_offset] = (message, now_ms)
        return message

    @property
    def can_run(self) -> bool:
        """True if there are ready messages and no earlier message of the queue is unsettled."""
        return not self._order and self._batched > 0

    def run(self) -> tuple[Batch, int]:
        """Return the oldest batch and the index in it from which its messages are ready.

        Requires :attr:`can_run`. The messages stay ready until :meth:`finish_run`.
        """
        return self._batches[0], self._begin

    def finish_run(self, count: int, now_ms: int) -> None:
        """Settle the first ``count`` messages of :meth:`run`."""
        if not count:
            return
        batch, begin = self._batches[0], self._begin
        end = begin + count
        self.size_bytes -= batch.bytes_of(begin, end)
        self.taken_ms = now_ms
        self._pass(batch, end, count)

    def _open(self) -> StoredMessage:
        """Remove the first message from its batch and return it, to be handed out singly."""
        batch, at = self._batches[0], self._begin
        message = batch[at]
        self._order.append(message.queue_offset)
        self._held[message.queue_offset] = message.size_bytes
        self._pass(batch, at + 1, 1)
        return message

    def _pass(self, batch: Batch, end: int, count: int) -> None:
        self._batched -= count
        if end == len(batch):
            self._batches.popleft()
            end = 0
        self._begin = end

    def taken_at(self, message: StoredMessage) -> int | None:
        """Return the time when a message was handed out; None if it is not handed out."""
        taken = self._taken.get(message.queue_offset)
        return None if taken is None else taken[1]

    def settle(self, message: StoredMessage) -> bool:
        """Settle a message that is handed out.

        Returns False if it was settled or dropped before, even if its offset was read again.
        """
        if not self._is_out(message):
            return False
        offset = message.queue_offset
        del self._taken[offset]
        self.size_bytes -= self._held.pop(offset)
        order, held = self._order, self._held
        # The committable offset moves past the settled messages at the front.
        while order and order[0] not in held:
            order.popleft()
        return True

    def give_back(self, message: StoredMessage, *, failed: bool) -> bool:
        """Make a message that is handed out ready again, in the order of offsets.

        If it ``failed``, its number of attempts is incremented. Returns False if it was settled or
        dropped.
        """
        if not self._is_out(message):
            return False
        del self._taken[message.queue_offset]
        if failed:
            message = structs.replace(message, reconsume_times=message.reconsume_times + 1)
        at = 0
        while at < len(self._ready) and self._ready[at].queue_offset < message.queue_offset:
            at += 1
        self._ready.insert(at, message)
        return True

    def _is_out(self, message: StoredMessage) -> bool:
        taken = self._taken.get(message.queue_offset)
        return taken is not None and taken[0] is message

    def is_full(self, limits: Limits) -> bool:
        """Return whether a limit is reached, so that pulls must pause."""
        return (
            self.count >= limits.messages
            or self.size_bytes >= limits.size_bytes
            or self.span > limits.span
        )

    def stuck(self, now_ms: int, timeout_ms: int) -> list[StoredMessage]:
        """Return the messages that were handed out ``timeout_ms`` ago or earlier."""
        return [
            message for message, taken_ms in self._taken.values() if taken_ms + timeout_ms <= now_ms
        ]


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
        #: Queues that may have ready messages, in turn. A queue without any is removed.
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
        """Return whether a queue has its one message handed out, if ``per_queue`` is 1.

        The message counts until :meth:`release`, even if the queue has dropped it.
        """
        return inflight in self._busy

    def offer(self, inflight: InFlight) -> None:
        """Line up a queue that may have ready messages."""
        if self._line_up(inflight):
            self._wake_next()

    def take_now(self) -> tuple[InFlight, StoredMessage] | None:
        """Hand out the next message; return it with its queue.

        Returns None if there is none, if ``concurrency`` messages are handed out, or once closed.
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

        Returns None if there are none, or if they must be taken one by one. The queue is not in
        turn until :meth:`end_run` or :meth:`break_run`.
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
        """End a run before its next message; hand out that message and wake another waiter.

        The processing of that message has begun in the run and goes on.
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
        """Count a message of a queue as no longer handed out: it was settled or given back."""
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

        The queue is lined up again when one of its messages is released, or when its lock is
        renewed.
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
                await waiter  # without a limit: no message is ready
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
            self._wake_next()  # if this waiter was woken already, wake another in its place
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
