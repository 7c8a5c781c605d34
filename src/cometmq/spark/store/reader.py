"""Reads the parts of a task from the files of a store, and converts them to Arrow batches; also the
reader that Spark calls for ``spark.read`` of a store.

planning.py makes the parts; files.py reads the bytes.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.core.errors import CometError
from cometmq.message.model import MessageQueue
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import BadRecord, TransactionType
from cometmq.spark.decode import Block
from cometmq.spark.read.corrupt import Mode, clean, quarantine, read_block, safe_name
from cometmq.spark.read.losses import report_loss
from cometmq.spark.store.files import (
    BLOCK_BYTES,
    ConsumeQueueReader,
    DamagedBytes,
    LogFileStatus,
    blocks,
    files_now,
    log_files,
    opened,
    read_at,
)
from cometmq.spark.store.planning import LogPart, Part, QueuePart, is_wanted, plan
from cometmq.spark.store.urls import forget, shown
from cometmq.spark.workermemory import keep_loaded
from cometmq.store.layout import HOLE_SIZE, MAX_UNIT_ADDRESS

if TYPE_CHECKING:
    from cometmq.message.walk import Flags, Ints
    from cometmq.spark.store.options import StoreOptions
    from cometmq.spark.values.columns import ValueColumns

log = logging.getLogger(__name__)

#: Bit of sysFlag in records that are in no queue: half messages and rollbacks.
_UNQUEUED: Final = int(TransactionType.PREPARED)
_NOWHERE: Final = (1 << 63) - 1

_GAP_BYTES: Final = 16 << 10
"""Records with at most this gap between them are read in one call."""

Read = tuple[Block, dict[int, str]]
"""Records, and the problems of bad ones by position (see read/corrupt.py)."""


class LogGone(CometError):
    """Raised if a file of the log is missing between others, or was deleted after the plan.
    ``start`` and ``stop`` are physical offsets."""

    def __init__(self, path: str, start: int, stop: int) -> None:
        self.path = path
        self.start = start
        self.stop = stop
        super().__init__(
            f"{path} is missing, and with it physical offsets {start} to {stop} (deleted after the "
            "broker's retention time, or not copied); set option failOnDataLoss to false to "
            "continue without them"
        )


class DamagedLog(CometError):
    """Raised if the bytes at physical offset ``offset`` of a log file are no record."""

    def __init__(self, path: str, offset: int, problem: str) -> None:
        self.path = path
        self.offset = offset
        self.problem = problem
        super().__init__(
            f"{path} is damaged at physical offset {offset}: {problem}; options mode=PERMISSIVE "
            "and badRecordsPath continue after it"
        )


def report_gone(part: LogPart, options: StoreOptions) -> None:
    """Raise LogGone, or log it if the user chose to continue."""
    if options.fail_on_data_loss:
        raise LogGone(shown(part.file.path), part.start, part.stop)
    path = shown(part.file.path)
    log.warning("log_file_missing path=%s start=%d stop=%d", path, part.start, part.stop)


def report_damage(part: LogPart, damage: DamagedBytes, options: StoreOptions) -> None:
    """Raise DamagedLog, or log it if the mode allows bad records.

    The damaged bytes yield no rows, because their topic and queue are unknown.
    """
    if options.corrupt.mode is Mode.FAILFAST:
        raise DamagedLog(shown(part.file.path), damage.start, damage.problem)
    log.warning(
        "log_damaged path=%s start=%d stop=%d problem=%r",
        shown(part.file.path), damage.start, damage.stop, damage.problem,
    )  # fmt: skip


class Selection:
    """Selects the rows of a read in the blocks of one part of the log."""

    def __init__(self, part: LogPart, options: StoreOptions) -> None:
        self._part = part
        self._options = options
        self._wanted: dict[str, bool] = {}
        self._first: dict[tuple[str, int], int] = {}

    def choose(self, block: Block) -> None:
        """Keep only the wanted rows."""
        if self._options.only_queued:
            block.choose(block.number("sys_flag") & _UNQUEUED == 0)
        if not len(block):
            return
        names, codes = block.topic_codes()
        verdicts = np.array([self._wants(name) for name in names])
        if not verdicts.all():
            block.choose(verdicts[codes])
            codes = codes[verdicts[codes]]
        if len(block):
            self._choose_in_queues(block, names, codes)
        if len(block):
            self._options.row_filter.choose(block)

    def _wants(self, topic: str) -> bool:
        if topic not in self._wanted:
            broker_name = self._part.root.broker_name
            self._wanted[topic] = is_wanted(self._options.choice, broker_name, topic)
        return self._wanted[topic]

    def _choose_in_queues(self, block: Block, names: list[str], codes: Ints) -> None:
        keys, index = _kinds(codes << 32 | block.number("queue_id") & 0xFFFF_FFFF)
        queues = [(names[key >> 32], key & 0xFFFF_FFFF) for key in keys]
        requested = [self._part.requested.of(*queue) for queue in queues]
        firsts = np.array([self._first_of(*queue) for queue in queues], np.int64)
        rows = block.number("physical_offset") >= firsts[index]
        offsets, times = block.queue_offsets, block.number("store_ms")
        rows &= _inside(offsets, [(each.start, each.stop) for each in requested], index)
        rows &= _inside(times, [(each.from_ms, each.until_ms) for each in requested], index)
        block.choose(rows)

    def _first_of(self, topic: str, queue_id: int) -> int:
        """Return the physical offset from which records of a queue count."""
        key = (topic, queue_id)
        if key not in self._first:
            self._first[key] = self._look(topic, queue_id)
        return self._first[key]

    def _look(self, topic: str, queue_id: int) -> int:
        part = self._part
        if not is_wanted(self._options.choice, part.root.broker_name, topic, queue_id):
            return _NOWHERE
        # Records before a queue's first entry belong to a deleted topic of the same name.
        return part.first_of(topic, queue_id)


def _inside(values: Ints, bounds: list[tuple[int, int]], index: Ints) -> Flags:
    """Return for each value whether it lies in the half-open ``bounds[index]`` of its row."""
    lows, highs = np.array(bounds, np.int64).T
    found: Flags = (values >= lows[index]) & (values < highs[index])
    return found


def _kinds(values: Ints) -> tuple[list[int], Ints]:
    """Return the distinct values, and for each row the index of its value among them."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def batches(
    parts: Sequence[Part], options: StoreOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in the order of the log or of their queue.

    Raises LogGone, DataLoss, DamagedLog, CorruptMessage, StoreUnreadable, OSError.
    """
    forget()
    with quarantine(options.corrupt.path, _file_name(parts)) as aside:
        for part in parts:
            for block, problems in _read_part(part, options):
                yield from clean(block, problems, names, options.corrupt, aside)


def _read_part(part: Part, options: StoreOptions) -> Iterator[Read]:
    return _of_log(part, options) if isinstance(part, LogPart) else _of_queue(part, options)


def _file_name(parts: Sequence[Part]) -> str:
    """Return the name of the quarantine file of a task, derived from its parts."""
    if not parts:
        return ""
    first = parts[0]
    of = "log" if isinstance(first, LogPart) else f"{first.topic}-{first.queue_id}"
    every = ";".join(f"{shown(part.root.path)} {part.start} {part.stop}" for part in parts)
    return safe_name(f"{first.root.broker_name}-{of}-{first.start}", every)


def _of_log(part: LogPart, options: StoreOptions) -> Iterator[Read]:
    selection = Selection(part, options)
    try:
        for found in blocks(part.file, part.start, part.stop, part.root.broker_name):
            if isinstance(found, DamagedBytes):
                report_damage(part, found, options)
                continue
            selection.choose(found)
            yield found, {}
    except FileNotFoundError:
        report_gone(part, options)


def _of_queue(part: QueuePart, options: StoreOptions) -> Iterator[Read]:
    """Yield the records of a range of a queue, located by its entries."""
    root, listed = part.root.path, part.listed
    reader = ConsumeQueueReader(
        root, part.topic, part.queue_id, None if listed is None else listed.queue
    )
    entries = reader.entries(part.start, part.stop)
    physical, sizes = entries["physical"].astype(np.int64), entries["size"].astype(np.int64)
    files = log_files(root) if listed is None else []
    bases = [file.base for file in files] if listed is None else [base for base, _ in listed.log]
    log_start = bases[0] if bases else 0
    held = (sizes > 0) & (sizes < HOLE_SIZE) & (physical >= log_start)
    _report_gone(part, np.flatnonzero(~held), options)
    tag_filter = options.row_filter.tags
    if not tag_filter.matches_all and part.topic != SCHEDULE_TOPIC:
        # Entries hold the hash of the tag (but a time in the topic of delayed messages), so most
        # unwanted records need not be read.
        codes = entries["tag_code"]
        # With extensions (store/layout.py), the entry holds an address, so the tag is unknown.
        held &= np.isin(codes, np.array(sorted(tag_filter.codes), np.int64)) | (
            codes <= MAX_UNIT_ADDRESS
        )
    rows = np.flatnonzero(held)
    if listed is not None:
        # A log file may have become shorter since the plan: use its current size.
        files = files_now(root, listed.log, np.sort(physical[rows]).tolist())
    for chosen in _runs(physical[rows], sizes[rows], files):
        own = rows[chosen]
        yield from _block(part, own, physical[own], sizes[own], files, options)


def _report_gone(part: QueuePart, gone: Ints, options: StoreOptions) -> None:
    queue = MessageQueue(part.topic, part.root.broker_name, part.queue_id)
    if len(gone):
        edges = np.flatnonzero(np.diff(gone) > 1) + 1
        for run in np.split(gone + part.start, edges):
            report_loss(queue, int(run[0]), int(run[-1]) + 1, options)


def _runs(physical: Ints, sizes: Ints, files: list[LogFileStatus]) -> Iterator[slice]:
    """Yield slices of neighbouring rows to decode together: some megabytes of one log file."""
    at = 0
    while at < len(physical):
        file = _file_of(int(physical[at]), files)
        file_end = file.stop if file else 0
        end = int(np.searchsorted(physical, file_end)) if file else at + 1
        taken = np.cumsum(sizes[at:end])
        stop = at + max(1, int(np.searchsorted(taken, BLOCK_BYTES, side="right")))
        yield slice(at, min(stop, end))
        at = min(stop, end)


def _file_of(physical: int, files: list[LogFileStatus]) -> LogFileStatus | None:
    at = bisect_right(files, physical, key=lambda file: file.base) - 1
    return files[at] if at >= 0 and physical < files[at].stop else None


def _block(
    part: QueuePart,
    rows: Ints,
    physical: Ints,
    sizes: Ints,
    files: list[LogFileStatus],
    options: StoreOptions,
) -> Iterator[Read]:
    """Read neighbouring records of one log file, and check that they are those of the entries."""
    file = _file_of(int(physical[0]), files)
    try:
        if file is None:
            raise FileNotFoundError
        data, starts = _read(file, physical, sizes)
    except FileNotFoundError:
        _report_gone(part, rows, options)
        return
    try:
        block, problems = read_block(
            data, part.root.broker_name, options.corrupt, starts, topic=part.topic
        )
    except BadRecord as error:
        at = int(np.searchsorted(starts, error.position, side="right")) - 1
        raise DamagedLog(shown(file.path), int(physical[at]), error.problem) from None
    wrong = (block.number("physical_offset") != physical) | (block.number("size_bytes") != sizes)
    wrong |= block.number("queue_offset") != rows + part.start
    wrong |= block.number("queue_id") != part.queue_id
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DamagedLog(
            shown(file.path), int(physical[at]),
            f"it is not message {int(rows[at]) + part.start} of queue {part.queue_id} of "
            f"{part.topic!r}, whose queue entry points to it",
        )  # fmt: skip
    options.row_filter.choose(block, beside=problems)
    yield block, problems


def _read(file: LogFileStatus, physical: Ints, sizes: Ints) -> tuple[bytes, Ints]:
    """Read records of one file, neighbouring ones in one call. Return the bytes, and the position
    of each record in them."""
    ends = physical + sizes
    edges = np.flatnonzero(physical[1:] - ends[:-1] > _GAP_BYTES) + 1
    firsts = np.concatenate(([0], edges))
    lasts = np.concatenate((edges, [len(physical)])) - 1
    pieces: list[bytes] = []
    shifts = np.empty(len(firsts), np.int64)
    length = 0
    with opened(file.path) as handle:
        for number, (low, high) in enumerate(
            zip(physical[firsts].tolist(), ends[lasts].tolist(), strict=True)
        ):
            data = read_at(handle, high - low, low - file.base)
            shifts[number] = length - low
            pieces.append(data.ljust(high - low, b"\0"))
            length += high - low
    run_of = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)
    return b"".join(pieces), physical + shifts[run_of]


class StoreParts(InputPartition):
    """The parts that one task reads."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        super().__init__(parts)


class StoreReader(DataSourceReader):
    """Reads the messages of store directories, planned by the first call."""

    def __init__(
        self, options: StoreOptions, names: tuple[str, ...], values: ValueColumns | None = None
    ) -> None:
        self._options = options
        self._names = names
        self._values = values

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task. Raises NoStore, BadOption, DataLoss, OSError."""
        keep_loaded()
        return [StoreParts(parts) for parts in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises the errors of :func:`batches`."""
        keep_loaded()
        # If the plan has no task, Spark sends a partition of another class.
        parts = partition.value if isinstance(partition, StoreParts) else ()
        found = batches(parts, self._options, self._names)
        return found if self._values is None else self._values.decode(found)
