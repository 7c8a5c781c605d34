"""Verification of a whole store: every record, queue entry and index entry, in both directions.

There are three steps; processes share the work of the first two:

1. Read all queues and index files once, and group their entries by the log files that they point to
   (queues.py, indexes.py).
2. Compare each log file with its entries (logcheck.py).
3. Check what only all files together show. Decode the broker's table files (``config/*.json``) with
   the same types as a broker.

No process holds more data than that of one log file.
"""

from __future__ import annotations

import multiprocessing
import os
import os.path
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from cometmq.core.errors import CometError
from cometmq.core.plural import plural
from cometmq.message.record import FIXED_BYTES
from cometmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.protocol.fastjson import parse_json
from cometmq.store.checkpoint import CHECKPOINT_BYTES
from cometmq.store.config import delay_levels_ms
from cometmq.store.files import ReadOnlyFiles, read_file
from cometmq.store.layout import file_name
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.tools.directory import (
    StoreDirectory,
    StoreInUse,
    find_queues,
    read_directory,
    size_of,
)
from cometmq.store.tools.findings import Finding, Findings, Severity
from cometmq.store.tools.indexes import IndexHeader, IndexRun, read_index_header, survey_index
from cometmq.store.tools.logcheck import FileCheck, LogOutcome, StoreContents
from cometmq.store.tools.logfile import read_record
from cometmq.store.tools.queues import (
    MissingEntries,
    MissingReason,
    QueueSpan,
    Run,
    join_missing,
    survey_queue,
)
from cometmq.store.tools.sums import Digest, join_digests

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.store.config import StoreConfig

_QUEUES_A_PIECE = 256
_NO_RUNS = np.empty((0, 4), np.int64)
#: For fewer bytes to read, starting other processes takes longer than it saves.
ALONE_BYTES = 256 << 20
_POLL_S = 0.1
_DELETED = "cometmqDeleted"
_TABLES: tuple[tuple[str, str, Any], ...] = (
    ("topics.json", "topicConfigTable", TopicConfig),
    ("subscriptionGroup.json", "subscriptionGroupTable", SubscriptionGroupConfig),
    ("consumerOffset.json", "offsetTable", dict[int, int]),
    ("delayOffset.json", "offsetTable", int),
    ("consumerFilter.json", "filterDataByTopic", dict[str, Any]),
)

Progress = Callable[[int], None]
#: A function of the shared data, a piece of the work, and a callback for the number of bytes read.
Work = Callable[[Any, Any, Callable[[int], None]], Any]


@dataclass(frozen=True, slots=True)
class SharedData:
    """The data that every piece of work needs."""

    files: ReadOnlyFiles
    contents: StoreContents
    full: bool


@dataclass(frozen=True, slots=True)
class Pointers:
    """The queue or index entries that point to one log file: their runs and their digest."""

    runs: Ints
    digest: Digest


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification: what was verified and what was found."""

    directory: StoreDirectory
    log_bytes: int
    records: int
    queues: int
    entries: int
    index_entries: int
    sealed_files: int
    findings: list[Finding]

    @property
    def is_sound(self) -> bool:
        """True if there is no damage."""
        return not any(each.severity is Severity.DAMAGE for each in self.findings)


class Pool(Protocol):
    """Runs work on pieces: in the processes of :class:`Jobs`, or elsewhere."""

    def __enter__(self) -> Pool: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, work: Work, pieces: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of ``work`` for the pieces, in any order. Raises its errors."""


#: A function of the shared data, a number of processes, and a callback for the number of bytes
#: read; returns a pool.
PoolMaker = Callable[[object, int, Callable[[int], None]], Pool]
#: In a process of :class:`Jobs`: the shared data, and the counter of the bytes read.
_process_shared: Any = None
_process_counter: Any = None


def process_count(asked: int, work_bytes: int, pieces: int) -> int:
    """Return the number of processes to use; ``asked`` is 0 for one per processor."""
    if work_bytes < ALONE_BYTES:
        return 1
    return max(1, min(asked or len(os.sched_getaffinity(0)), pieces))


class Jobs:
    """A pool of processes; with ``processes`` 1, the calling process does all work.

    Each process gets the data ``shared`` once. A small store is verified in the calling process,
    which is faster than starting others.
    """

    def __init__(self, shared: object, processes: int, progress: Callable[[int], None]) -> None:
        self._shared = shared
        self._progress = progress
        self._counter: Any = None
        self._reported_bytes = 0
        self._executor: ProcessPoolExecutor | None = None
        if processes > 1:
            # "spawn" starts fresh interpreters: a forked one would inherit threads and locks in any
            # state.
            context = multiprocessing.get_context("spawn")
            self._counter = context.Value("q", 0)
            self._executor = ProcessPoolExecutor(
                processes, context, initializer=_begin, initargs=(shared, self._counter)
            )

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(self, work: Work, pieces: Sequence[Any]) -> Iterator[Any]:
        """Yield the results in any order. Raises the errors of ``work``."""
        if self._executor is None:
            for piece in pieces:
                yield work(self._shared, piece, self._progress)
            return
        waiting = {self._executor.submit(_work, work, piece) for piece in pieces}
        while waiting:
            done, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
            read = self._counter.value
            self._progress(read - self._reported_bytes)
            self._reported_bytes = read
            for each in done:
                yield each.result()


def _begin(shared: object, counter: Any) -> None:
    global _process_shared, _process_counter
    _process_shared, _process_counter = shared, counter


def _work(work: Work, piece: object) -> Any:
    return work(_process_shared, piece, _count)


def _count(size_bytes: int) -> None:
    with _process_counter.get_lock():
        _process_counter.value += size_bytes


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of all topics, and for deleted ones the end of the log at their deletion."""

    names: frozenset[str] = frozenset()
    deleted: dict[str, int] = field(default_factory=dict)


def verify(
    config: StoreConfig,
    files: ReadOnlyFiles | None = None,
    *,
    processes: int = 0,
    full: bool = False,
    began: Callable[[int], None] = lambda _: None,
    progress: Progress = lambda _: None,
    pool: PoolMaker = Jobs,
) -> Verified:
    """Verify the store that ``config`` names.

    ``full`` decodes every record, even in sealed files whose digests match. ``began`` is called
    with the number of bytes to read, ``progress`` with the number of bytes of each read. ``pool``
    makes the pool that does the work. Raises NoStore, StoreInUse (also if a broker started in the
    meantime), OSError.
    """
    files = files or ReadOnlyFiles()
    directory = read_directory(config, files)
    if directory.holder:
        raise StoreInUse(directory.root, directory.holder)
    findings = Findings()
    headers = [
        header
        for path in directory.index_files
        if (header := read_index_header(files, path, config, findings)) is not None
    ]
    contents = StoreContents(
        directory,
        find_queues(files, directory),
        headers,
        _bounds(headers),
        delay_levels_ms(config.message_delay_level),
        BlockChecksums(files, directory.root),
    )
    began(directory.log_bytes)
    count = process_count(processes, directory.log_bytes, len(directory.log_files))
    with pool(SharedData(files, contents, full), count, progress) as jobs:
        spans, runs, digests = _survey_queues(jobs, contents, findings)
        index_runs, key_digests = _survey_indexes(jobs, contents, findings)
        own_runs, own_keys = _by_file(runs), _by_file(index_runs)
        _report_missing_files(directory, {**digests, **key_digests}, findings)
        pieces = [
            (
                number,
                Pointers(own_runs.get(number, _NO_RUNS), digests.get(number, Digest())),
                Pointers(own_keys.get(number, _NO_RUNS), key_digests.get(number, Digest())),
            )
            for number in directory.by_number
        ]
        outcomes: list[LogOutcome] = sorted(
            jobs.run(_check_file, pieces), key=lambda outcome: outcome.number
        )
    for outcome in outcomes:
        findings.extend(outcome.findings)
    check_together(config, files, contents, spans, outcomes, findings)
    if holder := files.lock_holder(f"{directory.root}/lock"):
        raise StoreInUse(directory.root, holder)
    return Verified(
        directory,
        directory.log_bytes,
        sum(outcome.records for outcome in outcomes),
        len(contents.queues),
        int(runs[:, 3].sum()),
        sum(header.entries for header in headers),
        sum(outcome.sealed for outcome in outcomes),
        findings.all(),
    )


def _bounds(headers: list[IndexHeader]) -> tuple[int, int]:
    """Return the physical offsets of the first and the last indexed record."""
    filled = [header for header in headers if header.entries]
    if not filled:
        return 0, -1
    return min(header.begin_phys for header in filled), max(header.end_phys for header in filled)


def _survey_queues(
    jobs: Pool, contents: StoreContents, findings: Findings
) -> tuple[list[QueueSpan], Ints, dict[int, Digest]]:
    digests: dict[int, Digest] = {}
    spans: list[QueueSpan] = [QueueSpan(0, 0)] * len(contents.queues)
    tables: list[Ints] = [np.empty((0, 4), np.int64)]
    pieces = range(0, len(contents.queues), _QUEUES_A_PIECE)
    for first, own_spans, table, own_digests, found in jobs.run(_read_queues, pieces):
        spans[first : first + len(own_spans)] = own_spans
        tables.append(table)
        join_digests(digests, own_digests)
        findings.extend(found)
    return spans, np.concatenate(tables), digests


def _survey_indexes(
    jobs: Pool, contents: StoreContents, findings: Findings
) -> tuple[Ints, dict[int, Digest]]:
    digests: dict[int, Digest] = {}
    tables: list[tuple[int, Ints]] = []
    for number, table, own_digests, found in jobs.run(_read_index, range(len(contents.indexes))):
        tables.append((number, table))
        join_digests(digests, own_digests)
        findings.extend(found)
    # Entries must be in the order of the index files.
    ordered = [table for _, table in sorted(tables, key=lambda pair: pair[0])]
    return np.concatenate([np.empty((0, 4), np.int64), *ordered]), digests


def _by_file(runs: Ints) -> dict[int, Ints]:
    """Return the runs of each log file, in order."""
    ordered = runs[np.argsort(runs[:, 1], kind="stable")]
    numbers, starts = np.unique(ordered[:, 1], return_index=True)
    return dict(zip(numbers.tolist(), np.split(ordered, starts[1:]), strict=False))


def _report_missing_files(
    directory: StoreDirectory, digests: dict[int, Digest], findings: Findings
) -> None:
    for number in sorted(digests.keys() - directory.by_number.keys()):
        offset = directory.log_start + number * directory.log_file_bytes
        findings.note(
            "entries-of-missing-file", directory.log_directory, offset,
            "queue or index entries are for records in a log file that is missing",
        )  # fmt: skip


def _table(runs: list[Any]) -> Ints:
    return np.array(runs, np.int64).reshape(-1, 4)


def _read_queues(
    shared: SharedData, first: int, _progress: Progress
) -> tuple[int, list[QueueSpan], Ints, dict[int, Digest], list[Finding]]:
    findings = Findings()
    contents = shared.contents
    digests: dict[int, Digest] = {}
    spans: list[QueueSpan] = []
    runs: list[Run] = []
    for number, queue in enumerate(contents.queues[first : first + _QUEUES_A_PIECE], first):
        found = survey_queue(
            shared.files, contents.directory, number, queue, findings, contents.delays_ms
        )
        spans.append(found.span)
        runs += found.runs
        join_digests(digests, found.digests)
    return first, spans, _table(runs), digests, findings.all()


def _read_index(
    shared: SharedData, number: int, _progress: Progress
) -> tuple[int, Ints, dict[int, Digest], list[Finding]]:
    findings = Findings()
    contents = shared.contents
    header = contents.indexes[number]
    found = survey_index(shared.files, contents.directory, number, header, findings)
    return number, _table(found.runs), found.digests, findings.all()


def _check_file(
    shared: SharedData, piece: tuple[int, Pointers, Pointers], progress: Progress
) -> LogOutcome:
    number, entries, keys = piece
    check = FileCheck(
        shared.files,
        shared.contents,
        number,
        [Run(*row) for row in entries.runs.tolist()],
        [IndexRun(*row) for row in keys.runs.tolist()],
    )
    if not shared.full:
        quick = check.by_seal(entries.digest, keys.digest, progress)
        if quick is not None:
            return quick
    return check.by_record(progress)


def check_together(
    config: StoreConfig,
    files: ReadOnlyFiles,
    contents: StoreContents,
    spans: list[QueueSpan],
    outcomes: list[LogOutcome],
    findings: Findings,
) -> None:
    """Add the findings that depend on all files together. Raises OSError.

    After a clean stop everything must match. After a crash the end of the log may be torn, and
    queues and index may lag; the next start repairs that.
    """
    directory = contents.directory
    _check_directory(files, directory, findings)
    _check_log(directory, outcomes, findings)
    topics = check_tables(files, directory.root, findings)
    bounds = {
        (queue.topic, queue.queue_id): span
        for queue, span in zip(contents.queues, spans, strict=True)
    }
    _check_missing(directory, outcomes, bounds, topics, findings)
    _check_index(config, files, contents, outcomes, findings)


def _check_directory(files: ReadOnlyFiles, directory: StoreDirectory, findings: Findings) -> None:
    root = directory.root
    if not directory.is_clean:
        findings.note(
            "crashed", root, -1, "its broker was not stopped cleanly; the next start recovers it"
        )
    for path in directory.others:
        findings.note(
            "stray-file", path, -1,
            "it is not a log file; a Java broker does not start while it is there",
        )  # fmt: skip
    checkpoint = os.path.join(root, "checkpoint")
    if not files.exists(checkpoint):
        findings.note("checkpoint", checkpoint, -1, "it is missing, so a start reads the whole log")
    elif (size := size_of(files, checkpoint)) != CHECKPOINT_BYTES:
        findings.damage("checkpoint", checkpoint, -1, f"it is {size} bytes long, not 4096")
    seals = BlockChecksums(files, root)
    bases = {file.base for file in directory.log_files}
    for base in sorted((seals.bases | seals.doubted) - bases):
        findings.note("seal", seals.path(base), -1, "the log file that it belongs to is missing")


def _check_log(directory: StoreDirectory, outcomes: list[LogOutcome], findings: Findings) -> None:
    size = directory.log_file_bytes
    expected = directory.log_start
    for file in directory.log_files:
        if file.base != expected:
            findings.damage(
                "log-file-missing", directory.log_directory, expected,
                f"{file_name(expected)} is missing, {file_name(file.base)} follows",
            )  # fmt: skip
        if file.size_bytes != size:
            findings.damage(
                "log-file-size", file.path, -1,
                f"it is {file.size_bytes} bytes long, the other log files have {size}",
            )  # fmt: skip
        expected = file.base + size
    # An empty file is unused only if no later file is used.
    used = [*outcomes]
    while used and not (used[-1].records or used[-1].closed or used[-1].gaps):
        used.pop()
    for outcome in used:
        _check_gaps(directory, outcome, outcome is used[-1], findings)
    end = directory.log_start
    if used:
        # After a blank the log continues in the next file, even if that is empty.
        last = used[-1]
        end = directory.log_file(last.number).base + size if last.closed else last.end
    _check_end(directory, end, findings)


def _check_gaps(
    directory: StoreDirectory, outcome: LogOutcome, is_last: bool, findings: Findings
) -> None:
    path = directory.log_file(outcome.number).path
    positions = directory.positions
    proven = positions.durable if positions is not None else -1
    for gap in outcome.gaps:
        size = plural(gap.stop - gap.start, "byte is", "bytes are")
        text = f"{size} not a record: {gap.problem}"
        if directory.is_clean and gap.open and is_last and positions is None:
            findings.note("behind-end", path, gap.start, f"{text}; the log ends before them")
        elif not directory.is_clean and gap.start >= proven and is_last:
            findings.note("torn-end", path, gap.start, f"{text}; the next start removes them")
        else:
            findings.damage("gap", path, gap.start, text)
    if not is_last and not outcome.closed and not any(gap.open for gap in outcome.gaps):
        findings.damage(
            "gap", path, outcome.end, "the log stops here, but the next file has records"
        )


def _check_end(directory: StoreDirectory, end: int, findings: Findings) -> None:
    positions = directory.positions
    if positions is None:
        return
    recorded = positions.written if directory.is_clean else positions.durable
    if end < recorded:
        findings.damage(
            "log-short", directory.log_directory, end,
            f"the log ends here, {recorded - end} bytes before the position recorded as stored",
        )  # fmt: skip
    elif end > recorded and directory.is_clean:
        findings.damage(
            "log-long", directory.log_directory, recorded,
            f"records up to {end} are after the end that was recorded at the last stop",
        )  # fmt: skip


def _check_missing(
    directory: StoreDirectory,
    outcomes: list[LogOutcome],
    bounds: dict[tuple[str, int], QueueSpan],
    topics: Topics,
    findings: Findings,
) -> None:
    groups: dict[tuple[str, int], dict[MissingReason, MissingEntries]] = {}
    for outcome in outcomes:
        for each in outcome.missing:
            reasons = groups.setdefault((each.topic, each.queue_id), {})
            known = reasons.get(each.reason)
            reasons[each.reason] = each if known is None else join_missing(known, each)
    for place, reasons in groups.items():
        rest = reasons.pop(MissingReason.UNKNOWN, None)
        if rest is not None:
            # Add the unexamined entries to the most frequent reason of the examined ones.
            main = max(reasons.values(), key=lambda each: each.amount)
            reasons[main.reason] = join_missing(main, rest)
        for each in reasons.values():
            _report_missing(directory, each, bounds.get(place), topics, findings)


def _report_missing(
    directory: StoreDirectory,
    missing: MissingEntries,
    span: QueueSpan | None,
    topics: Topics,
    findings: Findings,
) -> None:
    path = os.path.join(directory.root, "consumequeue", missing.topic, str(missing.queue_id))
    offsets = f"queue offsets {missing.first_offset} to {missing.last_offset}"
    which = f"{plural(missing.amount, 'record')} ({offsets})"
    behind = span is None or missing.first_offset >= span.end
    is_gone = missing.reason is MissingReason.NO_QUEUE and missing.topic not in topics.names
    # The topic was created again, and this queue has got no messages since.
    is_former = missing.last_physical_offset < topics.deleted.get(missing.topic, 0)
    if missing.reason is MissingReason.NEWER or is_gone or is_former:
        findings.note(
            "deleted-topic", path, missing.physical_offset,
            f"of a deleted topic: {which}", missing.amount,
        )  # fmt: skip
    elif behind and not directory.is_clean:
        findings.note(
            "queue-behind", path, missing.physical_offset,
            f"without an entry yet, which the next start adds: {which}", missing.amount,
        )  # fmt: skip
    else:
        findings.damage(
            "record-without-entry", path, missing.physical_offset,
            f"without an entry: {which}: {missing.reason.value}", missing.amount,
        )  # fmt: skip


def _check_index(
    config: StoreConfig,
    files: ReadOnlyFiles,
    contents: StoreContents,
    outcomes: list[LogOutcome],
    findings: Findings,
) -> None:
    directory = contents.directory
    path = os.path.join(directory.root, "index")
    late = sum(outcome.late_keys for outcome in outcomes)
    early = sum(outcome.early_keys for outcome in outcomes)
    if not any(header.entries for header in contents.indexes):
        if late and config.message_index_enable:
            text = f"{plural(late, 'key of a message is', 'keys of messages are')} not indexed"
            findings.note("no-index", path, -1, text, late)
        return
    if early:
        findings.note(
            "index-begins-later", path, contents.index_bounds[0],
            f"{plural(early, 'key is', 'keys are')} not indexed of messages before this", early,
        )  # fmt: skip
    if late:
        first = min(outcome.late_from for outcome in outcomes if outcome.late_keys)
        add = findings.damage if directory.is_clean else findings.note
        text = f"{plural(late, 'key is', 'keys are')} not indexed from here on"
        add("index-behind", path, first, text, late)
    for header in contents.indexes:
        ends = (
            (header.begin_phys, header.begin_ms, "first"),
            (header.end_phys, header.end_ms, "last"),
        )
        for place, header_ms, which in ends if header.entries else ():
            store_ms = _store_ms(files, directory, place)
            # After a crash, a start knows the last time only to the second.
            if store_ms >= 0 and not 0 <= header_ms - store_ms < (1000 if which == "last" else 1):
                findings.damage(
                    "index-header", header.path, place,
                    f"its header says that the {which} record was stored at {header_ms}, the "
                    f"record says {store_ms}",
                )  # fmt: skip


def _store_ms(files: ReadOnlyFiles, directory: StoreDirectory, place: int) -> int:
    """Return the store time of the record at a physical offset, ms; -1 if it is unknown."""
    for file in directory.log_files:
        if file.base <= place < file.base + file.size_bytes - FIXED_BYTES:
            record = read_record(files, file, place)
            return -1 if record is None else record.store_ms
    return -1


def check_tables(files: ReadOnlyFiles, root: str, findings: Findings) -> Topics:
    """Report tables that a broker cannot read; return the topics.

    If a table cannot be read, its backup is read instead, as in a start. Raises OSError.
    """
    topics = Topics()
    for name, key, value_type in _TABLES:
        path = os.path.join(root, "config", name)
        for place in (path, path + ".bak"):
            raw = read_file(files, place)
            if raw is None:
                continue
            try:
                found = _checked(raw, key, value_type)
                read = _topics(found, key)
            except (ValueError, TypeError, CometError) as error:
                findings.damage("table", place, -1, f"it cannot be read: {error}")
                continue
            if name == "topics.json":
                topics = read
            break
    return topics


def _checked(raw: bytes, key: str, value_type: Any) -> dict[str, Any]:
    """Return the contents of a table's file. Raises ValueError, TypeError or CometError."""
    table = parse_json(raw)
    if not isinstance(table, dict) or key not in table:
        raise ValueError(f"it lacks {key}")
    content = table[key] or {}
    if not isinstance(content, dict):
        raise ValueError(f"{key} is not an object")
    keys: Any = int if value_type is int else str
    for name, value in content.items():
        try:
            msgspec.convert({name: value}, dict[keys, value_type], strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{key}, {str(name)[:100]!r}: {error}") from None
    version = table.get("dataVersion")
    if isinstance(version, dict):
        for each in ("counter", "timestamp"):
            int(version.get(each, 0))
    return table


def _topics(table: dict[str, Any], key: str) -> Topics:
    deleted = table.get(_DELETED)
    ends = deleted.items() if isinstance(deleted, dict) else ()
    return Topics(
        frozenset(str(name) for name in table[key] or {}),
        {str(name): int(end) for name, end in ends},
    )
