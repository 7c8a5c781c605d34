"""Deletion of topics; a crash at any moment leaves a topic complete or gone.

One turn of the loop forgets the queues and moves their files aside; a topic of the same name that
is created right after starts empty. Then the topic table records the deletion durably, with the end
of the log at that moment: earlier records of the topic belong to the deleted one. Only then is the
deletion settled, and the files are removed from the disk (queue/queuefiles.py).

    crash before the record    the start finds pending files, dispatches the whole log again,
                               and the topic is complete again
    crash after the record     the same may be dispatched again; the topic table makes the store
                               drop it, up to the recorded end

Messages of a topic that was created again are never touched: their records follow the recorded end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cometmq.store.parts import StoreParts


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deleted topic.

    ``aside`` is the directory with its queues, empty if it had none. Its records before the
    physical offset ``end`` belong to the deleted topic.
    """

    end: int
    aside: str


class Deletions:
    """Deletes the topics of one parts.

    ``write_out`` ends the turn and writes the whole log. ``note_soon`` records the positions after
    a change that a restart must not undo.
    """

    __slots__ = ("_note_soon", "_parts", "_write_out")

    def __init__(
        self,
        parts: StoreParts,
        *,
        write_out: Callable[[], None],
        note_soon: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._write_out = write_out
        self._note_soon = note_soon

    def delete(self, topic: str) -> Deletion:
        """Forget the queues of a topic; its records stay in the log until their files expire.

        Raises StoreError; then the topic is unchanged.
        """
        parts = self._parts
        self._write_out()
        aside = ""
        if topic in parts.queues.known:
            try:
                aside = parts.pool.set_aside(topic)
            except OSError as error:
                raise StoreError(
                    f"the queues of topic {topic} cannot be moved aside: {error.strerror}; the "
                    "topic is unchanged, repeat the deletion"
                ) from error
            self._forget(topic, list(parts.queues.known[topic]))
        # A write that failed may have left whole records, which the next start takes for written.
        return Deletion(max(parts.log.written, parts.log.left_end), aside)

    async def settle(self, deletion: Deletion) -> None:
        """Settle a durably recorded deletion: the topic cannot come back. Raises StoreError."""
        if not deletion.aside:
            return
        parts = self._parts
        try:
            parts.pool.removals.settle(deletion.aside)
            await self._note_soon()
        except OSError as error:
            raise StoreError(f"deleted queues are still at {deletion.aside}: {error}") from error

    def drop_former(self, topic: str, end: int) -> None:
        """Forget the queues of a topic that hold only records before ``end``.

        Call it at a start, for every recorded deletion. Raises OSError.
        """
        parts = self._parts
        former = [
            queue_id
            for queue_id in parts.queues.known.get(topic, ())
            if (queue := parts.queues.queue(topic, queue_id)).min_offset < queue.max_offset
            and queue.is_older_than(end)
        ]
        if former:
            parts.pool.discard(topic, former)
            self._forget(topic, former)

    def drop_expired(self, topic: str) -> list[int]:
        """Forget the queues of a topic whose records are all gone from the log; return their ids.

        The next message of each gets offset 0. Raises StoreError, OSError.
        """
        parts = self._parts
        self._write_out()
        expired = [
            queue_id
            for queue_id in parts.queues.known.get(topic, ())
            if self._is_expired(topic, queue_id)
        ]
        if expired:
            parts.pool.discard(topic, expired)
            self._forget(topic, expired)
        return expired

    def _is_expired(self, topic: str, queue_id: int) -> bool:
        queue = self._parts.queues.queue(topic, queue_id)
        queue.correct_min(self._parts.log.segments.start)
        return 0 < queue.min_offset == queue.max_offset == queue.next_offset

    def _forget(self, topic: str, queue_ids: list[int]) -> None:
        parts = self._parts
        places = [(topic, queue_id) for queue_id in queue_ids]
        found = map(parts.queues.pop, places)
        gone = {queue for queue in found if queue is not None}
        parts.queues.forget(topic, queue_ids)
        parts.backlog.forget(gone)
        parts.dispatcher.forget(gone)
