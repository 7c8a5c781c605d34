"""Plans a read of store directories: selects the queues, finds their ends, and makes the parts that
tasks read, which are parts of the log or ranges of queues.

A broker may run at the same time. A read returns the messages that were in the queues at the time
of the plan, and those that were in the log but not yet in a queue. Queue entries are written in the
order of the log, except for the newest ones. Queues are therefore trusted up to the physical offset
``dispatched``, LAST_MOMENTS_BYTES before the newest entry; from there on the log is read.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.message.model import MessageQueue
from cometmq.message.record import FIXED_BYTES, PREFIX, store_ms_of
from cometmq.message.walk import problem_at
from cometmq.spark.read.losses import report_beyond, report_loss
from cometmq.spark.read.positions import check_order
from cometmq.spark.read.topics import Assigned, Pattern, Topics, matching
from cometmq.spark.store.files import (
    ConsumeQueueReader,
    DamagedBytes,
    Listed,
    LogFileStatus,
    blocks,
    has_queues,
    log_end,
    log_files,
    noted_complete,
    opened,
    queue_names,
    read_at,
)
from cometmq.spark.store.options import END, Key, RequestedRange, RequestedRanges, requested_ranges
from cometmq.spark.store.urls import forget, forget_listed, has_changed_below, is_url, joined

if TYPE_CHECKING:
    from cometmq.spark.read.topics import TopicChoice
    from cometmq.spark.store.options import StoreOptions, StoreRoot


FEW_PARTS: Final = 4
"""If the wanted queues hold less than 1/FEW_PARTS of the log, they are read by their entries.
Random reads cost more than sequential ones, but much less than reading the whole log."""

LAST_MOMENTS_BYTES: Final = 16 << 20
"""Part of the log before the newest queue entry in which entries of other queues may be missing."""

_SAMPLE: Final = 64
"""Number of queue entries from which the mean size of records is taken."""

_HEAD_BYTES: Final = 128

THREADS: Final = 16
"""Number of threads that look up queues of a remote store. They mostly wait for responses."""

_NEIGHBOURS: Final = 16
"""Number of queues of a topic that one thread looks up in sequence. Their ends are near each other,
so the search in a queue begins at the end of the previous one."""

FirstPlaces = Mapping[str, Mapping[int, int]]
"""The physical offset of the first entry of queues, by topic and queue id."""

QueueIds = tuple[int, ...]
"""Queue ids, as the half-open bounds of runs: (0, 8, 10, 11) stands for 0 to 7, and 10."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class LogPart:
    """The records of a log file that begin at ``start <= physical offset < stop``.

    Records before the first entry of their queue belong to a deleted topic of the same name, and
    the task leaves them out (:meth:`first_of`):

    - ``first_places`` has the physical offset of that entry. After :func:`cut_log` it has only
      those after ``start``; ``begun`` has the queues with an earlier one.
    - Other queues are empty: of these, records before the physical offset ``dispatched`` are left
      out.
    - If ``dispatched`` is -1, queues are ignored and no record is left out.
    """

    root: StoreRoot
    file: LogFileStatus
    start: int
    stop: int
    requested: RequestedRanges
    dispatched: int
    first_places: FirstPlaces = field(default_factory=dict, repr=False)
    begun: Mapping[str, QueueIds] = field(default_factory=dict, repr=False)

    def first_of(self, topic: str, queue_id: int) -> int:
        """Return the physical offset before which records of a queue are left out."""
        if self.dispatched < 0:
            return 0
        place = self.first_places.get(topic, {}).get(queue_id)
        if place is not None:
            return place
        return 0 if bisect_right(self.begun.get(topic, ()), queue_id) % 2 else self.dispatched

    @property
    def size_bytes(self) -> int:
        """Bytes of the log to read."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """The files of one queue, and those of the log, as the plan listed them."""

    queue: Listed
    log: Listed


@dataclass(frozen=True, slots=True)
class QueuePart:
    """The messages ``start <= offset < stop`` of a queue, of about ``record_bytes`` each.

    ``listed`` has the files of the queue and of the log, if the store is remote. For a local store
    it is None and the task lists the files itself, which is cheap and shows files added since.
    """

    root: StoreRoot
    topic: str
    queue_id: int
    start: int
    stop: int
    record_bytes: int
    listed: ListedFiles | None = field(default=None, repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of the log to read."""
        return (self.stop - self.start) * self.record_bytes


Part = LogPart | QueuePart


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Physical offsets near the end of a log.

    ``newest`` is the end of the newest record in any queue, -1 if none is known. Every queued
    record before ``dispatched`` has its queue entry.
    """

    newest: int
    dispatched: int


def plan(options: StoreOptions) -> list[tuple[Part, ...]]:
    """Return the parts of each task of a read. Raises NoStore, BadOption, DataLoss,
    StoreUnreadable, OSError."""
    forget()
    parts: list[Part] = []
    for root in options.roots:
        parts += StorePlanner(root, options).parts()
    return tasks_of(parts, options)


def tasks_of(parts: Sequence[Part], options: StoreOptions) -> list[tuple[Part, ...]]:
    """Return the parts of each task: large ones are split, small neighbours joined."""
    total = sum(part.size_bytes for part in parts)
    bytes_max = min(options.max_bytes_per_partition, max(1, -(-total // options.min_partitions)))
    cut: list[Part] = []
    for part in parts:
        if isinstance(part, QueuePart):
            cut += queue_parts(part, bytes_max)
        else:
            cut += cut_log(part, bytes_max)
    return join(cut, bytes_max)


def is_wanted(
    choice: TopicChoice, broker_name: str, topic: str, queue_id: int | None = None
) -> bool:
    """Return whether a choice includes a topic, or the queue with ``queue_id`` of it."""
    match choice:
        case Topics():
            return topic in choice.names
        case Pattern():
            return bool(matching(choice, [topic], frozenset()))
        case Assigned():
            if queue_id is None:
                return any(queue.topic == topic for queue in choice.queues)
            return MessageQueue(topic, broker_name, queue_id) in choice.queues


class StorePlanner:
    """Looks up the queues of one store, and makes the parts of a read from it."""

    def __init__(self, root: StoreRoot, options: StoreOptions) -> None:
        self._root = root
        self._options = options
        self._queues: dict[Key, ConsumeQueueReader] = {}
        self._list_log()

    def _list_log(self) -> None:
        forget_listed(joined(self._root.path, "commitlog"))
        self.files = log_files(self._root.path)
        self.log_start = self.files[0].base if self.files else 0

    def parts(self) -> list[Part]:
        """Return the parts of a read, before splitting."""
        root, options = self._root, self._options
        ends, names = self.ends()
        believes_queues = options.only_queued and has_queues(root.path)
        end = log_end(self.files, ends.newest)
        wanted = [key for key in names if is_wanted(options.choice, root.broker_name, *key)]
        requested = requested_ranges(
            options.starting, options.ending, root.broker_name, wanted, self.bounds
        )
        requested = self._within_queues(requested, ends, end)
        if options.only_queued:
            self._report_gone(requested)
        start = self._first_at(requested)
        if believes_queues:
            by_entries = self._by_entries(wanted, requested, ends.dispatched, end)
            if by_entries is not None:
                return by_entries
        dispatched = ends.dispatched if believes_queues else -1
        return [*self._whole_log(start, end, requested, dispatched, wanted)]

    def log(
        self,
        start: int,
        end: int,
        requested: RequestedRanges,
        dispatched: int,
        queues: Iterable[Key] = (),
    ) -> list[LogPart]:
        """Return the log from ``start`` to ``end``, one part per existing file. ``queues`` are
        those whose records are read; they are needed unless ``dispatched`` is -1."""
        parts = log_parts(self._root, self.files, start, end, requested, dispatched, END)
        return self._placed(parts, queues)

    def _whole_log(
        self, start: int, end: int, requested: RequestedRanges, dispatched: int, queues: list[Key]
    ) -> list[LogPart]:
        """Return the log from ``start`` to ``end``, with a part for each file that is missing
        between others: the task of that part reports the loss."""
        files = with_missing_files(self._root.path, self.files)
        parts = log_parts(self._root, files, start, end, requested, dispatched, END)
        return self._placed(parts, queues)

    def _placed(self, parts: list[LogPart], queues: Iterable[Key]) -> list[LogPart]:
        """Return the parts with ``first_places`` of the queues filled in, so that tasks need not
        look them up. Empty queues are left out."""
        if not parts or parts[0].dispatched < 0:
            return parts
        found: dict[str, dict[int, int]] = {}
        for key in queues:
            files = self.files_of(key)
            stop = files.stop()
            first = files.start(0, stop)
            if first < stop:
                found.setdefault(key[0], {})[key[1]] = files.entry(first).physical
        return [replace(part, first_places=found) for part in parts]

    def files_of(self, key: Key) -> ConsumeQueueReader:
        """Return the reader of a queue, cached, with the files listed at the first call."""
        if key not in self._queues:
            self._queues[key] = ConsumeQueueReader(self._root.path, *key)
        return self._queues[key]

    def bounds(self, key: Key) -> tuple[int, int]:
        """Return the offset of a queue's first message and the offset after its last entry."""
        files = self.files_of(key)
        stop = files.stop()
        return files.start(self.log_start, stop), stop

    def survey(self, names: Sequence[Key]) -> None:
        """Look up the ends of all queues of a remote store, and all that a plan needs of the wanted
        ones, in several threads. The readers of the queues cache the results."""
        if is_url(self._root.path):
            together(self._look_at, neighbours(names))

    def _look_at(self, queues: Sequence[Key]) -> None:
        """Look up neighbouring queues in sequence: each search begins at the result of the previous
        one."""
        end = begin = 0
        for key in queues:
            files = self.files_of(key)
            end = stop = files.stop(end)
            if not stop:
                continue
            files.entry(stop - 1)
            if is_wanted(self._options.choice, self._root.broker_name, *key):
                files.entry(files.start(0, stop))
                begin = files.start(self.log_start, stop, begin)
                files.entry(begin)
                files.mean_bytes(max(begin, stop - _SAMPLE), stop)

    def ends(self) -> tuple[LogEnds, list[Key]]:
        """Return the physical offsets near the end of the log, according to the queues, and the
        names of all queues.

        Call this before :meth:`bounds`. If bounds were older than ``dispatched``, a message that a
        running broker queues in between would be in no range of a queue and in no part of the log.
        """
        path = self._root.path
        names = queue_names(path)
        self.survey(names)
        last: set[tuple[int, int]] = set()
        for key in names:
            # A remote queue is looked up only once; a local one again in `bounds`.
            files = self.files_of(key) if is_url(path) else ConsumeQueueReader(path, *key)
            stop = files.stop()
            entry = files.entry(stop - 1) if stop else None
            if entry is not None and entry.is_record:
                last.add((entry.physical, entry.size_bytes))
        # Entries may refer to files that were added since the first listing.
        self._list_log()
        newest = -1
        for physical, size_bytes in sorted(last, reverse=True):
            # After a crash, queues may refer to records that the log has lost.
            if self._is_record(physical, size_bytes):
                newest = physical + size_bytes
                break
        noted = noted_complete(path)
        complete = newest if noted is None else min(newest, noted)
        if is_url(path) and has_changed_below(joined(path, "consumequeue")):
            # The queues were looked up at different times: read the whole log.
            complete = self.log_start
        # A queue may have been created meanwhile.
        names = queue_names(path)
        return LogEnds(newest, max(complete - LAST_MOMENTS_BYTES, self.log_start)), names

    def _is_record(self, physical: int, size_bytes: int) -> bool:
        head = self._head(physical)
        return (
            len(head) >= FIXED_BYTES
            and not problem_at(head, 0, physical)
            and PREFIX.unpack_from(head)[0] == size_bytes
        )

    def _head(self, physical: int) -> bytes:
        for file in self.files:
            if file.base <= physical < file.stop:
                try:
                    with opened(file.path) as handle:
                        return read_at(handle, _HEAD_BYTES, physical - file.base)
                except FileNotFoundError:
                    return b""
        return b""

    def _store_ms(self, physical: int) -> int | None:
        """Return the store time of the record at a physical offset, or None if there is no
        record."""
        head = self._head(physical)
        if len(head) < FIXED_BYTES or problem_at(head, 0, physical):
            return None
        return store_ms_of(head)

    def store_ms(self, key: Key, offset: int) -> int | None:
        """Return the store time of a queue's message, or None if its record cannot be read."""
        return self._store_ms(self.files_of(key).entry(offset).physical)

    def _within_queues(
        self, requested: RequestedRanges, ends: LogEnds, end: int
    ) -> RequestedRanges:
        """Return the ranges limited to the ends of their queues.

        Raises BadOption if an option ends a range after the end of its queue, unless losses are
        ignored, or starts a range after its end.
        """
        named = {key: self._end_named(asked) for key, asked in requested.by_queue.items()}
        beyond = [key for key, offset in named.items() if offset > self.bounds(key)[1]]
        reached = self._reached(beyond, ends, end)
        found = dict(requested.by_queue)
        for key, asked in requested.by_queue.items():
            queue = MessageQueue(key[0], self._root.broker_name, key[1])
            last = reached.get(key, asked.stop)
            if last < asked.stop < END:
                assert self._options.ending is not None
                option = self._options.ending.option
                report_beyond(option, queue, last, asked.stop, self._options)
                found[key] = asked = replace(asked, stop=last)
            if self._options.starting is not None:
                stop = min(last, asked.stop)
                check_order({queue: asked.start}, {queue: stop}, self._options.starting.option)
        return replace(requested, by_queue=found)

    def _end_named(self, asked: RequestedRange) -> int:
        """Return the highest offset that the options name for a range, 0 or less for none."""
        return max(asked.start, asked.stop if asked.stop < END else 0)

    def _reached(self, keys: list[Key], ends: LogEnds, end: int) -> dict[Key, int]:
        """Return the ends of queues, including records in the log that are in no queue yet."""
        found = {key: self.bounds(key)[1] for key in keys}
        for part in self.log(ends.dispatched, end, RequestedRanges(), -1) if keys else ():
            for block in blocks(part.file, part.start, part.stop, part.root.broker_name):
                if isinstance(block, DamagedBytes):
                    continue  # damage is reported when it is read
                names, codes = block.topic_codes()
                ids, places = block.number("queue_id"), block.number("physical_offset")
                for topic, queue_id in keys:
                    if topic in names:
                        rows = (codes == names.index(topic)) & (ids == queue_id)
                        rows &= places >= self.first_place(topic, queue_id)
                        newest = int(block.queue_offsets[rows].max(initial=-1))
                        found[topic, queue_id] = max(found[topic, queue_id], newest + 1)
        return found

    def first_place(self, topic: str, queue_id: int) -> int:
        """Return the physical offset of a queue's first entry, 0 for an empty queue. Earlier
        records belong to a deleted topic of the same name."""
        first, stop = self.bounds((topic, queue_id))
        return self.files_of((topic, queue_id)).entry(first).physical if first < stop else 0

    def _report_gone(self, requested: RequestedRanges) -> None:
        """Report messages whose offsets the options name and that are gone. Raises DataLoss."""
        for (topic, queue_id), asked in requested.by_queue.items():
            if asked.start < 0:
                continue
            start, stop = self.bounds((topic, queue_id))
            gone = min(start, asked.stop)
            if asked.start < gone and asked.start < stop:
                queue = MessageQueue(topic, self._root.broker_name, queue_id)
                report_loss(queue, asked.start, gone, self._options)

    def _first_at(self, requested: RequestedRanges) -> int:
        """Return the physical offset where reading starts. Files with only older records are
        skipped."""
        from_ms = requested.otherwise.from_ms
        first = self.log_start
        if requested.by_queue or from_ms <= 0:
            return first
        for file in self.files[1:]:
            store_ms = self._store_ms(file.base)
            if store_ms is None or store_ms >= from_ms:
                break
            first = file.base
        return first

    # ------------------------------------------------------------------------ by queue entries

    def _by_entries(
        self, wanted: list[Key], requested: RequestedRanges, dispatched: int, end: int
    ) -> list[Part] | None:
        """Return ranges of queues, and the part of the log from ``dispatched`` on.

        Return None if it is better to read the whole log: see FEW_PARTS.
        """
        log_bytes = end - self.log_start
        found: list[QueuePart] = []
        rest: dict[Key, RequestedRange] = {}
        for key in wanted:
            part = self._range(key, requested.of(*key))
            rest[key] = replace(requested.of(*key), start=max(part.stop, requested.of(*key).start))
            if part.start < part.stop:
                found.append(part)
            if sum(each.size_bytes for each in found) * FEW_PARTS > log_bytes:
                return None
        left = RequestedRanges(requested.otherwise, rest)
        tail = self._whole_log(dispatched, end, left, dispatched, wanted)
        if (end - dispatched) * FEW_PARTS > log_bytes:
            return None
        return [*found, *tail]

    def _range(self, key: Key, asked: RequestedRange) -> QueuePart:
        files = self.files_of(key)
        first, stop = self.bounds(key)
        low, high = max(first, asked.start), min(stop, asked.stop)
        if low < high and asked.from_ms > -END:
            low = self.first_since(files, low, high, asked.from_ms)
        if low < high and asked.until_ms < END:
            high = self.first_since(files, low, high, asked.until_ms)
        return self.queue_part(key, low, high)

    def queue_part(self, key: Key, low: int, high: int) -> QueuePart:
        """Return a range of a queue as a part. The mean size is that of its last records."""
        files = self.files_of(key)
        high = max(low, high)
        listed = None
        if is_url(self._root.path):
            listed = ListedFiles(files.listed(low, high), self._log_of(files, low, high))
        record_bytes = files.mean_bytes(max(low, high - _SAMPLE), high)
        return QueuePart(self._root, *key, low, high, record_bytes, listed)

    def _log_of(self, files: ConsumeQueueReader, low: int, high: int) -> Listed:
        """Return the log files that a range of a queue refers to. The entries of a queue are in the
        order of the log, so the first and the last one decide."""
        if low == high:
            return ()
        begin, end, between = files.entry(low), files.entry(high - 1), self.files
        if begin.is_record and end.is_record:
            # If the first record's file is gone, reading begins with the next one.
            between = [file for file in between if begin.physical < file.stop]
            between = [file for file in between if file.base <= end.physical] or between[:1]
        return tuple((file.base, file.size_bytes) for file in between)

    def first_since(self, files: ConsumeQueueReader, low: int, high: int, moment_ms: int) -> int:
        """Return the first offset in ``low..high`` that was stored at a moment (ms) or later,
        ``high`` if there is none."""

        def store_ms(offset: int) -> int:
            found = self._store_ms(files.entry(offset).physical)
            # Include an unreadable record: the task that reads it reports it.
            return moment_ms if found is None else found

        return low + bisect_left(range(low, high), moment_ms, key=store_ms)


def neighbours(names: Iterable[Key]) -> list[list[Key]]:
    """Return sorted queues in groups of at most _NEIGHBOURS queues of one topic."""
    found: list[list[Key]] = []
    for key in names:
        if found and found[-1][0][0] == key[0] and len(found[-1]) < _NEIGHBOURS:
            found[-1].append(key)
        else:
            found.append([key])
    return found


def together(look: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Call a function with each item, in THREADS threads, and return the results in order. Raises
    the first error, after which no further call begins."""
    with ThreadPoolExecutor(THREADS) as pool:
        looks = [pool.submit(look, item) for item in items]
        try:
            return [each.result() for each in looks]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def with_missing_files(root: str, files: Iterable[LogFileStatus]) -> list[LogFileStatus]:
    """Return the files of a log, with an assumed file for each gap between them."""
    found: list[LogFileStatus] = []
    for file in files:
        if found and found[-1].stop < file.base:
            gap = found[-1].stop
            path = joined(root, "commitlog", f"{gap:020}")
            found.append(LogFileStatus(path, gap, file.base - gap))
        found.append(file)
    return found


def log_parts(
    root: StoreRoot,
    files: Iterable[LogFileStatus],
    start: int,
    stop: int,
    requested: RequestedRanges,
    dispatched: int,
    bytes_max: int,
) -> list[LogPart]:
    """Split the log from ``start`` to ``stop`` into parts of at most ``bytes_max`` within one file.

    Borders may be at any byte: a task begins with the first record at or after its border.
    """
    found: list[LogPart] = []
    for file in files:
        low, high = max(start, file.base), min(stop, file.stop)
        for border in range(low, high, bytes_max):
            end = min(border + bytes_max, high)
            found.append(LogPart(root, file, border, end, requested, dispatched))
    return found


def cut_log(part: LogPart, bytes_max: int) -> list[LogPart]:
    """Split a part of the log into pieces of at most ``bytes_max``.

    Each piece gets only the ``first_places`` that it needs: with those of all queues, a task could
    have megabytes.
    """
    found: list[LogPart] = []
    for at in range(part.start, part.stop, bytes_max):
        later, begun = _places_from(at, part.first_places)
        if at >= part.dispatched:
            # All records of this piece are after ``dispatched``, so none are left out.
            begun = {}
        stop = min(at + bytes_max, part.stop)
        found.append(replace(part, start=at, stop=stop, first_places=later, begun=begun))
    return found


def _places_from(start: int, places: FirstPlaces) -> tuple[FirstPlaces, dict[str, QueueIds]]:
    """Return the places after ``start``, and the queues whose first place is not after it."""
    later: dict[str, Mapping[int, int]] = {}
    begun: dict[str, QueueIds] = {}
    for topic, by_id in places.items():
        if max(by_id.values()) <= start:
            begun[topic] = _runs(by_id)
        else:
            later[topic] = {queue_id: at for queue_id, at in by_id.items() if at > start}
            if len(later[topic]) < len(by_id):
                begun[topic] = _runs(by_id.keys() - later[topic].keys())
    return later, begun


def _runs(ids: Collection[int]) -> QueueIds:
    """Return ids of queues as the bounds of their runs."""
    low, high = min(ids), max(ids) + 1
    if high - low == len(ids):
        return low, high
    bounds: list[int] = []
    for queue_id in sorted(ids):
        if bounds and bounds[-1] == queue_id:
            bounds[-1] += 1
        else:
            bounds += (queue_id, queue_id + 1)
    return tuple(bounds)


def queue_parts(part: QueuePart, bytes_max: int) -> list[QueuePart]:
    """Split a range of a queue into even pieces of at most ``bytes_max``."""
    rows = part.stop - part.start
    count = min(rows, -(-part.size_bytes // bytes_max))
    borders = [part.start + rows * at // count for at in range(count + 1)] if count else []
    return [replace(part, start=low, stop=high) for low, high in itertools.pairwise(borders)]


def join(parts: Sequence[Part], bytes_max: int) -> list[tuple[Part, ...]]:
    """Join neighbouring parts into tasks of at most ``bytes_max``; a larger part is a task of its
    own."""
    found: list[list[Part]] = []
    size = 0
    for part in parts:
        if found and size + part.size_bytes <= bytes_max:
            found[-1].append(part)
            size += part.size_bytes
        else:
            found.append([part])
            size = part.size_bytes
    return [tuple(each) for each in found]
