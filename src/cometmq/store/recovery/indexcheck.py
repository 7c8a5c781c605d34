"""Checks of index files against the log from which they are derived.

As with queues (queuevalidation.py), a bad file is set aside and its entries are rebuilt. The checks
cover names, sizes, headers, and the first and the last entry.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cometmq.store.index import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    file_bytes,
)
from cometmq.store.log.scan import log_store_ms

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files
    from cometmq.store.log.segments import Segments


_NOWHERE = 1 << 62


@dataclass(slots=True)
class IndexState:
    """The usable part of the index: entries for records from ``start`` on must be rebuilt.

    ``bad`` are the files to set aside first, with the reasons. ``beyond`` are files that are not
    needed: those without a trusted entry, and old ones whose removal was in progress or undone by a
    crash.
    """

    start: int
    bad: list[tuple[str, str]] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)

    def forget_all(self, files: Files, config: StoreConfig, start: int) -> None:
        """Mark every file as bad, so that the whole index is rebuilt from ``start``."""
        directory = os.path.join(config.store_path_root_dir, "index")
        names = index_names(files, directory)
        self.bad = [(os.path.join(directory, name), "it must be made again") for name in names]
        self.beyond = []
        self.start = start


def check_index(
    files: Files, config: StoreConfig, segments: Segments, below: int, noted: tuple[str, ...] | None
) -> IndexState:
    """Check the index files before they are loaded.

    ``noted`` are the recorded names of the files, None if there is no record. Files are trusted for
    records before the physical offset ``below``. Old files may be missing, since their removal is
    taken as intended.
    """
    directory = os.path.join(config.store_path_root_dir, "index")
    names = index_names(files, directory)
    lost = _first_lost(names, noted or ())
    state = IndexState(below)
    reached = segments.start
    for name in names:
        path = os.path.join(directory, name)
        is_stray = noted is not None and name not in noted and _begin(files, path) < below
        if reached >= below or is_stray:
            state.beyond.append(path)
            continue
        if state.bad:
            state.bad.append((path, "a previous file must be made again"))
            continue
        problem = "a previous file is missing" if lost and name > lost else ""
        if not problem:
            check = _IndexFileCheck(files, config, segments, below)
            problem = check.problem(path, reached)
            if not problem:
                reached = max(reached, check.reached)
        if problem:
            state.bad.append((path, problem))
    nobody_knows = noted is None and reached == segments.start
    if state.bad or lost or nobody_knows:
        state.start = min(below, reached)
    return state


def _begin(files: Files, path: str) -> int:
    """Return the physical offset of a file's first entry; a very high one if it has none."""
    try:
        handle = files.open(path)
        try:
            raw = files.pread(handle, HEADER_BYTES, 0)
        finally:
            files.close(handle)
    except OSError:
        return _NOWHERE
    if len(raw) < HEADER_BYTES:
        return _NOWHERE
    _, _, begin_phys, _, _, count = HEADER.unpack(raw)
    return int(begin_phys) if count > 1 else _NOWHERE


def index_names(files: Files, directory: str) -> list[str]:
    """Return the names of the index files, in order."""
    return [name for name in files.names(directory) if len(name) == 17 and name.isdigit()]


def _first_lost(names: list[str], noted: tuple[str, ...]) -> str:
    """Return the first noted file that is missing although an older one exists.

    Returns the first noted name if no noted file exists; empty if none is missing.
    """
    there = set(names)
    if noted and not there.intersection(noted):
        return noted[0]
    oldest = min(there.intersection(noted), default="")
    return min((name for name in noted if name not in there and name > oldest), default="")


class _IndexFileCheck:
    def __init__(self, files: Files, config: StoreConfig, segments: Segments, below: int) -> None:
        self._files = files
        self._config = config
        self._segments = segments
        self._below = below
        self.reached = 0

    def problem(self, path: str, reached: int) -> str:
        """Return the reason why a file cannot be used; empty if it can.

        The files before it reach up to the record at ``reached``.
        """
        try:
            handle = self._files.open(path)
            try:
                return self._problem(handle, reached)
            finally:
                self._files.close(handle)
        except OSError as error:
            return f"it cannot be read: {error}"

    def _problem(self, handle: int, reached: int) -> str:
        config = self._config
        expected = file_bytes(config.max_hash_slot_num, config.max_index_num)
        size = self._files.size(handle)
        if size == 0:
            return ""
        if size != expected:
            return f"it is {size} bytes long, with this maxHashSlotNum and maxIndexNum {expected}"
        header = HEADER.unpack(self._files.pread(handle, HEADER_BYTES, 0))
        begin_ms, end_ms, begin_phys, end_phys, used, count = header
        if count == 0 and not any(header):
            return ""
        if not 1 <= count <= config.max_index_num or not 0 <= used < max(count, 1):
            return f"its header says {count} entries in {used} slots"
        if count == 1:
            return ""
        if not reached <= begin_phys <= end_phys:
            return "its header contradicts itself or the previous file"
        if self._entry(handle, 1)[1] != begin_phys or not self._stored(begin_phys, begin_ms, 0):
            return "its first entry contradicts its header or the log"
        if end_phys < self._below:
            last = self._entry(handle, count - 1)
            if last[1] != end_phys or not self._stored(end_phys, end_ms, 999):
                return "its last entry contradicts its header or the log"
        # Entries are in log order, so later files have no trusted entries once this reaches
        # ``below``.
        self.reached = min(end_phys, self._below)
        return ""

    def _entry(self, handle: int, number: int) -> tuple[int, ...]:
        at = HEADER_BYTES + self._config.max_hash_slot_num * SLOT_BYTES + number * ENTRY_BYTES
        return ENTRY.unpack(self._files.pread(handle, ENTRY_BYTES, at))

    def _stored(self, physical_offset: int, store_ms: int, more_ms: int) -> bool:
        """Check the store time of the record at an offset, if the log has it.

        Returns whether it was stored at ``store_ms`` or at most ``more_ms`` before.
        """
        if physical_offset < self._segments.start:
            return True
        return store_ms - more_ms <= log_store_ms(self._segments, physical_offset) <= store_ms
