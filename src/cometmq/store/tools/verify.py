"""Verification of a whole store: every record, queue entry and index entry, in both directions.

There are three steps; processes share the work of the first two:

1. Read all queues and index files once, and group their entries by the log files that they point to
   (queues.py, indexes.py).
2. Compare each log file with its entries (logcheck.py).
3. Evaluate what depends on all files together (crosscheck.py).

No process holds more than the data of one log file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cometmq.store.config import delay_levels_ms
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.tools.crosscheck import judge
from cometmq.store.tools.directory import StoreDirectory, StoreInUse, find_queues, look_into
from cometmq.store.tools.findings import Finding, Findings, Severity
from cometmq.store.tools.indexes import IndexFact, IndexRun, read_fact, survey_index
from cometmq.store.tools.jobs import Jobs, Pool, PoolMaker, process_count
from cometmq.store.tools.logcheck import FileCheck, LogOutcome, Surroundings
from cometmq.store.tools.queues import QueueSpan, Run, survey
from cometmq.store.tools.sums import Digest, join_digests

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.store.config import StoreConfig

Progress = Callable[[int], None]

_QUEUES_A_PIECE = 256
_NO_RUNS = np.empty((0, 4), np.int64)


@dataclass(frozen=True, slots=True)
class Shared:
    """The data that every piece of work needs."""

    files: ReadOnlyFiles
    around: Surroundings
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
    directory = look_into(config, files)
    if directory.holder:
        raise StoreInUse(directory.root, directory.holder)
    findings = Findings()
    facts = [
        fact
        for path in directory.index_files
        if (fact := read_fact(files, path, config, findings)) is not None
    ]
    around = Surroundings(
        directory,
        find_queues(files, directory),
        facts,
        _bounds(facts),
        delay_levels_ms(config.message_delay_level),
    )
    began(directory.log_bytes)
    count = process_count(processes, directory.log_bytes, len(directory.log_files))
    with pool(Shared(files, around, full), count, progress) as jobs:
        spans, runs, digests = _survey_queues(jobs, around, findings)
        index_runs, key_digests = _survey_indexes(jobs, around, findings)
        own_runs, own_keys = _by_file(runs), _by_file(index_runs)
        _tell_of_missing(directory, {**digests, **key_digests}, findings)
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
    judge(config, files, around, spans, outcomes, findings)
    if holder := files.lock_holder(f"{directory.root}/lock"):
        raise StoreInUse(directory.root, holder)
    return Verified(
        directory,
        directory.log_bytes,
        sum(outcome.records for outcome in outcomes),
        len(around.queues),
        int(runs[:, 3].sum()),
        sum(fact.entries for fact in facts),
        sum(outcome.sealed for outcome in outcomes),
        findings.all(),
    )


def _bounds(facts: list[IndexFact]) -> tuple[int, int]:
    """Return the physical offsets of the first and the last indexed record."""
    filled = [fact for fact in facts if fact.entries]
    if not filled:
        return 0, -1
    return min(fact.begin_phys for fact in filled), max(fact.end_phys for fact in filled)


def _survey_queues(
    jobs: Pool, around: Surroundings, findings: Findings
) -> tuple[list[QueueSpan], Ints, dict[int, Digest]]:
    digests: dict[int, Digest] = {}
    spans: list[QueueSpan] = [QueueSpan(0, 0)] * len(around.queues)
    tables: list[Ints] = [np.empty((0, 4), np.int64)]
    pieces = range(0, len(around.queues), _QUEUES_A_PIECE)
    for first, own_spans, table, own_digests, found in jobs.run(_read_queues, pieces):
        spans[first : first + len(own_spans)] = own_spans
        tables.append(table)
        join_digests(digests, own_digests)
        findings.extend(found)
    return spans, np.concatenate(tables), digests


def _survey_indexes(
    jobs: Pool, around: Surroundings, findings: Findings
) -> tuple[Ints, dict[int, Digest]]:
    digests: dict[int, Digest] = {}
    tables: list[tuple[int, Ints]] = []
    for number, table, own_digests, found in jobs.run(_read_index, range(len(around.indexes))):
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


def _tell_of_missing(
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
    shared: Shared, first: int, _progress: Progress
) -> tuple[int, list[QueueSpan], Ints, dict[int, Digest], list[Finding]]:
    findings = Findings()
    around = shared.around
    digests: dict[int, Digest] = {}
    spans: list[QueueSpan] = []
    runs: list[Run] = []
    for number, queue in enumerate(around.queues[first : first + _QUEUES_A_PIECE], first):
        found = survey(shared.files, around.directory, number, queue, findings)
        spans.append(found.span)
        runs += found.runs
        join_digests(digests, found.digests)
    return first, spans, _table(runs), digests, findings.all()


def _read_index(
    shared: Shared, number: int, _progress: Progress
) -> tuple[int, Ints, dict[int, Digest], list[Finding]]:
    findings = Findings()
    around = shared.around
    fact = around.indexes[number]
    found = survey_index(shared.files, around.directory, number, fact, findings)
    return number, _table(found.runs), found.digests, findings.all()


def _check_file(
    shared: Shared, piece: tuple[int, Pointers, Pointers], progress: Progress
) -> LogOutcome:
    number, entries, keys = piece
    check = FileCheck(
        shared.files,
        shared.around,
        number,
        [Run(*row) for row in entries.runs.tolist()],
        [IndexRun(*row) for row in keys.runs.tolist()],
    )
    if not shared.full:
        quick = check.by_seal(entries.digest, keys.digest, progress)
        if quick is not None:
            return quick
    return check.by_record(progress)
