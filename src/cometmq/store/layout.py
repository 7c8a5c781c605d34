"""Names and fixed layouts of store files, and the hash of an index key.

The module does no I/O, so that tools may use it.

    commitlog/NNNNNNNNNNNNNNNNNNNN                   records, named by their first byte's offset
    consumequeue/<topic>/<queueId>/NNN...            20-byte entries, named by their byte offset
    consumequeue_ext/<topic>/<queueId>/NNN...        extension units, see queue/extensions.py
    index/yyyyMMddHHmmssSSS                          hash index, see index.py
    checkpoint, abort, lock                          see checkpoint.py
    cometmq-positions.json, cometmq-progress.json    CometMQ's own, see checkpoint.py
    cometmq-log-directories.json                     CometMQ's own, see log/directories.py

A queue entry, big-endian:

    0    8    physical offset of the record
    8    4    size of the record
    12   8    tag code: Java hash of the tag; for delayed messages the delivery time, ms; a value
              up to -2^31 - 1 is the address of an extension unit, which has the tag code

A hole is an entry without a record, such as those before the first record of a queue:
{0, 0x7FFFFFFF, 0}.

The hash of a key is Java's ``String.hashCode`` of ``topic#key``.
"""

from __future__ import annotations

from struct import Struct

from cometmq.message.record import topic_tail
from cometmq.speedups import index_hashes, java_hash

QUEUE_ENTRY = Struct(">qiq")
QUEUE_ENTRY_BYTES = QUEUE_ENTRY.size
QUEUE_ENTRY_COLUMNS = [("physical", ">i8"), ("size", ">i4"), ("tag_code", ">i8")]
"""Fields of QUEUE_ENTRY for ``numpy.dtype``."""
HOLE_SIZE = 0x7FFFFFFF
HOLE = QUEUE_ENTRY.pack(0, HOLE_SIZE, 0)

EXTENSIONS = "consumequeue_ext"
EXTENSION_UNIT = Struct(">hqqh")
MAX_UNIT_ADDRESS = -(1 << 31) - 1
"""Tag codes up to this one are addresses of units (upstream: ConsumeQueueExt.MAX_ADDR)."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

#: Note of the directories that have log files, if there are several.
LOG_DIRECTORIES = "cometmq-log-directories.json"

#: A directory at the top of a file system, which only root may read.
LOST_AND_FOUND = "lost+found"
_QUEUE_ID_MAX = 0x7FFF_FFFF
_QUEUE_ID_DIGITS = 10


def file_name(offset: int) -> str:
    """Return the name of the file that begins at byte ``offset``: 20 digits."""
    return f"{offset:020d}"


def file_offset(name: str) -> int | None:
    """Return the offset in a file's name; None if it is not the name of a store file."""
    return int(name) if len(name) == 20 and name.isascii() and name.isdigit() else None


def is_index_name(name: str) -> bool:
    """Return whether a file of this name is an index file: 17 digits."""
    return len(name) == 17 and name.isascii() and name.isdigit()


def is_topic_name(name: str) -> bool:
    """Return whether a directory of this name can belong to a topic."""
    try:
        return len(topic_tail(name)) > 1 and name != LOST_AND_FOUND
    except ValueError:
        return False


def queue_id_of(name: str) -> int | None:
    """Return the queue id that is a directory's name; None if it is not the name of a queue."""
    if len(name) > _QUEUE_ID_DIGITS or not (name.isascii() and name.isdigit()):
        return None
    number = int(name)
    return number if str(number) == name and number <= _QUEUE_ID_MAX else None


def topic_prefix(topic: str) -> int:
    """Return the hash of ``topic#``, unsigned: the hash of each of its keys continues from it."""
    return java_hash(topic + "#") & 0xFFFF_FFFF


def index_hash(prefix: int, key: str) -> int:
    """Return the hash of one key, never negative; ``prefix`` is the hash of its ``topic#``."""
    return index_hashes((prefix,), (key,))[0]
