"""Checks of one log file: its records against its seal, its queue entries and its index entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.store.log.checksums import BLOCK_BYTES, Seal, Seals
from cometmq.store.maintenance.checksumming import is_stale
from cometmq.store.tools.entrycheck import EntryCheck, Lonely
from cometmq.store.tools.findings import Finding, Findings
from cometmq.store.tools.keycheck import KeyCheck
from cometmq.store.tools.logfile import Chunk, Gap, LogWalk
from cometmq.store.tools.sealedread import KeyTimes, SealedRead
from cometmq.store.tools.sums import LateRecords, mixed_of

if TYPE_CHECKING:
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.digest import Digest
    from cometmq.store.tools.directory import QueueFact, StoreDirectory
    from cometmq.store.tools.indexes import IndexFact, IndexRun
    from cometmq.store.tools.queues import Run


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The data that every log file of a store is compared with.

    ``index_bounds`` are the physical offsets of the first and the last indexed record.
    """

    directory: StoreDirectory
    queues: list[QueueFact]
    indexes: list[IndexFact]
    index_bounds: tuple[int, int]
    delays_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogOutcome:
    """The result for one log file; ``end``, ``closed`` and ``gaps`` are those of a ``LogWalk``.

    ``late_keys`` and ``early_keys`` count the keys of records after and before all indexed records.
    """

    number: int
    records: int
    keys: int
    end: int
    closed: bool
    gaps: list[Gap]
    sealed: bool
    findings: list[Finding]
    lonely: list[Lonely]
    late_keys: int
    late_from: int
    early_keys: int


class FileCheck:
    """Checks log file ``number`` (of ``by_number``), given the runs of entries for it."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        around: Surroundings,
        number: int,
        runs: list[Run],
        index_runs: list[IndexRun],
    ) -> None:
        self._files = files
        self._around = around
        self._number = number
        self._file = around.directory.by_number[number]
        self._runs = runs
        self._index_runs = index_runs
        self._findings = Findings()
        self._seal = _SealCheck(files, around.directory, number, self._findings)

    def by_seal(
        self, entries: Digest, keys: Digest, progress: Callable[[int], None]
    ) -> LogOutcome | None:
        """Compare the file with its seal, and digests of entries with those in the seal.

        Returns None if that is not sufficient: something differs, or there is no valid seal.
        """
        seal = self._seal.sure
        if seal is None or seal.size_bytes != self._around.directory.log_file_bytes:
            return None
        summary = seal.summary
        if entries != (summary.entries, summary.entry_digest):
            return None
        has_index = self._around.index_bounds[1] >= 0
        if has_index and keys != (summary.keys, summary.key_digest):
            return None
        times = KeyTimes(self._files, self._around.indexes, self._index_runs)
        read = SealedRead(self._files, self._file, seal, times)
        if not read.is_right(progress):
            return None
        return LogOutcome(
            self._number, summary.records, summary.keys, self._file.base + self._file.size_bytes,
            True, [], True, [], [], 0 if has_index else summary.keys, self._file.base, 0,
        )  # fmt: skip

    def by_record(self, progress: Callable[[int], None]) -> LogOutcome:
        """Decode and check every record. Raises OSError.

        ``progress`` is called with the number of bytes of each read.
        """
        around, file, findings, seal = self._around, self._file, self._findings, self._seal
        walk = LogWalk(
            self._files, file.path, file.base, file.size_bytes, around.delays_ms,
            wants_sums=seal.seal is not None,
        )  # fmt: skip
        entries = EntryCheck(
            self._files, file, around.queues, around.directory.queue_file_bytes, self._runs,
            around.delays_ms,
        )  # fmt: skip
        keys = KeyCheck(
            self._files, around.indexes, self._index_runs, around.index_bounds, file.path, findings
        )
        records = told = 0
        for chunk in walk:
            mixed, _ = mixed_of(chunk)
            entries.take(chunk, mixed)
            keys.take(chunk)
            seal.take(chunk, walk.sums)
            records += len(chunk)
            told += (done := int(chunk.sizes.sum()))
            progress(done)
        progress(file.size_bytes - told)
        seal.finish(walk)
        is_clean = around.directory.is_clean
        entries.finish(walk.end, walk.gaps, findings, is_clean=is_clean)
        keys.finish(is_clean=is_clean)
        return LogOutcome(
            self._number, records, keys.keys, walk.end, walk.closed, walk.gaps,
            seal.seal is not None, findings.all(), list(entries.lonely.values()), keys.late,
            keys.late_from, keys.early,
        )  # fmt: skip


class _SealCheck:
    """Checks a log file against its seal, and bodies against their CRC if no seal covers them.

    A seal made before another broker ran on the store may describe bytes that this broker cut away.
    """

    def __init__(
        self, files: ReadOnlyFiles, directory: StoreDirectory, number: int, findings: Findings
    ) -> None:
        self._file = directory.by_number[number]
        self._findings = findings
        self._late: LateRecords | None = None
        self.seal: Seal | None = None
        seals = Seals(files, directory.root)
        base = self._file.base
        doubted = base in seals.doubted
        self._is_sure = not doubted and directory.positions is not None
        if doubted or base in seals.bases:
            self._read(seals, doubted)

    @property
    def sure(self) -> Seal | None:
        """The seal, if no other broker can have changed the file since it was made."""
        return self.seal if self._is_sure else None

    def _read(self, seals: Seals, doubted: bool) -> None:
        path = seals.path(self._file.base, doubted=doubted)
        try:
            seal = seals.read(self._file.base, doubted=doubted)
        except StoreCorrupt as error:
            self._findings.damage("seal", path, -1, error.problem)
            return
        if seal is not None and seal.size_bytes != self._file.size_bytes:
            self._findings.damage("seal", path, -1, f"it is for a file of {seal.size_bytes} bytes")
        elif seal is not None:
            self.seal = seal
            self._late = LateRecords(seal.summary.last_ms)

    def take(self, chunk: Chunk, sums: bytearray) -> None:
        """Check the bodies of a chunk, unless the seal proves all of it unchanged."""
        if self.seal is not None and self._late is not None:
            self._late.take(chunk)
            start = int(chunk.places[0]) - self._file.base
            first = start // BLOCK_BYTES * 4
            if self._is_sure and self.seal.sums.startswith(sums[first:], first):
                return
        for row in chunk.bad_bodies():
            self._findings.damage(
                "body", self._file.path, int(chunk.places[row]),
                "the body of the record there has not the CRC that it carries",
            )  # fmt: skip

    def finish(self, walk: LogWalk) -> None:
        """Compare all blocks with the seal."""
        if self.seal is None or self._late is None:
            return
        differing = self.seal.differing(bytes(walk.sums))
        if not differing:
            return
        if not self._is_sure and is_stale(self.seal, differing, self._late.start):
            self._findings.note(
                "seal-outdated", self._file.path, self._late.start,
                "another broker cut the file there and wrote on, so its seal says nothing of it; "
                "the next start of CometMQ makes another",
            )  # fmt: skip
            return
        for block in differing:
            self._findings.damage(
                "block", self._file.path, self.seal.base + block * BLOCK_BYTES,
                f"the {BLOCK_BYTES} bytes there are not what they were when the file was sealed",
            )  # fmt: skip
