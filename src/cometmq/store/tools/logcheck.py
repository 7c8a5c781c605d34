"""Checks of one log file: its records against its seal, its queue entries and its index entries.

A sealed file whose blocks all match their seals is not decoded. Digests of index entries leave out
their times, which count from the first record of the index file; so the store time of each indexed
record is read from the bytes and compared. They also leave out the links between entries, which
indexes.py checks.
"""

from __future__ import annotations

from collections.abc import Callable
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
from cometmq.message.walk import numbers, window
from cometmq.store.log.checksums import BLOCK_BYTES, BlockChecksums, Seal, sums_of
from cometmq.store.maintenance.checksumming import is_stale
from cometmq.store.tools.findings import Finding, Findings
from cometmq.store.tools.indexes import SECONDS_MAX, IndexHeader, IndexRun, KeyCheck, KeyTimes
from cometmq.store.tools.logfile import Chunk, Gap, LogWalk
from cometmq.store.tools.queues import EntryCheck, MissingEntries
from cometmq.store.tools.sums import LateRecords, hashes_of

if TYPE_CHECKING:
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.directory import FileInfo, QueueInfo, StoreDirectory
    from cometmq.store.tools.queues import Run
    from cometmq.store.tools.sums import Digest


_PIECE_BYTES = 64 * BLOCK_BYTES
_PART_BYTES = 8 * BLOCK_BYTES
#: Bytes of a piece that are kept for the next one.
_HEAD_BYTES = STORE_MS_BYTES


class SealedRead:
    """Reads one sealed file and compares it with its seal."""

    def __init__(self, files: ReadOnlyFiles, file: FileInfo, seal: Seal, times: KeyTimes) -> None:
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
            if odd.any() and (np.clip(behind[odd] // 1000, 0, SECONDS_MAX) != seconds[odd]).any():
                return False
        return self._times.is_ordered


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The data that every log file of a store is compared with.

    ``index_bounds`` are the physical offsets of the first and the last indexed record.
    """

    directory: StoreDirectory
    queues: list[QueueInfo]
    indexes: list[IndexHeader]
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
    missing: list[MissingEntries]
    late_keys: int
    late_from: int
    early_keys: int


class FileCheck:
    """Checks log file ``number`` (of ``by_number``), given the runs of entries for it."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        contents: StoreContents,
        number: int,
        runs: list[Run],
        index_runs: list[IndexRun],
    ) -> None:
        self._files = files
        self._contents = contents
        self._number = number
        self._file = contents.directory.by_number[number]
        self._runs = runs
        self._index_runs = index_runs
        self._findings = Findings()
        self._seal = _SealCheck(files, contents.directory, number, self._findings)

    def by_seal(
        self, entries: Digest, keys: Digest, progress: Callable[[int], None]
    ) -> LogOutcome | None:
        """Compare the file with its seal, and digests of entries with those in the seal.

        Returns None if that is not sufficient: something differs, or there is no valid seal.
        """
        seal = self._seal.sure
        if seal is None or seal.size_bytes != self._contents.directory.log_file_bytes:
            return None
        summary = seal.summary
        if entries != (summary.entries, summary.entry_digest):
            return None
        has_index = self._contents.index_bounds[1] >= 0
        if has_index and keys != (summary.keys, summary.key_digest):
            return None
        times = KeyTimes(self._files, self._contents.indexes, self._index_runs)
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
        contents, file, findings, seal = self._contents, self._file, self._findings, self._seal
        walk = LogWalk(
            self._files, file.path, file.base, file.size_bytes, contents.delays_ms,
            wants_sums=seal.seal is not None,
        )  # fmt: skip
        entries = EntryCheck(
            self._files, file, contents.queues, contents.directory.queue_file_bytes, self._runs,
            contents.delays_ms,
        )  # fmt: skip
        keys = KeyCheck(
            self._files,
            contents.indexes,
            self._index_runs,
            contents.index_bounds,
            file.path,
            findings,
        )
        records = reported_bytes = 0
        for chunk in walk:
            entry_hashes, _ = hashes_of(chunk)
            entries.take(chunk, entry_hashes)
            keys.take(chunk)
            seal.take(chunk, walk.sums)
            records += len(chunk)
            reported_bytes += (done := int(chunk.sizes.sum()))
            progress(done)
        progress(file.size_bytes - reported_bytes)
        seal.finish(walk)
        is_clean = contents.directory.is_clean
        entries.finish(walk.end, walk.gaps, findings, is_clean=is_clean)
        keys.finish(is_clean=is_clean)
        return LogOutcome(
            self._number, records, keys.keys, walk.end, walk.closed, walk.gaps,
            seal.seal is not None, findings.all(), list(entries.missing.values()), keys.late,
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
