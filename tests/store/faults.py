"""File layers that fail when they are told to, forget, and lose power."""

import os
import random
import shutil
from pathlib import Path

from cometmq.store.files import Buffer, PosixFiles, Residency


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

    def replace(self, source: str, target: str) -> None:
        self.rename(source, target)

    def rename(self, source: str, target: str) -> None:
        self._check("rename")
        super().rename(source, target)


class ForgetfulFiles(PosixFiles):
    """A system that has nothing in memory as long as it is ``cold``."""

    __slots__ = ("cold",)

    def __init__(self) -> None:
        self.cold = True

    def read_cached(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        return 0 if self.cold else super().read_cached(handle, buffer, offset)

    def residency(self, mapped: memoryview) -> Residency:
        asked = super().residency(mapped)
        return lambda start, stop: not self.cold and asked(start, stop)


class LossyFiles(PosixFiles):
    """A device that loses power: see :meth:`crash`.

    What was written and not synced since is remembered with what stood there before. Grown files
    and new directories survive; names, renames and removals do so only once their directory was
    synced.
    """

    __slots__ = ("_boot", "_names", "_old_names", "_paths", "_undo")

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._paths: dict[int, str] = {}
        self._undo: dict[str, list[tuple[int, bytes]]] = {}
        self._names: set[str] = set()
        self._old_names: dict[str, bytes | None] = {}

    def boot_id(self) -> str:
        return self._boot

    def open(self, path: str, *, create: bool = False) -> int:
        if create and not self.exists(path):
            self._names.add(path)
        handle = super().open(path, create=create)
        self._paths[handle] = path
        return handle

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        self._remember(handle, offset, len(data))
        super().pwrite(handle, data, offset)

    def resize(self, handle: int, size_bytes: int) -> None:
        self._remember(handle, 0, self.size(handle))
        super().resize(handle, size_bytes)

    def _remember(self, handle: int, offset: int, size_bytes: int) -> None:
        before = self.pread(handle, size_bytes, offset)
        self._undo.setdefault(self._paths[handle], []).append(
            (offset, before + bytes(size_bytes - len(before)))
        )

    def datasync(self, handle: int) -> None:
        super().datasync(handle)
        self._undo.pop(self._paths[handle], None)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._names = {name for name in self._names if os.path.dirname(name) != path}
        self._old_names = {
            name: raw for name, raw in self._old_names.items() if os.path.dirname(name) != path
        }

    def replace(self, source: str, target: str) -> None:
        self.rename(source, target)

    def rename(self, source: str, target: str) -> None:
        self._old_names.setdefault(target, self._content(target))
        super().rename(source, target)
        self._names.discard(source)
        self._undo[target] = self._undo.pop(source, [])

    def unlink(self, path: str) -> None:
        self._old_names.setdefault(path, self._content(path))
        self._undo.pop(path, None)
        super().unlink(path)

    def _content(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def crash(self, root: Path, target: Path, chance: random.Random) -> None:
        """Copy ``root`` to ``target`` as the device holds it after a power cut.

        Of everything that was not synced any part may be there: each sector of 512 bytes, each
        name, each rename and removal for itself.
        """
        shutil.copytree(root, target)
        for path, writes in self._undo.items():
            file = target / os.path.relpath(path, root)
            if file.exists():
                file.write_bytes(_part_of(file.read_bytes(), writes, chance))
        for path, raw in self._old_names.items():
            if chance.random() < 0.5:
                file = target / os.path.relpath(path, root)
                if raw is None:
                    file.unlink(missing_ok=True)
                else:
                    file.write_bytes(raw)
        for path in sorted(self._names):
            if chance.random() < 0.3:
                (target / os.path.relpath(path, root)).unlink(missing_ok=True)


def _part_of(content: bytes, writes: list[tuple[int, bytes]], chance: random.Random) -> bytes:
    """``content`` with some sectors of its last writes taken back."""
    raw = bytearray(content)
    lost: set[int] = set()
    kept: set[int] = set()
    for offset, before in reversed(writes):
        for at in range(offset, offset + len(before)):
            sector = at // 512
            if sector not in lost and sector not in kept:
                (lost if chance.random() < 0.5 else kept).add(sector)
            if sector in lost and at < len(raw):
                raw[at] = before[at - offset]
    return bytes(raw)
