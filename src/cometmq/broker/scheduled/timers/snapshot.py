"""Snapshot of the waiting messages at one offset of the log, as a file.

``cometmq-timers/state.json``:

    position     queue offset in the timer topic before which all messages are in the files
    log_offset   deliveries and other ends of waits before this log offset are accounted for; a
                 start reads the log from here
    through      last tick delivered completely
    count        number of waiting messages at the log offset ``counted_to``
    held         rows whose record was damaged when it was due; they are tried again
    buckets      number, length and CRC-32 of each file
    crc          CRC-32 of this text with 0 in this place

The snapshot is written after the log is durable up to ``log_offset`` and the files up to the noted
lengths. So it is true however the broker ends, and a start only reads the log written since.
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from cometmq.store.files import read_file, write_file_atomically

if TYPE_CHECKING:
    from cometmq.store.files import Files

STATE_FILE = "state.json"


class Snapshot(msgspec.Struct, frozen=True):
    """Content of the file."""

    position: int
    log_offset: int
    through: int
    count: int
    counted_to: int
    held: tuple[tuple[int, int, int, int], ...]
    buckets: tuple[tuple[int, int, int], ...]
    crc: int = 0

    def note(self) -> dict[int, tuple[int, int]]:
        """Return length and CRC-32 of each bucket, as the timer files take them."""
        return {bucket: (size, crc) for bucket, size, crc in self.buckets}


def write_snapshot(files: Files, directory: str, snapshot: Snapshot) -> None:
    """Replace the file durably. Call this in a thread. Raise OSError if it cannot be written."""
    plain = msgspec.structs.replace(snapshot, crc=0)
    summed = msgspec.structs.replace(plain, crc=crc32(msgspec.json.encode(plain)))
    path = os.path.join(directory, STATE_FILE)
    write_file_atomically(files, path, msgspec.json.encode(summed), durable=True)


def read_snapshot(files: Files, directory: str) -> Snapshot | None:
    """Return the content of the file; None if there is none or its CRC does not match."""
    try:
        raw = read_file(files, os.path.join(directory, STATE_FILE))
        if raw is None:
            return None
        found = msgspec.json.decode(raw, type=Snapshot)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    plain = msgspec.structs.replace(found, crc=0)
    return found if crc32(msgspec.json.encode(plain)) == found.crc else None
