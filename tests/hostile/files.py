"""Parsers of files that a disk, another program or an operator may have changed.

Each function takes the bytes of one file, puts them where they belong, and reads them as a start of
a broker or of a client does. What has a checksum gets a right one: else nothing behind the checksum
would ever be reached.
"""

import tempfile
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from cometmq.client.consumer.offsets import _read_table
from cometmq.store.checkpoint import positions_path, read_checkpoint, read_positions
from cometmq.store.files import PosixFiles
from cometmq.store.index import IndexFile
from cometmq.store.layout import file_name
from cometmq.store.log import checksums as seals
from cometmq.store.queue.journal import JOURNAL_DIRECTORY, read_journal
from tests.hostile.grammar import Grammar, Shape

FILES: Final = PosixFiles()
#: A block of the journal behind magic and CRC: sizes, offsets and the number of the first name.
_BLOCK = Struct(">IIqqQ")
_ROW = Struct(">Qqqiq")
_JOURNAL_END = 1 << 40
_INDEX_SLOTS = 16
_INDEX_ENTRIES = 3_000


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="cometmq-files-"))
    (root / JOURNAL_DIRECTORY).mkdir()
    return root


def checkpoint(data: bytes) -> object:
    """Read a checkpoint file."""
    (_root() / "checkpoint").write_bytes(data)
    return read_checkpoint(FILES, str(_root()))


def positions(data: bytes) -> object:
    """Read a note of what is complete and durable."""
    (_root() / "checkpoint").write_bytes(bytes(24))
    Path(positions_path(str(_root()))).write_bytes(data)
    return read_positions(FILES, str(_root()))


def journal(data: bytes) -> object:
    """Read a journal of queue entries whose one block has these bytes behind its checksum."""
    directory = _root() / JOURNAL_DIRECTORY
    (directory / file_name(0)).write_bytes(b"CMEJ" + crc32(data).to_bytes(4, "big") + data)
    return read_journal(FILES, str(directory), 0, _JOURNAL_END)


def seal(data: bytes) -> object:
    """Read the checksums of a full log file. Raises StoreCorrupt."""
    return seals.decode(data + crc32(data).to_bytes(4, "big"), "seal", 0)


def index(data: bytes) -> object:
    """Open an index file, repair it, and look up keys."""
    path = _root() / "index"
    path.write_bytes(data)
    file = IndexFile(FILES, str(path), _INDEX_SLOTS, _INDEX_ENTRIES)
    try:
        found = [file.query(key, 32, 0, 1 << 40) for key in range(_INDEX_SLOTS)]
        file.load_slots()
        file.recover(1 << 20)
        return found, [file.query(key, 32, 0, 1 << 40) for key in range(_INDEX_SLOTS)]
    finally:
        file.close()


def client_offsets(data: bytes) -> object:
    """Read the offsets that a broadcasting consumer keeps."""
    path = _root() / "offsets.json"
    path.write_bytes(data)
    return _read_table(path)


def _block(names: bytes, rows: bytes) -> bytes:
    return _BLOCK.pack(len(names), len(rows) // _ROW.size, 0, _JOURNAL_END, 0) + names + rows


def _names(line: bytes) -> Shape:
    return lambda size: _block(line * (size // len(line)), b"")


def _rows(*rows: bytes) -> Shape:
    whole = b"".join(rows)
    return lambda size: _block(b"a\t0\n", whole * (size // len(whole)))


JOURNAL = Grammar(
    tokens=(b"\x00", b"\xff", b"a\t0\n"),
    more={
        "many names": _names(b"a\t0\n"),
        "long names": _names(b"a" * 999 + b"\t0\n"),
        "names without numbers": _names(b"a\n"),
        "a long number": lambda size: _block(b"a\t" + b"9" * size + b"\n", b""),
        "names that are no UTF-8": _names(b"\xff\t0\n"),
        "rows that go on": lambda size: _block(
            b"a\t0\n",
            b"".join(_ROW.pack(0, each, each, 9, 0) for each in range(size // _ROW.size)),
        ),
        "rows that begin again": _rows(_ROW.pack(0, 5, 0, 9, 0), _ROW.pack(0, 2, 0, 9, 0)),
        "void rows": _rows(_ROW.pack(0, -1, 0, 9, 0)),
        "rows of no queue": _rows(_ROW.pack(7, 0, 0, 9, 0)),
        "a gap": _rows(_ROW.pack(0, 0, 0, 9, 0), _ROW.pack(0, 1 << 40, 0, 9, 0)),
    },
)
#: An index file whose header counts all entries, with chains that end, go round or lead outside.
_INDEX_HEADER = Struct(">qqqqii")


def _index_file(slot: int, previous: int) -> Shape:
    def make(size: int) -> bytes:
        head = _INDEX_HEADER.pack(0, 1 << 40, 0, 1 << 40, _INDEX_SLOTS, _INDEX_ENTRIES)
        entry = Struct(">iqii").pack(0, 1, 1, previous)
        return head + slot.to_bytes(4, "big", signed=True) * _INDEX_SLOTS + entry * (size // 20)

    return make


INDEX = Grammar(
    tokens=(b"\x00", b"\xff", b"\x00\x00\x00\x01"),
    more={
        "one chain": lambda size: (
            _INDEX_HEADER.pack(0, 1 << 40, 0, 1 << 40, 1, size // 20)
            + (size // 20 - 1).to_bytes(4, "big", signed=True) * _INDEX_SLOTS
            + b"".join(
                Struct(">iqii").pack(1 << 30, each, 1, each - 1) for each in range(size // 20)
            )
        ),
        "a chain to itself": _index_file(1, 1),
        "a chain to what is behind": _index_file(1, 2),
        "a slot outside": _index_file(1 << 30, 0),
        "a negative slot": _index_file(-7, -7),
    },
)
