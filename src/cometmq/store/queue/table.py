"""The table of consume queues, by topic and queue id.

A queue is loaded when it is first used: from its files, or from the journal. A start does not read
the files of queues that are not used yet.

The table is nested: first by topic, then by queue id. A flat one would need a (topic, queue id) key
per queue. With very many queues, these keys take so much memory that each send suffers more cache
misses. The queues of a topic also share the data of the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from cometmq.core.errors import MessageIllegal
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.queue.consumequeue import ConsumeQueue

if TYPE_CHECKING:
    from cometmq.store.log.segments import Segments
    from cometmq.store.queue.journal import Tail
    from cometmq.store.queue.queuefiles import QueueFiles

#: Up to this many queues are checked at the start; with more, each is checked on first use.
CHECKED_QUEUES = 10_000


class QueueTable:
    """Queues in memory, and the ids of all queues that exist.

    - ``by_topic``: the queues in memory.
    - ``known``: the queue ids of each topic, in memory or not.
    - ``resumed``: the queues that the journal had entries of, until they are first used.
    - ``load_below``: a physical offset. A load trusts the entries of files for records below it.
    - ``begins``: topic, queue id and first byte position of queues that are known to lack no
      earlier files (checkpoint.py).
    - ``on_gone``: functions that are called with each queue that is removed from memory, so that
      nothing else keeps it.
    - ``recovering``: True until the queues have entries for all records of the log.
    """

    __slots__ = (
        "_check",
        "_count",
        "_delays_ms",
        "_pool",
        "_segments",
        "begins",
        "by_topic",
        "known",
        "load_below",
        "on_gone",
        "recovering",
        "resumed",
    )

    def __init__(self, pool: QueueFiles, segments: Segments, delays_ms: Sequence[int]) -> None:
        self._pool = pool
        self._segments = segments
        self._delays_ms = delays_ms
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.known: dict[str, set[int]] = {}
        self.load_below = 0
        self._check: Callable[[ConsumeQueue], None] = lambda _: None
        self.recovering = True
        self.begins: tuple[tuple[str, int, int], ...] = ()
        self.on_gone: list[Callable[[ConsumeQueue], None]] = []
        self._count = 0
        self.resumed: dict[tuple[str, int], ConsumeQueue] = {}

    def check_with(self, check: Callable[[ConsumeQueue], None]) -> None:
        """Call ``check`` with each queue before its files are loaded; it may raise StoreCorrupt."""
        self._check = check

    def __len__(self) -> int:
        return self._count

    def values(self) -> Iterator[ConsumeQueue]:
        """Iterate over the queues in memory."""
        return chain.from_iterable(map(dict.values, self.by_topic.values()))

    def get(self, key: tuple[str, int]) -> ConsumeQueue | None:
        """Return the queue of a (topic, queue id) key, if it is in memory."""
        queues = self.by_topic.get(key[0])
        return None if queues is None else queues.get(key[1])

    def topics(self) -> dict[str, list[int]]:
        """Return every topic with its sorted queue ids."""
        return {topic: sorted(ids) for topic, ids in self.known.items()}

    def entry_total(self) -> int:
        """Return the sum of the maximum offsets of all queues that have entries.

        Returns -1 if a queue is not in memory: its offsets are unknown.
        """
        if self._count < sum(map(len, self.known.values())):
            return -1
        return sum(q.max_offset for q in self.values() if q.max_offset > q.min_offset)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue; create it in memory if needed. Raises MessageIllegal for a bad name."""
        return self.get((topic, queue_id)) or self.load(topic, queue_id)

    def load(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Load a queue that is not in memory, and return it.

        An existing queue gets its entries from the journal or from its files; a new one is empty.
        Raises MessageIllegal for a bad name, StoreCorrupt if the check finds bad files.
        """
        queue = self.resumed.pop((topic, queue_id), None)
        log_start = self._segments.start
        if queue is not None:
            self._check(queue)
            queue.find_first(log_start)
        else:
            queue = self._make(topic, queue_id)
            ids = self.known.setdefault(topic, set())
            if queue_id in ids:
                self._check(queue)
                queue.load(self.load_below, log_start)
                if not self.recovering:
                    queue.finish_recovery()
            ids.add(queue_id)
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        self._count += 1
        self._pool.share_memory(self._count + len(self.resumed))
        return queue

    def resume(self, tails: Mapping[tuple[str, int], Tail]) -> Iterator[ConsumeQueue]:
        """Create the queues whose last entries were in the journal, and yield them.

        The files of such a queue are not opened before its first use.
        """
        for (topic, queue_id), tail in tails.items():
            queue = self.resumed[topic, queue_id] = self._make(topic, queue_id)
            queue.resume(tail.first, tail.entries)
            self.known.setdefault(topic, set()).add(queue_id)
            yield queue

    def pop(self, key: tuple[str, int]) -> ConsumeQueue | None:
        """Remove a queue from memory and return it, if it is there. Its id stays known."""
        topic, queue_id = key
        queues = self.by_topic.get(topic, {})
        queue = queues.pop(queue_id, None)
        if queue is None:
            # A resumed queue was never used, so nothing else keeps it.
            return self.resumed.pop(key, None)
        self._count -= 1
        if not queues:
            del self.by_topic[topic]
        for notify in self.on_gone:
            notify(queue)
        return queue

    def forget(self, topic: str, queue_ids: Sequence[int]) -> None:
        """Drop the ids of queues that were deleted."""
        self.known[topic].difference_update(queue_ids)
        if not self.known[topic]:
            del self.known[topic]

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        delay_ms = 0
        if topic == SCHEDULE_TOPIC and self._delays_ms:
            # Queue N holds delay level N + 1; ids beyond the last level have its delay.
            delay_ms = self._delays_ms[min(queue_id, len(self._delays_ms) - 1)]
        sibling = next(iter(self.by_topic.get(topic, {}).values()), None)
        try:
            return ConsumeQueue(self._pool, topic, queue_id, delay_ms, sibling)
        except ValueError as error:
            raise MessageIllegal(str(error)) from None
