"""The key index: its files in order of time, and batched writes of their entries.

The keys of dispatched records are gathered in memory and written together: a single key costs 6 us,
each of 256 about 0.4 us.

A file is a hash table on disk from message keys to positions in the log:

    position                bytes    field
    0                       8        store time of the first entry, ms
    8                       8        store time of the last entry, ms
    16                      8        physical offset of the first entry's record
    24                      8        physical offset of the last entry's record
    32                      4        used slots
    36                      4        entry count plus one (entry 0 is unused)
    40                      4 x S    slots: the number of the newest entry of each, 0 for none
    40 + 4 S                20 x N   entries: hash 4, physical offset 8, seconds since the first
                                     entry 4, number of the previous entry of the slot 4

Big-endian throughout. The key is ``topic#key``, its hash the absolute value of Java's
``String.hashCode``, its slot the hash modulo S (upstream: IndexFile.java, IndexHeader.java).

Slots are kept in memory and written when the file is synced, because they can be computed from the
entries after a crash. A file with old slots has an end time after the checkpoint's index time,
which makes a Java broker rebuild it.
"""

from __future__ import annotations

import logging
import os.path
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.speedups import index_hashes, put_keys
from cometmq.store.files import exhaust, rewrite_in_place, zeroed_memory
from cometmq.store.layout import index_hash, is_index_name, topic_prefix
from cometmq.store.log.directories import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.speedups import WriteBatch
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files
    from cometmq.store.queue.consumequeue import Dispatched

logger = logging.getLogger(__name__)


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
#: Number of entries before an end that must all be valid, see :meth:`IndexFile._without_torn`.
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
        try:
            if files.size(self._handle) != size:
                files.resize(self._handle, size)
            self._read_header()
        except OSError:
            files.close(self._handle)
            raise

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
        """Return the end of the valid entries; torn ones may have misled the search for ``end``.

        See ``ConsumeQueue._without_torn``.
        """
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
        """Write the slots and the header in steps of 0.1 ms; the caller may pause in between.

        Raises OSError.
        """
        if self._has_stale:
            self._clear_stale()
        slots = memoryview(b"").cast(_SLOT_TYPE) if self._slots is None else self._slots
        for first in range(0, len(slots), _WRITE_SLOTS):
            raw = _turned(slots[first : first + _WRITE_SLOTS].cast("B")).tobytes()
            self._files.pwrite(self._handle, raw, HEADER_BYTES + first * SLOT_BYTES)
            yield
        self.write_header()

    def rewrite_failed(self) -> Iterator[None]:
        """Write the file again if its last sync failed, in steps of 0.1 ms.

        Call it before :meth:`sync`, on the event loop, which adds entries. In a thread, it could
        overwrite entries that are added between its read and its write. Raises OSError.
        """
        if self._failed:
            yield from rewrite_in_place(self._files, self._handle)
            self._failed = False

    def sync(self) -> None:
        """Sync all writes to the device and wait for it; a thread may call this. Raises OSError.

        After a failure, the next call first writes the whole file again.
        """
        again, self._failed = self._failed, True
        if again:
            exhaust(rewrite_in_place(self._files, self._handle))
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

    def newest(self, key_hash: int) -> int | None:
        """Return the number of the newest entry in the slot of a hash, 0 for none.

        Returns None if the slots are not in memory.
        """
        slots = self._slots
        return None if slots is None else int(slots[key_hash % self.slot_count])

    def query(
        self,
        key_hash: int,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        newest: int | None = None,
    ) -> list[int]:
        """Return physical offsets of records whose key has this hash, newest first.

        Entries have a resolution of one second; the bounds are compared as upstream does. With
        ``newest``, the result of :meth:`newest`, a thread may call this while entries are added.
        """
        found: list[int] = []
        if newest is None:
            newest = self.newest(key_hash)
        number = self._slot(key_hash % self.slot_count) if newest is None else newest
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


class IndexLookup(NamedTuple):
    """A lookup of a hash in index files, newest first.

    ``chains`` are the files, each with the number of the newest entry in the slot of the hash; None
    if it must be read from the file. A thread runs the lookup, because it may read millions of
    entries of other keys with the same slot. Entries that are added meanwhile do not matter.
    """

    chains: list[tuple[IndexFile, int | None]]
    key_hash: int
    max_count: int
    begin_ms: int
    end_ms: int

    @property
    def files(self) -> list[IndexFile]:
        """The files that are read: pinned while a thread runs the lookup."""
        return [file for file, _ in self.chains]

    def run(self) -> list[int]:
        """Return the physical offsets of records, newest first. Raises OSError."""
        found: list[int] = []
        for file, newest in self.chains:
            left = self.max_count - len(found)
            if left <= 0:
                break
            found += file.query(self.key_hash, left, self.begin_ms, self.end_ms, newest)
        return found


def _turned(raw: bytes | memoryview) -> array[int]:
    """Convert slots between the byte order of the file and that of the machine."""
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


BATCH_KEYS = 256

#: Fields of a row; rows of records without keys are not gathered.
_QUEUE, _PLACE, _TIME_MS, _KEYS = map(itemgetter, (0, 2, 5, 6))
_TOPIC_HASH = attrgetter("topic_hash")


class Index:
    """All index files, and the entries that are not written yet.

    The latest unwritten entries are rows, earlier ones are columns of type "q".
    """

    __slots__ = (
        "_config",
        "_directory",
        "_enabled",
        "_files",
        "_hashes",
        "_places",
        "_rows",
        "_times_ms",
        "files",
        "pending",
    )

    def __init__(self, files: Files, config: StoreConfig) -> None:
        self._files = files
        self._config = config
        self._enabled = config.message_index_enable
        self._directory = os.path.join(config.store_path_root_dir, "index")
        self.files: list[IndexFile] = []
        #: Approximate number of gathered keys that are not written yet.
        self.pending = 0
        self._rows: list[Dispatched] = []
        self._hashes = array("q")
        self._places = array("q")
        self._times_ms = array("q")

    def gather(self, rows: Sequence[Dispatched]) -> None:
        """Gather the keys of dispatched rows."""
        if self._enabled:
            known = len(self._rows)
            self._rows += filter(_KEYS, rows)
            self.pending += len(self._rows) - known

    def gather_batch(self, batch: WriteBatch) -> None:
        """Gather the keys of a write batch."""
        if not self._enabled:
            return
        if self._rows:
            self._to_columns()
        hashes, places, times_ms = batch.index_columns()
        self._hashes.frombytes(hashes)
        self._places.frombytes(places)
        self._times_ms.frombytes(times_ms)
        self.pending = len(self._hashes)

    def _to_columns(self) -> None:
        rows, self._rows = self._rows, []
        columns = [
            list(map(_TOPIC_HASH, map(_QUEUE, rows))),
            list(map(_PLACE, rows)),
            list(map(_TIME_MS, rows)),
        ]
        names = list(map(_KEYS, rows))
        counts = list(map(len, names))
        if counts.count(1) < len(counts):
            columns = [list(chain.from_iterable(map(repeat, each, counts))) for each in columns]
        self._hashes.extend(index_hashes(columns[0], [*chain.from_iterable(names)]))
        self._places.extend(columns[1])
        self._times_ms.extend(columns[2])

    def load(self, below: int, *, clean: bool) -> None:
        """Open the files and keep the entries of records before the physical offset ``below``.

        ``clean`` says that the slots in the newest file are valid. Invalid files must have been
        removed before (recovery/filechecks.py). If the disk is full, slots stay in memory. Raises
        OSError.
        """
        for name in filter(is_index_name, self._files.names(self._directory)):
            path = os.path.join(self._directory, name)
            file = self._opened(path)
            if file.count > 1 and file.begin_phys >= below:
                file.close()
                self._files.unlink(path)
                logger.info("index_file_dropped path=%s reason=beyond_recovery_start", path)
                continue
            self.files.append(file)
        for file in self.files[:-1]:
            # If the header says that a file is not full, its last header was lost, and so were the
            # slots, which are written after that header.
            if file.end_phys >= below or file.room:
                file.recover(below)
                _finish(file)
        if self.files:
            newest = self.files[-1]
            if clean and newest.end_phys < below:
                newest.load_slots()
            else:
                newest.recover(below)

    def _opened(self, path: str) -> IndexFile:
        config = self._config
        return IndexFile(self._files, path, config.max_hash_slot_num, config.max_index_num)

    def flush_pending(self, now_ms: int) -> None:
        """Write gathered keys as entries; a new file is named after ``now_ms``. Raises OSError.

        After an error, the unwritten keys stay in memory.
        """
        if self._rows:
            self._to_columns()
        columns = self._hashes, self._places, self._times_ms
        self.pending = count = len(self._hashes)
        done = 0
        try:
            while done < count:
                file = self._writable(now_ms)
                stop = min(done + file.room, count)
                file.put(*(column[done:stop] for column in columns))
                done = stop
        finally:
            for column in columns:
                del column[:done]
            self.pending = count - done

    def _writable(self, now_ms: int) -> IndexFile:
        if self.files and self.files[-1].room > 0:
            return self.files[-1]
        last = os.path.basename(self.files[-1].path) if self.files else ""
        name = _file_name(now_ms)
        if name <= last:
            # The wall clock was set back, but names must increase.
            name = _file_name(_name_ms(last) + 1)
        self._files.make_directory(self._directory)
        path = os.path.join(self._directory, name)
        try:
            file = self._opened(path)
        except OSError:
            # The next attempt has another name.
            with suppress(OSError):
                self._files.unlink(path)
            raise
        file.start_empty()
        self.files.append(file)
        logger.info("index_file_added path=%s", path)
        return file

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of records with this key (or one of the same hash), newest first.

        Unwritten entries are included: a full disk may keep them in memory for long.
        """
        found, rest = self.lookup(topic, key, max_count, begin_ms, end_ms)
        return found + rest.run()

    def lookup(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> tuple[list[int], IndexLookup]:
        """Return the matching unwritten entries, and the lookup that finds the rest in files."""
        key_hash = index_hash(topic_prefix(topic), key)
        found = self._query_gathered(key_hash, max_count, begin_ms, end_ms)
        chains: list[tuple[IndexFile, int | None]] = []
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                chains.append((file, file.newest(key_hash)))
            # Older files have only earlier entries.
            if file.begin_ms < begin_ms:
                break
        return found, IndexLookup(chains, key_hash, max_count - len(found), begin_ms, end_ms)

    def _query_gathered(
        self, key_hash: int, max_count: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        if self._rows:
            self._to_columns()
        found: deque[int] = deque(maxlen=max(max_count, 0))
        place = -1
        for _ in range(self._hashes.count(key_hash)):
            place = self._hashes.index(key_hash, place + 1)
            if begin_ms <= self._times_ms[place] <= end_ms:
                found.appendleft(self._places[place])
        return [*found]

    def full_files(self) -> list[IndexFile]:
        """Return the full files whose slots are only in memory."""
        older = self.files[:-1]
        newest = [file for file in self.files[-1:] if not file.room]
        return [file for file in older + newest if file.has_slots]

    def take_unsynced(self) -> list[IndexFile]:
        """Return the files to sync; they count as synced unless given back."""
        found = [file for file in self.files if file.unsynced]
        for file in found:
            file.unsynced = False
        return found

    def give_back(self, files: list[IndexFile]) -> None:
        """Mark files as unsynced after a failed sync."""
        for file in files:
            file.unsynced = True

    def sync_files(self, files: list[IndexFile]) -> None:
        """Sync files and their names; a thread may call this. Raises OSError."""
        for file in files:
            file.sync()
        if files:
            self._files.sync_directory(self._directory)
            self._files.sync_directory(os.path.dirname(self._directory))

    @property
    def end_phys(self) -> int:
        """Physical offset of the last indexed record."""
        return self.files[-1].end_phys if self.files else 0

    @property
    def end_ms(self) -> int:
        """Store time of the last indexed record, ms."""
        return self.files[-1].end_ms if self.files else 0

    def drop_before(self, log_start: int) -> list[str]:
        """Close the files whose records the log no longer has, except the newest.

        Returns their paths; the caller removes them, which may take long.
        """
        paths: list[str] = []
        while len(self.files) > 1 and self.files[0].end_phys < log_start:
            file = self.files.pop(0)
            file.close()
            paths.append(file.path)
            logger.info("index_file_dropped path=%s reason=expired", file.path)
        return paths

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()
        self.files.clear()


def _finish(file: IndexFile) -> None:
    """Write the slots of a full file, if there is room for them."""
    try:
        file.write_slots()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning("index_slots_not_written path=%s error=%r", file.path, str(error))
    else:
        file.release_slots()


def _file_name(now_ms: int) -> str:
    # Java brokers name index files in local time.
    moment = datetime.fromtimestamp(now_ms // 1000)
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def _name_ms(name: str) -> int:
    return int(datetime.strptime(name[:14], "%Y%m%d%H%M%S").timestamp()) * 1000 + int(name[14:])
