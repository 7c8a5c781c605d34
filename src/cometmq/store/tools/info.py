"""Overview of a store directory; it reads little, however large the store is."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

import msgspec

from cometmq.core.errors import StoreCorrupt
from cometmq.store.checkpoint import Positions
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY_BYTES
from cometmq.store.log.checksums import BlockChecksums, Seal
from cometmq.store.recovery.mounts import find_mount
from cometmq.store.tools.directory import (
    FileFact,
    QueueFact,
    StoreDirectory,
    StoreInUse,
    find_queues,
    look_into,
)
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.indexes import read_fact
from cometmq.store.tools.logfile import LogWalk, read_record
from cometmq.store.tools.queues import QueueSpan, read_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.config import StoreConfig


class LogRow(msgspec.Struct, frozen=True):
    """One log file. Times are ms, -1 if unknown.

    ``records`` is -1 for a full file without a valid seal, since counting them would mean reading
    it; ``last_stored_ms`` is then the first store time of the next file. ``seal`` is yes, no,
    doubted, or unreadable.
    """

    file: str
    used_bytes: int
    first_stored_ms: int
    last_stored_ms: int
    records: int
    seal: str


class TopicRow(msgspec.Struct, frozen=True):
    """One topic: the number of queues with files, and the number of readable messages."""

    topic: str
    queues: int
    messages: int


class IndexRow(msgspec.Struct, frozen=True):
    """One index file; times are ms."""

    file: str
    entries: int
    first_stored_ms: int
    last_stored_ms: int


class StoreInfo(msgspec.Struct, frozen=True):
    """The overview of a store. ``log_end`` is found without reading the whole log; it is
    ``log_start`` if the log is empty.

    ``warnings`` are sentences for a person.
    """

    root: str
    log_directory: str
    file_system: str
    state: str
    last_writer: str
    log_start: int
    log_end: int
    log_file_bytes: int
    queue_file_bytes: int
    log: list[LogRow]
    topics: list[TopicRow]
    index: list[IndexRow]
    positions: Positions | None
    warnings: list[str]


def look_at(
    config: StoreConfig, files: ReadOnlyFiles | None = None, *, while_running: bool = False
) -> StoreInfo:
    """Collect the overview of the store that ``config`` names.

    Raises NoStore, OSError, and StoreInUse if a broker uses the store. With ``while_running`` the
    store may be in use; the overview then shows what the broker has written so far.
    """
    files = files or ReadOnlyFiles()
    directory = look_into(config, files)
    if directory.holder and not while_running:
        raise StoreInUse(directory.root, directory.holder)
    warnings: list[str] = []
    rows, end = _log_rows(files, directory, warnings)
    findings = Findings()
    index = [
        IndexRow(os.path.basename(fact.path), fact.entries, fact.begin_ms, fact.end_ms)
        for path in directory.index_files
        if (fact := read_fact(files, path, config, findings)) is not None
    ]
    warnings += [finding.line() for finding in findings.all()]
    mount = find_mount(files, directory.root)
    if mount is not None and mount.risk:
        warnings.append(f"{directory.root} lies on {mount.kind} ({mount.point}): {mount.risk}")
    return StoreInfo(
        directory.root, directory.log_directory, mount.kind if mount is not None else "",
        _state(directory), _last_writer(files, directory), directory.log_start, end,
        directory.log_file_bytes, directory.queue_file_bytes, rows,
        _topic_rows(files, directory), index, directory.positions, warnings,
    )  # fmt: skip


def _state(directory: StoreDirectory) -> str:
    if directory.holder < 0:
        return "in use by a CometMQ broker"
    if directory.holder:
        return f"in use by process {directory.holder}, a Java broker"
    return "stopped" if directory.is_clean else "crashed: the next start recovers it"


def _last_writer(files: ReadOnlyFiles, directory: StoreDirectory) -> str:
    if directory.positions is not None:
        return "CometMQ"
    if files.exists(os.path.join(directory.root, "cometmq-positions.json")):
        return "a Java broker, or CometMQ after a crash that damaged its positions file"
    return "a Java broker"


def _log_rows(
    files: ReadOnlyFiles, directory: StoreDirectory, warnings: list[str]
) -> tuple[list[LogRow], int]:
    seals = BlockChecksums(files, directory.root)
    firsts = [_first_stored_ms(files, file) for file in directory.log_files]
    used = [number for number, first_ms in enumerate(firsts) if first_ms >= 0]
    rows: list[LogRow] = []
    end = directory.log_start
    for number, file in enumerate(directory.log_files):
        seal, state = _seal(seals, file, warnings)
        records = -1
        if seal is not None:
            records = seal.summary.records
            last_ms, end = seal.summary.last_ms, file.base + file.size_bytes
        elif used and number < used[-1]:
            last_ms, end = firsts[number + 1], file.base + file.size_bytes
        elif used and number == used[-1]:
            end, last_ms, records = _end_of(files, file)
        else:
            last_ms, records = -1, 0
        rows.append(
            LogRow(
                os.path.basename(file.path), max(0, end - file.base), firsts[number], last_ms,
                records, state,
            )
        )  # fmt: skip
    return rows, end


def _first_stored_ms(files: ReadOnlyFiles, file: FileFact) -> int:
    record = read_record(files, file, file.base)
    return -1 if record is None else record.store_ms


def _seal(seals: BlockChecksums, file: FileFact, warnings: list[str]) -> tuple[Seal | None, str]:
    if file.base in seals.doubted:
        return None, "doubted"
    try:
        seal = seals.read(file.base)
    except StoreCorrupt as error:
        warnings.append(str(error))
        return None, "unreadable"
    return seal, "no" if seal is None else "yes"


def _end_of(files: ReadOnlyFiles, file: FileFact) -> tuple[int, int, int]:
    """Return the end of a file's records, the last store time (ms), and the number of records."""
    walk = LogWalk(files, file.path, file.base, file.size_bytes)
    last_ms, records = -1, 0
    for chunk in walk:
        last_ms = int(chunk.store_ms[-1])
        records += len(chunk)
    return walk.end, last_ms, records


def _topic_rows(files: ReadOnlyFiles, directory: StoreDirectory) -> list[TopicRow]:
    queues: dict[str, int] = {}
    messages: dict[str, int] = {}
    for queue in find_queues(files, directory):
        span = queue_bounds(files, queue, directory.queue_file_bytes, directory.log_start)
        queues[queue.topic] = queues.get(queue.topic, 0) + 1
        messages[queue.topic] = messages.get(queue.topic, 0) + span.end - span.first
    return [TopicRow(topic, count, messages[topic]) for topic, count in queues.items()]


def queue_bounds(
    files: ReadOnlyFiles, queue: QueueFact, file_bytes: int, log_start: int
) -> QueueSpan:
    """Find the bounds of a queue in a few reads. Raises OSError."""
    per_file = file_bytes // QUEUE_ENTRY_BYTES

    def place(offset: int) -> tuple[int, int]:
        found = read_entries(files, queue, file_bytes, offset, 1)
        return int(found.phys[0]), int(found.sizes[0])

    def is_written(offset: int) -> bool:
        return place(offset) != (0, 0)

    def is_gone(offset: int) -> bool:
        phys, size = place(offset)
        return size == HOLE_SIZE or phys < log_start

    for base in reversed(queue.bases):
        first = base // QUEUE_ENTRY_BYTES
        end = _search(first, first + per_file, is_written)
        if end > first:
            return QueueSpan(_search(queue.bases[0] // QUEUE_ENTRY_BYTES, end, is_gone), end)
    first = queue.bases[0] // QUEUE_ENTRY_BYTES
    return QueueSpan(first, first)


def _search(low: int, high: int, keep: Callable[[int], bool]) -> int:
    """Return the first number from ``low`` on for which ``keep`` is false, at most ``high``.

    ``keep`` must also be false for all later numbers.
    """
    while low < high:
        middle = (low + high) // 2
        if keep(middle):
            low = middle + 1
        else:
            high = middle
    return low
