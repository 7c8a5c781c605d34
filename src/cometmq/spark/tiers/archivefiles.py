"""The files of an archive: the messages that each one holds, and the rows of requested messages.

The job archive (jobs/archive.py) writes the files. Plans and tasks run in processes without a Spark
session, so they read the files with pyarrow. The folder of a file names its topic. Offsets are read
from the file itself: a file may lack some between its first and last offset, and two files may
have the same offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from cometmq.message.model import MessageQueue
from cometmq.message.walk import numbers
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.planning import Range
from cometmq.spark.schema import BY_NAME, CORRUPT, arrow_schema
from cometmq.spark.store.holdings import runs
from cometmq.spark.store.planning import is_wanted
from cometmq.spark.tiers.archivefolder import OpenFile, data_files, in_archive, opened
from cometmq.spark.tiers.cover import cover, merged

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from cometmq.message.walk import Flags, Ints
    from cometmq.spark.read.topics import TopicChoice
    from cometmq.spark.tiers.cover import Span
    from cometmq.spark.tiers.options import TieredOptions

THREADS: Final = 8
BATCH_BYTES: Final = 1 << 20
"""Approximate size of an Arrow batch, as in read/corrupt.py."""

BATCH_ROWS_MAX: Final = 20_000
_PLACE: Final = ("broker_name", "queue_id", "queue_offset")
_STORED: Final = "store_timestamp"
_NO_TOPIC: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """A file of an archive, with messages of one topic. ``path`` may be a URL with credentials, so
    ``repr`` leaves it out."""

    path: str = field(repr=False)
    topic: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file, and the ranges of the messages that it holds."""

    file: ArchiveFile
    ranges: tuple[Range, ...]


def archive_files(root: str, choice: TopicChoice) -> list[ArchiveFile]:
    """Return the files of the chosen topics in the archive at ``root``. Raises BadOption if there
    is no archive, StoreUnreadable."""
    found = []
    for file in data_files(root):
        topic = _topic_of(file.name)
        if topic is None:
            continue
        if is_wanted(choice, "", topic):
            found.append(ArchiveFile(in_archive(root, file.name), topic, file.size_bytes))
    return found


def held_files(files: Sequence[ArchiveFile], choice: TopicChoice) -> list[HeldFile]:
    """Return the ranges of chosen queues that each file holds.

    Only the three columns of _PLACE are read. Raises ArchiveFileGone, OSError.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda file: _held(file, choice), files))


def first_at(
    files: Sequence[HeldFile], moments: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Return the first archived offset that was stored at each queue's moment (ms) or later.

    A queue without such a message is left out. Raises ArchiveFileGone, OSError.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda file: _first_at(file, moments), files))
    found: dict[MessageQueue, int] = {}
    for answer in answers:
        for queue, offset in answer.items():
            found[queue] = min(offset, found.get(queue, offset))
    return found


def stored_ms(
    files: Sequence[HeldFile], places: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Return the store time (ms) of the archived message at each queue's offset in ``places``.
    Raises ArchiveFileGone, OSError."""
    wanted: dict[ArchiveFile, dict[MessageQueue, int]] = {}
    for portion in cover(
        [Range(queue, offset, offset + 1) for queue, offset in places.items()],
        [(held.file, held.ranges) for held in files],
    ).portions:
        wanted.setdefault(portion.place, {})[portion.part.queue] = portion.part.start
    found: dict[MessageQueue, int] = {}
    for file, of_file in wanted.items():
        with opened(file.path) as source:
            parts = [Range(queue, offset, offset + 1) for queue, offset in of_file.items()]
            groups = _groups(source.metadata, parts)
            table = source.read([*_PLACE, _STORED], groups)
            for rows in table.combine_chunks().to_batches():
                times = _times_ms(rows)
                for queue, at in _rows_by_queue(rows, file.topic):
                    mine = at[
                        rows["queue_offset"].fill_null(-1).to_numpy()[at] == of_file.get(queue, -1)
                    ]
                    if len(mine):
                        found[queue] = int(times[mine[0]])
    return found


def rows_of_file(
    file: ArchiveFile, parts: Sequence[Range], names: tuple[str, ...], options: TieredOptions
) -> Iterator[pa.RecordBatch]:
    """Yield each message of the ranges once, and report those that the file lacks as lost.

    Raises ArchiveFileGone, DataLoss, OSError.
    """
    wanted = _Wanted(parts)
    needed = dict.fromkeys((*_PLACE, *names, *options.row_filter.columns))
    with opened(file.path) as source:
        columns = [name for name in needed if name not in ("topic", CORRUPT.name)]
        for rows in _batches(source, _groups(source.metadata, parts), columns):
            chosen = rows.filter(pa.array(wanted.take(rows, file.topic)))
            chosen = chosen.filter(pa.array(options.row_filter.among(chosen)))
            if len(chosen):
                yield _with_columns(chosen, names, file.topic)
    for part in wanted.missing():
        report_loss(part.queue, part.start, part.stop, options)


def _batches(
    source: OpenFile, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of row groups, one group at a time, so that Arrow fetches at most one group
    of a remote file in advance."""
    for group in groups:
        yield from source.batches(_batch_rows(source.metadata), group, columns)


class _Wanted:
    """Keeps which of the messages to read from a file were found."""

    def __init__(self, parts: Sequence[Range]) -> None:
        self._of_queue = {
            queue: _QueueWanted(queue, spans) for queue, spans in merged(parts).items()
        }

    def take(self, rows: pa.RecordBatch, topic: str) -> Flags:
        """Return for each row whether it is wanted and was not found before. Note it as found."""
        found = np.zeros(len(rows), np.bool_)
        for queue, at in _rows_by_queue(rows, topic):
            wanted = self._of_queue.get(queue)
            if wanted is not None:
                found[at] = wanted.take(rows["queue_offset"].fill_null(-1).to_numpy()[at])
        return found

    def missing(self) -> Iterator[Range]:
        """Yield the ranges that were not found."""
        for wanted in self._of_queue.values():
            yield from wanted.missing()


class _QueueWanted:
    """The wanted messages of one queue. ``_seen`` has a flag for each, in the order of offsets;
    ``_places`` has the index of the first flag of each span."""

    def __init__(self, queue: MessageQueue, spans: Sequence[Span]) -> None:
        self._queue = queue
        self._starts, self._stops = np.array(spans, np.int64).T
        ends = np.cumsum(self._stops - self._starts)
        self._places = ends - (self._stops - self._starts)
        self._seen = np.zeros(int(ends[-1]), np.bool_)

    def take(self, offsets: Ints) -> Flags:
        """Return for each offset whether it is wanted and was not found before. Note it as
        found."""
        span = np.maximum(np.searchsorted(self._starts, offsets, side="right") - 1, 0)
        inside = (offsets >= self._starts[span]) & (offsets < self._stops[span])
        rows = np.flatnonzero(inside)
        places = self._places[span[rows]] + offsets[rows] - self._starts[span[rows]]
        places, first = np.unique(places, return_index=True)
        is_new = ~self._seen[places]
        self._seen[places] = True
        found = np.zeros(len(offsets), np.bool_)
        found[rows[first[is_new]]] = True
        return found

    def missing(self) -> Iterator[Range]:
        """Yield the ranges that were not found."""
        if self._seen.all():
            return
        for start, stop, place in zip(
            self._starts.tolist(), self._stops.tolist(), self._places.tolist(), strict=True
        ):
            for run in runs(np.flatnonzero(~self._seen[place : place + stop - start]) + start):
                yield Range(self._queue, *run)


def _topic_of(name: str) -> str | None:
    """Return the topic in the name of a file's folder; None for the folder of records without a
    readable topic."""
    for folder in name.split("/")[:-1]:
        column, _, value = folder.partition("=")
        if column == "topic" and value != _NO_TOPIC:
            return unquote(value)
    return None


def _held(file: ArchiveFile, choice: TopicChoice) -> HeldFile:
    found: list[Range] = []
    with opened(file.path) as source:
        for rows in source.read(_PLACE).combine_chunks().to_batches():
            found += [Range(queue, *run) for queue, of in _by_queue(rows, file.topic)
                      for run in runs(np.sort(of))]  # fmt: skip
    chosen = {
        queue for queue in {part.queue for part in found}
        if is_wanted(choice, queue.broker_name, queue.topic, queue.queue_id)
    }  # fmt: skip
    return HeldFile(file, tuple(part for part in sorted(found) if part.queue in chosen))


def _first_at(held: HeldFile, moments: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    queues = {part.queue for part in held.ranges} & moments.keys()
    found: dict[MessageQueue, int] = {}
    if not queues:
        return found
    with opened(held.file.path) as source:
        earliest_ms = min(moments[queue] for queue in queues)
        groups = _since(source.metadata, earliest_ms)
        if not groups:
            return found
        table = source.read([*_PLACE, _STORED], groups).combine_chunks()
        for rows in table.to_batches():
            times = _times_ms(rows)
            for queue, at in _rows_by_queue(rows, held.file.topic):
                if queue in queues:
                    later = at[times[at] >= moments[queue]]
                    if len(later):
                        offset = int(rows["queue_offset"].fill_null(-1).to_numpy()[later].min())
                        found[queue] = min(offset, found.get(queue, offset))
    return found


def _places(rows: pa.RecordBatch) -> tuple[pa.DictionaryArray, Ints, Ints]:
    """Return broker (dictionary-encoded), queue id and offset of each row; -1 for a null id or
    offset."""
    brokers = rows["broker_name"].dictionary_encode()
    ids = rows["queue_id"].fill_null(-1).to_numpy().astype(np.int64)
    return brokers, ids, rows["queue_offset"].fill_null(-1).to_numpy()


def _times_ms(rows: pa.RecordBatch) -> Ints:
    """Return the store time (ms) of each row, 0 for a null."""
    times = rows[_STORED].cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0).to_numpy() // 1000
    return numbers(times)


def _rows_by_queue(rows: pa.RecordBatch, topic: str) -> Iterator[tuple[MessageQueue, Ints]]:
    """Yield each queue in the rows, and the numbers of the rows with its messages."""
    brokers, ids, offsets = _places(rows)
    codes = brokers.indices.fill_null(-1).to_numpy().astype(np.int64)
    held = (codes >= 0) & (ids >= 0) & (offsets >= 0)
    keys = codes << 32 | ids
    for key in np.unique(keys[held]).tolist():
        queue = MessageQueue(topic, brokers.dictionary[key >> 32].as_py(), key & 0xFFFF_FFFF)
        yield queue, np.flatnonzero(held & (keys == key))


def _by_queue(rows: pa.RecordBatch, topic: str) -> Iterator[tuple[MessageQueue, Ints]]:
    """Yield each queue in the rows, and its offsets."""
    for queue, at in _rows_by_queue(rows, topic):
        yield queue, rows["queue_offset"].fill_null(-1).to_numpy()[at]


def _since(metadata: pq.FileMetaData, moment_ms: int) -> list[int]:
    """Return the row groups that may have messages stored at a moment (ms) or later."""
    found = []
    for group in range(metadata.num_row_groups):
        newest = _bounds(metadata, group, _STORED)[1]
        if newest is None or newest.timestamp() * 1000 >= moment_ms:
            found.append(group)
    return found


def _groups(metadata: pq.FileMetaData, parts: Sequence[Range]) -> list[int]:
    """Return the row groups that may have messages of the ranges."""
    found = []
    for group in range(metadata.num_row_groups):
        low, high = _bounds(metadata, group, "queue_offset")
        if low is None or any(part.start <= high and low < part.stop for part in parts):
            found.append(group)
    return found


def _bounds(metadata: pq.FileMetaData, group: int, name: str) -> tuple[Any, Any]:
    """Return the minimum and the maximum of a column in a row group, None if unknown."""
    rows = metadata.row_group(group)
    for at in range(rows.num_columns):
        column = rows.column(at)
        if column.path_in_schema == name:
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max:
                return statistics.min, statistics.max
    return None, None


def _batch_rows(metadata: pq.FileMetaData) -> int:
    size_bytes = sum(
        metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)
    )
    mean_bytes = max(1, size_bytes // max(1, metadata.num_rows))
    return int(max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // mean_bytes)))


def _with_columns(rows: pa.RecordBatch, names: tuple[str, ...], topic: str) -> pa.RecordBatch:
    """Return the rows with the source's columns ``names``, in its types."""
    columns = []
    for name in names:
        kind = BY_NAME[name].arrow
        if name == "topic":
            columns.append(pa.repeat(pa.scalar(topic, kind), len(rows)))
        elif name == CORRUPT.name:
            columns.append(pa.nulls(len(rows), kind))
        else:
            columns.append(rows[name].cast(kind))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(names))
