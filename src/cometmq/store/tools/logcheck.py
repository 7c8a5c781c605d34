"""Checks of one log file: its records against its seal, its queue entries and its index entries.

A sealed file whose blocks all match their seals is not decoded. Digests of index entries leave out
their times, which count from the first record of the index file; so the store time of each indexed
record is read from the bytes and compared. They also leave out the links between entries, which
indexes.py checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import (
    BORN_HOST_V6,
    HOST_BITS_POSITION,
    LONGER_HOST_BYTES,
    STORE_MS_BYTES,
    STORE_MS_POSITION,
)
from cometmq.message.walk import Ints, numbers, window
from cometmq.store.log.checksums import BLOCK_BYTES, BlockChecksums, Seal, sums_of
from cometmq.store.maintenance.checksumming import is_stale
from cometmq.store.tools.entrycheck import EntryCheck, Lonely
from cometmq.store.tools.findings import Finding, Findings
from cometmq.store.tools.indexes import PIECE_ENTRIES, IndexFact, IndexRun, read_index
from cometmq.store.tools.logfile import Chunk, Gap, LogWalk
from cometmq.store.tools.sums import LateRecords, mixed_of

if TYPE_CHECKING:
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.digest import Digest
    from cometmq.store.tools.directory import FileFact, QueueFact, StoreDirectory
    from cometmq.store.tools.queues import Run

_SECONDS_MAX = 0x7FFF_FFFF
_TOLD = 20


class KeyCheck:
    """The index entries that point to one log file, matched with their records.

    ``late`` counts keys of records after the last indexed one, ``early`` keys of records before the
    first; ``late_from`` is the offset of the first late record, -1 if there is none.
    """

    def __init__(
        self,
        files: ReadOnlyFiles,
        facts: list[IndexFact],
        runs: list[IndexRun],
        bounds: tuple[int, int],
        path: str,
        findings: Findings,
    ) -> None:
        self._facts = facts
        self._bounds = bounds
        self._path = path
        self._findings = findings
        self.keys = 0
        self.late = 0
        self.late_from = -1
        self.early = 0
        self._load(files, runs)

    def _load(self, files: ReadOnlyFiles, runs: list[IndexRun]) -> None:
        parts = [read_index(files, self._facts[run.number], run.first, run.length) for run in runs]
        none = np.empty(0, np.int64)
        self._phys = np.concatenate([none, *(part.phys for part in parts)])
        self._hashes = np.concatenate([none, *(part.hashes for part in parts)])
        self._seconds = np.concatenate([none, *(part.seconds for part in parts)])
        owners = [np.full(run.length, run.number) for run in runs]
        self._owners = np.concatenate([none, *owners])
        if (np.diff(self._phys) < 0).any():
            order = np.argsort(self._phys, kind="stable")
            self._phys, self._hashes = self._phys[order], self._hashes[order]
            self._seconds, self._owners = self._seconds[order], self._owners[order]
        self._begin_ms = np.array([fact.begin_ms for fact in self._facts], np.int64)
        self._seen = np.zeros(len(self._phys), np.bool_)

    def take(self, chunk: Chunk) -> None:
        """Compare the entries of a chunk's records with their keys."""
        rows, hashes = chunk.key_rows, chunk.key_hashes
        self.keys += len(rows)
        places = chunk.places[rows]
        start, stop = int(chunk.places[0]), int(chunk.places[-1] + chunk.sizes[-1])
        low, high = np.searchsorted(self._phys, (start, stop)).tolist()
        self._seen[low:high] = True
        phys = self._phys[low:high]
        same = len(phys) == len(places)
        if not (same and (phys == places).all() and (self._hashes[low:high] == hashes).all()):
            self._tell_differences(places, hashes, low, high)
            if not same:
                return
        self._check_times(chunk.store_ms[rows], places, low, high)

    def _check_times(self, store_ms: Ints, places: Ints, low: int, high: int) -> None:
        if low == high:
            return
        begin_ms = self._begin_ms[self._owners[low:high]]
        seconds = np.clip((store_ms - begin_ms) // 1000, 0, _SECONDS_MAX)
        wrong = (seconds != self._seconds[low:high]) & (self._phys[low:high] == places)
        for at in np.flatnonzero(wrong)[:_TOLD]:
            self._findings.damage(
                "index-entry-time", self._owner(low + int(at)), int(places[at]),
                f"an entry says {self._seconds[low + at]} s after the file's first record, the "
                f"record says {seconds[at]}",
            )  # fmt: skip

    def _owner(self, entry: int) -> str:
        return self._facts[int(self._owners[entry])].path

    def _tell_differences(self, places: Ints, hashes: Ints, low: int, high: int) -> None:
        expected = Counter(zip(places.tolist(), hashes.tolist(), strict=True))
        actual = Counter(
            zip(self._phys[low:high].tolist(), self._hashes[low:high].tolist(), strict=True)
        )
        for (place, key_hash), amount in (expected - actual).items():
            self._missing(place, key_hash, amount)
        for (place, key_hash), amount in (actual - expected).items():
            entry = low + int(np.searchsorted(self._phys[low:high], place))
            if (place, key_hash) in expected:
                self._findings.note(
                    "index-entry-twice", self._owner(entry), place,
                    f"hash {key_hash} of that record is there {amount} more times", amount,
                )  # fmt: skip
            else:
                self._findings.damage(
                    "index-entry-wrong", self._owner(entry), place,
                    f"no key of the record there has hash {key_hash}", amount,
                )  # fmt: skip

    def _missing(self, place: int, key_hash: int, amount: int) -> None:
        first, last = self._bounds
        # The index may have ended between two keys of one record.
        if place >= last:
            self.late += amount
            if self.late_from < 0 or place < self.late_from:
                self.late_from = place
        elif place < first:
            self.early += amount
        else:
            self._findings.damage(
                "index-entry-missing", self._path, place,
                f"the index has no entry with hash {key_hash} for the record there", amount,
            )  # fmt: skip

    def finish(self, *, is_clean: bool) -> None:
        """Report the entries whose record was not read."""
        for entry in np.flatnonzero(~self._seen):
            add = self._findings.damage if is_clean else self._findings.note
            add(
                "index-entry-nowhere", self._owner(int(entry)), int(self._phys[entry]),
                "an entry is for a missing record",
            )  # fmt: skip


_PIECE_BYTES = 64 * BLOCK_BYTES
_PART_BYTES = 8 * BLOCK_BYTES
#: Bytes of a piece that are kept for the next one.
_HEAD_BYTES = STORE_MS_BYTES
_NONE = np.empty(0, np.int64)


class KeyTimes:
    """The index entries of one log file, in order: the records' offsets and the recorded seconds.

    They are read in small batches.
    """

    def __init__(self, files: ReadOnlyFiles, facts: list[IndexFact], runs: list[IndexRun]) -> None:
        self._blocks = self._read(files, facts, runs)
        self._phys, self._seconds, self._begin_ms = self._next()
        self._last = -1
        self.is_ordered = True

    def _read(
        self, files: ReadOnlyFiles, facts: list[IndexFact], runs: list[IndexRun]
    ) -> Iterator[tuple[Ints, Ints, int]]:
        for run in runs:
            fact = facts[run.number]
            for at in range(0, run.length, PIECE_ENTRIES):
                length = min(PIECE_ENTRIES, run.length - at)
                found = read_index(files, fact, run.first + at, length)
                yield found.phys, found.seconds, fact.begin_ms

    def _next(self) -> tuple[Ints, Ints, int]:
        return next(self._blocks, (_NONE, _NONE, 0))

    def below(self, stop: int) -> Iterator[tuple[Ints, Ints, int]]:
        """Yield the remaining entries for records below a physical offset.

        Each item has the offsets, the seconds, and the time (ms) that the seconds count from.
        ``is_ordered`` becomes false if offsets decrease.
        """
        while len(self._phys):
            count = int(np.searchsorted(self._phys, stop))
            if not count:
                return
            phys = self._phys[:count]
            if phys[0] < self._last or (phys[1:] < phys[:-1]).any():
                self.is_ordered = False
                return
            self._last = int(phys[-1])
            yield phys, self._seconds[:count], self._begin_ms
            self._phys, self._seconds = self._phys[count:], self._seconds[count:]
            if not len(self._phys):
                self._phys, self._seconds, self._begin_ms = self._next()


class SealedRead:
    """Reads one sealed file and compares it with its seal."""

    def __init__(self, files: ReadOnlyFiles, file: FileFact, seal: Seal, times: KeyTimes) -> None:
        self._files = files
        self._file = file
        self._seal = seal
        self._times = times
        self._compared = 0

    def is_right(self, progress: Callable[[int], None]) -> bool:
        """Return whether every block matches its seal and every index entry its record's time.

        If so, ``progress`` is called once, with the size of the file. Raises OSError.
        """
        size = self._file.size_bytes
        buffer = bytearray(_HEAD_BYTES + _PIECE_BYTES)
        view = memoryview(buffer)
        handle = self._files.open(self._file.path)
        try:
            for offset in range(0, size, _PIECE_BYTES):
                count = min(_PIECE_BYTES, size - offset)
                if not self._is_sealed(handle, view[_HEAD_BYTES : _HEAD_BYTES + count], offset):
                    return False
                start = self._file.base + offset - _HEAD_BYTES
                if not self._fits(buffer, start, start + count):
                    return False
                view[:_HEAD_BYTES] = view[count : count + _HEAD_BYTES]
        finally:
            self._files.close(handle)
        progress(size)
        return True

    def _is_sealed(self, handle: int, piece: memoryview, offset: int) -> bool:
        # In small parts, so that the checksum finds the bytes in the processor's cache.
        for at in range(0, len(piece), _PART_BYTES):
            part = piece[at : at + _PART_BYTES]
            if self._files.read_into(handle, part, offset + at) < len(part):
                return False
            first = (offset + at) // BLOCK_BYTES * 4
            if not self._seal.sums.startswith(sums_of(part), first):
                return False
        return True

    def _fits(self, buffer: bytearray, start: int, stop: int) -> bool:
        """Return whether entries for records from ``start`` up to ``stop`` have the right times.

        Both are physical offsets; the buffer begins at ``start``.
        """
        raw = np.frombuffer(buffer, np.uint8)
        eight = window(raw, ">i8")
        for phys, seconds, begin_ms in self._times.below(stop):
            at = phys - start
            if at[0] < 0:
                return False
            longer = raw[at + HOST_BITS_POSITION] & BORN_HOST_V6
            where = at + STORE_MS_POSITION
            if longer.any():
                where += LONGER_HOST_BYTES * (longer != 0)
            behind = numbers(eight[where]) - begin_ms
            rest = behind - 1000 * seconds
            # Rare cases: the clock went back, or decades passed; those seconds are clipped.
            odd = (rest < 0) | (rest >= 1000)
            if odd.any() and (np.clip(behind[odd] // 1000, 0, _SECONDS_MAX) != seconds[odd]).any():
                return False
        return self._times.is_ordered


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

    A seal made before another broker ran on the store may describe bytes that the other broker cut
    away.
    """

    def __init__(
        self, files: ReadOnlyFiles, directory: StoreDirectory, number: int, findings: Findings
    ) -> None:
        self._file = directory.by_number[number]
        self._findings = findings
        self._late: LateRecords | None = None
        self.seal: Seal | None = None
        seals = BlockChecksums(files, directory.root)
        base = self._file.base
        doubted = base in seals.doubted
        self._is_sure = not doubted and directory.positions is not None
        if doubted or base in seals.bases:
            self._read(seals, doubted)

    @property
    def sure(self) -> Seal | None:
        """The seal, if no other broker can have changed the file since it was made."""
        return self.seal if self._is_sure else None

    def _read(self, seals: BlockChecksums, doubted: bool) -> None:
        path = seals.path(self._file.base, doubted=doubted)
        try:
            seal = seals.read(self._file.base, doubted=doubted)
        except StoreCorrupt as error:
            self._findings.damage("seal", path, -1, error.problem)
            return
        if seal is not None and seal.size_bytes != self._file.size_bytes:
            self._findings.damage(
                "seal", path, -1, f"it belongs to a file of {seal.size_bytes} bytes"
            )
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
                "the body of the record there does not match its CRC",
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
                "another broker truncated the file there and appended to it, so its seal does "
                "not apply; the next start of CometMQ makes a new one",
            )  # fmt: skip
            return
        for block in differing:
            self._findings.damage(
                "block", self._file.path, self.seal.base + block * BLOCK_BYTES,
                f"the {BLOCK_BYTES} bytes there changed after the file was sealed",
            )  # fmt: skip
