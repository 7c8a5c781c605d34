"""The valid queues at a start, and the treatment of the bad ones (queuecheck.py)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import MAX_TOPIC_BYTES
from cometmq.store.layout import QUEUE_ENTRY_BYTES, file_name
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.queue.table import CHECKED_QUEUES
from cometmq.store.recovery.damage import hole_for
from cometmq.store.recovery.queuecheck import (
    QueueCheck,
    QueueFault,
    filled_end,
    punch,
    reach,
)

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.recovery.quarantine import SetAside

logger = logging.getLogger(__name__)

QueueKey = tuple[str, int]


class Queues:
    """The queues of a store: the valid ones, and the ones to rebuild.

    ``faults`` are the bad queues that were found. ``lacking`` has the physical offset from which
    the records of a queue must be dispatched again. ``filled`` has the offset up to which a queue's
    files had entries.
    """

    def __init__(self, store: MessageStore, aside: SetAside) -> None:
        self._store = store
        self._aside = aside
        self.faults: dict[QueueKey, QueueFault] = {}
        self.lacking: dict[QueueKey, int] = {}
        self.filled: dict[QueueKey, int] = {}
        self.checked = False
        #: See QueueCheck.
        self.begins: frozenset[tuple[str, int, int]] = frozenset()

    def _keys(self) -> list[QueueKey]:
        topics = self._store.topics().items()
        return [(topic, queue_id) for topic, ids in topics for queue_id in ids]

    def _bare(self, key: QueueKey) -> ConsumeQueue:
        return ConsumeQueue(self._store.pool, *key)

    def find(self) -> None:
        """Find the queues that have files."""
        store = self._store
        for topic in store.files.names(store.pool.directory):
            if len(os.fsencode(topic)) > MAX_TOPIC_BYTES:
                logger.warning("queue_directory_ignored topic=%s reason='too long a name'", topic)
                continue
            try:
                ids = store.files.names(os.path.join(store.pool.directory, topic))
            except NotADirectoryError:
                continue
            numbers = {int(name) for name in ids if name.isascii() and name.isdigit()}
            if numbers:
                store.queues.known[topic] = numbers
                store.pool.queue_count += len(numbers)

    def look(self, below: int, *, exact: bool, torn: bool) -> None:
        """Check all queues, unless there are too many; see QueueCheck for the parameters.

        Raises StoreCorrupt if the files of every queue have another size: then the setting is wrong
        rather than the files.
        """
        store, keys = self._store, self._keys()
        store.queues.load_below = below
        self.checked = len(keys) <= CHECKED_QUEUES
        if not self.checked:
            return
        check = self._check(below, exact=exact, torn=torn)
        found = {key: check.fault(self._bare(key)) for key in keys}
        self.faults = {key: fault for key, fault in found.items() if fault is not None}
        self.filled = check.filled
        if len(keys) > 1 and all(fault is not None and fault.is_size for fault in found.values()):
            problem = next(iter(self.faults.values())).problem
            raise StoreCorrupt(
                store.pool.directory, -1,
                f"of every queue the file is of another size ({problem}): start with the "
                "mappedFileSizeConsumeQueue that the store was written with",
            )  # fmt: skip

    def _check(self, below: int, *, exact: bool, torn: bool) -> QueueCheck:
        store = self._store
        segments = store.log.segments
        return QueueCheck(
            store.files, store.pool, segments, below, exact=exact, torn=torn, begins=self.begins
        )

    def check_late(self, below: int, *, exact: bool, torn: bool) -> None:
        """Arrange that each queue is checked on first use, if not all were checked."""
        if self.checked:
            return
        store = self._store
        check = self._check(below, exact=exact, torn=torn)

        def refuse_bad(queue: ConsumeQueue) -> None:
            fault = check.fault(queue)
            if fault is not None and fault.is_begin:
                # The beginning may be right: with very many queues, the whole log is not read to
                # find out.
                logger.error(
                    "queue_begins_late topic=%s queue=%d problem=%r",
                    queue.topic, queue.queue_id, fault.problem,
                )  # fmt: skip
            elif fault is not None:
                root = store.config.store_path_root_dir
                raise StoreCorrupt(
                    queue.directory, -1, fault.problem,
                    ways_out=(f"stop the broker and run 'cometmq store repair {root} --yes'",),
                )  # fmt: skip

        store.queues.check = refuse_bad

    def want(self, keys: Iterable[QueueKey]) -> None:
        """Mark queues for a rebuild, whether they look valid or not."""
        pool = self._store.pool
        for key in keys:
            directory = self._bare(key).directory
            bases = pool.bases(directory)
            end = filled_end(pool, directory, bases) if bases else 0
            self.faults[key] = QueueFault(0, end, "it is to be made again")
            self._store.queues.pop(key)

    def load_good(self) -> None:
        """Load every valid queue."""
        for key in self._keys():
            if key not in self.faults:
                self._store.queue(*key)

    def set_aside_bad(self) -> None:
        """Set aside the files of bad queues, and load their remaining files."""
        store = self._store
        for key, fault in self.faults.items():
            topic, queue_id = key
            logger.error(
                "queue_bad topic=%s queue=%d from_file=%d problem=%r",
                topic, queue_id, fault.base, fault.problem,
            )  # fmt: skip
            directory = self._bare(key).directory
            # Last file first: a crash in between leaves the bad file, and no gap.
            for base in reversed(store.pool.bases(directory)):
                if base >= fault.base:
                    path = os.path.join(directory, file_name(base))
                    store.pool.forget(path)
                    what = f"consumequeue-{topic}-{queue_id}-{file_name(base)}"
                    self._aside.move(path, what, fault.problem)
            queue = store.queue(*key)
            queue.expect(fault.end)
            self.lacking[key] = queue.last_record_end() or store.log.segments.start

    def note_begins(self) -> None:
        """Note where queues begin, after a search of the log for missing entries before that.

        Entries that the log does not have are not missing; the next start need not search again.
        """
        store = self._store
        found = set()
        for key, fault in self.faults.items():
            queue = store.queues.get(key)
            if not fault.is_begin or queue is None:
                continue
            position = queue.min_offset * QUEUE_ENTRY_BYTES
            first = position - position % store.pool.file_bytes
            if queue.max_offset == 0:
                self._drop_empty(key)
            elif first:
                found.add((*key, first))
        store.begins = tuple(sorted(self.begins.union(found)))

    def _drop_empty(self, key: QueueKey) -> None:
        store = self._store
        topic, queue_id = key
        try:
            store.pool.discard(topic, [queue_id])
        except OSError as error:
            logger.warning("queue_not_dropped topic=%s queue=%d error=%r", *key, str(error))
            return
        store.queues.pop(key)
        store.queues.forget(topic, [queue_id])
        logger.warning("queue_dropped topic=%s queue=%d reason='the log has nothing of it'", *key)

    def records_end(self) -> int:
        """Return the end of the last record that any queue has an entry for."""
        return max((queue.last_record_end() for queue in self._store.queues.values()), default=0)

    def last_record(self) -> int:
        """Return the offset of the last record that any queue has an entry for; -1 if none."""
        return max((queue.last_record() for queue in self._store.queues.values()), default=-1)

    def reach(self) -> int:
        """Return the end of the log according to the queue files, without loading the queues."""
        return max(
            (reach(self._store.pool, self._bare(key).directory) for key in self._keys()), default=0
        )

    def missing_entries(self, noted: int, *, exact: bool) -> int:
        """Return the number of entries that all queues together lack, negative for a surplus.

        ``noted`` is the number that the last run recorded, -1 if unknown. Without ``exact``, queues
        may have expired since, and a surplus is not reported. Returns 0 unless all queues are
        loaded.
        """
        store = self._store
        total = store.queues.entry_total()
        if min(noted, total) < 0:
            return 0
        if exact:
            return noted - total
        return max(0, noted - sum(queue.max_offset for queue in store.queues.values()))

    def punch(self, start: int, stop: int) -> None:
        """Replace all entries for records between two physical offsets by holes, durably."""
        pool = self._store.pool
        hole = hole_for(start, self._store.log.segments.file_bytes)
        for key in self._keys():
            first, last = punch(pool, self._bare(key).directory, start, stop, hole)
            if last > first:
                logger.warning(
                    "queue_holes topic=%s queue=%d from=%d to=%d reason='records lost'",
                    *key, first, last,
                )  # fmt: skip
        pool.sync_paths(*pool.take_unsynced())

    def cut(self, physical_offset: int) -> None:
        """Drop all entries for records from a physical offset on."""
        store = self._store
        store.queues.load_below = physical_offset
        for key in self._keys():
            queue = store.queue(*key)
            if queue.last_record_end() > physical_offset:
                queue.write()
                queue.load(physical_offset, store.log.segments.start)

    def trim(self) -> None:
        """Drop holes at the ends of queues.

        A Java broker that finds a hole at the end of a queue assumes that the queue already has the
        records after it.
        """
        for queue in self._store.queues.values():
            end = queue.without_holes()
            if queue.min_offset < end < queue.max_offset:
                queue.restart_at(end)
