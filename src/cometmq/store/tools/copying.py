"""Copying files of a store: only what holds data, durably, and told how far it is."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.files import SnapshotFiles

#: Of a file with holes only small pieces may be copied, or the holes are filled.
_SPARSE_PIECE_BYTES = 64 << 10
_FULL_PIECE_BYTES = 4 << 20


def copy_file(
    files: SnapshotFiles,
    source: str,
    target: str,
    *,
    stop: int | None = None,
    full: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Copy a file up to byte ``stop``; zeros follow, so that it is as long as it was.

    Gives the bytes that were copied, holes left out. ``full`` takes the room for all of it from the
    device; else what was never written takes none. Raises OSError, FileNotFoundError for a source
    that is gone.
    """
    taken = files.open_existing(source)
    try:
        length = files.size(taken)
        made = files.open(target, create=True)
        try:
            files.resize(made, length)
            if full and length:
                files.allocate(made, length)
            piece = _FULL_PIECE_BYTES if full else _SPARSE_PIECE_BYTES
            end = length if stop is None else min(stop, length)
            return _copy_data(files, taken, made, end, piece, progress)
        finally:
            files.close(made)
    finally:
        files.close(taken)


def _copy_data(
    files: SnapshotFiles,
    taken: int,
    made: int,
    stop: int,
    piece_bytes: int,
    progress: Callable[[int], None],
) -> int:
    at = copied = 0
    while at < stop:
        data = files.next_data(taken, at)
        if data > at:
            progress(min(data, stop) - at)
            at = data
        if at < stop:
            count = files.copy_bytes(taken, made, at, min(piece_bytes, stop - at))
            if not count:
                break
            progress(count)
            copied += count
            at += count
    return copied


def tree(files: SnapshotFiles, root: str) -> Iterator[str]:
    """Every file under a directory, by its path from there."""
    for name in files.names(root):
        path = os.path.join(root, name)
        if files.is_directory(path):
            yield from (os.path.join(name, each) for each in tree(files, path))
        else:
            yield name


class Copies:
    """Copies into one directory, whose parts are made as they are needed."""

    def __init__(self, files: SnapshotFiles, target: str, progress: Callable[[int], None]) -> None:
        self._files = files
        self._target = target
        self._progress = progress
        self._made: set[str] = set()
        self.copied_bytes = 0
        self.linked_bytes = 0

    def place(self, name: str) -> str:
        """Where a file of this name goes; its directory is there."""
        path = os.path.join(self._target, name)
        directory = os.path.dirname(path)
        if directory not in self._made:
            self._files.make_directory(directory)
            self._made.add(directory)
        return path

    def copy(self, source: str, name: str, *, stop: int | None = None, full: bool = False) -> None:
        """Copy one file; see :func:`copy_file`."""

        self.copied_bytes += copy_file(
            self._files, source, self.place(name), stop=stop, full=full, progress=self._progress
        )

    def link(self, source: str, name: str, size_bytes: int) -> None:
        """Give one file a second name here."""
        self._files.link(source, self.place(name))
        self.linked_bytes += size_bytes
        self._progress(size_bytes)
