"""What says how far the files can be trusted at the next start.

``checkpoint``, RocketMQ's, 4 096 bytes, big-endian (upstream: StoreCheckpoint.java):

    0    8    store time of the last record that is surely in the log, ms
    8    8    the same for the queues
    16   8    the same for the index

``abort`` exists while a broker runs; after a clean stop it is gone. ``lock`` is held while it runs.

``cometmq-positions.json`` is ours, and a Java broker passes it by:

    boot_id      which run of the machine wrote it
    clean        everything below ``written`` is complete and nothing is behind it
    written      queue and index files hold all of the log below this offset; true as long as the
                 machine has not lost power (same boot_id)
    complete     with -1 that is so; else queue files do up to here, and from here on up to
                 ``written`` they do together with the journal (entryjournal.py)
    synced       the same, and on the device
    queues       how many queues had files; with fewer at a start, somebody removed some, and all of
                 the log is dispatched again to what lacks entries
    durable      the log itself is on the device up to here, whatever happened since
    checkpoint   the three times of the checkpoint file when this was written: when they differ, a
                 Java broker has run since and the positions mean nothing
    other        times that it may have too: it is being changed, and after a power cut each of the
                 two files may be the old one or the new one
    index        names of the index files
    entries      after a clean stop, the sum of all queues' ends; -1 when it is not known
    file_bytes   size of a log file
    rebuild      entries from this offset of the log on were being made again when this was written;
                 -1 when none were
    shrunk       queues may be shorter than what consumers have read
    last_ms      store time of the last record; none may get an earlier one
    crc          CRC-32 of this file's text with 0 in this place: a flipped bit in here would lead
                 a start astray
"""

from __future__ import annotations

import logging
import os.path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

from cometmq.store.files import Files, write_file_atomically

logger = logging.getLogger(__name__)

CHECKPOINT_BYTES = 4096
_POSITIONS_LIMIT_BYTES = 1 << 20
_TIMES = Struct(">qqq")


class Checkpoint(NamedTuple):
    """The three times of the checkpoint file, ms."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0


class Positions(msgspec.Struct, frozen=True):
    """Content of ``cometmq-positions.json``."""

    boot_id: str
    clean: bool
    written: int
    synced: int
    queues: int
    checkpoint: Checkpoint
    durable: int = 0
    index: tuple[str, ...] = ()
    entries: int = -1
    file_bytes: int = 0
    rebuild: int = -1
    shrunk: bool = False
    complete: int = -1
    last_ms: int = 0
    other: Checkpoint | None = None
    crc: int = 0


def read_checkpoint(files: Files, root: str) -> Checkpoint:
    """The checkpoint; zeros when there is none, or none that can be read."""
    try:
        raw = _head(files, os.path.join(root, "checkpoint"), CHECKPOINT_BYTES)
    except OSError as error:
        logger.warning("checkpoint_ignored path=%s reason=%r", root, str(error))
        return Checkpoint()
    if raw is None or len(raw) < _TIMES.size:
        return Checkpoint()
    return Checkpoint(*_TIMES.unpack_from(raw))


def _head(files: Files, path: str, limit_bytes: int) -> bytes | None:
    """The first bytes of a file, whatever it has become; None when there is none."""
    if not files.exists(path):
        return None
    handle = files.open(path)
    try:
        return files.pread(handle, limit_bytes, 0)
    finally:
        files.close(handle)


def write_checkpoint(files: Files, root: str, checkpoint: Checkpoint, *, durable: bool) -> None:
    """Write the checkpoint in place, as Java does through its map. Raises OSError."""
    handle = files.open(os.path.join(root, "checkpoint"), create=True)
    try:
        if files.size(handle) != CHECKPOINT_BYTES:
            files.resize(handle, CHECKPOINT_BYTES)
        files.pwrite(handle, _TIMES.pack(*checkpoint), 0)
        if durable:
            files.datasync(handle)
    finally:
        files.close(handle)


def read_positions(files: Files, root: str) -> Positions | None:
    """Our positions; None when there are none to believe: no file, one that is not as it was
    written, or another broker has written to the store since."""
    path = _positions_path(root)
    try:
        raw = _head(files, path, _POSITIONS_LIMIT_BYTES)
        if raw is None:
            return None
        found = msgspec.json.decode(raw, type=Positions)
        if raw != _encoded(found):
            raise ValueError("its checksum does not fit")
    except (ValueError, RecursionError, OSError) as error:
        # ValueError: what msgspec raises for any text that is not the one asked for.
        logger.warning("positions_ignored path=%s reason=%r", path, str(error))
        return None
    now = read_checkpoint(files, root)
    if now not in (found.checkpoint, found.other):
        return None
    return msgspec.structs.replace(found, checkpoint=now, other=None, crc=0)


def write_positions(files: Files, root: str, positions: Positions, *, durable: bool) -> None:
    """Replace our positions. Raises OSError."""
    write_file_atomically(files, _positions_path(root), _encoded(positions), durable=durable)


def sync_positions(files: Files, root: str) -> None:
    """Bring the positions as they were written last to the device; a thread may do it.

    Raises OSError.
    """
    handle = files.open(_positions_path(root))
    try:
        files.datasync(handle)
    finally:
        files.close(handle)
    files.sync_directory(root)


def _encoded(positions: Positions) -> bytes:
    plain = msgspec.structs.replace(positions, crc=0)
    return msgspec.json.encode(
        msgspec.structs.replace(plain, crc=crc32(msgspec.json.encode(plain)))
    )


def _positions_path(root: str) -> str:
    return os.path.join(root, "cometmq-positions.json")


def abort_path(root: str) -> str:
    """The marker of a running or crashed broker."""
    return os.path.join(root, "abort")


def lock_path(root: str) -> str:
    """The file whose lock says that the directory is in use."""
    return os.path.join(root, "lock")
