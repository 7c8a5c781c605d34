"""Consume queue extensions: more data for each entry of a queue, in a unit of a separate file.

With ``enableConsumeQueueExt`` the tag code field of an entry has the address of its unit in the
files ``consumequeue_ext/<topic>/<queueId>/NNN...`` (upstream: ConsumeQueueExt.java). The unit has
the real tag code. A unit, big-endian:

    0    2    size of the unit: 20 and the size of the bit map
    2    8    tag code
    10   8    store time of the record, ms
    18   2    size of the bit map, 0 if there is none
    20   n    bit map of the SQL92 filters that match, see bitmaps.py

An address is the offset of the unit minus 2^63. Offsets continue from file to file, which are named
by their first one. A unit never crosses the end of a file: a size of -1 says that the next unit is
in the next file. The last 4 bytes of a file stay unused. Zeros follow the last unit.

Entries in memory always hold real tag codes; they are translated when queue files are read and
written. A crash may lose units. The tag code of a lost unit is then computed from its record.
"""

from __future__ import annotations

import logging
import os.path
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cometmq.core.errors import StoreCorrupt
from cometmq.store.layout import (
    EXTENSION_UNIT,
    EXTENSIONS,
    HOLE_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    file_name,
    file_offset,
    is_topic_name,
)
from cometmq.store.queue.bitmaps import BitMaps
from cometmq.store.queue.queuefiles import QueueFiles

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.files import Buffer, Files

logger = logging.getLogger(__name__)

_UNIT_BYTES: Final = EXTENSION_UNIT.size
_ADDRESS_BASE: Final = 1 << 63
_BLANK_BYTES: Final = 4
_END_OF_FILE: Final = b"\xff\xff"
_CODE_AT: Final = 12
#: First byte of every address: a tag code begins with 0 or 255, and no file reaches 2^56 bytes.
_ADDRESS_BYTE: Final = 0x80
_WINDOW_BYTES: Final = 1 << 14
_CHUNK_BYTES: Final = 3_000 * QUEUE_ENTRY_BYTES
_KEPT_ENDS: Final = 4_096

#: A function (offset, bytes) that reads units; None if the device must be read.
ReadUnits = Callable[[int, int], "bytes | bytearray | None"]
#: A function (physical offset, size) that returns the tag code of a record whose unit is missing;
#: None if it cannot.
MissingCode = Callable[[int, int], "int | None"]


class RecordFacts(Protocol):
    """Facts about single records, read from the log (dispatch.py)."""

    def store_ms(self, place: int) -> int:
        """Return the store time of the record at a physical offset, ms; -1 if unreadable."""
        ...

    def tag_code(self, place: int, size: int) -> int | None:
        """Return the tag code that an entry of a record has; None if it is unreadable."""
        ...

    def properties(self, place: int, size: int) -> bytes | None:
        """Return the bytes of the properties of a record; None if it is unreadable."""
        ...


class _End(NamedTuple):
    """The byte position after the last entry written with a unit, and the end of the units."""

    position: int
    units: int


def has_addresses(raw: bytes | bytearray) -> bool:
    """Return whether any of these entries has an address as tag code."""
    return _ADDRESS_BYTE in raw[_CODE_AT::QUEUE_ENTRY_BYTES]


def with_codes(
    raw: bytes | bytearray, read: ReadUnits, missing: MissingCode
) -> bytes | bytearray | None:
    """Return entries with tag codes in the place of addresses; None if the device must be read.

    ``read`` reads units; ``missing`` computes the tag code if a unit is missing. If it cannot, the
    address stays.
    """
    marks = bytes(raw[_CODE_AT::QUEUE_ENTRY_BYTES])
    number = marks.find(_ADDRESS_BYTE)
    if number < 0:
        return raw
    out = bytearray(raw)
    window: bytes | bytearray = b""
    begin = 0
    while number >= 0:
        at = number * QUEUE_ENTRY_BYTES
        place, size, address = QUEUE_ENTRY.unpack_from(raw, at)
        offset = address + _ADDRESS_BASE
        if not begin <= offset <= begin + len(window) - _UNIT_BYTES:
            found = read(offset, _WINDOW_BYTES)
            if found is None:
                return None
            window, begin = found, offset
        code: int | None = None
        if len(window) - (offset - begin) >= _UNIT_BYTES:
            unit_size, unit_code, _, _ = EXTENSION_UNIT.unpack_from(window, offset - begin)
            if unit_size >= _UNIT_BYTES:
                code = unit_code
        if code is None:
            code = missing(place, size)
        if code is not None:
            QUEUE_ENTRY.pack_into(out, at, place, size, code)
        number = marks.find(_ADDRESS_BYTE, number + 1)
    return out


def find_file_bytes(files: Files, root: str) -> int:
    """Return the length of the first extension file below the store's root; 0 if there is none."""
    for path in _file_paths(files, os.path.join(root, EXTENSIONS)):
        handle = files.open(path)
        try:
            size = files.size(handle)
        finally:
            files.close(handle)
        if size:
            return size
    return 0


def _file_paths(files: Files, top: str) -> Iterator[str]:
    for topic in filter(is_topic_name, files.names(top)):
        for number in _names(files, os.path.join(top, topic)):
            directory = os.path.join(top, topic, number)
            for name in _names(files, directory):
                if file_offset(name) is not None:
                    yield os.path.join(directory, name)


def _names(files: Files, path: str) -> list[str]:
    try:
        return files.names(path)
    except NotADirectoryError:
        return []


class UnitReader:
    """Reads the units of a store for tools; ``root`` is the store's root."""

    __slots__ = ("_file_bytes", "_files", "_root")

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._file_bytes = 0

    def with_codes(
        self, directory: str, raw: bytes | bytearray, missing: MissingCode
    ) -> bytes | bytearray:
        """Return the entries of a queue's directory with tag codes in the place of addresses.

        ``missing`` computes the tag code if a unit is missing. If it cannot, the address stays.
        """
        if not has_addresses(raw):
            return raw
        if not self._file_bytes:
            self._file_bytes = find_file_bytes(self._files, self._root)
        units = _beside(directory)

        def read(offset: int, size: int) -> bytes:
            if not self._file_bytes:
                return b""
            base = offset - offset % self._file_bytes
            try:
                handle = self._files.open(os.path.join(units, file_name(base)))
            except FileNotFoundError:
                return b""
            try:
                return self._files.pread(handle, size, offset - base)
            finally:
                self._files.close(handle)

        return with_codes(raw, read, missing) or raw


def _beside(directory: str) -> str:
    """Return the directory with the units of the queue whose files are in ``directory``."""
    topic_path, number = os.path.split(directory)
    top, topic = os.path.split(topic_path)
    return os.path.join(os.path.dirname(top), EXTENSIONS, topic, number)


class ExtendedQueueFiles(QueueFiles):
    """The files of all queues, and of their units.

    Reads return entries with their tag codes. With ``writes_units``, each appended entry gets a
    unit. An entry that replaces another one has its tag code instead of an address, because the
    addresses of a queue must increase. New units follow the last one that an entry of the queue
    needs; later units, which a crash may leave, are removed first.
    """

    __slots__ = ("_clock", "_ends", "_facts", "_units", "_writes_units", "bit_maps")

    def __init__(
        self,
        files: Files,
        directory: str,
        file_bytes: int,
        facts: RecordFacts,
        unit_file_bytes: int,
        *,
        clock: Clock,
        writes_units: bool,
    ) -> None:
        """Create the files of the queues in ``directory``; a directory beside it has their units.

        ``unit_file_bytes`` is the size of a file of units.
        """
        super().__init__(files, directory, file_bytes)
        beside = os.path.join(os.path.dirname(directory), EXTENSIONS)
        self._units = QueueFiles(files, beside, unit_file_bytes)
        self._facts = facts
        self._writes_units = writes_units
        self._clock = clock
        self.bit_maps = BitMaps(clock.monotonic_ms())
        self._ends: OrderedDict[str, _End] = OrderedDict()

    def read(self, directory: str, position: int, size_bytes: int) -> bytes:
        """Read as QueueFiles does; entries have their tag codes."""
        raw = super().read(directory, position, size_bytes)
        if not has_addresses(raw):
            return raw
        units = _beside(directory)
        found = with_codes(
            raw,
            lambda offset, size: self._units.read(units, offset, size),
            self._facts.tag_code,
        )
        return bytes(found or raw)

    def read_cached(self, directory: str, position: int, size_bytes: int) -> bytearray | None:
        """Read as QueueFiles does; None also if a unit is not in memory or missing."""
        raw = super().read_cached(directory, position, size_bytes)
        if raw is None or not has_addresses(raw):
            return raw
        units, is_missing = _beside(directory), False

        def read(offset: int, size: int) -> bytearray | None:
            try:
                return self._units.read_cached(units, offset, size)
            except StoreCorrupt:
                return None

        def missing(_place: int, _size: int) -> None:
            nonlocal is_missing
            is_missing = True

        found = with_codes(raw, read, missing)
        return None if found is None or is_missing else bytearray(found)

    def fetch(self, directory: str, position: int, size_bytes: int) -> bytes:
        """Read as QueueFiles does, so that a thread may call it; entries have their tag codes."""
        raw = super().fetch(directory, position, size_bytes)
        if not has_addresses(raw):
            return raw
        units = _beside(directory)

        def read(offset: int, size: int) -> bytes:
            try:
                return self._units.fetch(units, offset, size)
            except StoreCorrupt:
                return b""

        return bytes(with_codes(raw, read, self._facts.tag_code) or raw)

    def write(self, directory: str, position: int, data: Buffer, *, begins: bool = False) -> None:
        """Write as QueueFiles does; entries that are appended get units. Raises OSError."""
        raw = bytes(data)
        end = self._end_at(directory, position) if self._writes_units else None
        if end is None:
            super().write(directory, position, raw, begins=begins)
            return
        self._ends.pop(directory, None)
        entries, units_end = self._write_units(directory, raw, end)
        super().write(directory, position, entries, begins=begins)
        self._ends[directory] = _End(position + len(raw), units_end)
        if len(self._ends) > _KEPT_ENDS:
            self._ends.popitem(last=False)

    def _end_at(self, directory: str, position: int) -> int | None:
        """Return the end of the units if an entry at ``position`` is an append; else None."""
        known = self._ends.get(directory)
        if known is not None and known.position == position:
            return known.units
        if any(super().read(directory, position, QUEUE_ENTRY_BYTES)):
            return None
        end = self._find_end(directory, position)
        beside, units = _beside(directory), self._units
        bases = units.bases(beside)
        if bases and (bases[-1] > end or not units.is_clear(beside, end)):
            units.cut(beside, end, bases)
        return end

    def _find_end(self, directory: str, position: int) -> int:
        """Return the end of the last unit that an entry before ``position`` needs; 0 if none."""
        for base in reversed(self.bases(directory)):
            stop = min(position, base + self.file_bytes)
            while stop > base:
                start = max(base, stop - _CHUNK_BYTES)
                raw = super().read(directory, start, stop - start)
                number = raw[_CODE_AT::QUEUE_ENTRY_BYTES].rfind(_ADDRESS_BYTE)
                if number >= 0:
                    return self._end_of(directory, _offset_at(raw, number))
                stop = start
        return 0

    def _end_of(self, directory: str, offset: int) -> int:
        raw = self._units.read(_beside(directory), offset, _UNIT_BYTES)
        if len(raw) == _UNIT_BYTES:
            size, _, _, _ = EXTENSION_UNIT.unpack(raw)
            if size >= _UNIT_BYTES:
                return offset + int(size)
        # The unit is lost, so its size is unknown, and other units may be after it.
        return offset - offset % self._units.file_bytes + self._units.file_bytes

    def _write_units(self, directory: str, raw: bytes, end: int) -> tuple[bytearray, int]:
        """Write units from ``end`` on; return the entries with addresses, and the new end."""
        out, file_bytes, begin = bytearray(raw), self._units.file_bytes, end
        pending = bytearray()
        beside = _beside(directory)
        topic = os.path.basename(os.path.dirname(directory))
        wants_bits = self.bit_maps.wants(topic, self._clock.monotonic_ms())
        for at in range(0, len(raw), QUEUE_ENTRY_BYTES):
            place, size, code = QUEUE_ENTRY.unpack_from(raw, at)
            store_ms = -1 if size == HOLE_SIZE else self._facts.store_ms(place)
            if store_ms < 0:
                continue
            bits = self._bits_of(topic, place, size) if wants_bits else b""
            unit_bytes = _UNIT_BYTES + len(bits)
            if end % file_bytes + unit_bytes + _BLANK_BYTES > file_bytes:
                pending += _END_OF_FILE
                self._units.write(beside, begin, pending)
                pending.clear()
                begin = end = end - end % file_bytes + file_bytes
            pending += EXTENSION_UNIT.pack(unit_bytes, code, store_ms, len(bits)) + bits
            QUEUE_ENTRY.pack_into(out, at, place, size, end - _ADDRESS_BASE)
            end += unit_bytes
        if pending:
            self._units.write(beside, begin, pending)
        return out, end

    def _bits_of(self, topic: str, place: int, size: int) -> bytes:
        properties = self._facts.properties(place, size)
        if properties is None:
            return b""
        bits = self.bit_maps.of(topic, properties)
        return bits if _UNIT_BYTES + len(bits) + _BLANK_BYTES <= self._units.file_bytes else b""

    def cut(self, directory: str, position: int, bases: list[int]) -> None:
        """Cut as QueueFiles does; the next append cuts the units."""
        super().cut(directory, position, bases)
        self._ends.pop(directory, None)

    def drop(self, directory: str, base: int) -> None:
        """Remove one file of a queue, and the files of units that no entry needs any longer."""
        super().drop(directory, base)
        beside = _beside(directory)
        bases = self._units.bases(beside)
        if not bases:
            return
        first = self._first_unit(directory)
        if first < 0:
            self._ends.pop(directory, None)
        for unit_base in bases:
            if first < 0 or unit_base + self._units.file_bytes <= first:
                self._units.drop(beside, unit_base)

    def _first_unit(self, directory: str) -> int:
        """Return the offset of the first unit that an entry needs; -1 if there is none."""
        for base in self.bases(directory):
            for start in range(base, base + self.file_bytes, _CHUNK_BYTES):
                raw = super().read(directory, start, _CHUNK_BYTES)
                number = raw[_CODE_AT::QUEUE_ENTRY_BYTES].find(_ADDRESS_BYTE)
                if number >= 0:
                    return _offset_at(raw, number)
        return -1

    def forget(self, path: str) -> None:
        """Close the handle of a file that is being removed."""
        super().forget(path)
        self._ends.pop(os.path.dirname(path), None)

    def set_aside(self, topic: str) -> str:
        """Move all queues of a topic aside, and release their units for deletion."""
        pending = super().set_aside(topic)
        self._discard_units(topic, None)
        return pending

    def discard(self, topic: str, queue_ids: Iterable[int]) -> None:
        """Remove some queues of a topic and their units. Raises OSError."""
        found = [*queue_ids]
        super().discard(topic, found)
        self._discard_units(topic, found)

    def _discard_units(self, topic: str, queue_ids: list[int] | None) -> None:
        try:
            self._move_units(topic, queue_ids)
        except OSError as error:
            # The queues are gone. The first append to a new topic of this name cuts the units.
            logger.warning("queue_units_not_removed topic=%s error=%r", topic, str(error))

    def _move_units(self, topic: str, queue_ids: list[int] | None) -> None:
        top = os.path.join(self._units.directory, topic)
        names = self._files.names(top)
        if queue_ids is not None:
            names = [name for name in names if name in map(str, queue_ids)]
        paths = [os.path.join(top, name) for name in names]
        for path in paths:
            for base in self._units.bases(path):
                self._units.forget(os.path.join(path, file_name(base)))
        for directory in [each for each in self._ends if _beside(each) in paths]:
            del self._ends[directory]
        if paths:
            # The next start does not need them: it writes the units of a restored queue again.
            self.removals.discard(paths)
            self._units.new_directories.add(top)

    def take_unsynced(self) -> tuple[list[str], list[str]]:
        """Return the files and directories to sync, those of units first."""
        paths, directories = self._units.take_unsynced()
        more_paths, more_directories = super().take_unsynced()
        return paths + more_paths, [*{*directories, *more_directories}]

    def mark_unsynced(self, topics: Mapping[str, Collection[int]]) -> None:
        """Mark all files of some queues and of their units as unsynced."""
        super().mark_unsynced(topics)
        self._units.mark_unsynced(topics)

    def close(self) -> None:
        """Close every handle."""
        super().close()
        self._units.close()


def _offset_at(raw: bytes, number: int) -> int:
    _, _, address = QUEUE_ENTRY.unpack_from(raw, number * QUEUE_ENTRY_BYTES)
    return int(address) + _ADDRESS_BASE
