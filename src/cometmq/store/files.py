"""File operations of the store: the only module that opens, maps, writes, syncs or removes files.

All other modules take a ``Files``, so that a test can substitute a layer that loses unsynced
writes, tears them or fails. Errors are plain ``OSError``; callers interpret them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol, TypeAlias

from cometmq.core.memory import limit_bytes
from cometmq.speedups import SyncThread

#: The C struct flock: lock type, whence, start, length, pid.
_FLOCK = Struct("hhqqi")
_COPY_BYTES = 1 << 20
#: Bytes of one step of :func:`rewrite_in_place`; the event loop waits for each step.
_REWRITE_BYTES: Final = 1 << 16
#: Maximum number of pages in one residency check, and the size of CPython's Py_buffer.
_PAGES_MAX: Final = 1 << 12
_PY_BUFFER_WORDS: Final = 10
#: Arguments of renameat2, as Linux defines them: relative to the working directory; swap.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
#: Only the user who runs the broker may read messages. Existing files keep their mode, which an
#: administrator may have widened on purpose.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

Buffer = bytes | bytearray | memoryview
#: A function that returns whether all bytes between two positions of a map are in memory.
Residency: TypeAlias = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Space on a device, as an unprivileged process sees it."""

    total_bytes: int
    used_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        """Used share between 0 and 1, as ``df`` computes it."""
        usable = self.used_bytes + self.free_bytes
        return self.used_bytes / usable if usable else 1.0


def least_used(spaces: Iterable[DiskSpace]) -> DiskSpace:
    """Return the space of the least used device."""
    return min(spaces, key=lambda space: space.used_ratio)


class Files(Protocol):
    """File operations of the store. Handles are file descriptors."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing; ``create`` creates a missing one."""
        ...

    def close(self, handle: int) -> None:
        """Close a handle."""
        ...

    def size(self, handle: int) -> int:
        """Return the length in bytes."""
        ...

    def link_count(self, handle: int) -> int:
        """Return the number of hard links; more than one if a snapshot holds the file."""
        ...

    def is_same_file(self, handle: int, path: str) -> bool:
        """Return whether ``path`` still names the open file (not deleted, moved or replaced)."""
        ...

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        """Write all of ``data`` at an offset."""
        ...

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        """Read bytes at an offset; fewer are returned only at the end of the file."""
        ...

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill ``buffer``; return the number of bytes read, smaller only at the end of the file."""
        ...

    def read_cached(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill ``buffer`` from the page cache; return the number of bytes read.

        The number is smaller if the device would have to be read.
        """
        ...

    def will_need(self, handle: int, offset: int, size_bytes: int) -> None:
        """Ask the system to read bytes ahead, without waiting."""
        ...

    def next_data(self, handle: int, offset: int) -> int:
        """Return the first position from ``offset`` on that may be nonzero, else the length."""
        ...

    def datasync(self, handle: int) -> None:
        """Sync the file's bytes and size to the device and wait for it."""
        ...

    def allocate(self, handle: int, size_bytes: int) -> None:
        """Extend the file to ``size_bytes`` with zeros, with space reserved on the device."""
        ...

    def resize(self, handle: int, size_bytes: int) -> None:
        """Truncate or extend the file; added bytes read as zeros and take no space yet."""
        ...

    def map(self, handle: int, size_bytes: int) -> memoryview:
        """Return a read-only memory map of the first ``size_bytes``."""
        ...

    def residency(self, mapped: memoryview) -> Residency:
        """Return a function that checks whether a range of a map is in memory."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory; an empty list if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether ``path`` exists."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return the modification time of a file, wall time; 0 if it does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, accessible only to the user who runs the broker."""
        ...

    def sync_directory(self, path: str) -> None:
        """Sync the names in a directory to the device and wait for it."""
        ...

    def sync_filesystem(self, path: str) -> None:
        """Sync the whole file system that holds ``path`` to the device and wait for it.

        For very many files this is far quicker than single syncs.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target``, replacing it."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename an unsynced ``source`` to ``target`` without waiting for the device.

        After a kill, ``target`` is the old or the new file, and the old file may be left at
        ``source``. After a power cut, ``target`` may be empty.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file; ignore a missing one."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with its contents; ignore a missing one."""
        ...

    def lock(self, path: str) -> int:
        """Lock the file exclusively until the handle is closed; BlockingIOError if it is taken."""
        ...

    def disk_space(self, path: str) -> DiskSpace:
        """Return the space on the device that holds ``path``."""
        ...

    def boot_id(self) -> str:
        """Return a text that changes when the machine restarts; empty if there is none."""
        ...

    def memory_bytes(self) -> int:
        """Return the memory that this process may use, in bytes."""
        ...

    def mounts(self) -> str:
        """Return the mount table in the format that mounts.py reads; empty if there is none."""
        ...

    def threads(self, count: int, name: str) -> Executor:
        """Return an executor for blocking operations; the caller shuts it down."""
        ...

    def sync_thread(self) -> SyncThread | None:
        """Return a thread that syncs as ``datasync`` does; None if an executor has to call that."""
        ...


class PosixFiles:
    """The file operations of a POSIX system."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, FILE_MODE)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def link_count(self, handle: int) -> int:
        return os.fstat(handle).st_nlink

    def is_same_file(self, handle: int, path: str) -> bool:
        # This is called after each sync, so it avoids stat(). After a stat() Linux updates the
        # file's times at the next write, and the sync after that takes 45 us longer.
        if os.access(path, os.F_OK) and _is_named(handle, path):
            return True
        try:
            named = os.stat(path)
        except OSError as error:
            # If the path cannot be examined, assume that the file is still there.
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)
        return os.path.samestat(os.fstat(handle), named)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        written = os.pwrite(handle, data, offset)
        if written != len(data):
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(handle, view[written:], offset + written)

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        found = os.pread(handle, size_bytes, offset)
        while len(found) < size_bytes:
            more = os.pread(handle, size_bytes - len(found), offset + len(found))
            if not more:
                break
            found += more
        return found

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        view = memoryview(buffer)
        done = 0
        while done < len(view):
            count = os.preadv(handle, [view[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def read_cached(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        try:
            return os.preadv(handle, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            # EOPNOTSUPP: the file system does not support the flag.
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return 0
            raise

    def will_need(self, handle: int, offset: int, size_bytes: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, offset, size_bytes, os.POSIX_FADV_WILLNEED)

    def next_data(self, handle: int, offset: int) -> int:
        size = os.fstat(handle).st_size
        if offset >= size:
            return size
        try:
            return os.lseek(handle, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return size
            return offset

    def datasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def allocate(self, handle: int, size_bytes: int) -> None:
        os.posix_fallocate(handle, 0, size_bytes)

    def resize(self, handle: int, size_bytes: int) -> None:
        os.ftruncate(handle, size_bytes)

    def map(self, handle: int, size_bytes: int) -> memoryview:
        return memoryview(mmap.mmap(handle, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ))

    def residency(self, mapped: memoryview) -> Residency:
        return _residency(mapped)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def modified_ms(self, path: str) -> int:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return 0

    def make_directory(self, path: str) -> None:
        if os.path.isdir(path):
            return
        above = os.path.dirname(path)
        if above != path:
            self.make_directory(above or os.curdir)
        # As os.makedirs, but with our mode for the directories in between too.
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def sync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync_filesystem(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Imported late: a store with few queues never needs it.
            import ctypes

            if ctypes.CDLL(None, use_errno=True).syncfs(handle):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(handle)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def replace(self, source: str, target: str) -> None:
        # A plain rename over an existing file makes ext4 write the new file to the device first,
        # which takes up to 120 ms. Swapping the names does not.
        if os.path.exists(target) and _exchange(source, target):
            self.unlink(source)
        else:
            self.rename(source, target)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def lock(self, path: str) -> int:
        handle = self.open(path, create=True)
        # This kind of lock (OFD) belongs to the handle, not to the process, so it also refuses a
        # second store in the same process. Java brokers lock the first byte, so they respect it.
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
        except OSError:
            os.close(handle)
            raise
        return handle

    def disk_space(self, path: str) -> DiskSpace:
        found = os.statvfs(path)
        unit = found.f_frsize
        return DiskSpace(
            found.f_blocks * unit, (found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit
        )

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def memory_bytes(self) -> int:
        return limit_bytes()

    def mounts(self) -> str:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except OSError:
            return ""

    def threads(self, count: int, name: str) -> Executor:
        return ThreadPoolExecutor(count, thread_name_prefix=name)

    def sync_thread(self) -> SyncThread | None:
        # The thread calls fdatasync itself. A subclass with a datasync of its own (a test that
        # makes it fail) needs an executor, which calls that method.
        if type(self).datasync is not PosixFiles.datasync:
            return None
        try:
            return SyncThread()
        except OSError:
            return None


def _is_named(handle: int, path: str) -> bool:
    """Return whether the system still knows an open file by this name.

    Return False as well if it cannot tell, or if the last part of the path is a symbolic link.
    """
    try:
        name = os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return False
    if name == path:
        return True
    directory, _, last = path.rpartition("/")
    return name == f"{os.path.realpath(directory)}/{last}"


def _residency(mapped: memoryview) -> Residency:
    """Return a residency check that uses mincore (Linux).

    On a system without mincore, no page counts as resident. A read with RWF_NOWAIT would answer the
    same question, but it copies the bytes: 8 us or more for 72 KB, where the check takes 1.2 us.
    The answer holds only for the moment. Under memory pressure the system may evict a page right
    after it; reading that page then waits for the device.
    """
    # Imported late: a broker that serves no old data never needs it.
    import ctypes

    try:
        mincore = ctypes.CDLL(None).mincore
    except (AttributeError, OSError):
        return lambda _start, _stop: False
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    answer = bytearray(_PAGES_MAX)
    answer_at = ctypes.addressof((ctypes.c_char * len(answer)).from_buffer(answer))
    # The first field of a Py_buffer is the address.
    buffer = (ctypes.c_void_p * _PY_BUFFER_WORDS)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapped), buffer, 0)
    address, size_bytes = buffer[0] or 0, len(mapped)
    ctypes.pythonapi.PyBuffer_Release(buffer)

    def is_resident(start: int, stop: int) -> bool:
        first = start - start % mmap.PAGESIZE
        pages = (stop - first + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        # The use of ``mapped`` here keeps the map alive; otherwise another map could get its
        # address.
        if stop > size_bytes or pages > _PAGES_MAX or not mapped:
            return False
        return (
            not mincore(address + first, stop - first, answer_at) and answer.find(0, 0, pages) < 0
        )

    return is_resident


class SnapshotFiles(PosixFiles):
    """File operations needed only to copy whole stores."""

    __slots__ = ()

    def open_existing(self, path: str) -> int:
        """Open an existing file for reading. Raises OSError."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def link(self, source: str, target: str) -> None:
        """Create a hard link on the same file system. Raises OSError."""
        os.link(source, target)

    def next_hole(self, handle: int, offset: int) -> int:
        """Return the first hole after ``offset``, which must be in data; the length if none.

        A hole is a range of zeros that takes no space on the device.
        """
        size = os.fstat(handle).st_size
        try:
            found = os.lseek(handle, offset, os.SEEK_HOLE)
        except OSError:
            return size
        return found if found > offset else size

    def copy_bytes(self, source: int, target: int, offset: int, size_bytes: int) -> int:
        """Copy a range between handles, by sharing blocks if the file system can.

        Returns the number of bytes copied, smaller at the end of the file. Raises OSError.
        """
        done = 0
        while done < size_bytes:
            place = offset + done
            try:
                count = os.copy_file_range(source, target, size_bytes - done, place, place)
            except OSError as error:
                if error.errno not in _COPY_UNSUPPORTED:
                    raise
                data = self.pread(source, min(size_bytes - done, _COPY_BYTES), place)
                self.pwrite(target, data, place)
                count = len(data)
            if not count:
                break
            done += count
        return done

    def copy_attributes(self, source: str, target: int) -> None:
        """Give an open file the owner, permissions and time of change of another one.

        Retention counts from the time of the last change. Raises OSError.
        """
        state = os.stat(source)
        os.fchmod(target, stat.S_IMODE(state.st_mode))
        own = os.fstat(target)
        if (own.st_uid, own.st_gid) != (state.st_uid, state.st_gid):
            os.fchown(target, state.st_uid, state.st_gid)
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory at ``path``."""
        return os.path.isdir(path)


#: Errors of a kernel or file system that does not support the copy call.
_COPY_UNSUPPORTED = frozenset(
    {errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}
)


class ReadOnlyFiles(PosixFiles):
    """Files opened for reading only: nothing is ever written, created, moved or locked."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            raise _refused(path)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def make_directory(self, path: str) -> None:
        raise _refused(path)

    def rename(self, source: str, target: str) -> None:
        raise _refused(source)

    def replace(self, source: str, target: str) -> None:
        raise _refused(source)

    def unlink(self, path: str) -> None:
        raise _refused(path)

    def remove_tree(self, path: str) -> None:
        raise _refused(path)

    def lock(self, path: str) -> int:
        raise _refused(path)

    def drop_cached(self, handle: int, offset: int, size_bytes: int) -> None:
        """Ask the system to drop bytes from the page cache that will not be read again soon."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def lock_holder(self, path: str) -> int:
        """Return the holder of a file's lock: 0 for none, -1 for a CometMQ broker, else a pid."""
        try:
            handle = self.open(path)
        except FileNotFoundError:
            return 0
        try:
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, holder = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_OFD_GETLK, request))
        finally:
            os.close(handle)
        return 0 if kind == fcntl.F_UNLCK else int(holder)


def _refused(path: str) -> OSError:
    return OSError(errno.EROFS, "opened for reading only", path)


def zeroed_memory(size_bytes: int) -> memoryview:
    """Return private zeroed memory; its pages take up memory only once they are written to."""
    if size_bytes < mmap.PAGESIZE:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, max(size_bytes, 1)))[:size_bytes]


def make_durable_directory(files: Files, path: str) -> None:
    """Create a directory and its parents durably.

    The parent directory is synced even if nothing is missing: an earlier run may have crashed
    between creation and sync.
    """
    paths = [os.path.abspath(path)]
    while not files.exists(paths[-1]):
        paths.append(os.path.dirname(paths[-1]))
    files.make_directory(path)
    missing = paths[:-1]
    for created in missing or paths:
        # If we may not read a parent directory, we created nothing in it.
        with contextlib.suppress(PermissionError):
            files.sync_directory(os.path.dirname(created))


def write_file_atomically(
    files: Files, path: str, data: bytes, *, durable: bool, mode: int | None = None
) -> None:
    """Replace a small file atomically: after a crash it is the old or the new one.

    ``durable`` also waits until the new file is on the device. Without it, a crash of the machine
    may leave an empty file; a crash of the process does not. ``mode`` sets the permissions before
    the contents are written; it needs handles of the operating system. Raises OSError.
    """
    draft = path + ".tmp"
    # A draft that a crash left is not written over, but removed. Otherwise a power cut that keeps
    # the rename but not the new bytes would put the old draft's bytes at ``path``.
    files.unlink(draft)
    handle = files.open(draft, create=True)
    try:
        if mode is not None:
            os.fchmod(handle, mode)
        files.pwrite(handle, data, 0)
        if durable:
            files.datasync(handle)
    finally:
        files.close(handle)
    if durable:
        files.rename(draft, path)
        files.sync_directory(os.path.dirname(path))
    else:
        files.replace(draft, path)


def _exchange(source: str, target: str) -> bool:
    """Swap two file names atomically; return False if one is missing or the system cannot."""
    swap = _renameat2()
    if swap is None:
        return False
    return not swap(
        _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE
    )


@functools.cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Return the C library's function renameat2; None if it has none."""
    # Imported late: a first start replaces nothing.
    import ctypes

    try:
        found: Callable[[int, bytes, int, bytes, int], int] = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return None
    return found


def rewrite_in_place(files: Files, handle: int) -> Iterator[None]:
    """Rewrite the contents of a file in place, in steps. Raises OSError.

    After a failed sync, the kernel marks pages as clean although they never reached the device. A
    second sync alone would skip them; writing them makes them dirty again. Nothing else may write
    to the file during a step.
    """
    end = files.size(handle)
    at = files.next_data(handle, 0)
    while at < end:
        found = files.pread(handle, min(_REWRITE_BYTES, end - at), at)
        files.pwrite(handle, found, at)
        at = files.next_data(handle, at + max(len(found), 1))
        yield


def exhaust(steps: Iterator[None]) -> None:
    """Run all steps at once."""
    for _ in steps:
        pass


def is_zero(files: Files, handle: int, size_bytes: int) -> bool:
    """Return whether a file has only zeros. Raises OSError."""
    at = files.next_data(handle, 0)
    while at < size_bytes:
        found = files.pread(handle, min(_COPY_BYTES, size_bytes - at), at)
        if found.count(0) != len(found):
            return False
        at = files.next_data(handle, at + max(len(found), 1))
    return True


def read_file(files: Files, path: str) -> bytes | None:
    """Return the contents of a small file; None if it does not exist."""
    if not files.exists(path):
        return None
    handle = files.open(path)
    try:
        return files.pread(handle, files.size(handle), 0)
    finally:
        files.close(handle)
