"""Seals: checksums of every 64 KiB of a full log file, beside the log in ``cometmq-seals``.

A record's own CRC covers its body only; a seal makes every flipped bit of a full file show. A Java
broker passes the directory by (its own log directory it does not: it takes every file in there for
a log file). One seal is one file, named like its log file, big-endian:

    position   bytes   field
    0          4       magic "CMQS"
    4          2       version, 1
    6          2       algorithm, 1: CRC-32 as zlib computes it
    8          8       physical offset of the log file's first byte
    16         8       size of the log file
    24         4       size of a block, 65 536
    28         4       number of blocks
    32         8       when it was made, ms
    40         8       number of records
    48         8       store time of the oldest record, ms
    56         8       store time of the youngest record, ms
    64         8       how many queue entries the records have
    72         8       digest of these entries (tools/digest.py)
    80         8       how many index entries the records have
    88         8       digest of these entries
    96         4 x B   CRC of each block, the last one up to the end of the file
    96 + 4 B   4       CRC-32 of everything before

With the digests queues and index can be compared with a file that is known to be as it was, without
decoding one of its records.

A seal is written whole (temporary file, sync, rename, sync of the directory) once all of its log
file is on the device, and is taken away, durably, before anything in that file may change. So after
a crash there is a right seal or none, and a log file without one is sealed again by upkeep.

Another broker that ran on the directory since may have cut a sealed file and written on. After
that a seal counts for nothing until the whole file was read again: :meth:`Seals.doubt` moves seals
to ``cometmq-seals/doubted``, and upkeep (sealing.py) puts back those that still hold.
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
    """What the records of a log file come to; store times in ms, -1 without a record."""

    records: int
    first_ms: int
    last_ms: int
    entries: int
    entry_digest: int
    keys: int
    key_digest: int


@dataclass(frozen=True, slots=True)
class Seal:
    """A seal taken from its file; ``sums`` are the blocks' CRCs as they stand there."""

    base: int
    size_bytes: int
    made_ms: int
    summary: Summary
    sums: bytes

    def holds(self, block: int, data: Buffer) -> bool:
        """Whether ``data`` is what block number ``block`` was."""
        at = block * _CRC.size
        return crc32(data) == int.from_bytes(self.sums[at : at + _CRC.size], "big")

    def differing(self, sums: bytes) -> list[int]:
        """The blocks whose CRC is another one in ``sums``."""
        pairs = zip(_CRC.iter_unpack(self.sums), _CRC.iter_unpack(sums), strict=True)
        return [block for block, (was, found) in enumerate(pairs) if was != found]


class FileSums(msgspec.Struct, frozen=True):
    """A full log file as a child process read it (tools/sums.py).

    ``problem`` says why the file should not be sealed, and is empty when every record is right.
    From ``late_from`` on every record was stored after the time that was asked for; -1 with none.
    """

    sums: bytes
    summary: Summary
    problem: str
    late_from: int


def block_count(size_bytes: int) -> int:
    """How many blocks a log file has."""
    return -(-size_bytes // BLOCK_BYTES)


def sums_of(data: Buffer) -> bytes:
    """The CRC of each block of ``data``, as seals have them."""
    view = memoryview(data)
    blocks = (view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES))
    return b"".join(_CRC.pack(crc32(block)) for block in blocks)


def encode(seal: Seal) -> bytes:
    """The bytes of a seal's file."""
    count = block_count(seal.size_bytes)
    assert len(seal.sums) == count * _CRC.size
    head = _HEADER.pack(
        _MAGIC, _VERSION, _CRC32, seal.base, seal.size_bytes, BLOCK_BYTES, count, seal.made_ms
    ) + _SUMMARY.pack(*msgspec.structs.astuple(seal.summary))
    return head + seal.sums + _CRC.pack(crc32(seal.sums, crc32(head)))


def decode(raw: bytes, path: str, base: int) -> Seal:
    """The seal of the log file that begins at ``base``. Raises StoreCorrupt when it is none."""
    sums_at = _HEADER.size + _SUMMARY.size
    if len(raw) < sums_at + _CRC.size:
        raise StoreCorrupt(path, -1, f"a seal of {len(raw)} bytes is cut off")
    if crc32(raw[: -_CRC.size]) != _CRC.unpack_from(raw, len(raw) - _CRC.size)[0]:
        raise StoreCorrupt(path, -1, "the seal's own checksum does not fit")
    magic, version, algorithm, own_base, size, block, count, made_ms = _HEADER.unpack_from(raw)
    if (magic, version, algorithm, block) != (_MAGIC, _VERSION, _CRC32, BLOCK_BYTES):
        raise StoreCorrupt(path, -1, "a seal of another kind or version")
    sums = raw[sums_at : -_CRC.size]
    if own_base != base or count != block_count(size) or len(sums) != count * _CRC.size:
        raise StoreCorrupt(path, -1, f"the seal is of a file at {own_base} of {size} bytes")
    summary = Summary(*_SUMMARY.unpack_from(raw, _HEADER.size))
    return Seal(base, size, made_ms, summary, sums)


class Seals:
    """The seals of one store. ``bases`` are the log files that have one.

    The seals that were used last are kept in memory; ``of`` may be called by threads.
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
        """Where the seal of a log file is."""
        parts = (DOUBTED, file_name(base)) if doubted else (file_name(base),)
        return os.path.join(self.directory, *parts)

    def of(self, base: int) -> Seal | None:
        """The seal of a log file; None when it has none, or an unreadable one (said in the log).

        Raises OSError.
        """
        found = self._loaded.get(base)
        if found is not None or base not in self.bases:
            return found
        try:
            found = self.read(base)
        except StoreCorrupt as error:
            # The next round of sealing makes another, for which every record is checked.
            logger.error("seal_unreadable error=%r", str(error))
            self.bases.discard(base)
            return None
        if found is not None:
            self._loaded[base] = found
            while len(self._loaded) > _LOADED_LIMIT:
                self._loaded.popitem(last=False)
        return found

    def read(self, base: int, *, doubted: bool = False) -> Seal | None:
        """A seal from its file; None when there is none. Raises StoreCorrupt, OSError."""
        path = self.path(base, doubted=doubted)
        raw = read_file(self._files, path)
        return None if raw is None else decode(raw, path, base)

    def add(self, seal: Seal) -> None:
        """Write a seal durably, in place of one in doubt; a thread may do it. Raises OSError."""
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
        """Take seals away. Raises OSError; then the log files must stay as they are.

        Where those are gone already it need not be durable.
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
        """Remove every seal but those of the log files at ``bases``. Raises OSError."""
        self.forget((self.bases | self.doubted) - bases)
        for name in self._files.names(self.directory):
            if name.endswith(".tmp"):
                self._files.unlink(os.path.join(self.directory, name))

    def doubt(self) -> None:
        """Another broker may have changed any file: no seal counts until it is confirmed."""
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
        """A doubted seal counts again; a thread may do it. Raises OSError."""
        self._files.rename(self.path(base, doubted=True), self.path(base))
        self._files.sync_directory(self.directory)
        self.doubted.discard(base)
        self.bases.add(base)
