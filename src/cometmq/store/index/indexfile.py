"""One index file: a hash table on disk from message keys to positions in the log.

    position                bytes    field
    0                       8        store time of the first entry, ms
    8                       8        store time of the last entry, ms
    16                      8        physical offset of the first entry's record
    24                      8        physical offset of the last entry's record
    32                      4        used slots
    36                      4        entry count plus one (entry 0 is unused)
    40                      4 x S    slots: the newest entry of each, 0 for none
    40 + 4 S                20 x N   entries: hash 4, physical offset 8, seconds since the first
                                     entry 4, previous entry of the slot 4

Big-endian throughout. The key is ``topic#key``, its hash the absolute value of Java's
``String.hashCode``, its slot the hash modulo S (upstream: IndexFile.java, IndexHeader.java).

Slots are kept in memory and written when the file is synced, because they can be computed from the
entries after a crash. A file with old slots has an end time after the checkpoint's index time,
which makes a Java broker rebuild it.
"""

from __future__ import annotations

from array import array
from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING, Final

from cometmq.speedups import put_keys
from cometmq.store.files import write_again, zeroed_memory
from cometmq.store.log.commitlog import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.files import Files

HEADER = Struct(">qqqqii")
HEADER_BYTES = HEADER.size
SLOT_BYTES = 4
ENTRY = Struct(">iqii")
ENTRY_BYTES = ENTRY.size
_SLOT_TYPE: Final = "i"
_REBUILD_ROWS = 1 << 18
_CLEARED_BYTES = 1 << 16
_LOAD_SLOTS = 4_096
_WRITE_SLOTS = 1 << 15
_RUN_ENTRIES = 64


def file_bytes(slot_count: int, max_entries: int) -> int:
    """Return the length of a file in bytes."""
    return HEADER_BYTES + slot_count * SLOT_BYTES + max_entries * ENTRY_BYTES


class IndexFile:
    """One index file; the slots of the newest one are in memory."""

    __slots__ = (
        "_closed",
        "_failed",
        "_files",
        "_handle",
        "_has_stale",
        "_pins",
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
        """Open a file, or create it. Raises OSError."""
        self._files = files
        self.path = path
        self.slot_count = slot_count
        self.max_entries = max_entries
        self.unsynced = True
        self._failed = False
        self._has_stale = False
        self._slots: memoryview | None = None
        self._closed = False
        self._pins = 0
        self._handle = files.open(path, create=True)
        self.begin_ms = self.end_ms = self.begin_phys = self.end_phys = self.used_slots = 0
        self.count = 1
        size = file_bytes(slot_count, max_entries)
        if files.size(self._handle) != size:
            files.resize(self._handle, size)
        self._read_header()

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        return self.max_entries - self.count

    def _read_header(self) -> None:
        (
            self.begin_ms, self.end_ms, self.begin_phys, self.end_phys, self.used_slots, count,
        ) = HEADER.unpack(self._files.pread(self._handle, HEADER_BYTES, 0))  # fmt: skip
        self.count = min(max(count, 1), self.max_entries)

    def _entry_position(self, number: int) -> int:
        return HEADER_BYTES + self.slot_count * SLOT_BYTES + number * ENTRY_BYTES

    def start_empty(self) -> None:
        """Create the empty slots of a new file in memory."""
        self._slots = self._empty_slots()

    def _empty_slots(self) -> memoryview:
        # Pages without entries are never touched, so they take no memory.
        return zeroed_memory(self.slot_count * SLOT_BYTES).cast(_SLOT_TYPE)

    def load_slots(self) -> None:
        """Load the slots from the file into memory, after a clean stop."""
        self._slots = slots = self._empty_slots()
        for first in range(0, self.slot_count, _LOAD_SLOTS):
            count = min(_LOAD_SLOTS, self.slot_count - first)
            raw = self._files.pread(
                self._handle, count * SLOT_BYTES, HEADER_BYTES + first * SLOT_BYTES
            )
            if raw.count(0) != len(raw):
                slots[first : first + count] = memoryview(_turned(raw))

    def recover(self, below: int) -> None:
        """Keep the entries for records before the physical offset ``below``; compute the slots.

        Later entries become zeros: otherwise, after the next entries, they would seem to belong to
        records stored since. If the disk has no room even for the zeros, they are written before
        the next entries.
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
        self._has_stale = True
        try:
            self._clear_stale()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        self._slots = slots = self._empty_slots()
        self.used_slots = 0
        if self.count == 1:
            self.begin_ms = self.end_ms = self.begin_phys = self.end_phys = 0
            return
        slot_count, used = self.slot_count, 0
        for first in range(1, self.count, _REBUILD_ROWS):
            rows = min(_REBUILD_ROWS, self.count - first)
            raw = self._files.pread(self._handle, rows * ENTRY_BYTES, self._entry_position(first))
            for number, (key_hash, _, _, _) in enumerate(ENTRY.iter_unpack(raw), first):
                place = key_hash % slot_count
                used += not slots[place]
                slots[place] = number
            _, self.end_phys, seconds, _ = ENTRY.unpack(raw[-ENTRY_BYTES:])
            self.end_ms = self.begin_ms + seconds * 1000 + 999
        self.used_slots = used

    def _clear_stale(self) -> None:
        at, end = self._entry_position(self.count), self._entry_position(self.max_entries)
        stale: list[tuple[int, int]] = []
        while at < end:
            size = min(_CLEARED_BYTES, end - at)
            # Trailing zeros are left out: they may be a hole, and a full device has no room to fill
            # it.
            stale_bytes = len(self._files.pread(self._handle, size, at).rstrip(b"\0"))
            if not stale_bytes:
                break
            stale.append((at, stale_bytes))
            at += size
        # Last part first: if this is interrupted, the rest is found again.
        for at, stale_bytes in reversed(stale):
            self._files.pwrite(self._handle, bytes(stale_bytes), at)
            self.unsynced = True
        self._has_stale = False

    def _without_torn(self, end: int, below: int) -> int:
        """Correct an end that the search found by mistake; see consumequeue.py."""
        while end > 1:
            start = max(1, end - _RUN_ENTRIES)
            size = (end - start) * ENTRY_BYTES
            raw = self._files.pread(self._handle, size, self._entry_position(start))
            right = _right_entries(raw, below)
            if start + right == end:
                break
            end = start + right
        return end

    def put(self, hashes: array[int], phys: array[int], store_ms: array[int]) -> None:
        """Append entries; there must be room for them. Raises OSError.

        The columns are of type "q"; ``hashes`` are not negative.
        """
        slots, slot_count, first = self._slots, self.slot_count, self.count
        assert slots is not None
        if self._has_stale:
            self._clear_stale()
        if first == 1:
            self.begin_ms, self.begin_phys = store_ms[0], phys[0]
        raw, used = put_keys(slots, hashes, phys, store_ms, self.begin_ms, first)
        try:
            self._files.pwrite(self._handle, raw, self._entry_position(first))
        except OSError:
            # Restore the slots: the entries that they name were not written.
            for key_hash, _, _, previous in reversed([*ENTRY.iter_unpack(raw)]):
                slots[key_hash % slot_count] = previous
            raise
        self.used_slots += used
        self.count += len(hashes)
        self.end_phys, self.end_ms = phys[-1], store_ms[-1]
        self.write_header()

    def write_header(self) -> None:
        """Write the header with the number of entries. Raises OSError."""
        self.unsynced = True
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_phys, self.end_phys, self.used_slots, self.count
        )  # fmt: skip
        self._files.pwrite(self._handle, header, 0)

    def write_slots(self) -> None:
        """Write the slots to the file. Raises OSError."""
        for _ in self.slot_writes():
            pass

    def slot_writes(self) -> Iterator[None]:
        """Write the slots in steps of 0.1 ms, so that the caller can do other work in between."""
        if self._has_stale:
            self._clear_stale()
        slots = memoryview(b"").cast(_SLOT_TYPE) if self._slots is None else self._slots
        for first in range(0, len(slots), _WRITE_SLOTS):
            raw = _turned(slots[first : first + _WRITE_SLOTS].cast("B")).tobytes()
            self._files.pwrite(self._handle, raw, HEADER_BYTES + first * SLOT_BYTES)
            yield
        self.write_header()

    def sync(self) -> None:
        """Sync all writes to the device and wait for it; a thread may call this. Raises OSError.

        After a failure, the next call first writes the whole file again.
        """
        again, self._failed = self._failed, True
        if again:
            write_again(self._files, self._handle)
        self._files.datasync(self._handle)
        self._failed = False

    @property
    def has_slots(self) -> bool:
        """True if the slots are in memory."""
        return self._slots is not None

    def release_slots(self) -> None:
        """Drop the slots of a full file from memory; they are read from the file from then on."""
        self._slots = None

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file has entries in a time range."""
        return self.count > 1 and self.begin_ms <= end_ms and self.end_ms >= begin_ms

    def query(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of records whose key has this hash, newest first.

        Entries have a resolution of one second, so the bounds are compared as upstream does.
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
            # Entries must get older along a chain; a damaged chain could loop.
            if previous >= number or store_ms < begin_ms:
                break
            number = previous
        return found

    def _slot(self, place: int) -> int:
        if self._slots is not None:
            slot: int = self._slots[place]
            return slot
        raw = self._files.pread(self._handle, SLOT_BYTES, HEADER_BYTES + place * SLOT_BYTES)
        return int.from_bytes(raw, "big", signed=True)

    def pin(self) -> None:
        """Keep the handle open for a thread, until :meth:`unpin`."""
        self._pins += 1

    def unpin(self) -> None:
        """Undo one :meth:`pin`; close the handle if the file was closed in the meantime."""
        self._pins -= 1
        if self._closed and not self._pins:
            self._files.close(self._handle)

    def close(self) -> None:
        """Close the handle once no thread uses it."""
        self._closed = True
        if not self._pins:
            self._files.close(self._handle)


def _turned(raw: bytes | memoryview) -> array[int]:
    """Convert slots between file order and native order."""
    found = array(_SLOT_TYPE)
    found.frombytes(raw)
    if byteorder == "little":
        found.byteswap()
    return found


def _right_entries(raw: bytes, below: int) -> int:
    """Return the number of leading entries for records before ``below``, in log order."""
    last = 0
    for number, (_, phys, _, _) in enumerate(ENTRY.iter_unpack(raw)):
        if phys >= below or phys < last:
            return number
        last = phys
    return len(raw) // ENTRY_BYTES
