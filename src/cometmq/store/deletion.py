"""Deleting topics so that a crash at any moment leaves a topic whole or gone.

The queues are forgotten and their files moved aside in one turn of the loop; a topic of the same
name that comes right after begins anew. Then whoever keeps the topics notes the deletion durably,
with the end of the log at that moment: records of the topic before it are those of its former life.
Only then is the deletion settled, and the files leave the disk (removal.py).

    crash before the note      the start finds something pending, dispatches all of the log again,
                               and the topic is back as a whole
    crash after it             the same may be dispatched again; whoever keeps the topics has that
                               dropped, by the noted end

What a topic made anew received is never touched: its records lie behind the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreError

if TYPE_CHECKING:
    from cometmq.store.engine import MessageStore


@dataclass(frozen=True, slots=True)
class Deletion:
    """A topic whose queues are aside, at ``aside`` unless it had none. Its records before the
    physical offset ``end`` are those of its former life."""

    end: int
    aside: str


class Deletions:
    """Deletes the topics of one store."""

    __slots__ = ("_store",)

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def delete(self, topic: str) -> Deletion:
        """Forget the queues of a topic; its records leave the log with its files.

        Raises StoreError; then the topic is as it was.
        """
        store = self._store
        store.write_out()
        aside = ""
        if topic in store.known:
            try:
                aside = store.pool.set_aside(topic)
            except OSError as error:
                raise StoreError(
                    f"the queues of topic {topic} cannot be moved aside: {error.strerror}; it is "
                    "as it was, repeat the deletion"
                ) from error
            self._forget(topic, list(store.known[topic]))
        # A write that failed may have left whole records, which the next start takes for written.
        return Deletion(max(store.written_offset, store.log.left_end), aside)

    async def settle(self, deletion: Deletion) -> None:
        """A deletion is durably noted: nothing may bring the topic back. Raises StoreError."""
        if not deletion.aside:
            return
        store = self._store
        try:
            store.pool.removals.settle(deletion.aside)
            await store.upkeep.note_soon()
        except OSError as error:
            raise StoreError(f"deleted queues are still at {deletion.aside}: {error}") from error

    def drop_former(self, topic: str, end: int) -> None:
        """Forget the queues of a topic that hold nothing but records before ``end``. Call it at a
        start, for every deletion that was noted. Raises OSError."""
        store = self._store
        former = [
            queue_id
            for queue_id in store.known.get(topic, ())
            if (queue := store.queue(topic, queue_id)).min_offset < queue.max_offset
            and queue.is_older_than(end)
        ]
        if former:
            store.pool.discard(topic, former)
            self._forget(topic, former)

    def drop_expired(self, topic: str) -> list[int]:
        """Forget the queues of a topic of whose records the log has none any more; the next record
        of each gets offset 0. Gives their numbers. Raises StoreError, OSError."""
        store = self._store
        store.write_out()
        expired = [
            queue_id for queue_id in store.known.get(topic, ()) if self._is_expired(topic, queue_id)
        ]
        if expired:
            store.pool.discard(topic, expired)
            self._forget(topic, expired)
        return expired

    def _is_expired(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queue(topic, queue_id)
        queue.correct_min(self._store.log.segments.start)
        return 0 < queue.min_offset == queue.max_offset == queue.next_offset

    def _forget(self, topic: str, queue_ids: list[int]) -> None:
        store = self._store
        places = [(topic, queue_id) for queue_id in queue_ids]
        found = (store.queues.pop(key) or store.resumed.pop(key, None) for key in places)
        gone = {queue for queue in found if queue is not None}
        store.known[topic].difference_update(queue_ids)
        if not store.known[topic]:
            del store.known[topic]
        store.forget(gone)
