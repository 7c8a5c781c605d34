"""Inspection of a store directory: an overview of it, and a dump of its records.

The overview reads little, however large the store is. The dump yields records, selected by
position, topic, queue, key or time. It reads the log itself, which stays correct if queues or index
are damaged, in all files that may have selected offsets. Records are selected by columns first;
only those that may match are decoded.
"""

from __future__ import annotations

import base64
import os.path
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from cometmq.core.errors import StoreCorrupt
from cometmq.message.model import from_record
from cometmq.message.record import COMPRESSED, BadRecord, decode_one, verify
from cometmq.store.checkpoint import Positions
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY_BYTES, index_hash, topic_prefix
from cometmq.store.log.checksums import BlockChecksums, Seal
from cometmq.store.recovery.mounts import find_mount
from cometmq.store.tools.directory import (
    FileInfo,
    QueueInfo,
    StoreDirectory,
    StoreInUse,
    find_queues,
    read_directory,
)
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.indexes import read_index_header
from cometmq.store.tools.logfile import Gap, LogWalk, read_record
from cometmq.store.tools.queues import QueueSpan, read_entries

if TYPE_CHECKING:
    from cometmq.message.record import Record
    from cometmq.message.walk import Ints
    from cometmq.store.config import StoreConfig
    from cometmq.store.tools.logfile import Chunk


class LogRow(msgspec.Struct, frozen=True):
    """One log file. Times are ms, -1 if unknown.

    ``records`` is -1 for a full file without a valid seal, because the file would have to be read
    to count them; ``last_stored_ms`` is then the first store time of the next file. ``seal`` is
    yes, no, doubted, or unreadable (log/checksums.py).
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
    """The overview of a store.

    ``log_end`` is found without reading the whole log; it is ``log_start`` if the log is empty.
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


def inspect_store(
    config: StoreConfig, files: ReadOnlyFiles | None = None, *, while_running: bool = False
) -> StoreInfo:
    """Collect the overview of the store that ``config`` names.

    Raises NoStore, OSError, and StoreInUse if a broker uses the store. With ``while_running`` the
    store may be in use; the overview then shows what the broker has written so far.
    """
    files = files or ReadOnlyFiles()
    directory = read_directory(config, files)
    if directory.holder and not while_running:
        raise StoreInUse(directory.root, directory.holder)
    warnings: list[str] = []
    rows, end = _log_rows(files, directory, warnings)
    findings = Findings()
    index = [
        IndexRow(os.path.basename(header.path), header.entries, header.begin_ms, header.end_ms)
        for path in directory.index_files
        if (header := read_index_header(files, path, config, findings)) is not None
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


def _first_stored_ms(files: ReadOnlyFiles, file: FileInfo) -> int:
    record = read_record(files, file, file.base)
    return -1 if record is None else record.store_ms


def _seal(seals: BlockChecksums, file: FileInfo, warnings: list[str]) -> tuple[Seal | None, str]:
    if file.base in seals.doubted:
        return None, "doubted"
    try:
        seal = seals.read(file.base)
    except StoreCorrupt as error:
        warnings.append(str(error))
        return None, "unreadable"
    return seal, "no" if seal is None else "yes"


def _end_of(files: ReadOnlyFiles, file: FileInfo) -> tuple[int, int, int]:
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
    files: ReadOnlyFiles, queue: QueueInfo, file_bytes: int, log_start: int
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


class BodyForm(Enum):
    """The form of bodies: text if they are valid text, always text, always Base64, or none."""

    AUTO = "auto"
    TEXT = "text"
    BASE64 = "base64"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class DumpSelection:
    """A selection of records: a record must match every field that is set.

    Offsets are physical, times in ms; both stops are exclusive. ``key`` is one of a message's keys
    or its unique key.
    """

    start: int = 0
    stop: int = 1 << 62
    topic: str = ""
    queue_id: int = -1
    key: str = ""
    since_ms: int = 0
    until_ms: int = 1 << 62


def dump(
    config: StoreConfig,
    wanted: DumpSelection,
    files: ReadOnlyFiles | None = None,
    *,
    while_running: bool = False,
    on_gap: Callable[[Gap], None] = lambda _: None,
) -> Iterator[Record]:
    """Yield the selected records in log order.

    ``on_gap`` is called with each range of bytes that are not a record. Raises NoStore, OSError,
    and StoreInUse if a broker uses the store. With ``while_running`` the store may be in use; the
    dump then has what the broker has written so far.
    """
    files = files or ReadOnlyFiles()
    directory = read_directory(config, files)
    if directory.holder and not while_running:
        raise StoreInUse(directory.root, directory.holder)
    # The offset at which the log must continue; -1 if that is unknown.
    end = -1
    for file in directory.log_files:
        size_bytes = max(file.size_bytes, directory.log_file_bytes)
        if file.base >= wanted.stop or file.base + size_bytes <= wanted.start:
            continue
        walk = LogWalk(files, file.path, file.base, file.size_bytes)
        gaps: list[Gap] = []
        for chunk in walk:
            if 0 <= end < file.base:
                gaps.append(Gap(end, file.base, "the log stops here, a later file goes on", False))
            end = -1
            yield from _wanted_records(chunk, wanted)
        for gap in _wanted_gaps(gaps + walk.gaps, wanted):
            on_gap(gap)
        is_whole = walk.closed and file.size_bytes >= directory.log_file_bytes
        if walk.gaps or is_whole:
            end = file.base + size_bytes
        elif directory.holder and not walk.closed:
            return  # the following files were created in advance
        elif end < 0:
            end = walk.end


def _wanted_records(chunk: Chunk, wanted: DumpSelection) -> Iterator[Record]:
    for row in _rows(chunk, wanted).tolist():
        at = int(chunk.starts[row])
        record = decode_one(chunk.raw.data, at, check_crc=False)
        if not wanted.key or _has_key(record, wanted.key):
            yield record


def _wanted_gaps(gaps: list[Gap], wanted: DumpSelection) -> list[Gap]:
    return [gap for gap in gaps if gap.start < wanted.stop and gap.stop > wanted.start]


def _rows(chunk: Chunk, wanted: DumpSelection) -> Ints:
    """Return the rows of a chunk that may match: another key may have the same hash."""
    chosen = (chunk.places >= wanted.start) & (chunk.places < wanted.stop)
    chosen &= (chunk.store_ms >= wanted.since_ms) & (chunk.store_ms < wanted.until_ms)
    if wanted.queue_id >= 0:
        chosen &= chunk.of_queues(number for _, number in chunk.queues) == wanted.queue_id
    if wanted.topic:
        chosen &= chunk.of_queues(name == wanted.topic for name, _ in chunk.queues) == 1
    if wanted.key:
        rows = chunk.key_rows
        hashes = chunk.of_queues(
            index_hash(topic_prefix(name), wanted.key) for name, _ in chunk.queues
        )
        has_key = np.zeros(len(chosen), np.bool_)
        has_key[rows[chunk.key_hashes == hashes[rows]]] = True
        chosen &= has_key
    return np.flatnonzero(chosen)


def _has_key(record: Record, key: str) -> bool:
    try:
        message = from_record(record)
    except BadRecord:
        return True
    return key in message.keys or key == message.properties.get("UNIQ_KEY")


def as_json(record: Record, form: BodyForm) -> dict[str, Any]:
    """Return a record as one JSON object.

    The body is decompressed and stored under ``body`` as text or under ``body_base64``. ``problem``
    is set if the CRC of the body is wrong or if it cannot be decompressed; in the latter case the
    body is included as stored.
    """
    value: dict[str, Any] = {
        "offset": record.physical_offset,
        "size": record.size_bytes,
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "store_ms": record.store_ms,
        "born_ms": record.born_ms,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_offset,
    }
    body = record.body
    if not verify(body, record.body_crc):
        value["problem"] = "the body does not match the CRC of the record"
    try:
        message = from_record(record)
        body = message.body
    except BadRecord as error:
        value["problem"] = error.problem
        message = from_record(replace(record, sys_flag=record.sys_flag & ~COMPRESSED))
    value |= {
        "id": message.message_id,
        "born_host": message.born_address,
        "store_host": message.store_address,
        "properties": message.properties,
    }
    if form is not BodyForm.NONE:
        value |= _body(body, form)
    return value


def _body(body: bytes, form: BodyForm) -> dict[str, str]:
    if form is not BodyForm.BASE64:
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            if form is BodyForm.TEXT:
                return {"body": body.decode(errors="replace")}
    return {"body_base64": base64.b64encode(body).decode()}
