"""The entry journal: unwritten entries of many queues, in sequence.

Writing a single entry to its queue's file costs more than all other work of a send. So with many
queues in use, the file of a queue is written only from time to time. Until then its entries are in
the journal, where one write takes those of many queues. After a kill of the process, a start reads
them from the journal instead of rebuilding them from the log. The journal is never synced: after a
power cut, recovery reads the log from the position up to which queue files were synced.

Files are named by the log offset at which they begin, and hold blocks, big-endian:

    0    4    magic "CMEJ"
    4    4    CRC-32 of all that follows in the block
    8    4    bytes of names
    12   4    number of rows
    16   8    first log offset: the block has the entries for records from here ...
    24   8    ... up to this log offset
    32   8    number of the block's first name; the next names have the next numbers
    40        names of queues that are new in this file: "topic\\tqueueId\\n" each
              rows: number of the queue's name 8, queue offset 8, entry (layout.py) 20;
              queue offset -1 voids all earlier entries of the queue: its topic was deleted

Java brokers ignore these files.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cometmq.speedups import WriteBatch
from cometmq.store.layout import QUEUE_ENTRY_BYTES, file_name, file_offset

if TYPE_CHECKING:
    from cometmq.store.files import Files
    from cometmq.store.queue.consumequeue import ConsumeQueue, RecordGroup

logger = logging.getLogger(__name__)

JOURNAL_DIRECTORY = "cometmq-entries"
FILE_BYTES = 64 << 20
_BLOCK_BYTES = 256 << 10
_MAGIC = b"CMEJ"
_HEAD = Struct(">4sIIIqqQ")
_CRC_END = 8
_LIVE_ROW = Struct(">Qqqiq")
_ROW = Struct(f">Qq{QUEUE_ENTRY_BYTES}s")
_VOID = -1


class EntryJournal:
    """The journal's files, and the rows that are not written yet.

    The files have the entries for records from the log offset ``start`` up to ``end``. Both are -1
    while the journal is not in use.
    """

    __slots__ = (
        "_bases",
        "_directory",
        "_files",
        "_first",
        "_handle",
        "_names",
        "_next",
        "_room",
        "_rows",
        "end",
        "start",
    )

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._bases: list[int] = []
        self._handle = -1
        #: Queues get numbers from ``_first`` on in the current file, next ``_next``. ``_names`` are
        #: the names that are not written yet.
        self._first = self._next = 0
        self._names: list[str] = []
        self._room = 0
        self._rows = bytearray()
        self.start = self.end = -1

    def begin(self, offset: int) -> None:
        """Begin the journal at the log offset ``offset``. Raises OSError."""
        self._files.make_directory(self._directory)
        self._open_file(offset)
        self.start = self.end = offset

    def continue_at(self, start: int, offset: int) -> None:
        """Continue at the log offset ``offset`` in a new file; keep the files from ``start`` on.

        Raises OSError.
        """
        for base in self._found():
            if base < offset:
                self._bases.append(base)
            else:
                self._files.unlink(self._path(base))
        self._open_file(offset)
        self.start, self.end = start, offset

    def _found(self) -> list[int]:
        names = self._files.names(self._directory)
        return [base for name in names if (base := file_offset(name)) is not None]

    def _open_file(self, base: int) -> None:
        handle = self._files.open(self._path(base), create=True)
        self._files.resize(handle, 0)
        self._close_file()
        self._handle, self._room = handle, FILE_BYTES
        self._first = self._next
        self._bases.append(base)

    def _path(self, base: int) -> str:
        return os.path.join(self._directory, file_name(base))

    def _close_file(self) -> None:
        if self._handle >= 0:
            self._files.close(self._handle)
        self._handle = -1

    def covers(self, offset: int) -> bool:
        """Return whether the journal has the entries from ``offset`` on."""
        return 0 <= self.start <= offset

    def add(self, segment: RecordGroup, end: int) -> None:
        """Add the entries of a dispatched segment that ends at ``end``. Raises OSError."""
        pack, first, define = _LIVE_ROW.pack, self._first, self._define
        if isinstance(segment, WriteBatch):
            for queue in segment.unnamed_queues(first):
                define(queue)
            self._rows += segment.entry_rows()
        else:
            self._rows += b"".join(
                [
                    pack(
                        queue.number if queue.number >= first else define(queue),
                        offset, phys, size, code,
                    )
                    for queue, offset, phys, size, code, _, _ in segment
                    if offset >= 0
                ]
            )  # fmt: skip
        if len(self._rows) >= _BLOCK_BYTES:
            self.write(end)

    def forget(self, queues: Iterable[ConsumeQueue]) -> None:
        """Void the entries of queues that are being deleted."""
        for queue in queues:
            number = queue.number if queue.number >= self._first else self._define(queue)
            self._rows += _LIVE_ROW.pack(number, _VOID, 0, 0, 0)

    def _define(self, queue: ConsumeQueue) -> int:
        queue.number = number = self._next
        self._next += 1
        self._names.append(f"{queue.topic}\t{queue.queue_id}\n")
        return number

    def write(self, end: int) -> None:
        """Write the added rows, which end at ``end``. Raises OSError; then the rows are kept."""
        if end == self.end and not self._rows:
            return
        rows, names = self._rows, "".join(self._names).encode()
        first_number = self._next - len(self._names)
        counts = len(names), len(rows) // _ROW.size
        head = _HEAD.pack(_MAGIC, 0, *counts, self.end, end, first_number)
        block = bytearray().join((head, names, rows))
        block[4:_CRC_END] = crc32(memoryview(block)[_CRC_END:]).to_bytes(4, "big")
        self._files.pwrite(self._handle, block, FILE_BYTES - self._room)
        self._room -= len(block)
        self.end = end
        rows.clear()
        self._names.clear()
        if self._room < 2 * _BLOCK_BYTES:
            self._open_file(end)

    def drop_before(self, offset: int) -> None:
        """Remove the files that have only entries of records before ``offset``. Raises OSError."""
        while len(self._bases) > 1 and self._bases[1] <= offset:
            self._files.unlink(self._path(self._bases[0]))
            self.start = self._bases[1]
            del self._bases[0]

    def remove(self) -> None:
        """Remove all files: the queue files have every entry. Raises OSError."""
        self._close_file()
        self._rows.clear()
        self._names.clear()
        self._first = self._next
        self.start = self.end = -1
        for base in self._found():
            self._files.unlink(self._path(base))
        self._bases = []

    def close(self) -> None:
        """Close the current file."""
        self._close_file()


class Tail:
    """The entries of one queue from ``first`` on."""

    __slots__ = ("entries", "first", "next")

    def __init__(self) -> None:
        self.entries = bytearray()
        self.first = self.next = 0

    def put(self, offset: int, entry: bytes) -> None:
        """Add an entry. Drop those from its offset on, which the queue had dropped as well.

        Raises ValueError if entries before it are missing.
        """
        if offset != self.next:
            self._move_to(offset)
        self.entries += entry
        self.next = offset + 1

    def _move_to(self, offset: int) -> None:
        if not self.entries or offset < self.first:
            self.entries.clear()
            self.first = offset
        elif offset < self.next:
            del self.entries[(offset - self.first) * QUEUE_ENTRY_BYTES :]
        else:
            raise ValueError(f"entry {offset} follows {self.next - 1}")

    def clear(self) -> None:
        """Void all entries."""
        self.entries.clear()
        self.next = self.first = 0


def read_journal(
    files: Files, directory: str, start: int, end: int
) -> dict[tuple[str, int], Tail] | None:
    """Return the entries for records from the log offset ``start`` up to ``end``, by queue.

    Some earlier entries may be included. Returns None if the files do not hold all that are asked
    for.
    """
    tails: dict[tuple[str, int], Tail] = {}
    names = files.names(directory)
    bases = [base for name in names if (base := file_offset(name)) is not None]
    reached = start
    for number, base in enumerate(bases):
        stop = min(end, bases[number + 1]) if number + 1 < len(bases) else end
        if base > reached or stop <= reached:
            continue
        reached = base
        by_number: dict[int, Tail] = {}
        try:
            for block in _blocks(files, os.path.join(directory, file_name(base))):
                # Each block must begin where the previous one ends, or entries are missing.
                if block.start != reached or block.end > stop:
                    break
                for place, key in enumerate(block.names, block.first_number):
                    by_number[place] = tails.setdefault(key, Tail())
                _put_rows(block.rows, by_number)
                reached = block.end
        except (ValueError, KeyError) as error:
            logger.error("entry_journal_bad file=%d problem=%r", base, str(error))
            return None
    if reached < end:
        logger.warning("entry_journal_short from=%d to=%d reached=%d", start, end, reached)
        return None
    return {key: tail for key, tail in tails.items() if tail.entries}


def _put_rows(rows: memoryview, tails: dict[int, Tail]) -> None:
    for number, offset, entry in _ROW.iter_unpack(rows):
        if offset >= 0:
            tails[number].put(offset, entry)
        else:
            tails[number].clear()


class _Block(NamedTuple):
    start: int
    end: int
    first_number: int
    names: list[tuple[str, int]]
    rows: memoryview


def _blocks(files: Files, path: str) -> Iterator[_Block]:
    """Yield the whole blocks at the beginning of a file."""
    handle = files.open(path)
    try:
        at = 0
        while len(head := files.pread(handle, _HEAD.size, at)) == _HEAD.size:
            magic, crc, name_bytes, row_count, start, end, first_number = _HEAD.unpack(head)
            size = name_bytes + row_count * _ROW.size
            if magic != _MAGIC or size > FILE_BYTES:
                return
            body = files.pread(handle, size, at + _HEAD.size)
            if len(body) < size or crc32(body, crc32(head[_CRC_END:])) != crc:
                return
            view = memoryview(body)
            names = _names(bytes(view[:name_bytes]))
            yield _Block(start, end, first_number, names, view[name_bytes:])
            at += _HEAD.size + size
    finally:
        files.close(handle)


def _names(raw: bytes) -> list[tuple[str, int]]:
    pairs = (line.partition("\t") for line in raw.decode().splitlines())
    return [(topic, int(queue_id)) for topic, _, queue_id in pairs]
