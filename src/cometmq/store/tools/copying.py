"""Copies of store files: only their data is copied, with progress reports; the caller syncs."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.files import SnapshotFiles

#: A file with holes is copied in small pieces only, so that holes are not filled.
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
    """Copy a file up to byte ``stop``; zeros follow, so that the length stays the same.

    Returns the number of copied bytes, without holes. ``full`` allocates the whole length on the
    device; otherwise holes take no space. Raises OSError, FileNotFoundError for a missing source.
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
    """Yield the path of every file under a directory, relative to it."""
    for name in files.names(root):
        path = os.path.join(root, name)
        if files.is_directory(path):
            yield from (os.path.join(name, each) for each in tree(files, path))
        else:
            yield name


class Copies:
    """Copies into one target directory; its subdirectories are created as needed."""

    def __init__(self, files: SnapshotFiles, target: str, progress: Callable[[int], None]) -> None:
        self._files = files
        self._target = target
        self._progress = progress
        self._made: set[str] = set()
        self.copied_bytes = 0
        self.linked_bytes = 0

    def place(self, name: str) -> str:
        """Return the target path for a name, after its directory was created."""
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
        """Create a hard link to one file in the target."""
        self._files.link(source, self.place(name))
        self.linked_bytes += size_bytes
        self._progress(size_bytes)
