"""A disk without a byte left."""

import errno
import os

from cometmq.store.files import Buffer, DiskSpace, PosixFiles


class FullFiles(PosixFiles):
    """As long as ``full``, nothing can be made, and nothing grows: only what has its room already,
    the log's files, can be written to."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full = True

    def _check(self, path: str) -> None:
        if self.full and not self.exists(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            self._check(path)
        return super().open(path, create=create)

    def make_directory(self, path: str) -> None:
        self._check(path)
        super().make_directory(path)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self.full and "commitlog" not in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(handle, data, offset)

    def allocate(self, handle: int, size_bytes: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(handle, size_bytes)

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(100, 100, 0) if self.full else super().disk_space(path)
