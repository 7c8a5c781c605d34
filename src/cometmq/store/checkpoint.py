"""Notes for the next start: the positions up to which the files can be trusted.

``checkpoint``, RocketMQ's file, 4 096 bytes, big-endian (upstream: StoreCheckpoint.java):

    0    8    store time of the last record that is certainly in the log, ms
    8    8    the same for the queues
    16   8    the same for the index

``abort`` exists while a broker runs and after a crash. ``lock`` is locked while a broker runs.

``cometmq-positions.json`` and ``cometmq-progress.json`` are CometMQ's own files; Java brokers
ignore them. The positions file is durable before anything relies on it. The progress file is
written much more often and never synced: a power cut may leave an older one or none, but the
positions file stays valid. Each write of the positions file removes the progress file. A start uses
the one with the higher ``number``. Both hold:

    boot_id      boot id of the machine at the time of writing
    clean        everything below ``written`` is complete and nothing follows it
    written      queue and index files hold all of the log below this offset, unless the machine
                 lost power since (other boot_id); during a sync of entries it is at most
                 ``synced``, since a sync that fails may lose everything later
    complete     -1: ``written`` alone applies; else queue files are complete only up to here, and
                 together with the journal (journal.py) up to ``written``
    synced       the same as ``written``, but durable
    queues       number of queues with files; if a start finds fewer, some were removed, and the
                 whole log is dispatched again to queues that lack entries
    durable      the log itself is durable up to here
    checkpoint   the three times of the checkpoint file at the time of writing: if they differ, a
                 Java broker has run since and the positions are void
    index        names of the index files
    entries      sum of the end offsets of all queues that have entries, for records before
                 ``written``; -1 if unknown
    file_bytes   size of a log file
    rebuild      entries from this log offset on were being rebuilt at the time of writing; -1 if
                 none were
    shrunk       queues may end before the offsets of their consumers
    last_ms      store time of the last record; later records never get an earlier one
    begins       topic, queue id and first byte position of queues without earlier files. The log
                 still has the record of their first entry, which usually means that files are
                 missing; but the log was searched and has no earlier records of these queues
    previous     times that the checkpoint file may still have: it is written after this file
    number       grows by one with each write of either file
    crc          CRC-32 of this file's text with 0 in this place, because a flipped bit would
                 mislead a start
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
    """Contents of ``cometmq-positions.json`` and ``cometmq-progress.json``."""

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
    """Read the checkpoint; zeros if it is missing or cannot be read."""
    try:
        raw = _head(files, os.path.join(root, "checkpoint"), CHECKPOINT_BYTES)
    except OSError as error:
        logger.warning("checkpoint_ignored path=%s reason=%r", root, str(error))
        return Checkpoint()
    if raw is None or len(raw) < _TIMES.size:
        return Checkpoint()
    return Checkpoint(*_TIMES.unpack_from(raw))


def _head(files: Files, path: str, limit_bytes: int) -> bytes | None:
    """Return the first bytes of a file of any size; None if it does not exist."""
    if not files.exists(path):
        return None
    handle = files.open(path)
    try:
        return files.pread(handle, limit_bytes, 0)
    finally:
        files.close(handle)


def write_checkpoint(files: Files, root: str, checkpoint: Checkpoint, *, durable: bool) -> None:
    """Write the checkpoint in place, as Java does through its memory map. Raises OSError."""
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
    """Read the newest positions that can be trusted; None if there are none.

    There are none if both files are missing or invalid, or if another broker has written since.
    """
    found = _newest(files, root)
    if found is None or read_checkpoint(files, root) not in (found.checkpoint, found.previous):
        return None
    return msgspec.structs.replace(found, crc=0)


def _newest(files: Files, root: str) -> Positions | None:
    both = _read(files, progress_path(root)), _read(files, positions_path(root))
    return max(filter(None, both), key=lambda each: each.number, default=None)


def are_outdated(files: Files, root: str) -> bool:
    """Return whether another broker has certainly written to the store since the positions."""
    found, checkpoint = _newest(files, root), read_checkpoint(files, root)
    return (
        found is not None
        and checkpoint not in (found.checkpoint, found.previous)
        and checkpoint.log_ms > 0  # a power cut may have taken the file's contents
    )


def forget_positions(files: Files, root: str) -> None:
    """Remove, durably, positions that a start did not trust. Raises OSError.

    Otherwise they would seem valid again once the checkpoint file has the same times as before.
    """
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
            raise ValueError("its checksum does not match")
    except (ValueError, RecursionError, OSError) as error:
        # ValueError: msgspec raises it for any text that does not decode to Positions.
        logger.warning("positions_ignored path=%s reason=%r", path, str(error))
        return None
    return found


def write_positions(files: Files, root: str, positions: Positions, *, durable: bool) -> None:
    """Write positions; ``durable`` ones survive a crash of the machine.

    Raises OSError.
    """
    path = positions_path(root) if durable else progress_path(root)
    if durable:
        # First, so that an older progress file cannot override these positions if their write
        # fails.
        files.unlink(progress_path(root))
    write_file_atomically(files, path, _encoded(positions), durable=durable)


def _encoded(positions: Positions) -> bytes:
    plain = msgspec.structs.replace(positions, crc=0)
    return msgspec.json.encode(
        msgspec.structs.replace(plain, crc=crc32(msgspec.json.encode(plain)))
    )


def _is_as_written(raw: bytes, crc: int) -> bool:
    """Return whether a text matches the checksum ``crc`` that it contains.

    The text is compared, not the decoded fields: another version may have written other fields.
    """
    text, found, rest = raw.rpartition(b'"crc":')
    return rest == b"%d}" % crc and crc32(text + found + b"0}") == crc


def positions_path(root: str) -> str:
    """Return the path of the durable positions."""
    return os.path.join(root, "cometmq-positions.json")


def progress_path(root: str) -> str:
    """Return the path of the newer positions, which survive only a crash of the process."""
    return os.path.join(root, "cometmq-progress.json")


def abort_path(root: str) -> str:
    """Return the path of the marker of a running or crashed broker."""
    return os.path.join(root, "abort")


def lock_path(root: str) -> str:
    """Return the path of the lock file, whose lock marks the directory as in use."""
    return os.path.join(root, "lock")
