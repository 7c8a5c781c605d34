"""Index files: entries as columns, grouped by log file, and compared with the log's records.

An index file does not record its number of slots. If the settings do not fit its size, the number
is computed from the position of the first entry, which is found by its bytes: 20 zeros (the unused
entry 0), a hash, the physical offset that the header gives for the first record, and 8 zeros.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cometmq.core.plural import plural
from cometmq.message.walk import Ints, numbers
from cometmq.store.index import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    file_bytes,
)
from cometmq.store.tools.sums import Digest, add_digests, hash_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.config import StoreConfig
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.directory import StoreDirectory
    from cometmq.store.tools.findings import Findings
    from cometmq.store.tools.logfile import Chunk

_ENTRY = np.dtype([("hash", ">i4"), ("phys", ">i8"), ("seconds", ">i4"), ("prev", ">i4")])
#: Number of entries processed at a time, so that they stay in the processor's cache.
_PIECE_ENTRIES = 1 << 15
_SEARCH_BYTES = 1 << 20
SECONDS_MAX = 0x7FFF_FFFF
#: Maximum number of wrong times that are reported for one chunk.
_WRONG_TIMES = 20
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of one index file; ``entries`` counts the used ones."""

    path: str
    slots: int
    entries: int
    used_slots: int
    begin_ms: int
    end_ms: int
    begin_phys: int
    end_phys: int


class IndexEntries:
    """Consecutive entries; ``first`` is the number of the first one (number 0 does not exist).

    A column is decoded on access.
    """

    __slots__ = ("_raw", "first")

    def __init__(self, first: int, raw: bytes) -> None:
        self.first = first
        self._raw = np.frombuffer(raw, _ENTRY)

    def __len__(self) -> int:
        return len(self._raw)

    @property
    def hashes(self) -> Ints:
        """Hash of each entry's key."""
        return numbers(self._raw["hash"])

    @property
    def phys(self) -> Ints:
        """Physical offset of each entry's record."""
        return numbers(self._raw["phys"])

    @property
    def seconds(self) -> Ints:
        """Seconds from the store time of the file's first record to that of each entry's record."""
        return numbers(self._raw["seconds"])

    @property
    def previous(self) -> Ints:
        """Number of the previous entry of the same slot."""
        return numbers(self._raw["prev"])


class IndexRun(NamedTuple):
    """Consecutive entries of one index file whose records are in one log file.

    ``number`` is the index file's position in the list of all index files, ``file`` the number of
    the log file, ``first`` the number of the first entry.
    """

    number: int
    file: int
    first: int
    length: int


class IndexSurvey(NamedTuple):
    """One index file: the runs and digests of its entries by number of the log file."""

    runs: list[IndexRun]
    digests: dict[int, Digest]


def read_index_header(
    files: ReadOnlyFiles, path: str, config: StoreConfig, findings: Findings
) -> IndexHeader | None:
    """Return the header of an index file with its number of slots; None if it is invalid."""
    handle = files.open(path)
    try:
        size = files.size(handle)
        raw = files.pread(handle, HEADER_BYTES, 0)
        if len(raw) < HEADER_BYTES:
            findings.damage("index-file-size", path, -1, f"it is {size} bytes long")
            return None
        begin_ms, end_ms, begin_phys, end_phys, used, count = HEADER.unpack(raw)
        if count <= 1 and not any(raw[:36]):
            return IndexHeader(path, 0, 0, 0, 0, 0, 0, 0)
        slots = config.max_hash_slot_num
        if size != file_bytes(slots, config.max_index_num):
            slots = _find_slots(files, handle, size, (begin_phys, end_phys), (used, count))
    finally:
        files.close(handle)
    room = (size - HEADER_BYTES - slots * SLOT_BYTES) // ENTRY_BYTES
    if slots < 0 or not 1 <= count <= room:
        problem = f"its header counts {count} entries; there is room for {room}"
        if slots < 0:
            problem = "its first entry cannot be found: the header or the entry is damaged"
        findings.damage("index-header", path, -1, problem)
        return None
    return IndexHeader(path, slots, count - 1, used, begin_ms, end_ms, begin_phys, end_phys)


def _find_slots(
    files: ReadOnlyFiles, handle: int, size: int, ends: tuple[int, int], counts: tuple[int, int]
) -> int:
    """Return a file's number of slots, from the position of its first entry; -1 if not found.

    ``ends`` are the physical offsets of the first and the last record, ``counts`` the header's
    number of used slots and of entries plus one. If the first record is at offset 0, other bytes
    may look like its entry; the number of used slots then decides. After a crash the slots may be
    out of date; if no number matches, the first candidate is returned.
    """
    first = -1
    for slots in _possible_slots(files, handle, size, ends, counts[1]):
        first = slots if first < 0 else first
        raw = files.pread(handle, slots * SLOT_BYTES, HEADER_BYTES)
        if int(np.count_nonzero(np.frombuffer(raw, np.int32))) == counts[0]:
            return slots
    return first


def _possible_slots(
    files: ReadOnlyFiles, handle: int, size: int, ends: tuple[int, int], count: int
) -> Iterator[int]:
    """Yield each number of slots that fits bytes which look like the first entry."""
    # Entry 0 is unused. In entry 1, zero seconds and no previous entry follow the hash and the
    # offset.
    pattern = ends[0].to_bytes(8, "big", signed=True) + bytes(8)
    overlap = ENTRY_BYTES * 2
    for start in range(HEADER_BYTES, size, _SEARCH_BYTES - overlap):
        raw = files.pread(handle, _SEARCH_BYTES, start)
        at = raw.find(pattern, ENTRY_BYTES + 4)
        while at >= 0:
            zero = at - 4 - ENTRY_BYTES
            slots, rest = divmod(start + zero - HEADER_BYTES, SLOT_BYTES)
            entries = size - HEADER_BYTES - slots * SLOT_BYTES
            is_whole = slots and not rest and entries % ENTRY_BYTES == 0
            if is_whole and not any(raw[zero : zero + ENTRY_BYTES]):
                last = start + zero + (count - 1) * ENTRY_BYTES
                *_, phys, _, _ = ENTRY.unpack(
                    files.pread(handle, ENTRY_BYTES, last).ljust(ENTRY_BYTES, b"\0")
                )
                # If the record is at offset 0, only the hash distinguishes the entry from an empty
                # one.
                if phys == ends[1] and any(raw[at - 4 : at + 8]):
                    yield slots
            at = raw.find(pattern, at + 1)


def read_index(files: ReadOnlyFiles, header: IndexHeader, first: int, length: int) -> IndexEntries:
    """Return entries from number ``first`` on. Raises OSError."""
    handle = files.open(header.path)
    try:
        at = HEADER_BYTES + header.slots * SLOT_BYTES + first * ENTRY_BYTES
        raw = files.pread(handle, length * ENTRY_BYTES, at)
    finally:
        files.close(handle)
    return IndexEntries(first, raw.ljust(length * ENTRY_BYTES, b"\0"))


def survey_index(
    files: ReadOnlyFiles,
    directory: StoreDirectory,
    number: int,
    header: IndexHeader,
    findings: Findings,
) -> IndexSurvey:
    """Read one index file: group its entries by log file, and check that all can be found.

    A lookup reaches an entry through its slot and the later entries of the same slot, so one wrong
    link hides it. Raises OSError.
    """
    runs: list[IndexRun] = []
    digests: dict[int, Digest] = {}
    if not header.entries:
        return IndexSurvey(runs, digests)
    chains = _Chains(files, header, findings)
    for first in range(1, header.entries + 1, _PIECE_ENTRIES):
        entries = read_index(files, header, first, min(_PIECE_ENTRIES, header.entries + 1 - first))
        chains.take(entries)
        _add_runs(runs, digests, directory, number, entries, header, findings)
        _check_ends(header, entries, findings)
    chains.close(_read_slots(files, header), is_clean=directory.is_clean)
    return IndexSurvey(runs, digests)


def _check_ends(header: IndexHeader, entries: IndexEntries, findings: Findings) -> None:
    """Check that the header names the records of the first and the last entry."""
    ends = ((1, header.begin_phys, "first"), (header.entries, header.end_phys, "last"))
    for number, named, which in ends:
        at = number - entries.first
        if 0 <= at < len(entries) and (own := int(entries.phys[at])) != named:
            findings.damage(
                "index-header", header.path, -1,
                f"its header says that the {which} record is at {named}, the entry says {own}",
            )  # fmt: skip


def _read_slots(files: ReadOnlyFiles, header: IndexHeader) -> Ints:
    handle = files.open(header.path)
    try:
        raw = files.pread(handle, header.slots * SLOT_BYTES, HEADER_BYTES)
    finally:
        files.close(handle)
    return numbers(np.frombuffer(raw, ">i4"))


def _add_runs(
    runs: list[IndexRun],
    digests: dict[int, Digest],
    directory: StoreDirectory,
    number: int,
    entries: IndexEntries,
    header: IndexHeader,
    findings: Findings,
) -> None:
    phys = entries.phys
    outside = (phys < 0) | (phys >= directory.log_stop)
    for at in np.flatnonzero(outside):
        findings.damage(
            "index-entry-outside", header.path, int(phys[at]),
            f"entry {entries.first + at} points outside the log",
        )  # fmt: skip
    live = np.flatnonzero(~outside & (phys >= directory.log_start))
    if not len(live):
        return
    log_files = (phys[live] - directory.log_start) // directory.log_file_bytes
    ends = np.flatnonzero((np.diff(log_files) != 0) | (np.diff(live) != 1)) + 1
    starts = np.concatenate(([0], ends))
    stops = np.concatenate((ends, [len(live)]))
    hashes = hash_keys(phys[live], entries.hashes[live])
    add_digests(digests, hashes, starts, log_files[starts].tolist())
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        first = entries.first + int(live[start])
        run = IndexRun(number, int(log_files[start]), first, stop - start)
        last = runs[-1] if runs else None
        if last and last.file == run.file and last.first + last.length == run.first:
            runs[-1] = last._replace(length=last.length + run.length)
        else:
            runs.append(run)


class _Chains:
    """The entries of each slot as one chain, from the newest to the oldest.

    The chains are checked without following them. Every entry must name an older one of its own
    slot, no two entries may name the same one, and there must be as many oldest entries as used
    slots. If that fails, the entries are read again to find the wrong ones.
    """

    def __init__(self, files: ReadOnlyFiles, header: IndexHeader, findings: Findings) -> None:
        self._files = files
        self._header = header
        self._findings = findings
        self._places = np.zeros(header.entries + 1, np.int32)
        self._has_newer = np.zeros(header.entries + 1, np.bool_)
        self._linked = 0
        self._is_right = True

    def take(self, entries: IndexEntries) -> None:
        """Take the next entries; all must come in order, from the first on."""
        first, hashes, previous = entries.first, entries.hashes, entries.previous
        stop = first + len(hashes)
        self._places[first:stop] = hashes.astype(np.uint32) % np.uint32(self._header.slots)
        older = (previous >= 0) & (previous < np.arange(first, stop))
        if not older.all() or (hashes < 0).any():
            self._is_right = False
            return
        same = self._places[previous] == self._places[first:stop]
        linked = previous > 0
        if not (same | ~linked).all():
            self._is_right = False
        self._has_newer[previous] = True
        self._linked += int(np.count_nonzero(linked))

    def close(self, slots: Ints, *, is_clean: bool) -> None:
        """Check the chains and ``slots``.

        After a crash wrong slots are only noted, because the next start repairs them.
        """
        self._has_newer[0] = True
        newest = np.flatnonzero(~self._has_newer)
        places = self._places[newest]
        used = self._header.entries - self._linked
        one_each = len(newest) == used and int(np.count_nonzero(slots)) == used
        if self._is_right and one_each and bool((slots[places] == newest).all()):
            self._check_used(used, is_clean=is_clean)
            return
        self._report_wrong_links()
        by_slot = np.zeros(self._header.slots, np.int64)
        # Later entries of a slot overwrite earlier ones.
        by_slot[self._places[1:]] = np.arange(1, self._header.entries + 1)
        wrong = np.flatnonzero(slots != by_slot)
        if len(wrong):
            slot = int(wrong[0])
            add = self._findings.damage if is_clean else self._findings.note
            add(
                "index-slot", self._header.path, -1,
                f"{plural(len(wrong), 'slot does', 'slots do')} not name the newest entry: slot "
                f"{slot} names {slots[slot]} instead of {by_slot[slot]}", len(wrong),
            )  # fmt: skip
        self._check_used(int(np.count_nonzero(by_slot)), is_clean=is_clean)

    def _check_used(self, used: int, *, is_clean: bool) -> None:
        if used != self._header.used_slots and is_clean:
            self._findings.damage(
                "index-header", self._header.path, -1,
                f"its header counts {self._header.used_slots} used slots, there are {used}",
            )  # fmt: skip

    def _report_wrong_links(self) -> None:
        newest: dict[int, int] = {}
        for first in range(1, self._header.entries + 1, _PIECE_ENTRIES):
            length = min(_PIECE_ENTRIES, self._header.entries + 1 - first)
            entries = read_index(self._files, self._header, first, length)
            pairs = zip(entries.hashes.tolist(), entries.previous.tolist(), strict=True)
            for number, (key_hash, previous) in enumerate(pairs, first):
                place = key_hash % self._header.slots
                expected = newest.get(place, 0)
                newest[place] = number
                if previous != expected or key_hash < 0:
                    self._findings.damage(
                        "index-chain", self._header.path, -1,
                        f"entry {number} (hash {key_hash}) names entry {previous} as the one "
                        f"before it in its slot instead of {expected}",
                    )  # fmt: skip


class KeyCheck:
    """The index entries that point to one log file, matched with their records.

    ``bounds`` are the physical offsets of the first and the last indexed record. ``late`` counts
    keys of records after the last one, ``early`` keys of records before the first; ``late_from`` is
    the offset of the first late record, -1 if there is none.
    """

    def __init__(
        self,
        files: ReadOnlyFiles,
        headers: list[IndexHeader],
        runs: list[IndexRun],
        bounds: tuple[int, int],
        path: str,
        findings: Findings,
    ) -> None:
        self._headers = headers
        self._bounds = bounds
        self._path = path
        self._findings = findings
        self.keys = 0
        self.late = 0
        self.late_from = -1
        self.early = 0
        self._load(files, runs)

    def _load(self, files: ReadOnlyFiles, runs: list[IndexRun]) -> None:
        parts = [
            read_index(files, self._headers[run.number], run.first, run.length) for run in runs
        ]
        self._phys = np.concatenate([_NONE, *(part.phys for part in parts)])
        self._hashes = np.concatenate([_NONE, *(part.hashes for part in parts)])
        self._seconds = np.concatenate([_NONE, *(part.seconds for part in parts)])
        owners = [np.full(run.length, run.number) for run in runs]
        self._owners = np.concatenate([_NONE, *owners])
        if (np.diff(self._phys) < 0).any():
            order = np.argsort(self._phys, kind="stable")
            self._phys, self._hashes = self._phys[order], self._hashes[order]
            self._seconds, self._owners = self._seconds[order], self._owners[order]
        self._begin_ms = np.array([header.begin_ms for header in self._headers], np.int64)
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
            self._report_differences(places, hashes, low, high)
            if not same:
                return
        self._check_times(chunk.store_ms[rows], places, low, high)

    def _check_times(self, store_ms: Ints, places: Ints, low: int, high: int) -> None:
        if low == high:
            return
        begin_ms = self._begin_ms[self._owners[low:high]]
        seconds = np.clip((store_ms - begin_ms) // 1000, 0, SECONDS_MAX)
        wrong = (seconds != self._seconds[low:high]) & (self._phys[low:high] == places)
        for at in np.flatnonzero(wrong)[:_WRONG_TIMES]:
            self._findings.damage(
                "index-entry-time", self._owner(low + int(at)), int(places[at]),
                f"an entry says {self._seconds[low + at]} s after the file's first record, the "
                f"record says {seconds[at]}",
            )  # fmt: skip

    def _owner(self, entry: int) -> str:
        return self._headers[int(self._owners[entry])].path

    def _report_differences(self, places: Ints, hashes: Ints, low: int, high: int) -> None:
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
                    f"the record there has {plural(amount, 'extra entry', 'extra entries')} "
                    f"with hash {key_hash}",
                    amount,
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
                "an entry points to a record that is missing",
            )  # fmt: skip


class KeyTimes:
    """The index entries of one log file, in order: the records' offsets and the recorded seconds.

    They are read in small batches.
    """

    def __init__(
        self, files: ReadOnlyFiles, headers: list[IndexHeader], runs: list[IndexRun]
    ) -> None:
        self._blocks = self._read(files, headers, runs)
        self._phys, self._seconds, self._begin_ms = self._next()
        self._last = -1
        self.is_ordered = True

    def _read(
        self, files: ReadOnlyFiles, headers: list[IndexHeader], runs: list[IndexRun]
    ) -> Iterator[tuple[Ints, Ints, int]]:
        for run in runs:
            header = headers[run.number]
            for at in range(0, run.length, _PIECE_ENTRIES):
                length = min(_PIECE_ENTRIES, run.length - at)
                found = read_index(files, header, run.first + at, length)
                yield found.phys, found.seconds, header.begin_ms

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
