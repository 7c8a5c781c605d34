"""A file layer that fails when it is told to."""

import os

from cometmq.store.files import Buffer, PosixFiles


class FailingFiles(PosixFiles):
    """``failing`` maps the name of an operation to the errno it ends with from now on.

    A failing write leaves the first half of its bytes, as a full disk may.
    """

    __slots__ = ("failing",)

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}

    def _check(self, operation: str) -> None:
        if operation in self.failing:
            raise OSError(self.failing[operation], os.strerror(self.failing[operation]))

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if "pwrite" in self.failing and any(data):
            super().pwrite(handle, memoryview(data)[: len(data) // 2], offset)
            self._check("pwrite")
        if "erase" in self.failing and not any(data):
            self._check("erase")
        super().pwrite(handle, data, offset)

    def allocate(self, handle: int, size_bytes: int) -> None:
        self._check("allocate")
        super().allocate(handle, size_bytes)

    def datasync(self, handle: int) -> None:
        self._check("datasync")
        super().datasync(handle)
