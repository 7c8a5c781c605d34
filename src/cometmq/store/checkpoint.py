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
    synced       the same, and on the device
    queues       how many queues had files; with fewer at a start, somebody removed some, and all of
                 the log is dispatched again
    durable      the log itself is on the device up to here
    checkpoint   the three times of the checkpoint file when this was written: when they differ, a
                 Java broker has run since and the positions mean nothing
"""

from __future__ import annotations

import os.path
from struct import Struct
from typing import NamedTuple

import msgspec

from cometmq.store.files import Files, read_file, write_file_atomically

CHECKPOINT_BYTES = 4096
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


def read_checkpoint(files: Files, root: str) -> Checkpoint:
    """The checkpoint; zeros when there is none or it is cut off."""
    raw = read_file(files, os.path.join(root, "checkpoint"))
    if raw is None or len(raw) < _TIMES.size:
        return Checkpoint()
    return Checkpoint(*_TIMES.unpack_from(raw))


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
    """Our positions; None when there are none, or when another broker has written since."""
    raw = read_file(files, _positions_path(root))
    if raw is None:
        return None
    try:
        found = msgspec.json.decode(raw, type=Positions)
    except msgspec.DecodeError:
        return None
    return found if found.checkpoint == read_checkpoint(files, root) else None


def write_positions(files: Files, root: str, positions: Positions, *, durable: bool) -> None:
    """Replace our positions. Raises OSError."""
    data = msgspec.json.encode(positions)
    write_file_atomically(files, _positions_path(root), data, durable=durable)


def _positions_path(root: str) -> str:
    return os.path.join(root, "cometmq-positions.json")


def abort_path(root: str) -> str:
    """The marker of a running or crashed broker."""
    return os.path.join(root, "abort")


def lock_path(root: str) -> str:
    """The file whose lock says that the directory is in use."""
    return os.path.join(root, "lock")
