"""What says how far the files can be trusted at the next start.

``checkpoint``, RocketMQ's, 4 096 bytes, big-endian (upstream: StoreCheckpoint.java):

    0    8    store time of the last record that is surely in the log, ms
    8    8    the same for the queues
    16   8    the same for the index

``abort`` exists while a broker runs; after a clean stop it is gone. ``lock`` is held while it runs.

``cometmq-positions.json`` and ``cometmq-progress.json`` are ours, and a Java broker passes them by.
The first is on the device before anything relies on it. The second is written much more often and
never synced, so a power cut may leave less of it than of the first, but takes nothing from that;
with the next note in the first it goes. The newer one counts. Both hold:

    boot_id      which run of the machine wrote it
    clean        everything below ``written`` is complete and nothing is behind it
    written      queue and index files hold all of the log below this offset; true as long as the
                 machine has not lost power (same boot_id); while they are being synced no more
                 than ``synced``, for a sync that fails may lose all since
    complete     with -1 that is so; else queue files do up to here, and from here on up to
                 ``written`` they do together with the journal (entryjournal.py)
    synced       the same, and on the device
    queues       how many queues had files; with fewer at a start, somebody removed some, and all of
                 the log is dispatched again to what lacks entries
    durable      the log itself is on the device up to here, whatever happened since
    checkpoint   the three times of the checkpoint file when this was written: when they differ, a
                 Java broker has run since and the positions mean nothing
    index        names of the index files
    entries      the sum of the ends of all queues that have entries, those for records before
                 ``written``; -1 when it is not known
    file_bytes   size of a log file
    rebuild      entries from this offset of the log on were being made again when this was written;
                 -1 when none were
    shrunk       queues may be shorter than what consumers have read
    last_ms      store time of the last record; none may get an earlier one
    begins       queues that begin with a later file than their first one although the log has a
                 record for its first entry: topic, number, byte position. The log was searched for
                 what is before that, and has nothing
    previous     the times that the checkpoint file may have still: it is written after this
    number       counts the notes
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
    previous: Checkpoint = Checkpoint()
    number: int = 0
    begins: tuple[tuple[str, int, int], ...] = ()
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
    """The newest of our positions; None when there are none to believe: no file, one that is not as
    it was written, or another broker has written to the store since."""
    both = _read(files, progress_path(root)), _read(files, positions_path(root))
    found = max(filter(None, both), key=lambda each: each.number, default=None)
    if found is None or read_checkpoint(files, root) not in (found.checkpoint, found.previous):
        return None
    return msgspec.structs.replace(found, crc=0)


def forget_positions(files: Files, root: str) -> None:
    """Take away, durably, notes that were not believed at a start: once the checkpoint file has
    other times, or again those from before, it would look as if they still held. Raises OSError."""
    found = [path for path in (progress_path(root), positions_path(root)) if files.exists(path)]
    for path in found:
        files.unlink(path)
    if found:
        files.sync_directory(root)


def _read(files: Files, path: str) -> Positions | None:
    try:
        raw = _head(files, path, _POSITIONS_LIMIT_BYTES)
        if raw is None:
            return None
        found = msgspec.json.decode(raw, type=Positions)
        if not _is_as_written(raw, found.crc):
            raise ValueError("its checksum does not fit")
    except (ValueError, RecursionError, OSError) as error:
        # ValueError: what msgspec raises for any text that is not the one asked for.
        logger.warning("positions_ignored path=%s reason=%r", path, str(error))
        return None
    return found


def write_positions(files: Files, root: str, positions: Positions, *, durable: bool) -> None:
    """Note positions; ``durable`` sees to it that a crash of the machine leaves them.

    Raises OSError.
    """
    path = positions_path(root) if durable else progress_path(root)
    if durable:
        # First: what a note takes back must not come from an older one, should this one fail.
        files.unlink(progress_path(root))
    write_file_atomically(files, path, _encoded(positions), durable=durable)


def _encoded(positions: Positions) -> bytes:
    plain = msgspec.structs.replace(positions, crc=0)
    return msgspec.json.encode(
        msgspec.structs.replace(plain, crc=crc32(msgspec.json.encode(plain)))
    )


def _is_as_written(raw: bytes, crc: int) -> bool:
    """Whether a text has the checksum that stands in it, whichever version of us wrote it."""
    text, found, rest = raw.rpartition(b'"crc":')
    return rest == b"%d}" % crc and crc32(text + found + b"0}") == crc


def positions_path(root: str) -> str:
    """What is noted on the device."""
    return os.path.join(root, "cometmq-positions.json")


def progress_path(root: str) -> str:
    """What was noted since, for a crash of the process."""
    return os.path.join(root, "cometmq-progress.json")


def abort_path(root: str) -> str:
    """The marker of a running or crashed broker."""
    return os.path.join(root, "abort")


def lock_path(root: str) -> str:
    """The file whose lock says that the directory is in use."""
    return os.path.join(root, "lock")
