"""Converts the parts of a task to Arrow batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.message.model import MessageQueue
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import BadRecord
from cometmq.spark.decode.records import Block
from cometmq.spark.read.dirty import clean, read_block
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.quarantine import quarantine, safe_name
from cometmq.spark.store.directory import LogFile, log_files, opened, read_at
from cometmq.spark.store.losses import DamagedLog, report_damage, report_gone
from cometmq.spark.store.pieces import PIECE_BYTES, Damage, blocks
from cometmq.spark.store.planning import LogPart, Part, QueuePart
from cometmq.spark.store.queues import QueueFiles
from cometmq.spark.store.selection import Selection
from cometmq.store.layout import HOLE_SIZE

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.message.walk import Ints
    from cometmq.spark.store.options import StoreOptions

Read = tuple[Block, dict[int, str]]
"""Records, and the problems of some of them by position (see read/dirty.py)."""

_GAP_BYTES: Final = 16 << 10
"""Records with at most this gap between them are read in one call."""


def batches(
    parts: Sequence[Part], options: StoreOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in the order of the log or of their queue.

    Raises LogGone, DataLoss, DamagedLog, DirtyRow, OSError.
    """
    with quarantine(options.dirty.path, _file_name(parts)) as aside:
        for part in parts:
            for block, problems in _read_part(part, options):
                yield from clean(block, problems, names, options.dirty, aside)


def _read_part(part: Part, options: StoreOptions) -> Iterator[Read]:
    return _of_log(part, options) if isinstance(part, LogPart) else _of_queue(part, options)


def _file_name(parts: Sequence[Part]) -> str:
    """Return the name of the quarantine file of a task, derived from its parts."""
    if not parts:
        return ""
    first = parts[0]
    of = "log" if isinstance(first, LogPart) else f"{first.topic}-{first.queue_id}"
    every = ";".join(f"{part.root.path} {part.start} {part.stop}" for part in parts)
    return safe_name(f"{first.root.broker_name}-{of}-{first.start}", every)


def _of_log(part: LogPart, options: StoreOptions) -> Iterator[Read]:
    selection = Selection(part, options)
    try:
        for found in blocks(part):
            if isinstance(found, Damage):
                report_damage(part, found, options)
                continue
            selection.choose(found)
            yield found, {}
    except FileNotFoundError:
        report_gone(part, options)


def _of_queue(part: QueuePart, options: StoreOptions) -> Iterator[Read]:
    entries = QueueFiles(part.root.path, part.topic, part.queue_id).entries(part.start, part.stop)
    physical, sizes = entries["physical"].astype(np.int64), entries["size"].astype(np.int64)
    files = log_files(part.root.path)
    log_start = files[0].base if files else 0
    held = (sizes > 0) & (sizes < HOLE_SIZE) & (physical >= log_start)
    _report_gone(part, np.flatnonzero(~held), options)
    tag_filter = options.row_filter.tags
    if not tag_filter.matches_all and part.topic != SCHEDULE_TOPIC:
        # Entries hold the hash of the tag (in the queue of delayed messages, a time), so most
        # unwanted records need not be read.
        held &= np.isin(entries["tag_code"], np.array(sorted(tag_filter.codes), np.int64))
    rows = np.flatnonzero(held)
    for chosen in _runs(physical[rows], sizes[rows], files):
        own = rows[chosen]
        yield from _block(part, own, physical[own], sizes[own], files, options)


def _report_gone(part: QueuePart, gone: Ints, options: StoreOptions) -> None:
    queue = MessageQueue(part.topic, part.root.broker_name, part.queue_id)
    if len(gone):
        edges = np.flatnonzero(np.diff(gone) > 1) + 1
        for run in np.split(gone + part.start, edges):
            report_loss(queue, int(run[0]), int(run[-1]) + 1, options)


def _runs(physical: Ints, sizes: Ints, files: list[LogFile]) -> Iterator[slice]:
    """Yield slices of neighbouring rows to decode together: some megabytes of one log file."""
    at = 0
    while at < len(physical):
        file = _file_of(int(physical[at]), files)
        file_end = file.stop if file else 0
        end = int(np.searchsorted(physical, file_end)) if file else at + 1
        taken = np.cumsum(sizes[at:end])
        stop = at + max(1, int(np.searchsorted(taken, PIECE_BYTES, side="right")))
        yield slice(at, min(stop, end))
        at = min(stop, end)


def _file_of(physical: int, files: list[LogFile]) -> LogFile | None:
    at = bisect_right(files, physical, key=lambda file: file.base) - 1
    return files[at] if at >= 0 and physical < files[at].stop else None


def _block(
    part: QueuePart,
    rows: Ints,
    physical: Ints,
    sizes: Ints,
    files: list[LogFile],
    options: StoreOptions,
) -> Iterator[Read]:
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
            data, part.root.broker_name, options.dirty, starts, topic=part.topic
        )
    except BadRecord as error:
        at = int(np.searchsorted(starts, error.position, side="right")) - 1
        raise DamagedLog(file.path, int(physical[at]), error.problem) from None
    wrong = (block.number("physical_offset") != physical) | (block.number("size_bytes") != sizes)
    wrong |= block.number("queue_offset") != rows + part.start
    wrong |= block.number("queue_id") != part.queue_id
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DamagedLog(
            file.path, int(physical[at]),
            f"it is not the message {int(rows[at]) + part.start} of queue {part.queue_id} of "
            f"{part.topic!r}, whose entry says that it is there",
        )  # fmt: skip
    options.row_filter.choose(block, beside=problems)
    yield block, problems


def _read(file: LogFile, physical: Ints, sizes: Ints) -> tuple[bytes, Ints]:
    """Read records of one file. Return the bytes, and the position of each record in them."""
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
