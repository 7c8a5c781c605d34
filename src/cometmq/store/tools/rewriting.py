"""Replacement of the files of a stopped store that hold data of selected records.

The new files have:

    log          a tombstone in place of each record; zeros in place of bytes of no record
    queues       the tag codes of the tombstones; extension units (queue/extensions.py) too, and
                 zeros in their bit maps
    index        the hashes of the tombstones' filler keys, in new chains
    seals        new seals for the changed log files

Each file is copied to ``cometmq-erasing``, changed there, synced, and renamed over the original. So
a crash leaves each file unchanged or finished. The log comes last: if a run is interrupted earlier,
the next one finds the same records and does the rest. In between the store works, but lookups by
the erased keys and tags find fewer messages.
"""

from __future__ import annotations

import os.path
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import decode_one
from cometmq.message.tombstone import entomb
from cometmq.message.walk import numbers
from cometmq.speedups import index_hashes
from cometmq.store.dispatch import code_and_keys
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.index import ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES
from cometmq.store.layout import (
    EXTENSION_UNIT,
    EXTENSIONS,
    HOLE_SIZE,
    MAX_UNIT_ADDRESS,
    QUEUE_ENTRY_BYTES,
    QUEUE_ENTRY_COLUMNS,
    file_name,
    topic_prefix,
)
from cometmq.store.log.checksums import BlockChecksums, Seal
from cometmq.store.queue.extensions import find_file_bytes
from cometmq.store.tools.directory import find_queues
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.indexes import IndexHeader, read_index_header
from cometmq.store.tools.snapshot import DRAFTS, copy_file
from cometmq.store.tools.sums import read_sums

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import SnapshotFiles
    from cometmq.store.tools.directory import FileInfo, QueueInfo, StoreDirectory
    from cometmq.store.tools.selection import RecordSelection

_QUEUE_ENTRY: Final = np.dtype(QUEUE_ENTRY_COLUMNS)
_INDEX_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("phys", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_CODE: Final = Struct(">q")
_CODE_AT: Final = 12
_ADDRESS_BASE: Final = 1 << 63
_SIZE_BYTES: Final = 4
_ZEROS_BYTES: Final = 1 << 20

#: A position in a file, and the bytes to write there.
Patch = tuple[int, bytes]


class Residue(NamedTuple):
    """Bytes of a log file that belong to no record and are not zeros; physical offsets.

    A broker may leave parts of earlier records after the last one of a file.
    """

    start: int
    stop: int


class Tombstone:
    """The tombstone of one record, the tag code of its queue entries, and its index entries."""

    __slots__ = ("_hashes", "raw", "tag_code")

    def __init__(self, raw: bytes, tag_code: int, hashes: Iterable[tuple[int, int]]) -> None:
        self.raw = raw
        self.tag_code = tag_code
        self._hashes: dict[int, list[int]] = {}
        for old, new in hashes:
            self._hashes.setdefault(old, []).append(new)

    def hash_for(self, old: int) -> int:
        """Return the new hash for the next index entry of the record that has the hash ``old``.

        Call it for the entries in the order of the index. If no key of the record has the hash, it
        is returned unchanged.
        """
        found = self._hashes.get(old)
        if found is None:
            return old
        return found.pop(0) if len(found) > 1 else found[0]


class Tombstones:
    """Creates the tombstones of the selected records, which are read from the log.

    ``places`` are the sorted physical offsets of these records.
    """

    def __init__(
        self,
        files: ReadOnlyFiles,
        directory: StoreDirectory,
        selection: RecordSelection,
        delays_ms: tuple[int, ...],
    ) -> None:
        self._files = files
        self._log_files = directory.log_files
        self._bases = [file.base for file in directory.log_files]
        self._selection = selection
        self._delays_ms = delays_ms
        self._file: FileInfo | None = None
        self._handle = -1
        self._latest: tuple[int, Tombstone] | None = None
        self.places = selection.tallies.places

    def __enter__(self) -> Tombstones:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._files.close(self._handle)

    def rows(self, places: Ints) -> list[int]:
        """Return the indexes of those ``places`` that are physical offsets of selected records."""
        if not len(self.places):
            return []
        nearest = np.searchsorted(self.places, places)
        nearest[nearest == len(self.places)] = 0
        found: list[int] = np.flatnonzero(self.places[nearest] == places).tolist()
        return found

    def at(self, place: int) -> Tombstone:
        """Return the tombstone for a physical offset. Raises BadRecord, OSError."""
        if self._latest is None or self._latest[0] != place:
            raw = self._read(place)
            made = entomb(raw, self._selection.keys, self._selection.cause)
            _, before = self._code_and_hashes(raw)
            code, after = self._code_and_hashes(made)
            self._latest = place, Tombstone(made, code, zip(before, after, strict=True))
        return self._latest[1]

    def _code_and_hashes(self, raw: bytes) -> tuple[int, list[int]]:
        record = decode_one(raw, check_crc=False)
        code, keys = code_and_keys(
            record.topic, record.sys_flag, record.store_ms, record.properties, self._delays_ms
        )
        return code, index_hashes([topic_prefix(record.topic)] * len(keys), keys)

    def _read(self, place: int) -> bytes:
        file = self._log_files[bisect_right(self._bases, place) - 1]
        if file is not self._file:
            if self._file is not None:
                self._files.close(self._handle)
            self._handle = self._files.open(file.path)
            self._file = file
        size = int.from_bytes(self._files.pread(self._handle, _SIZE_BYTES, place - file.base))
        return self._files.pread(self._handle, size, place - file.base)


class Rewriting:
    """The replacement of files in one store, whose lock the caller holds.

    ``shared`` has the paths of replaced log files whose old contents stay in another hard link,
    such as that of a snapshot.
    """

    def __init__(
        self,
        files: SnapshotFiles,
        directory: StoreDirectory,
        config: StoreConfig,
        tombstones: Tombstones,
    ) -> None:
        self._files = files
        self._reading = ReadOnlyFiles()
        self._directory = directory
        self._config = config
        self._tombstones = tombstones
        beside_log = os.path.join(os.path.dirname(directory.log_directories[0]), DRAFTS)
        self._log_drafts = beside_log
        self._drafts = os.path.join(directory.root, DRAFTS)
        self.shared: list[str] = []

    def remove_drafts(self) -> None:
        """Remove the unfinished files of an earlier run. Raises OSError."""
        for path in {self._drafts, self._log_drafts}:
            self._files.remove_tree(path)

    def index_headers(self) -> list[IndexHeader]:
        """Return the headers of all index files. Raises StoreCorrupt if one cannot be read."""
        found: list[IndexHeader] = []
        for path in self._directory.index_files:
            header = read_index_header(self._reading, path, self._config, Findings())
            if header is None:
                raise _wrong_index(path, "the index file cannot be read")
            found.append(header)
        return found

    def rewrite_index(self, headers: Iterable[IndexHeader]) -> int:
        """Replace index files with entries of selected records; return their number.

        Raises StoreCorrupt if the chains of entries in a file are wrong.
        """
        return sum(self._rewrite_index_file(header) for header in headers if header.entries)

    def _rewrite_index_file(self, header: IndexHeader) -> bool:
        first = HEADER_BYTES + header.slots * SLOT_BYTES + ENTRY_BYTES
        handle = self._reading.open(header.path)
        try:
            old_slots = self._reading.pread(handle, header.slots * SLOT_BYTES, HEADER_BYTES)
            raw = bytearray(self._reading.pread(handle, header.entries * ENTRY_BYTES, first))
        finally:
            self._reading.close(handle)
        entries = np.frombuffer(raw, _INDEX_ENTRY)
        hashes, places = numbers(entries["hash"]), numbers(entries["phys"])
        before = hashes.copy()
        for row in self._tombstones.rows(places):
            hashes[row] = self._tombstones.at(int(places[row])).hash_for(int(hashes[row]))
        if (hashes == before).all():
            return False
        # Do not change a file that is damaged, or whose number of slots was guessed wrongly.
        slots, previous, _ = _chains(before, header.slots)
        if slots != old_slots or (previous != numbers(entries["previous"])).any():
            raise _wrong_index(header.path, "its slots do not name their entries")
        slots, previous, used = _chains(hashes, header.slots)
        entries["hash"], entries["previous"] = hashes, previous
        head = HEADER.pack(
            header.begin_ms, header.end_ms, header.begin_phys, header.end_phys, used,
            header.entries + 1,
        )  # fmt: skip
        patches = [(0, head), (HEADER_BYTES, slots), (first, bytes(raw))]
        self._replace(header.path, patches, self._drafts)
        return True

    def rewrite_queues(self) -> int:
        """Replace queue files with entries of selected records; return their number."""
        unit_file_bytes = find_file_bytes(self._reading, self._directory.root)
        count = 0
        for queue in find_queues(self._reading, self._directory):
            units: dict[int, list[int]] = {}
            for base in queue.bases:
                count += self._rewrite_queue_file(queue, base, units, unit_file_bytes)
            for base, codes in units.items():
                count += self._rewrite_units(queue, base, codes)
        return count

    def _rewrite_queue_file(
        self, queue: QueueInfo, base: int, units: dict[int, list[int]], unit_file_bytes: int
    ) -> bool:
        """Replace one file if needed; return whether it was replaced.

        Adds the changes of extension units to ``units``: for the base of each file of units, the
        offset and the new tag code of each unit in turn.
        """
        path = os.path.join(queue.directory, file_name(base))
        handle = self._reading.open(path)
        try:
            size = self._reading.size(handle)
            raw = self._reading.pread(handle, size - size % QUEUE_ENTRY_BYTES, 0)
        finally:
            self._reading.close(handle)
        entries = np.frombuffer(raw, _QUEUE_ENTRY)
        places, sizes = numbers(entries["physical"]), numbers(entries["size"])
        places[(sizes <= 0) | (sizes == HOLE_SIZE)] = -1
        patches: list[Patch] = []
        for row in self._tombstones.rows(places):
            old, new = int(entries["tag_code"][row]), self._tombstones.at(int(places[row])).tag_code
            if old <= MAX_UNIT_ADDRESS:
                if unit_file_bytes:
                    offset = old + _ADDRESS_BASE
                    found = units.setdefault(offset - offset % unit_file_bytes, [])
                    found += (offset, new)
            elif old != new:
                patches.append((row * QUEUE_ENTRY_BYTES + _CODE_AT, _CODE.pack(new)))
        if not patches:
            return False
        self._replace(path, patches, self._drafts)
        return True

    def _rewrite_units(self, queue: QueueInfo, base: int, codes: list[int]) -> bool:
        """Replace one file of units. ``codes`` has offset and new tag code of each unit in turn."""
        path = os.path.join(
            self._directory.root, EXTENSIONS, queue.topic, str(queue.queue_id), file_name(base)
        )
        if not self._reading.exists(path):
            return False
        patches: list[Patch] = []
        handle = self._reading.open(path)
        try:
            for offset, code in zip(codes[::2], codes[1::2], strict=True):
                old = self._reading.pread(handle, EXTENSION_UNIT.size, offset - base)
                if len(old) < EXTENSION_UNIT.size:
                    continue
                size, _, store_ms, map_bytes = EXTENSION_UNIT.unpack(old)
                if size < EXTENSION_UNIT.size:
                    continue
                old = self._reading.pread(handle, size, offset - base)
                zeros = bytes(size - EXTENSION_UNIT.size)
                new = EXTENSION_UNIT.pack(size, code, store_ms, map_bytes) + zeros
                if new != old:
                    patches.append((offset - base, new))
        finally:
            self._reading.close(handle)
        if patches:
            self._replace(path, patches, self._drafts)
        return bool(patches)

    def rewrite_log(
        self, residues: Iterable[Residue], moment_ms: int, progress: Callable[[int], None]
    ) -> tuple[int, int]:
        """Replace log files; return their number and that of their new seals.

        ``progress`` is called with the size of each file.
        """
        rests = list(residues)
        seals = BlockChecksums(self._files, self._directory.root)
        changed = self.changed_log_files(rests)
        sealed = {file.base for file in changed} & (seals.bases | seals.doubted)
        seals.forget(sealed)
        made = 0
        for file in changed:
            if self._is_shared(file):
                self.shared.append(file.path)
            self._replace(file.path, self._patches(file, rests), self._log_drafts, full=True)
            made += file.base in sealed and self._seal(file, seals, moment_ms)
            progress(file.size_bytes)
        return len(changed), made

    def changed_log_files(self, residues: Iterable[Residue]) -> list[FileInfo]:
        """Return the log files that have selected records or a residue."""
        starts = np.array([residue.start for residue in residues], np.int64)
        places = np.concatenate([self._tombstones.places, starts])
        files = self._directory.log_files
        owners = np.searchsorted([file.base for file in files], places, "right") - 1
        return [files[number] for number in np.unique(owners).tolist()]

    def _patches(self, file: FileInfo, residues: Iterable[Residue]) -> Iterator[Patch]:
        places, end = self._tombstones.places, file.base + file.size_bytes
        low, high = np.searchsorted(places, (file.base, end)).tolist()
        for place in places[low:high].tolist():
            yield place - file.base, self._tombstones.at(place).raw
        for start, stop in residues:
            if file.base <= start < end:
                for at in range(start, stop, _ZEROS_BYTES):
                    yield at - file.base, bytes(min(_ZEROS_BYTES, stop - at))

    def _is_shared(self, file: FileInfo) -> bool:
        handle = self._reading.open(file.path)
        try:
            return self._reading.link_count(handle) > 1
        finally:
            self._reading.close(handle)

    def _seal(self, file: FileInfo, seals: BlockChecksums, moment_ms: int) -> bool:
        found = read_sums(
            self._reading, file.path, file.base, file.size_bytes, 0,
            self._config.message_delay_level,
        )  # fmt: skip
        if found.problem:
            return False
        seals.add(Seal(file.base, file.size_bytes, moment_ms, found.summary, found.sums))
        return True

    def _replace(
        self, path: str, patches: Iterable[Patch], drafts: str, *, full: bool = False
    ) -> None:
        """Replace a file by a changed copy, atomically and durably. Raises OSError."""
        files = self._files
        files.make_directory(drafts)
        draft = os.path.join(drafts, os.path.basename(path))
        copy_file(files, path, draft, full=full)
        handle = files.open(draft)
        try:
            for at, data in patches:
                files.pwrite(handle, data, at)
            files.copy_attributes(path, handle)
            files.datasync(handle)
        finally:
            files.close(handle)
        files.rename(draft, path)
        files.sync_directory(os.path.dirname(path))


def _wrong_index(path: str, problem: str) -> StoreCorrupt:
    ways_out = (
        "make the index again: cometmq store repair --index",
        "name the settings of its broker, if it has other sizes: -c broker.conf",
    )
    return StoreCorrupt(path, -1, problem, ways_out=ways_out)


def _chains(hashes: Ints, slot_count: int) -> tuple[bytes, Ints, int]:
    """Return the slots of an index file for the hashes of all its entries.

    Returns also the number of the previous entry of each entry, and the number of used slots.
    """
    slot_of = hashes % slot_count
    order = np.argsort(slot_of, kind="stable")
    same = np.append([False], slot_of[order[1:]] == slot_of[order[:-1]])
    previous = np.zeros(len(hashes), np.int64)
    previous[order[same]] = order[:-1][same[1:]] + 1
    slots = np.zeros(slot_count, ">i4")
    # A later assignment overwrites an earlier one, so each slot names its last entry.
    slots[slot_of[order]] = order + 1
    return slots.tobytes(), previous, int(np.count_nonzero(~same))
