"""What is known of waiting messages at one point of the log, as a file.

``cometmq-timers/state.json``:

    position     queue offset in the timer topic before which all messages are in the files
    log_offset   all that was delivered, or is otherwise done with, before this offset of the log is
                 accounted for; from here on the log is read again
    through      the tick up to which all of it is delivered
    count        how many wait, where the log ends at ``counted_to``
    held         rows whose record was damaged when it was due: they are tried again
    buckets      number, length and CRC-32 of each file
    crc          CRC-32 of this text with 0 in this place

It is written once the log is on the device up to ``log_offset`` and the files are as far as they
are noted: so it is true whatever ends the broker, and what a start has to read is what the log grew
by since.
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
    """The content of the file."""

    position: int
    log_offset: int
    through: int
    count: int
    counted_to: int
    held: tuple[tuple[int, int, int, int], ...]
    buckets: tuple[tuple[int, int, int], ...]
    crc: int = 0

    def note(self) -> dict[int, tuple[int, int]]:
        """The lengths and sums as the files take them."""
        return {bucket: (size, crc) for bucket, size, crc in self.buckets}


def write_snapshot(files: Files, directory: str, snapshot: Snapshot) -> None:
    """Replace the file, durably; for a thread. Raises OSError."""
    plain = msgspec.structs.replace(snapshot, crc=0)
    summed = msgspec.structs.replace(plain, crc=crc32(msgspec.json.encode(plain)))
    path = os.path.join(directory, STATE_FILE)
    write_file_atomically(files, path, msgspec.json.encode(summed), durable=True)


def read_snapshot(files: Files, directory: str) -> Snapshot | None:
    """What the file says; None when there is none, or none that can be believed."""
    try:
        raw = read_file(files, os.path.join(directory, STATE_FILE))
        if raw is None:
            return None
        found = msgspec.json.decode(raw, type=Snapshot)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    plain = msgspec.structs.replace(found, crc=0)
    return found if crc32(msgspec.json.encode(plain)) == found.crc else None
