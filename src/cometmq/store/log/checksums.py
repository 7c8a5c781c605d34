"""Seals: files of checksums, one CRC for each 64 KiB of a full log file, in ``cometmq-seals``.

A record's own CRC covers only its body; a seal detects any flipped bit in a full file. Java brokers
ignore this directory. It is not inside the log directory because a Java broker takes every file
there for a log file. Each seal is one file, named like its log file, big-endian:

    position   bytes   field
    0          4       magic "CMQS"
    4          2       version, 1
    6          2       algorithm, 1: CRC-32 as zlib computes it
    8          8       physical offset of the log file's first byte
    16         8       size of the log file
    24         4       size of a block, 65 536
    28         4       number of blocks
    32         8       creation time, ms
    40         8       number of records
    48         8       store time of the oldest record, ms
    56         8       store time of the newest record, ms
    64         8       number of queue entries that the records have
    72         8       digest of these entries (tools/sums.py)
    80         8       number of index entries that the records have
    88         8       digest of these entries
    96         4 x B   CRC of each block, the last one up to the end of the file
    96 + 4 B   4       CRC-32 of everything before

If a log file matches its seal, the digests let a tool check its entries in consume queues and index
without decoding any record.
"""

from __future__ import annotations

import logging
import os.path
from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import read_file, write_file_atomically
from cometmq.store.layout import file_name, file_offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from cometmq.store.files import Buffer, Files

logger = logging.getLogger(__name__)

DIRECTORY = "cometmq-seals"
DOUBTED = "doubted"
BLOCK_BYTES = 65_536
BLOCK_SHIFT = 16
_HEADER = Struct(">4sHHqqIIq")
_SUMMARY = Struct(">qqqqQqQ")
_CRC = Struct(">I")
_MAGIC = b"CMQS"
_VERSION = 1
_CRC32 = 1
_LOADED_LIMIT = 64


class Summary(msgspec.Struct, frozen=True):
    """Totals over the records of a log file; store times in ms, -1 if there is no record."""

    records: int
    first_ms: int
    last_ms: int
    entries: int
    entry_digest: int
    keys: int
    key_digest: int


@dataclass(frozen=True, slots=True)
class Seal:
    """A decoded seal; ``sums`` holds the blocks' CRCs in their file format."""

    base: int
    size_bytes: int
    made_ms: int
    summary: Summary
    sums: bytes

    def holds(self, block: int, data: Buffer) -> bool:
        """Return whether ``data`` matches the CRC of block number ``block``."""
        at = block * _CRC.size
        return crc32(data) == int.from_bytes(self.sums[at : at + _CRC.size], "big")

    def differing(self, sums: bytes) -> list[int]:
        """Return the numbers of the blocks whose CRC in ``sums`` is different."""
        pairs = zip(_CRC.iter_unpack(self.sums), _CRC.iter_unpack(sums), strict=True)
        return [block for block, (was, found) in enumerate(pairs) if was != found]


class FileSums(msgspec.Struct, frozen=True):
    """Checksums and totals of a full log file, computed by a child process (tools/sums.py).

    ``problem`` says why the file must not be sealed; it is empty if every record is valid.
    ``late_from`` is the physical offset from which every record was stored after the requested
    time; -1 if there is none.
    """

    sums: bytes
    summary: Summary
    problem: str
    late_from: int


def block_count(size_bytes: int) -> int:
    """Return the number of blocks in a log file."""
    return -(-size_bytes // BLOCK_BYTES)


def sums_of(data: Buffer) -> bytes:
    """Return the CRC of each block of ``data``, in the format of seals."""
    view = memoryview(data)
    blocks = (view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES))
    return b"".join(_CRC.pack(crc32(block)) for block in blocks)


def encode(seal: Seal) -> bytes:
    """Return the contents of a seal's file."""
    count = block_count(seal.size_bytes)
    assert len(seal.sums) == count * _CRC.size
    head = _HEADER.pack(
        _MAGIC, _VERSION, _CRC32, seal.base, seal.size_bytes, BLOCK_BYTES, count, seal.made_ms
    ) + _SUMMARY.pack(*msgspec.structs.astuple(seal.summary))
    return head + seal.sums + _CRC.pack(crc32(seal.sums, crc32(head)))


def decode(raw: bytes, path: str, base: int) -> Seal:
    """Decode the seal of the log file that begins at ``base``.

    Raises StoreCorrupt if it is invalid or the seal of another file.
    """
    sums_at = _HEADER.size + _SUMMARY.size
    if len(raw) < sums_at + _CRC.size:
        raise StoreCorrupt(path, -1, f"the seal is truncated: it has {len(raw)} bytes")
    if crc32(raw[: -_CRC.size]) != _CRC.unpack_from(raw, len(raw) - _CRC.size)[0]:
        raise StoreCorrupt(path, -1, "the seal's own checksum does not match")
    magic, version, algorithm, own_base, size, block, count, made_ms = _HEADER.unpack_from(raw)
    if (magic, version, algorithm, block) != (_MAGIC, _VERSION, _CRC32, BLOCK_BYTES):
        raise StoreCorrupt(path, -1, "the seal has an unknown type or version")
    sums = raw[sums_at : -_CRC.size]
    if own_base != base or count != block_count(size) or len(sums) != count * _CRC.size:
        raise StoreCorrupt(path, -1, f"the seal belongs to a file at {own_base} of {size} bytes")
    summary = Summary(*_SUMMARY.unpack_from(raw, _HEADER.size))
    return Seal(base, size, made_ms, summary, sums)


class BlockChecksums:
    """The seals of one store. ``bases`` holds the base offset of each log file that has one.

    A seal is written atomically (temporary file, sync, rename, sync of the directory) once all of
    its log file is on the device. It is removed, durably, before anything in that file may change.
    After a crash there is therefore a correct seal or none; maintenance seals a log file without
    one again.

    Another broker that ran on the directory in the meantime may have cut a sealed file and appended
    to it. A seal is then ignored until the whole file has been read again:
    :meth:`BlockChecksums.doubt` moves the seals to ``cometmq-seals/doubted``, and checksumming.py
    restores those that still match.

    The seals that were read last stay in memory. Threads may call ``of``.
    """

    __slots__ = ("_files", "_loaded", "bases", "directory", "doubted")

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._loaded: OrderedDict[int, Seal] = OrderedDict()
        self.directory = os.path.join(root, DIRECTORY)
        self.bases = self._names(self.directory)
        self.doubted = self._names(os.path.join(self.directory, DOUBTED))

    def _names(self, directory: str) -> set[int]:
        names = self._files.names(directory)
        return {offset for name in names if (offset := file_offset(name)) is not None}

    def path(self, base: int, *, doubted: bool = False) -> str:
        """Return the path of a log file's seal."""
        parts = (DOUBTED, file_name(base)) if doubted else (file_name(base),)
        return os.path.join(self.directory, *parts)

    def of(self, base: int) -> Seal | None:
        """Return the seal of a log file; None if it has none, or an unreadable one.

        An unreadable seal is logged. Raises OSError.
        """
        found = self._loaded.get(base)
        if found is not None or base not in self.bases:
            return found
        try:
            found = self.read(base)
        except StoreCorrupt as error:
            # The next round of sealing writes another one, after a check of every record.
            logger.error("seal_unreadable error=%r", str(error))
            self.bases.discard(base)
            return None
        if found is not None:
            self._loaded[base] = found
            while len(self._loaded) > _LOADED_LIMIT:
                self._loaded.popitem(last=False)
        return found

    def read(self, base: int, *, doubted: bool = False) -> Seal | None:
        """Read a seal from its file; None if there is none. Raises StoreCorrupt, OSError."""
        path = self.path(base, doubted=doubted)
        raw = read_file(self._files, path)
        return None if raw is None else decode(raw, path, base)

    def add(self, seal: Seal) -> None:
        """Write a seal durably, replacing a doubted one; a thread may call this. Raises OSError."""
        self._make_directory(self.directory)
        write_file_atomically(self._files, self.path(seal.base), encode(seal), durable=True)
        if seal.base in self.doubted:
            self._files.unlink(self.path(seal.base, doubted=True))
            self.doubted.discard(seal.base)
        self.bases.add(seal.base)

    def _make_directory(self, directory: str) -> None:
        if not self._files.exists(directory):
            self._files.make_directory(directory)
            self._files.sync_directory(os.path.dirname(directory))

    def forget(self, bases: Iterable[int], *, durable: bool = True) -> None:
        """Remove seals. If OSError is raised, the caller must leave the log files unchanged.

        ``durable`` may be False if the log files are already gone.
        """
        gone = set(bases) & (self.bases | self.doubted)
        if not gone:
            return
        for base in sorted(gone):
            self._loaded.pop(base, None)
            self._files.unlink(self.path(base))
            self._files.unlink(self.path(base, doubted=True))
        if durable:
            self._files.sync_directory(self.directory)
            if gone & self.doubted:
                self._files.sync_directory(os.path.join(self.directory, DOUBTED))
        self.bases -= gone
        self.doubted -= gone

    def keep(self, bases: Set[int]) -> None:
        """Remove every seal except those of the log files at ``bases``. Raises OSError."""
        self.forget((self.bases | self.doubted) - bases)
        for name in self._files.names(self.directory):
            if name.endswith(".tmp"):
                self._files.unlink(os.path.join(self.directory, name))

    def doubt(self) -> None:
        """Move all seals aside until confirmed: another broker may have changed any file."""
        if not self.bases:
            return
        aside = os.path.join(self.directory, DOUBTED)
        self._make_directory(aside)
        for base in sorted(self.bases):
            self._files.rename(self.path(base), self.path(base, doubted=True))
        self._files.sync_directory(aside)
        self._files.sync_directory(self.directory)
        logger.warning("seals_doubted count=%d reason='another broker ran since'", len(self.bases))
        self.doubted |= self.bases
        self.bases.clear()
        self._loaded.clear()

    def confirm(self, base: int) -> None:
        """Restore a doubted seal; a thread may call this. Raises OSError."""
        self._files.rename(self.path(base, doubted=True), self.path(base))
        self._files.sync_directory(self.directory)
        self.doubted.discard(base)
        self.bases.add(base)
