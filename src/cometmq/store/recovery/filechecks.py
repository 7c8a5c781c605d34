"""Checks of queue and index files at a start, against the log from which they are derived.

A bad file is set aside and its entries are dispatched again, so it does not keep a store from
starting. The checks cover only what would mislead a start: of queue files the names, sizes and
ends; of index files the names, sizes, headers, and the first and last entries. ``cometmq store
verify`` checks every single entry.
"""

from __future__ import annotations

import logging
import os.path
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import MAGIC_V1, MAGIC_V2, head_part
from cometmq.store.index import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    file_bytes,
)
from cometmq.store.layout import (
    HOLE_SIZE,
    LOST_AND_FOUND,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    file_name,
    is_index_name,
    is_topic_name,
    queue_id_of,
)
from cometmq.store.log.scan import log_bytes, log_store_ms
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.queue.table import CHECKED_QUEUES
from cometmq.store.recovery.damage import hole_for

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files
    from cometmq.store.log.segments import Segments
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.queuefiles import QueueFiles
    from cometmq.store.recovery.quarantine import Quarantine

logger = logging.getLogger(__name__)

_HEAD = head_part("size_bytes", "magic", "queue_id", "queue_offset", "physical_offset")
_HOLES_A_WRITE = 4096
_HEAD_ENTRIES = 200
_NOWHERE = 1 << 62
QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class QueueFault:
    """A fault in a queue's files, from byte position ``base`` on.

    ``end`` is the queue offset up to which the files seem to have reached. ``is_size`` says that a
    length is wrong, ``is_begin`` that earlier files seem to be missing.
    """

    base: int
    end: int
    problem: str
    is_size: bool = False
    is_begin: bool = False


class QueueCheck:
    """Checks the files of queues before they are loaded.

    Files are trusted for records before the physical offset ``below``. ``exact`` says that there
    are no entries for other records, as after a clean stop. ``torn`` says that anything may follow
    the trusted entries, as after a crash of the machine. ``begins`` has the topic, queue id and
    first byte position of queues that are known to lack nothing before that position.
    """

    def __init__(
        self,
        files: Files,
        pool: QueueFiles,
        segments: Segments,
        below: int,
        *,
        exact: bool,
        torn: bool = False,
        begins: frozenset[tuple[str, int, int]] = frozenset(),
    ) -> None:
        self._begins = begins
        self._files = files
        self._pool = pool
        self._segments = segments
        self._below = below
        self._exact = exact
        self._torn = torn
        #: The queue offset after the last entry in the files, for each queue whose entries were
        #: checked; empty with ``torn``.
        self.filled: dict[tuple[str, int], int] = {}

    def fault(self, queue: ConsumeQueue) -> QueueFault | None:
        """Return the fault in the files of a queue that is not loaded, or None."""
        bases: list[int] = []
        try:
            bases = self._pool.bases(queue.directory)
            bases = self._without_remains(queue, bases)
            return (
                self._fault_of_files(queue, bases)
                or self.fault_of_begin(queue, bases)
                or self._fault_of_entries(queue, bases)
            )
        except OSError as error:
            base = bases[0] if bases else 0
            end = (bases[-1] if bases else 0) // QUEUE_ENTRY_BYTES
            return QueueFault(base, end, f"it cannot be read: {error}")

    def fault_of_begin(self, queue: ConsumeQueue, bases: list[int]) -> QueueFault | None:
        """Return a fault if the first files of a queue are missing. Raises OSError.

        A file is removed once the log has none of the records of its entries. Nearly always the
        next file then also begins with entries whose records are gone. So a first entry whose
        record is still in the log means that files are missing.
        """
        if not bases:
            # A power cut may leave a directory without the file that it was created for.
            return None if self._torn else QueueFault(0, 0, "its folder is empty", is_begin=True)
        base = bases[0]
        if not base or (queue.topic, queue.queue_id, base) in self._begins:
            return None
        place = _place(self._pool, queue.directory, base // QUEUE_ENTRY_BYTES)
        if place is None or not self._segments.start <= place < self._below:
            return None
        end = max(queue.find_end(bases, self._below), 0)
        problem = f"previous files are missing, but the log still has the record at {place}"
        return QueueFault(base, end, problem, is_begin=True)

    def _without_remains(self, queue: ConsumeQueue, bases: list[int]) -> list[int]:
        """Remove files that a crash may leave beside the valid ones; return the others.

        These are new files without a trusted entry, and expired files before a gap: a power cut
        undid their removal, but not the removal of a later file.
        """
        last = len(bases)
        if self._torn:
            last = bisect_left(bases, queue.find_end(bases, self._below) * QUEUE_ENTRY_BYTES) or 1
        remains, bases = bases[last:], bases[:last]
        while (at := _gap(bases, self._pool.file_bytes)) and self._is_expired(queue, bases[:at]):
            remains, bases = remains + bases[:at], bases[at:]
        for base in remains:
            self._pool.drop(queue.directory, base)
        return bases

    def _is_expired(self, queue: ConsumeQueue, bases: list[int]) -> bool:
        end = queue.find_end(bases, self._below)
        place = None if end < 0 else _place(self._pool, queue.directory, end - 1)
        return place is not None and place < self._segments.start

    def _fault_of_files(self, queue: ConsumeQueue, bases: list[int]) -> QueueFault | None:
        file_bytes = self._pool.file_bytes
        for number, base in enumerate(bases):
            end = base // QUEUE_ENTRY_BYTES
            if number and base != bases[number - 1] + file_bytes:
                return QueueFault(base, end, "the previous file is missing")
            size = self._size(os.path.join(queue.directory, file_name(base)))
            if size != file_bytes:
                is_last = number == len(bases) - 1
                if is_last and size < file_bytes and not self._exact:
                    # A crash came before the length of a new file was durable.
                    self._pool.complete(queue.directory, base)
                    continue
                problem = f"it is {size} bytes long, mappedFileSizeConsumeQueue is {file_bytes}"
                return QueueFault(base, end, problem, is_size=size > 0)
        return None

    def _size(self, path: str) -> int:
        handle = self._files.open(path)
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)

    def _fault_of_entries(self, queue: ConsumeQueue, bases: list[int]) -> QueueFault | None:
        if not bases:
            return None
        end = queue.find_end(bases, self._below)
        last = max(bases[0], (end - 1) * QUEUE_ENTRY_BYTES)
        base = bases[bisect_left(bases, last + 1) - 1]
        if not self._torn:
            filled = filled_end(self._pool, queue.directory, bases)
            self.filled[queue.topic, queue.queue_id] = filled
            if self._exact and filled > max(end, bases[0] // QUEUE_ENTRY_BYTES):
                return QueueFault(base, filled, f"its entry {max(end, 0)} contradicts the log")
        if end >= 0 and not (self._torn or self._exact) and not self._is_beyond(queue, end):
            return QueueFault(base, end, f"its entry {end} contradicts the log")
        if end >= 0 and not self._is_right(queue, end - 1):
            return QueueFault(base, end, f"its entry {end - 1} contradicts the log")
        return None

    def _is_beyond(self, queue: ConsumeQueue, offset: int) -> bool:
        """Return whether an entry is empty or for a record that is not trusted yet."""
        raw = self._pool.read(queue.directory, offset * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
        if not any(raw):
            return True
        physical_offset, size, _ = QUEUE_ENTRY.unpack(raw)
        return bool(size > 0 and physical_offset >= self._below)

    def _is_right(self, queue: ConsumeQueue, offset: int) -> bool:
        """Return whether the record of an entry belongs to this queue and offset.

        Returns True for a hole, and for a record before the start of the log.
        """
        raw = self._pool.read(queue.directory, offset * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
        physical_offset, size, _ = QUEUE_ENTRY.unpack(raw)
        if size == HOLE_SIZE or physical_offset < self._segments.start:
            return True
        head = log_bytes(self._segments, physical_offset, _HEAD.size)
        if head is None:
            return False
        found_size, magic, *places = _HEAD.unpack(head)
        is_record = magic in (MAGIC_V1, MAGIC_V2) and found_size == size
        return is_record and places == [queue.queue_id, offset, physical_offset]


def _gap(bases: list[int], file_bytes: int) -> int:
    """Return the index of the first file that does not follow its predecessor; 0 if none."""
    pairs = enumerate(pairwise(bases), 1)
    return next((at for at, (one, next_one) in pairs if next_one != one + file_bytes), 0)


def filled_end(pool: QueueFiles, directory: str, bases: list[int]) -> int:
    """Return the offset after the last nonzero entry of a queue's files, valid or not."""
    per_file = pool.file_bytes // QUEUE_ENTRY_BYTES
    for base in reversed(bases):
        first = base // QUEUE_ENTRY_BYTES
        # Begin with the head: most queues are short, and unwritten parts of a sparse file are slow
        # to read.
        head = pool.read(directory, base, _HEAD_ENTRIES * QUEUE_ENTRY_BYTES)
        low, high = first, first + len(head) // QUEUE_ENTRY_BYTES
        if any(head[-QUEUE_ENTRY_BYTES:]):
            low, high = high, first + per_file
        while low < high:
            middle = (low + high) // 2
            if any(pool.read(directory, middle * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)):
                low = middle + 1
            else:
                high = middle
        if low > first:
            return low
    return bases[0] // QUEUE_ENTRY_BYTES


def punch(pool: QueueFiles, directory: str, start: int, stop: int, hole: bytes) -> tuple[int, int]:
    """Replace a queue's entries for records between two physical offsets by holes.

    Returns the queue offset of the first hole and the offset after the last one. Raises OSError.
    """
    bases = pool.bases(directory)
    if not bases:
        return 0, 0
    low, high = bases[0] // QUEUE_ENTRY_BYTES, filled_end(pool, directory, bases)
    first = _first_from(pool, directory, low, high, start)
    last = _first_from(pool, directory, first, high, stop)
    for offset in range(first, last, _HOLES_A_WRITE):
        count = min(_HOLES_A_WRITE, last - offset)
        pool.write(directory, offset * QUEUE_ENTRY_BYTES, hole * count)
    return first, last


def _first_from(pool: QueueFiles, directory: str, low: int, high: int, physical: int) -> int:
    """Return the first queue offset in a range whose record is at or after ``physical``."""
    while low < high:
        middle = (low + high) // 2
        found = middle
        while found < high and (place := _place(pool, directory, found)) is None:
            found += 1
        if found < high and place is not None and place < physical:
            low = found + 1
        else:
            high = middle
    return low


def _place(pool: QueueFiles, directory: str, offset: int) -> int | None:
    """Return the physical offset in an entry; None for a hole, or if there is no file."""
    raw = pool.read(directory, offset * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
    if len(raw) < QUEUE_ENTRY_BYTES:
        return None
    physical_offset, size, _ = QUEUE_ENTRY.unpack(raw)
    return None if size == HOLE_SIZE else int(physical_offset)


def last_entry_end(pool: QueueFiles, directory: str) -> int:
    """Return the physical end of the last record with an entry in a queue's files; 0 if none."""
    try:
        bases = pool.bases(directory)
        end = filled_end(pool, directory, bases) if bases else 0
        raw = pool.read(directory, (end - 1) * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES) if end else b""
    except OSError:
        return 0
    physical_offset, size, _ = (
        QUEUE_ENTRY.unpack(raw) if len(raw) == QUEUE_ENTRY_BYTES else (0, 0, 0)
    )
    return 0 if size == HOLE_SIZE else max(physical_offset + size, 0)


class QueueRecovery:
    """The queues of a store during a start: the valid ones, and the ones to rebuild.

    ``faults`` has the fault of each bad queue. ``lacking`` has the physical offset from which the
    records of a bad queue must be dispatched again. ``filled`` has the queue offset up to which the
    files of a queue had entries. ``checked`` says that all queues were checked.
    """

    def __init__(self, store: MessageStore, quarantine: Quarantine) -> None:
        self._store = store
        self._quarantine = quarantine
        self.faults: dict[QueueKey, QueueFault] = {}
        self.lacking: dict[QueueKey, int] = {}
        self.filled: dict[QueueKey, int] = {}
        self.checked = False
        #: See QueueCheck.
        self.begins: frozenset[tuple[str, int, int]] = frozenset()

    def _keys(self) -> list[QueueKey]:
        topics = self._store.topics().items()
        return [(topic, queue_id) for topic, ids in topics for queue_id in ids]

    def _unloaded(self, key: QueueKey) -> ConsumeQueue:
        return ConsumeQueue(self._store.pool, *key)

    def find(self) -> None:
        """Find the queues that have files. Other directories are left alone."""
        store = self._store
        for topic in store.files.names(store.pool.directory):
            if not is_topic_name(topic):
                if topic != LOST_AND_FOUND:
                    logger.warning(
                        "queue_directory_ignored name=%a reason='no topic has this name'", topic
                    )
                continue
            try:
                names = store.files.names(os.path.join(store.pool.directory, topic))
            except NotADirectoryError:
                continue
            numbers = {number for name in names if (number := queue_id_of(name)) is not None}
            if numbers:
                store.queues.known[topic] = numbers
                store.pool.queue_count += len(numbers)

    def check_all(self, below: int, *, exact: bool, torn: bool) -> None:
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
        found = {key: check.fault(self._unloaded(key)) for key in keys}
        self.faults = {key: fault for key, fault in found.items() if fault is not None}
        self.filled = check.filled
        if len(keys) > 1 and all(fault is not None and fault.is_size for fault in found.values()):
            problem = next(iter(self.faults.values())).problem
            raise StoreCorrupt(
                store.pool.directory, -1,
                f"the files of all queues have another size ({problem}): start with the "
                "mappedFileSizeConsumeQueue with which the store was written",
            )  # fmt: skip

    def _check(self, below: int, *, exact: bool, torn: bool) -> QueueCheck:
        store = self._store
        segments = store.log.segments
        return QueueCheck(
            store.files, store.pool, segments, below, exact=exact, torn=torn, begins=self.begins
        )

    def check_on_first_use(self, below: int, *, exact: bool, torn: bool) -> None:
        """Arrange that each queue is checked on first use, if not all were checked."""
        if self.checked:
            return
        store = self._store
        check = self._check(below, exact=exact, torn=torn)

        def refuse_invalid(queue: ConsumeQueue) -> None:
            fault = check.fault(queue)
            if fault is not None and fault.is_begin:
                # This may be right: with very many queues, the whole log is not searched for
                # earlier records.
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

        store.queues.check_with(refuse_invalid)

    def request_rebuild(self, keys: Iterable[QueueKey]) -> None:
        """Mark queues for a rebuild, whether they look valid or not."""
        pool = self._store.pool
        for key in keys:
            directory = self._unloaded(key).directory
            bases = pool.bases(directory)
            end = filled_end(pool, directory, bases) if bases else 0
            self.faults[key] = QueueFault(0, end, "it must be made again")
            self._store.queues.pop(key)

    def load_valid(self) -> None:
        """Load every valid queue."""
        for key in self._keys():
            if key not in self.faults:
                self._store.queue(*key)

    def set_aside_invalid(self) -> None:
        """Set aside the files of bad queues, and load their remaining files."""
        store = self._store
        for key, fault in self.faults.items():
            topic, queue_id = key
            logger.error(
                "queue_bad topic=%s queue=%d from_file=%d problem=%r",
                topic, queue_id, fault.base, fault.problem,
            )  # fmt: skip
            directory = self._unloaded(key).directory
            # Last file first: a crash in between leaves the bad file, and no gap.
            for base in reversed(store.pool.bases(directory)):
                if base >= fault.base:
                    path = os.path.join(directory, file_name(base))
                    store.pool.forget(path)
                    what = f"consumequeue-{topic}-{queue_id}-{file_name(base)}"
                    self._quarantine.move(path, what, fault.problem)
            queue = store.queue(*key)
            queue.expect(fault.end)
            self.lacking[key] = queue.last_record_end() or store.log.segments.start

    def record_begins(self) -> None:
        """Record the first files of queues whose earlier files seemed to be missing.

        The log was searched and has no records for earlier entries. So these entries are not
        missing, and the next start need not search again.
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
        store.queues.begins = tuple(sorted(self.begins.union(found)))

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
        logger.warning("queue_dropped topic=%s queue=%d reason='the log has no record of it'", *key)

    def records_end(self) -> int:
        """Return the physical end of the last record that any queue has an entry for."""
        return max((queue.last_record_end() for queue in self._store.queues.values()), default=0)

    def last_record(self) -> int:
        """Return the physical offset of the last record with an entry in any queue; -1 if none."""
        return max((queue.last_record() for queue in self._store.queues.values()), default=-1)

    def log_end(self) -> int:
        """Return the end of the log according to the queue files, without loading the queues."""
        return max(
            (
                last_entry_end(self._store.pool, self._unloaded(key).directory)
                for key in self._keys()
            ),
            default=0,
        )

    def missing_entries(self, recorded: int, *, exact: bool) -> int:
        """Return the number of entries that all queues together lack, negative for a surplus.

        ``recorded`` is the sum of end offsets that the last run recorded, -1 if unknown. Without
        ``exact``, queues may have expired since, and a surplus is not reported. Returns 0 unless
        all queues are loaded.
        """
        store = self._store
        total = store.queues.entry_total()
        if min(recorded, total) < 0:
            return 0
        if exact:
            return recorded - total
        return max(0, recorded - sum(queue.max_offset for queue in store.queues.values()))

    def punch(self, start: int, stop: int) -> None:
        """Replace all entries for records between two physical offsets by holes, durably."""
        pool = self._store.pool
        hole = hole_for(start, self._store.log.segments.file_bytes)
        for key in self._keys():
            first, last = punch(pool, self._unloaded(key).directory, start, stop, hole)
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


@dataclass(slots=True)
class IndexState:
    """The usable part of the index: entries for records from ``start`` on must be rebuilt.

    ``bad`` are the files to set aside first, with the reasons. ``unneeded`` are files to delete:
    those without a trusted entry, and expired ones whose removal was in progress or undone by a
    crash.
    """

    start: int
    bad: list[tuple[str, str]] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)

    def forget_all(self, files: Files, config: StoreConfig, start: int) -> None:
        """Mark every file as bad, so that the whole index is rebuilt from ``start``."""
        directory = os.path.join(config.store_path_root_dir, "index")
        names = index_names(files, directory)
        self.bad = [(os.path.join(directory, name), "it must be made again") for name in names]
        self.unneeded = []
        self.start = start


def check_index(
    files: Files,
    config: StoreConfig,
    segments: Segments,
    below: int,
    recorded: tuple[str, ...] | None,
) -> IndexState:
    """Check the index files before they are loaded.

    ``recorded`` are the names of the files that the last run recorded, None if there is no record.
    Files are trusted for records before the physical offset ``below``. The oldest files may be
    missing: they may have expired.
    """
    directory = os.path.join(config.store_path_root_dir, "index")
    names = index_names(files, directory)
    lost = _first_lost(names, recorded or ())
    state = IndexState(below)
    reached = segments.start
    for name in names:
        path = os.path.join(directory, name)
        is_stray = recorded is not None and name not in recorded and _begin(files, path) < below
        if reached >= below or is_stray:
            state.unneeded.append(path)
            continue
        if state.bad:
            state.bad.append((path, "a previous file must be made again"))
            continue
        problem = "a previous file is missing" if lost and name > lost else ""
        if not problem:
            check = _IndexFileCheck(files, config, segments, below)
            problem = check.problem(path, reached)
            if not problem:
                reached = max(reached, check.reached)
        if problem:
            state.bad.append((path, problem))
    is_unknown = recorded is None and reached == segments.start
    if state.bad or lost or is_unknown:
        state.start = min(below, reached)
    return state


def _begin(files: Files, path: str) -> int:
    """Return the physical offset of a file's first entry; a very high one if it has none."""
    try:
        handle = files.open(path)
        try:
            raw = files.pread(handle, HEADER_BYTES, 0)
        finally:
            files.close(handle)
    except OSError:
        return _NOWHERE
    if len(raw) < HEADER_BYTES:
        return _NOWHERE
    _, _, begin_phys, _, _, count = HEADER.unpack(raw)
    return int(begin_phys) if count > 1 else _NOWHERE


def index_names(files: Files, directory: str) -> list[str]:
    """Return the names of the index files, in order."""
    return [*filter(is_index_name, files.names(directory))]


def _first_lost(names: list[str], recorded: tuple[str, ...]) -> str:
    """Return the first recorded file that is missing although an older one exists.

    Returns the first recorded name if no recorded file exists; empty if none is missing.
    """
    there = set(names)
    if recorded and not there.intersection(recorded):
        return recorded[0]
    oldest = min(there.intersection(recorded), default="")
    return min((name for name in recorded if name not in there and name > oldest), default="")


class _IndexFileCheck:
    """The check of an index file; ``reached`` is the physical offset of its last trusted entry."""

    def __init__(self, files: Files, config: StoreConfig, segments: Segments, below: int) -> None:
        self._files = files
        self._config = config
        self._segments = segments
        self._below = below
        self.reached = 0

    def problem(self, path: str, reached: int) -> str:
        """Return the reason why a file cannot be used; empty if it can.

        The files before it reach up to the record at ``reached``.
        """
        try:
            handle = self._files.open(path)
            try:
                return self._problem(handle, reached)
            finally:
                self._files.close(handle)
        except OSError as error:
            return f"it cannot be read: {error}"

    def _problem(self, handle: int, reached: int) -> str:
        config = self._config
        expected = file_bytes(config.max_hash_slot_num, config.max_index_num)
        size = self._files.size(handle)
        if size == 0:
            return ""
        if size != expected:
            return f"it is {size} bytes long, with this maxHashSlotNum and maxIndexNum {expected}"
        header = HEADER.unpack(self._files.pread(handle, HEADER_BYTES, 0))
        begin_ms, end_ms, begin_phys, end_phys, used, count = header
        if count == 0 and not any(header):
            return ""
        if not 1 <= count <= config.max_index_num or not 0 <= used < max(count, 1):
            return f"its header says {count} entries in {used} slots"
        if count == 1:
            return ""
        if not reached <= begin_phys <= end_phys:
            return "its header contradicts itself or the previous file"
        if self._entry(handle, 1)[1] != begin_phys or not self._stored(begin_phys, begin_ms, 0):
            return "its first entry contradicts its header or the log"
        if end_phys < self._below:
            last = self._entry(handle, count - 1)
            if last[1] != end_phys or not self._stored(end_phys, end_ms, 999):
                return "its last entry contradicts its header or the log"
        # Entries are in log order: once ``reached`` is ``below``, later files have no trusted ones.
        self.reached = min(end_phys, self._below)
        return ""

    def _entry(self, handle: int, number: int) -> tuple[int, ...]:
        at = HEADER_BYTES + self._config.max_hash_slot_num * SLOT_BYTES + number * ENTRY_BYTES
        return ENTRY.unpack(self._files.pread(handle, ENTRY_BYTES, at))

    def _stored(self, physical_offset: int, store_ms: int, more_ms: int) -> bool:
        """Return whether a record was stored at ``store_ms`` or at most ``more_ms`` before that.

        Returns True if the log no longer has the record.
        """
        if physical_offset < self._segments.start:
            return True
        return store_ms - more_ms <= log_store_ms(self._segments, physical_offset) <= store_ms
