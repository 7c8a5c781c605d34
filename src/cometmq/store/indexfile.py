"""One index file: a hash table on disk, from a key of a message to its place in the log.

    position                bytes    field
    0                       8        store time of the first entry, ms
    8                       8        store time of the last entry, ms
    16                      8        physical offset of the first entry's record
    24                      8        physical offset of the last entry's record
    32                      4        used slots
    36                      4        entry count, one more than there are (entry 0 is unused)
    40                      4 x S    slots: the newest entry of each, 0 for none
    40 + 4 S                20 x N   entries: hash 4, physical offset 8, seconds since the first
                                     entry 4, previous entry of the slot 4

Big-endian throughout. The key is ``topic#key``, its hash the absolute value of Java's
``String.hashCode``, its slot the hash modulo S (upstream: IndexFile.java, IndexHeader.java).

Slots live in memory and reach the file when it is synced, since a slot is the last thing worth a
write: after a crash they are computed again from the entries. A file whose slots are old says so by
an end time beyond the checkpoint's index time, on which a Java broker rebuilds it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cometmq.store.files import Files

HEADER = Struct(">qqqqii")
HEADER_BYTES = HEADER.size
SLOT_BYTES = 4
ENTRY = Struct(">iqii")
ENTRY_BYTES = ENTRY.size
_ENTRY_COLUMNS = np.dtype([("hash", ">i4"), ("phys", ">i8"), ("seconds", ">i4"), ("prev", ">i4")])
_MAX_SECONDS = 0x7FFFFFFF
_REBUILD_ROWS = 1 << 18
_LOAD_SLOTS = 4_096
_RUN_ENTRIES = 64

Ints = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]


def file_bytes(slot_count: int, max_entries: int) -> int:
    """Length of a file."""
    return HEADER_BYTES + slot_count * SLOT_BYTES + max_entries * ENTRY_BYTES


class IndexFile:
    """One file, the newest one with its slots in memory."""

    __slots__ = (
        "_files",
        "_handle",
        "_slots",
        "begin_ms",
        "begin_phys",
        "count",
        "end_ms",
        "end_phys",
        "max_entries",
        "path",
        "slot_count",
        "unsynced",
        "used_slots",
    )

    def __init__(self, files: Files, path: str, slot_count: int, max_entries: int) -> None:
        """Open a file, or make it. Raises OSError."""
        self._files = files
        self.path = path
        self.slot_count = slot_count
        self.max_entries = max_entries
        self.unsynced = True
        self._slots: Slots | None = None
        self._handle = files.open(path, create=True)
        self.begin_ms = self.end_ms = self.begin_phys = self.end_phys = self.used_slots = 0
        self.count = 1
        size = file_bytes(slot_count, max_entries)
        if files.size(self._handle) != size:
            files.resize(self._handle, size)
        self._read_header()

    @property
    def room(self) -> int:
        """How many entries more it takes."""
        return self.max_entries - self.count

    def _read_header(self) -> None:
        (
            self.begin_ms, self.end_ms, self.begin_phys, self.end_phys, self.used_slots, count,
        ) = HEADER.unpack(self._files.pread(self._handle, HEADER_BYTES, 0))  # fmt: skip
        self.count = min(max(count, 1), self.max_entries)

    def _entry_position(self, number: int) -> int:
        return HEADER_BYTES + self.slot_count * SLOT_BYTES + number * ENTRY_BYTES

    def start_empty(self) -> None:
        """Take the empty slots of a new file into memory."""
        self._slots = np.zeros(self.slot_count, np.int32)

    def load_slots(self) -> None:
        """Take the slots into memory as the file holds them, after a clean stop."""
        self._slots = slots = np.zeros(self.slot_count, np.int32)
        for first in range(0, self.slot_count, _LOAD_SLOTS):
            count = min(_LOAD_SLOTS, self.slot_count - first)
            raw = self._files.pread(
                self._handle, count * SLOT_BYTES, HEADER_BYTES + first * SLOT_BYTES
            )
            if raw.count(0) != len(raw):
                # Pages without an entry are never touched, so they cost no memory.
                slots[first : first + count] = np.frombuffer(raw, ">i4")

    def recover(self, below: int) -> None:
        """Keep the entries for records below the physical offset ``below``; compute the slots.

        Entries beyond are left as they are: the next ones overwrite them.
        """
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self._files.pread(self._handle, ENTRY_BYTES, self._entry_position(middle))
            physical_offset = ENTRY.unpack(entry)[1]
            if physical_offset < below and any(entry):
                low = middle + 1
            else:
                high = middle
        self.count = self._without_torn(low, below)
        self._slots = slots = np.zeros(self.slot_count, np.int32)
        last = None
        for first in range(1, self.count, _REBUILD_ROWS):
            rows = min(_REBUILD_ROWS, self.count - first)
            raw = self._files.pread(self._handle, rows * ENTRY_BYTES, self._entry_position(first))
            entries = np.frombuffer(raw, _ENTRY_COLUMNS)
            slots[entries["hash"].astype(np.int64) % self.slot_count] = np.arange(
                first, first + rows, dtype=np.int32
            )
            last = entries[-1]
        self.used_slots = int(np.count_nonzero(slots))
        if last is not None:
            self.end_phys = int(last["phys"])
            self.end_ms = self.begin_ms + int(last["seconds"]) * 1000 + 999
        else:
            self.begin_ms = self.end_ms = self.begin_phys = self.end_phys = 0

    def _without_torn(self, end: int, below: int) -> int:
        """Take back an end that the search was misled to; see consumequeue.py."""
        while end > 1:
            start = max(1, end - _RUN_ENTRIES)
            size = (end - start) * ENTRY_BYTES
            raw = self._files.pread(self._handle, size, self._entry_position(start))
            phys = np.frombuffer(raw, _ENTRY_COLUMNS)["phys"].astype(np.int64)
            wrong = np.flatnonzero((phys >= below) | (np.diff(phys, prepend=0) < 0))
            if not len(wrong):
                break
            end = start + int(wrong[0])
        return end

    def put(self, hashes: Ints, phys: Ints, store_ms: Ints) -> None:
        """Append entries; there must be room. ``hashes`` are not negative. Raises OSError."""
        slots = self._slots
        assert slots is not None
        rows = len(hashes)
        if self.count == 1:
            self.begin_ms, self.begin_phys = int(store_ms[0]), int(phys[0])
        numbers = np.arange(self.count, self.count + rows, dtype=np.int64)
        place = hashes % self.slot_count
        order = np.argsort(place, kind="stable")
        ordered = place[order]
        previous_ordered = slots[ordered].astype(np.int64)
        repeats = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
        fresh = int(np.count_nonzero(previous_ordered == 0))
        if len(repeats):
            fresh -= int(np.count_nonzero(previous_ordered[repeats] == 0))
            previous_ordered[repeats] = numbers[order[repeats - 1]]
        entries = np.empty(rows, _ENTRY_COLUMNS)
        entries["hash"] = hashes
        entries["phys"] = phys
        entries["seconds"] = np.clip((store_ms - self.begin_ms) // 1000, 0, _MAX_SECONDS)
        entries["prev"][order] = previous_ordered
        self._files.pwrite(self._handle, entries.tobytes(), self._entry_position(self.count))
        # Later numbers of one slot overwrite earlier ones: the newest is where a chain begins.
        slots[place] = numbers
        self.used_slots += fresh
        self.count += rows
        self.end_phys, self.end_ms = int(phys[-1]), int(store_ms[-1])
        self.write_header()

    def put_one(self, key_hash: int, phys: int, store_ms: int) -> None:
        """Append one entry, cheaper than :meth:`put` for a handful. Raises OSError."""
        slots = self._slots
        assert slots is not None
        if self.count == 1:
            self.begin_ms, self.begin_phys = store_ms, phys
        place = key_hash % self.slot_count
        previous = int(slots[place])
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), _MAX_SECONDS)
        self._files.pwrite(
            self._handle,
            ENTRY.pack(key_hash, phys, seconds, previous),
            self._entry_position(self.count),
        )
        slots[place] = self.count
        self.used_slots += previous == 0
        self.count += 1
        self.end_phys, self.end_ms = phys, store_ms

    def write_header(self) -> None:
        """Say in the file how many entries there are. Raises OSError."""
        self.unsynced = True
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_phys, self.end_phys, self.used_slots, self.count
        )  # fmt: skip
        self._files.pwrite(self._handle, header, 0)

    def write_slots(self) -> None:
        """Bring the slots in the file up to date. Raises OSError."""
        if self._slots is not None:
            self._files.pwrite(self._handle, self._slots.astype(">i4").tobytes(), HEADER_BYTES)
        self.write_header()

    def sync(self) -> None:
        """Return once what was written is on the device; a thread may do it. Raises OSError."""
        self._files.datasync(self._handle)

    @property
    def has_slots(self) -> bool:
        """Whether the slots are in memory."""
        return self._slots is not None

    def release_slots(self) -> None:
        """The file is full and its slots are written: from now on they are read from there."""
        self._slots = None

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether it holds entries of a time range."""
        return self.count > 1 and self.begin_ms <= end_ms and self.end_ms >= begin_ms

    def query(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of records whose key has this hash, newest first.

        Entries know whole seconds only, so the range is taken as upstream takes it.
        """
        found: list[int] = []
        number = self._slot(key_hash % self.slot_count)
        while 0 < number < self.count and len(found) < max_count:
            entry = self._files.pread(self._handle, ENTRY_BYTES, self._entry_position(number))
            entry_hash, physical_offset, seconds, previous = ENTRY.unpack(entry)
            store_ms = self.begin_ms + seconds * 1000
            if seconds < 0:
                break
            if entry_hash == key_hash and begin_ms <= store_ms <= end_ms:
                found.append(physical_offset)
            if previous >= number or store_ms < begin_ms:
                break
            number = previous
        return found

    def _slot(self, place: int) -> int:
        if self._slots is not None:
            return int(self._slots[place])
        raw = self._files.pread(self._handle, SLOT_BYTES, HEADER_BYTES + place * SLOT_BYTES)
        return int.from_bytes(raw, "big", signed=True)

    def close(self) -> None:
        """Give the handle back."""
        self._files.close(self._handle)
