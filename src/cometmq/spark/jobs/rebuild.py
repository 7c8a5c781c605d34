"""Rebuilds a store's queues and index from its log in a new directory: the same queue files that
the broker wrote, and index files with the same content.

``cometmq store repair`` repairs a store in place with one process. This job is for a log without
queues, or a large one. It writes the folders ``consumequeue`` and ``index`` into the target. The
user moves them into the store's directory while no broker runs on it. The driver and all executors
must be able to access both directories.

Spark tasks run in three stages. Intermediate files are in the target's folder ``aside``. The target
must contain none of the three folders before.

    read_log       per log file: its queue entries, sorted by queue, and its index keys
    write_queues   per QUEUES_A_TASK queues: their files, from the entries of all log files
    write_index    per index file: the file, from its share of all keys
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import numpy.typing as npt

from cometmq.spark.jobs.job import JobOption, Progress, SparkPool, silent
from cometmq.spark.options import BadOption
from cometmq.store.config import StoreConfig, delay_levels_ms
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.index import ENTRY_BYTES, HEADER, file_bytes
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY_BYTES, QUEUE_ENTRY_COLUMNS, file_name
from cometmq.store.tools.directory import StoreInUse, read_directory
from cometmq.store.tools.logfile import LogWalk
from cometmq.store.tools.repair import sizes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.message.walk import Ints
    from cometmq.store.tools.directory import FileInfo
    from cometmq.store.tools.logfile import Chunk, Gap

ENTRY: Final = np.dtype(QUEUE_ENTRY_COLUMNS)
_ROW: Final = np.dtype([("topic", "<i4"), ("queue", "<i4"), ("offset", "<i8"), ("entry", ENTRY)])
_KEY: Final = np.dtype([("hash", "<i4"), ("physical", "<i8"), ("store_ms", "<i8")])

_INDEX_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert _INDEX_ENTRY.itemsize == ENTRY_BYTES
_SECONDS_MAX: Final = 0x7FFF_FFFF
QUEUES_A_TASK: Final = 64
Told = Callable[[int], None]
"""Callback for the number of bytes read (job.Work)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """The directories of the log and of the new files. For a number of 0, that of the store's
    existing files is used, or the broker's default if there are no files."""

    store: Annotated[str, JobOption("The store directory; only its commitlog is needed.")] = ""
    target: Annotated[str, JobOption("A new directory for consumequeue and index.")] = ""
    queue_file_bytes: Annotated[int, JobOption("Size of a queue file.")] = 0
    index_slots: Annotated[int, JobOption("Slots of an index file.")] = 0
    index_entries: Annotated[int, JobOption("Entries of an index file.")] = 0


@dataclass(frozen=True, slots=True)
class ReportedGap:
    """Bytes of the log that are no record, from ``start`` to ``stop`` (physical offsets)."""

    start: int
    stop: int
    problem: str


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Result of a run. ``ok`` means that the log has no gaps. ``older`` counts records from before
    a topic was deleted and created again; they are in no queue."""

    ok: bool
    records: int
    queues: int
    queue_files: int
    entries: int
    older: int
    keys: int
    index_files: int
    gaps: tuple[ReportedGap, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The directories and the sizes of files. ``aside`` is for the intermediate files."""

    target: Path
    aside: Path
    queue_file_bytes: int
    index_slots: int
    index_entries: int
    delays_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Consecutive rows of an intermediate file."""

    path: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LogShare:
    """The result of :func:`read_log`: the entries of each queue (topic, queue id, share), the keys,
    and the gaps of a log file."""

    base: int
    records: int
    queues: list[tuple[str, int, Share]]
    keys: Share
    gaps: list[Gap]


@dataclass(frozen=True, slots=True)
class QueueShares:
    """The entries of a queue in all log files, in the order of the log."""

    topic: str
    queue_id: int
    shares: tuple[Share, ...]


def run(spark: SparkSession, options: RebuildOptions, progress: Progress = silent) -> RebuildReport:
    """Rebuild the files. Raises BadOption, NoStore, StoreInUse, OSError."""
    if not options.store or not options.target:
        raise BadOption("target" if options.store else "store", "is required")
    target = Path(options.target)
    if any((target / name).exists() for name in ("consumequeue", "index", "aside")):
        raise BadOption("target", f"{target} already has queues or an index: give a new directory")
    files = ReadOnlyFiles()
    config = StoreConfig(store_path_root_dir=options.store)
    directory = read_directory(config, files)
    if directory.holder:
        raise StoreInUse(directory.root, directory.holder)
    sizes = sizes_of(config, directory, files)
    plan = Plan(
        target,
        target / "aside",
        options.queue_file_bytes or sizes.queue_file_bytes,
        options.index_slots or sizes.max_hash_slot_num,
        options.index_entries or sizes.max_index_num,
        delay_levels_ms(sizes.message_delay_level),
    )
    for folder in (plan.aside, target / "consumequeue", target / "index"):
        folder.mkdir(parents=True)
    try:
        with SparkPool(spark, plan, progress) as pool:
            logs = sorted(pool.run(read_log, directory.log_files), key=lambda each: each.base)
            queues = list(_queues(logs))
            some = [queues[at : at + QUEUES_A_TASK] for at in range(0, len(queues), QUEUES_A_TASK)]
            counts = list(pool.run(write_queues, some))
            keys = [log.keys for log in logs]
            pieces = index_pieces(plan, keys)
            names = name_index(plan, list(pool.run(write_index, pieces)))
    finally:
        shutil.rmtree(plan.aside)
    # An open gap at the end of the log is no damage: it is the end itself, or remains of a crash.
    gaps = tuple(
        ReportedGap(gap.start, gap.stop, gap.problem)
        for log in logs
        for gap in log.gaps
        if not (gap.open and log is logs[-1])
    )
    return RebuildReport(
        not gaps,
        sum(log.records for log in logs),
        len(queues),
        sum(files for files, _, _ in counts),
        sum(entries for _, entries, _ in counts),
        sum(older for _, _, older in counts),
        sum(share.count for share in keys),
        len(names),
        gaps,
    )


def _queues(logs: Iterable[LogShare]) -> Iterable[QueueShares]:
    """Yield the queues of all log files, sorted by topic and id."""
    found: dict[tuple[str, int], list[Share]] = {}
    for log in logs:
        for topic, queue_id, share in log.queues:
            found.setdefault((topic, queue_id), []).append(share)
    for (topic, queue_id), shares in sorted(found.items()):
        yield QueueShares(topic, queue_id, tuple(shares))


def read_log(plan: Plan, file: FileInfo, told: Told) -> LogShare:
    """Read one log file, and write its entries and keys to intermediate files. Raises OSError."""
    walk = LogWalk(ReadOnlyFiles(), file.path, file.base, file.size_bytes, plan.delays_ms)
    topics: dict[str, int] = {}
    rows: list[npt.NDArray[np.void]] = [np.empty(0, _ROW)]
    keys: list[npt.NDArray[np.void]] = [np.empty(0, _KEY)]
    records = 0
    for chunk in walk:
        rows.append(_rows(chunk, topics))
        keys.append(_keys(chunk))
        records += len(chunk)
    all_rows, all_keys = np.concatenate(rows), np.concatenate(keys)
    # lexsort is stable: within a queue, the order of the log is kept.
    ordered = all_rows[np.lexsort((all_rows["queue"], all_rows["topic"]))]
    row_path = str(plan.aside / f"{file.base}-rows.npy")
    key_path = str(plan.aside / f"{file.base}-keys.npy")
    np.save(row_path, ordered)
    np.save(key_path, all_keys)
    told(file.size_bytes)
    queues = _by_queue(row_path, ordered, [*topics])
    return LogShare(file.base, records, queues, Share(key_path, 0, len(all_keys)), walk.gaps)


def _rows(chunk: Chunk, topics: dict[str, int]) -> npt.NDArray[np.void]:
    """Return the queue entries of a chunk. ``topics`` has the number of each topic; new topics are
    added to it."""
    found = np.empty(len(chunk), _ROW)
    found["topic"] = chunk.of_queues(
        topics.setdefault(topic, len(topics)) for topic, _ in chunk.queues
    )
    found["queue"] = chunk.of_queues(queue_id for _, queue_id in chunk.queues)
    found["offset"] = chunk.queue_offsets
    found["entry"]["physical"] = chunk.places
    found["entry"]["size"] = chunk.sizes
    found["entry"]["tag_code"] = chunk.tag_codes
    queued: npt.NDArray[np.void] = found[chunk.takes_place]
    return queued


def _keys(chunk: Chunk) -> npt.NDArray[np.void]:
    rows = chunk.key_rows
    found = np.empty(len(rows), _KEY)
    found["hash"] = chunk.key_hashes
    found["physical"] = chunk.places[rows]
    found["store_ms"] = chunk.store_ms[rows]
    return found


def _by_queue(
    path: str, rows: npt.NDArray[np.void], topics: list[str]
) -> list[tuple[str, int, Share]]:
    if not len(rows):
        return []
    changes = (np.diff(rows["topic"]) != 0) | (np.diff(rows["queue"]) != 0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    stops = np.append(starts[1:], len(rows))
    return [
        (topics[int(rows["topic"][start])], int(rows["queue"][start]),
         Share(path, start, stop - start))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]  # fmt: skip


def write_queues(plan: Plan, queues: list[QueueShares], _: Told) -> tuple[int, int, int]:
    """Write the files of some queues. Return the numbers of files, of entries, and of records of
    deleted topics. Raises OSError."""
    files = entries = older = 0
    for queue in queues:
        rows = _load(queue.shares)
        # An offset that does not increase shows that the topic was deleted and created again.
        falls = np.flatnonzero(np.diff(rows["offset"]) <= 0)
        life = rows[falls[-1] + 1 :] if len(falls) else rows
        older += len(rows) - len(life)
        entries += len(life)
        files += _write_queue(plan, queue, life)
    return files, entries, older


def _write_queue(plan: Plan, queue: QueueShares, rows: npt.NDArray[np.void]) -> int:
    """Write the files of one queue, with holes for missing offsets. Return the number of files."""
    folder = plan.target / "consumequeue" / queue.topic / str(queue.queue_id)
    folder.mkdir(parents=True)
    per_file = plan.queue_file_bytes // QUEUE_ENTRY_BYTES
    offsets: Ints = rows["offset"]
    first, stop = int(offsets[0]), int(offsets[-1]) + 1
    count = 0
    for base in range(first - first % per_file, stop, per_file):
        found = np.zeros(per_file, ENTRY)
        found["size"][: min(stop - base, per_file)] = HOLE_SIZE
        low, high = np.searchsorted(offsets, (base, base + per_file)).tolist()
        found[offsets[low:high] - base] = rows["entry"][low:high]
        (folder / file_name(base * QUEUE_ENTRY_BYTES)).write_bytes(found.tobytes())
        count += 1
    return count


def write_index(plan: Plan, piece: tuple[int, tuple[Share, ...]], _: Told) -> tuple[int, int]:
    """Write an index file as ``part-NUMBER``. Return the number and the store time (ms) of its
    first entry. Raises OSError."""
    number, shares = piece
    keys = _load(shares)
    slot_of = keys["hash"].astype(np.int64) % plan.index_slots
    order = np.argsort(slot_of, kind="stable")
    same = np.append([False], slot_of[order[1:]] == slot_of[order[:-1]])
    entries = np.zeros(len(keys) + 1, _INDEX_ENTRY)
    body = entries[1:]
    body["hash"], body["physical"] = keys["hash"], keys["physical"]
    times = keys["store_ms"]
    body["seconds"] = np.clip((times - times[0]) // 1000, 0, _SECONDS_MAX)
    previous = np.zeros(len(keys), np.int64)
    previous[order[same]] = order[:-1][same[1:]] + 1
    body["previous"] = previous
    slots = np.zeros(plan.index_slots, ">i4")
    # A slot refers to its last entry: of several assignments to one index, numpy keeps the last.
    slots[slot_of[order]] = order + 1
    header = HEADER.pack(
        int(times[0]), int(times[-1]), int(keys["physical"][0]), int(keys["physical"][-1]),
        int(np.count_nonzero(~same)), len(keys) + 1,
    )  # fmt: skip
    path = plan.target / "index" / f"part-{number}"
    with path.open("wb") as out:
        out.write(header)
        out.write(slots.tobytes())
        out.write(entries.tobytes())
        out.truncate(file_bytes(plan.index_slots, plan.index_entries))
    return number, int(times[0])


def name_index(plan: Plan, written: list[tuple[int, int]]) -> list[str]:
    """Rename the index files to names like those of brokers, from the time of the first entry. Each
    name is later than the previous one. Return the names."""
    last_ms = -1
    names: list[str] = []
    for number, first_ms in sorted(written):
        last_ms = max(first_ms, last_ms + 1)
        moment = datetime.fromtimestamp(last_ms // 1000, UTC)
        names.append(f"{moment:%Y%m%d%H%M%S}{last_ms % 1000:03d}")
        (plan.target / "index" / f"part-{number}").rename(plan.target / "index" / names[-1])
    return names


def index_pieces(plan: Plan, keys: list[Share]) -> list[tuple[int, tuple[Share, ...]]]:
    """Split all keys, in order, into numbered index files. Entry 0 of a file is unused."""
    pieces: list[tuple[int, tuple[Share, ...]]] = []
    filling: list[Share] = []
    room = capacity = plan.index_entries - 1
    for share in keys:
        first, left = share.first, share.count
        while left:
            count = min(left, room)
            filling.append(Share(share.path, first, count))
            first, left, room = first + count, left - count, room - count
            if not room:
                pieces.append((len(pieces), tuple(filling)))
                filling, room = [], capacity
    if filling:
        pieces.append((len(pieces), tuple(filling)))
    return pieces


def _load(shares: tuple[Share, ...]) -> npt.NDArray[np.void]:
    parts = []
    for share in shares:
        whole = np.load(share.path, mmap_mode="r")
        parts.append(np.array(whole[share.first : share.first + share.count]))
    return np.concatenate(parts)
