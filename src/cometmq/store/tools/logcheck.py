"""Checks of one log file: its records against its seal, its queue entries and its index entries.

A seal has the checksum of each block of a finished log file, and digests of the queue entries and
index entries that its records must have. A file that matches its seal is not decoded.

The digest of index entries does not cover their times, which count from the first record of the
index file. So the store time of each indexed record is read from the log file and compared. Nor
does it cover the links between index entries, which indexes.py checks.
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


#: Size of a piece, whose index entries are compared together, and of a part, which is read and
#: summed at once.
_PIECE_BYTES = 64 * BLOCK_BYTES
_PART_BYTES = 8 * BLOCK_BYTES
#: Last bytes of a piece that are kept before the next one: the head of a record may lie in both.
_KEPT_BYTES = STORE_MS_BYTES


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
        buffer = bytearray(_KEPT_BYTES + _PIECE_BYTES)
        view = memoryview(buffer)
        handle = self._files.open(self._file.path)
        try:
            for offset in range(0, size, _PIECE_BYTES):
                count = min(_PIECE_BYTES, size - offset)
                if not self._is_sealed(handle, view[_KEPT_BYTES : _KEPT_BYTES + count], offset):
                    return False
                start = self._file.base + offset - _KEPT_BYTES
                if not self._times_match(buffer, start, start + count):
                    return False
                view[:_KEPT_BYTES] = view[count : count + _KEPT_BYTES]
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

    def _times_match(self, buffer: bytearray, start: int, stop: int) -> bool:
        """Return whether the index entries for records in a range have their records' times.

        ``start`` and ``stop`` are physical offsets; the buffer begins with the byte at ``start``.
        """
        raw = np.frombuffer(buffer, np.uint8)
        int64_at = window(raw, ">i8")
        for phys, seconds, begin_ms in self._times.below(stop):
            at = phys - start
            if at[0] < 0:
                return False
            is_v6 = raw[at + HOST_BITS_POSITION] & BORN_HOST_V6
            store_ms_at = at + STORE_MS_POSITION
            if is_v6.any():
                store_ms_at += LONGER_HOST_BYTES * (is_v6 != 0)
            age_ms = numbers(int64_at[store_ms_at]) - begin_ms
            rest_ms = age_ms - 1000 * seconds
            # An entry has whole seconds, limited to 0 and SECONDS_MAX. The limits matter only if
            # the clock went back or decades passed, so they are computed only for such entries.
            odd = (rest_ms < 0) | (rest_ms >= 1000)
            if odd.any() and (np.clip(age_ms[odd] // 1000, 0, SECONDS_MAX) != seconds[odd]).any():
                return False
        return self._times.is_ordered


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The data that every log file of a store is compared with.

    ``index_bounds`` are the physical offsets of the first and the last indexed record; the second
    is negative if there is no index.
    """

    directory: StoreDirectory
    queues: list[QueueInfo]
    indexes: list[IndexHeader]
    index_bounds: tuple[int, int]
    delays_ms: tuple[int, ...]
    seals: BlockChecksums


@dataclass(frozen=True, slots=True)
class LogOutcome:
    """The result for one log file.

    ``end``, ``closed`` and ``gaps`` are those of a ``LogWalk``. ``late_keys`` and ``early_keys``
    count the keys of records after and before all indexed records. ``late_from`` is the physical
    offset of the first late record, -1 if there is none. ``sealed`` says that the file has a valid
    seal.
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
    """Checks one log file: quickly by its seal, or thoroughly by each record.

    ``number`` is its key in the directory's ``by_number``. ``runs`` and ``index_runs`` are the
    queue entries and index entries that point to it.
    """

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
        self._file = contents.directory.log_file(number)
        self._runs = runs
        self._index_runs = index_runs
        self._findings = Findings()
        self._seal = _SealCheck(contents, self._file, self._findings)

    def by_seal(
        self, entries: Digest, keys: Digest, progress: Callable[[int], None]
    ) -> LogOutcome | None:
        """Compare the file with its seal, and the digests of its entries with those in the seal.

        ``entries`` and ``keys`` are the digests of the queue and index entries that point to the
        file. Returns None if the records must be checked one by one: something differs, or there
        is no trusted seal.
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

    A seal is doubted after another broker (Java) ran on the store: that broker may have truncated
    the file and appended other records, so a difference need not be damage.
    """

    def __init__(self, contents: StoreContents, file: FileInfo, findings: Findings) -> None:
        self._file = file
        self._findings = findings
        self._late: LateRecords | None = None
        self.seal: Seal | None = None
        seals = contents.seals
        base = file.base
        doubted = base in seals.doubted
        self._is_sure = not doubted and contents.directory.positions is not None
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
        """Check the CRC of the bodies in a chunk, unless its blocks match the seal.

        ``sums`` are the CRCs of the blocks of the file that were read so far.
        """
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
        """Compare all blocks with the seal, after the last chunk."""
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
