"""The store's file operations on a disk in memory, for one process that may end at any of them.

Operations that change something are counted. The process can be made to end at one of them: before
it, after it, or in its middle if it has one. Afterwards every operation raises
:class:`ProcessEnded`, which is not an ``Exception``, so that no handler treats it as an error.

``faults`` make operations fail as a disk does. A failed write may have written a part. After a
failed sync the data counts as clean without being on the device (disk.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from cometmq.store.files import Buffer, DiskSpace, Residency
from tests.simulation.faults.disk import Change, Disk, File, Folder, split

if TYPE_CHECKING:
    from random import Random

    from cometmq.core.clock import VirtualClock
    from tests.simulation.faults.threads import SteppedThreads

_PAGE_BYTES = 4096
_DISK_BYTES = 1 << 30


class ProcessEnded(BaseException):
    """The process was killed, or the machine lost power, in this operation."""


class Moment(Enum):
    """Part of an operation in which a process ends."""

    BEFORE = "before"
    WITHIN = "within"
    AFTER = "after"


@dataclass(slots=True)
class Fault:
    """Makes ``times`` operations of one name fail, on paths that contain ``where``."""

    operation: str
    code: int
    times: int = 1
    where: str = ""


class MemoryFiles:
    """Implements ``cometmq.store.files.Files`` on a disk in memory.

    ``threads`` runs the jobs that the store submits to threads. ``steps`` counts changing
    operations. ``sync_ms`` is the time that a sync takes on the clock. ``on_names_synced`` is
    called with the path of each folder that was synced.
    """

    def __init__(
        self,
        disk: Disk,
        clock: VirtualClock,
        chance: Random,
        *,
        threads: SteppedThreads | None = None,
        sync_ms: int = 0,
        memory_bytes: int = 1 << 30,
    ) -> None:
        self.disk = disk
        self.ended = False
        self.faults: list[Fault] = []
        self.steps = 0
        self.on_names_synced: Callable[[str], None] = lambda path: None
        self._clock = clock
        self._chance = chance
        self._threads = threads
        self._sync_ms = sync_ms
        self._memory_bytes = memory_bytes
        self._handles: dict[int, tuple[File, str]] = {}
        self._next_handle = 3
        self._end_at = -1
        self._moment = Moment.BEFORE

    # --- ends and faults ---------------------------------------------------------------------

    def end_at(self, step: int, moment: Moment) -> None:
        """End the process at the changing operation of this number (see ``steps``)."""
        self._end_at, self._moment = step, moment

    def end(self) -> None:
        """End the process between two operations."""
        self.ended = True

    def _begin(self, operation: str, path: str) -> bool:
        """Begin a changing operation; return True if the process ends within or after it."""
        threads = self._threads
        if threads is not None:
            threads.pause()
        if self.ended:
            raise ProcessEnded(operation)
        step = self.steps
        self.steps = step + 1
        if step == self._end_at:
            if self._moment is Moment.BEFORE:
                self._die(operation, path)
            return True
        return False

    def _die(self, operation: str, path: str) -> None:
        self.ended = True
        raise ProcessEnded(f"{self._moment.value} {operation} {path}")

    def _fault(self, operation: str, path: str) -> OSError | None:
        for fault in self.faults:
            if fault.operation == operation and fault.where in path:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                return OSError(fault.code, os.strerror(fault.code), path)
        return None

    def _check(self, operation: str, path: str) -> None:
        if self.faults and (error := self._fault(operation, path)) is not None:
            raise error

    # --- handles -----------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        if self.ended:
            raise ProcessEnded("open")
        self._check("open", path)
        node = self.disk.find(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = self._create(path)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        handle = self._next_handle
        self._next_handle = handle + 1
        self._handles[handle] = node, path
        return handle

    def _create(self, path: str) -> File:
        folder, name = self._above(path)
        ends = self._begin("create", path)
        self._check("create", path)
        if self.disk.full:
            raise _full(path)
        file = File()
        file.modified_ms = self._clock.wall_ms()
        self.disk.change([(folder, name, file)])
        if ends:
            self._die("create", path)
        return file

    def _above(self, path: str) -> tuple[Folder, str]:
        above, name = split(path)
        folder = self.disk.folder(above)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return folder, name

    def close(self, handle: int) -> None:
        file, _ = self._handles.pop(handle)
        if self.disk.locks.get(file) == handle and not self.ended:
            del self.disk.locks[file]

    def size(self, handle: int) -> int:
        return self._handles[handle][0].size

    def link_count(self, handle: int) -> int:
        return self._handles[handle][0].links

    def is_same_file(self, handle: int, path: str) -> bool:
        return self.disk.find(path) is self._handles[handle][0]

    # --- bytes -------------------------------------------------------------------------------

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        file, path = self._handles[handle]
        ends = self._begin("pwrite", path)
        error = self._fault("pwrite", path) if self.faults else None
        if self.disk.full and not file.has_room_for(offset, offset + len(data)):
            error = _full(path)
        if error is not None or (ends and self._moment is Moment.WITHIN):
            # A failure or an end in a write can occur between two pages of the page cache.
            room = _PAGE_BYTES - offset % _PAGE_BYTES
            ends_after = [at for at in range(room, len(data), _PAGE_BYTES)]
            data = memoryview(data)[: self._chance.choice([0, *ends_after])]
        self._write(file, data, offset)
        if error is not None:
            raise error
        if ends:
            self._die("pwrite", path)

    def _write(self, file: File, data: Buffer, offset: int) -> None:
        if len(data):
            file.write(offset, data)
            file.modified_ms = self._clock.wall_ms()

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        file, path = self._handles[handle]
        self._check("read", path)
        return bytes(file.data[offset : min(offset + size_bytes, file.size)])

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        found = self.pread(handle, len(buffer), offset)
        buffer[: len(found)] = found
        return len(found)

    def read_cached(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        return self.read_into(handle, buffer, offset)

    def will_need(self, handle: int, offset: int, size_bytes: int) -> None:
        pass

    def next_data(self, handle: int, offset: int) -> int:
        file, _ = self._handles[handle]
        rest = memoryview(file.data)[offset : file.size].tobytes()
        found = len(rest) - len(rest.lstrip(b"\0"))
        return offset + found if found < len(rest) else file.size

    def map(self, handle: int, size_bytes: int) -> memoryview:
        return memoryview(self._handles[handle][0].data)[:size_bytes].toreadonly()

    def residency(self, mapped: memoryview) -> Residency:
        return lambda _start, _stop: True

    def datasync(self, handle: int) -> None:
        file, path = self._handles[handle]
        ends = self._begin("datasync", path)
        if self._sync_ms:
            self._clock.advance(self._sync_ms)
        if self.faults and (error := self._fault("datasync", path)) is not None:
            file.fail_sync(self._chance)
            raise error
        if ends and self._moment is Moment.WITHIN:
            file.write_back(self._chance)
        else:
            file.sync()
        if ends:
            self._die("datasync", path)

    def allocate(self, handle: int, size_bytes: int) -> None:
        file, path = self._handles[handle]
        ends = self._begin("allocate", path)
        error = self._fault("allocate", path) if self.faults else None
        if self.disk.full and size_bytes > file.size:
            error = _full(path)
        if error is not None or (ends and self._moment is Moment.WITHIN):
            file.allocate(self._chance.randint(file.size, max(size_bytes, file.size)))
        else:
            file.allocate(size_bytes)
        file.modified_ms = self._clock.wall_ms()
        if error is not None:
            raise error
        if ends:
            self._die("allocate", path)

    def resize(self, handle: int, size_bytes: int) -> None:
        file, path = self._handles[handle]
        ends = self._begin("resize", path)
        self._check("resize", path)
        file.resize(size_bytes)
        file.modified_ms = self._clock.wall_ms()
        if ends:
            self._die("resize", path)

    # --- names -------------------------------------------------------------------------------

    def names(self, path: str) -> list[str]:
        folder = self.disk.folder(path)
        return sorted(folder.names) if folder is not None else []

    def exists(self, path: str) -> bool:
        return self.disk.find(path) is not None

    def modified_ms(self, path: str) -> int:
        node = self.disk.find(path)
        return node.modified_ms if isinstance(node, File) else 0

    def make_directory(self, path: str) -> None:
        if self.disk.find(path) is None:
            above, name = split(path)
            self.make_directory(above)
            ends = self._begin("mkdir", path)
            self._check("mkdir", path)
            if self.disk.full:
                raise _full(path)
            folder = self.disk.folder(above)
            assert folder is not None
            if name not in folder.names:  # another thread may have created it
                self.disk.change([(folder, name, Folder())])
            if ends:
                self._die("mkdir", path)

    def sync_directory(self, path: str) -> None:
        folder = self.disk.folder(path)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        ends = self._begin("sync_directory", path)
        self._check("sync_directory", path)
        if not (ends and self._moment is Moment.WITHIN):
            self.disk.sync_names(folder)
            self.on_names_synced(path)
        if ends:
            self._die("sync_directory", path)

    def sync_filesystem(self, path: str) -> None:
        ends = self._begin("sync_filesystem", path)
        if self._sync_ms:
            self._clock.advance(self._sync_ms)
        if self.faults and (error := self._fault("sync_filesystem", path)) is not None:
            for file in self.disk.files():
                file.fail_sync(self._chance)
            raise error
        if ends and self._moment is Moment.WITHIN:
            self.disk.write_back(self._chance)
        else:
            self.disk.sync_all()
        if ends:
            self._die("sync_filesystem", path)

    def replace(self, source: str, target: str) -> None:
        self.rename(source, target)

    def rename(self, source: str, target: str) -> None:
        node = self.disk.find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        old_folder, old_name = self._above(source)
        new_folder, new_name = self._above(target)
        ends = self._begin("rename", target)
        self._check("rename", target)
        self.disk.change([(new_folder, new_name, node), (old_folder, old_name, None)])
        if ends:
            self._die("rename", target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        node = self.disk.find(source)
        if not isinstance(node, File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        folder, name = self._above(target)
        ends = self._begin("link", target)
        self._check("link", target)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self.disk.change([(folder, name, node)])
        if ends:
            self._die("link", target)

    def unlink(self, path: str) -> None:
        if self.disk.find(path) is not None:
            self._remove("unlink", path)

    def _remove(self, operation: str, path: str) -> None:
        folder, name = self._above(path)
        ends = self._begin(operation, path)
        self._check(operation, path)
        change: Change = [(folder, name, None)]
        self.disk.change(change)
        if ends:
            self._die(operation, path)

    def remove_tree(self, path: str) -> None:
        node = self.disk.find(path)
        if isinstance(node, Folder):
            for name in self._shuffled(node.names):
                self.remove_tree(os.path.join(path, name))
        if node is not None:
            self._remove("unlink", path)

    def _shuffled(self, names: Iterable[str]) -> list[str]:
        # Shuffled, because a folder's names have no guaranteed order.
        found = sorted(names)
        self._chance.shuffle(found)
        return found

    # --- the machine -------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        handle = self.open(path, create=True)
        file, _ = self._handles[handle]
        if file in self.disk.locks:
            self.close(handle)
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.disk.locks[file] = handle
        return handle

    def disk_space(self, path: str) -> DiskSpace:
        used = int(_DISK_BYTES * self.disk.used_ratio)
        return DiskSpace(_DISK_BYTES, used, _DISK_BYTES - used)

    def boot_id(self) -> str:
        return f"boot {self.disk.boots}"

    def memory_bytes(self) -> int:
        return self._memory_bytes

    def mounts(self) -> str:
        return ""

    def threads(self, count: int, name: str) -> Executor:
        if self._threads is None:
            return ThreadPoolExecutor(count, thread_name_prefix=name)
        return self._threads.executor(count)

    def sync_thread(self) -> None:
        return None


def _full(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
