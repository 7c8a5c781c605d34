"""Truncation of a slave's log at the offset from which it differs from the master's log.

The store must be closed. The steps are:

    record   note, durably, the part of log, queues and index that the next start may trust
    seals    remove those of the files that change
    save     copy the removed bytes unchanged (quarantine.py), durably
    cut      remove later files, last first; write zeros to the end of the file, durably

The result is a store as after a crash of the machine: the next start (opening.py) takes queues and
index back to the end of the log. A crash at any step leaves the log unchanged, or with an end after
the cut; run the truncation again. Nothing may be appended before it has returned. After that, no
removed byte comes back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cometmq.core.errors import StoreLocked
from cometmq.store.checkpoint import (
    Positions,
    abort_path,
    lock_path,
    read_checkpoint,
    read_positions,
    write_positions,
)
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.log.directories import LogDirectories
from cometmq.store.log.scan import Scan
from cometmq.store.log.segments import Segments
from cometmq.store.recovery.quarantine import Quarantine

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Truncation:
    """The result of a truncation: the log ended at ``end`` and now ends at ``offset``.

    ``records`` counts the removed records; ``kept`` are the paths at which they were set aside.
    """

    offset: int
    end: int
    records: int
    kept: tuple[str, ...]


def truncate_diverged_log(
    config: StoreConfig, clock: Clock, files: Files, offset: int, reason: str
) -> Truncation:
    """Truncate the log before the record that contains the physical ``offset``.

    Raises StoreLocked while a broker runs on the store, StoreCorrupt if files of the log are
    missing, StoreFull if there is no room to set the removed part aside, SettingsError if a
    read-only directory has some of it, OSError. After an error, nothing is lost: each part is
    either still in the log or set aside.
    """
    root = config.store_path_root_dir
    try:
        lock = files.lock(lock_path(root))
    except BlockingIOError as error:
        raise StoreLocked(root) from error
    places = LogDirectories.of(files, config)
    segments = Segments(files, places, config.mapped_file_size_commit_log)
    try:
        places.check_noted()
        segments.load()
        return _Truncating(config, clock, files, segments).truncate(offset, reason)
    finally:
        segments.close()
        files.close(lock)


def record_end_before(segments: Segments, offset: int) -> int:
    """Return the end of the last record that ends at or before a physical offset."""
    file = segments.find(min(offset, segments.end - 1))
    if file is None:
        return segments.start
    scan = Scan(segments, file.base, offset)
    border = file.base
    for _ in scan:
        if scan.position > offset:
            return border
        border = scan.position
    # A whole blank counts too, and so does the rest of a file that is too short for a blank.
    return scan.position if scan.position <= offset else border


class _Truncating:
    """One truncation, step by step; the caller holds the lock."""

    def __init__(self, config: StoreConfig, clock: Clock, files: Files, segments: Segments) -> None:
        self._root = config.store_path_root_dir
        self._files = files
        self._segments = segments
        self._quarantine = Quarantine(files, self._root, clock)

    def truncate(self, offset: int, reason: str) -> Truncation:
        """Run all steps."""
        segments = self._segments
        border = record_end_before(segments, offset)
        segments.check_changeable(border)
        tail = Scan(segments, border)
        records = sum(1 for _ in tail)
        end = tail.position
        self._record_positions(border)
        segments.keep_seals(BlockChecksums(self._files, self._root), border)
        self._quarantine.keep_log_from(segments, border, reason)
        segments.drop_after(border)
        file = segments.find(border)
        if file is not None:
            file.clear_from(border)
        segments.places.sync_names()
        logger.warning(
            "log_cut offset=%d end=%d records=%d bytes=%d kept=%r reason=%r",
            border, end, records, end - border, list(self._quarantine.kept), reason,
        )  # fmt: skip
        return Truncation(border, end, records, tuple(self._quarantine.kept))

    def _record_positions(self, border: int) -> None:
        """Record that nothing after the border may be trusted, whatever was recorded before."""
        files, root, low = self._files, self._root, self._segments.start
        files.close(files.open(abort_path(root), create=True))
        files.sync_directory(root)
        positions = read_positions(files, root)
        if positions is None:
            size = self._segments.file_bytes
            times = read_checkpoint(files, root)
            positions = Positions("", False, low, low, 0, times, low, file_bytes=size)
        after_a_crash = replace(
            positions,
            boot_id="",
            clean=False,
            written=min(positions.written, border),
            synced=min(positions.synced, border),
            durable=min(positions.durable or positions.synced, border),
            entries=-1,
            shrunk=True,
            number=positions.number + 1,
        )
        write_positions(files, root, after_a_crash, durable=True)
