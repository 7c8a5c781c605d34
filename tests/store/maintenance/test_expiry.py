"""Files that are too old go at once for readers, and by a thread for the disk."""

import errno
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreFull
from cometmq.net.tasks import Tasks
from cometmq.store.config import StoreConfig
from cometmq.store.files import DiskSpace
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.log.segments import LogFile
from cometmq.store.messagestore import MessageStore
from tests.store.faults import FailingFiles
from tests.store.stores import assert_consistent, bodies, fill, opened, put

LOG_BYTES = 16_384
HOUR_S = 3_600


class Disk(FailingFiles):
    """A disk of 100 bytes, as full as it is told to be; it notes which thread unlinks what."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 10
        self.unlinked: list[tuple[str, int]] = []

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(100, self.used, 100 - self.used)

    def unlink(self, path: str) -> None:
        self._check("unlink")
        self.unlinked.append((path, threading.get_ident()))
        super().unlink(path)


async def filled(root: Path, disk: Disk) -> MessageStore:
    """A store with some 6 log files and 5 index files, all durable, that drops what is old."""
    store = await unsynced(root, disk)
    clock = store.clock
    assert isinstance(clock, VirtualClock)
    clock.advance(store.config.flush_consume_queue_thorough_interval)
    await store.maintenance.flush_entries()
    return store


async def unsynced(root: Path, disk: Disk) -> MessageStore:
    """The same, with queues that are not on the device."""
    store = opened(root, VirtualClock(), disk, delete_when="", disk_max_used_space_ratio=5)
    fill(store, 500, queues=100)
    store.flusher.sync_now()
    await store.maintenance.flush_entries()
    return store


def age(store: MessageStore, files: Iterable[LogFile]) -> None:
    """Let files be an hour older than is kept."""
    hours = StoreConfig().file_reserved_time + 1
    moment = store.clock.wall_ms() // 1000 - hours * HOUR_S
    for file in files:
        os.utime(file.path, (moment, moment))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_filling_disk_refuses_writes_and_allows_them_again(tmp_path: Path) -> None:
    files = Disk()
    store = opened(tmp_path, files=files)
    tasks = Tasks()
    await store.start(tasks)
    files.used = 91
    await store.maintenance.expiry.check()
    with pytest.raises(StoreFull, match=r"91\.0 % full") as caught:
        put(store)
    assert caught.value.code == 14
    files.used = 89
    await store.maintenance.expiry.check()
    put(store)
    store.commit()
    assert len(bodies(store, "t", 0)) == 1
    await tasks.close()
    store.close()


async def test_old_files_go_with_their_entries(tmp_path: Path) -> None:
    store = await filled(tmp_path, Disk())
    young = [file.path for file in store.log.segments.files[2:]]
    age(store, store.log.segments.files[:2])
    for path in young:
        os.utime(path, (store.clock.wall_ms() // 1000,) * 2)
    await store.maintenance.expiry.make_room()
    assert store.log.segments.start == 2 * LOG_BYTES
    assert len(assert_consistent(store)) < 500
    assert names(tmp_path / "commitlog") == [os.path.basename(path) for path in young]
    store.close()
    again = opened(tmp_path)
    assert_consistent(again)
    again.close()


async def test_whoever_still_needs_files_is_asked_first(tmp_path: Path) -> None:
    disk = Disk()
    store = await filled(tmp_path, disk)
    age(store, store.log.segments.files[:3])
    asked: list[tuple[int, bool]] = []

    def release(end: int, forced: bool) -> int:
        asked.append((end, forced))
        return 2 * LOG_BYTES - 1

    store.maintenance.expiry.release_with(release)
    await store.maintenance.expiry.check()
    assert asked == [(3 * LOG_BYTES, False)]
    assert store.log.segments.start == LOG_BYTES
    disk.used = 86
    await store.maintenance.expiry.check()
    assert asked[-1][1]
    assert store.log.segments.start == LOG_BYTES
    store.close()


async def test_a_thread_takes_them_from_the_disk_oldest_first(tmp_path: Path) -> None:
    disk = Disk()
    store = await filled(tmp_path, disk)
    dropped = [file.path for file in store.log.segments.files[:3]]
    index_paths = [file.path for file in store.index.files]
    age(store, store.log.segments.files[:3])
    disk.unlinked.clear()
    await store.maintenance.expiry.check()
    assert store.log.segments.start == 3 * LOG_BYTES
    assert disk.unlinked == []
    await store.maintenance.expiry.make_room()
    paths = [path for path, _ in disk.unlinked]
    assert paths[:3] == dropped
    assert paths[3:] == [path for path in index_paths if path in paths[3:]] != []
    assert not any(map(os.path.exists, paths))
    assert threading.get_ident() not in {thread for _, thread in disk.unlinked}
    store.close()


async def test_a_thread_releases_the_memory_maps(tmp_path: Path) -> None:
    store = await filled(tmp_path, Disk())
    released: list[int] = []

    class Map(mmap.mmap):
        def __del__(self) -> None:
            released.append(threading.get_ident())

    files = store.log.segments.files[:2]
    for file in files:
        file.unmap()
        file._view = memoryview(Map(file.handle, file.size_bytes, prot=mmap.PROT_READ))
    age(store, files)
    await store.maintenance.expiry.make_room()
    assert len(released) == 2
    assert threading.get_ident() not in released
    store.close()


async def test_a_file_that_a_thread_reads_goes_after_that(tmp_path: Path) -> None:
    disk = Disk()
    store = await filled(tmp_path, disk)
    first = store.log.segments.files[0]
    age(store, [first])
    first.pin()
    tasks = Tasks()
    disk.unlinked.clear()
    running = tasks.spawn(store.maintenance.expiry.make_room(), name="expiry")
    clock = store.clock
    assert isinstance(clock, VirtualClock)
    while not first.closed:
        await clock.sleep_ms(0)
    for _ in range(5):
        clock.advance(10)
        await clock.sleep_ms(0)
    assert disk.unlinked == []
    first.unpin()
    while not running.done():
        clock.advance(10)
        await clock.sleep_ms(0)
    assert [path for path, _ in disk.unlinked][:1] == [first.path]
    store.close()


async def test_no_more_files_go_while_the_last_ones_cannot(tmp_path: Path) -> None:
    disk = Disk()
    store = await filled(tmp_path, disk)
    age(store, store.log.segments.files[:1])
    disk.failing["unlink"] = errno.EROFS
    with pytest.raises(OSError, match="Read-only"):
        await store.maintenance.expiry.make_room()
    age(store, store.log.segments.files[:1])
    with pytest.raises(OSError, match="Read-only"):
        await store.maintenance.expiry.make_room()
    assert store.log.segments.start == LOG_BYTES
    assert len(names(tmp_path / "commitlog")) == len(store.log.segments.files) + 1
    disk.failing.clear()
    await store.maintenance.expiry.make_room()
    assert store.log.segments.start == 2 * LOG_BYTES
    assert len(names(tmp_path / "commitlog")) == len(store.log.segments.files)
    store.close()


async def test_a_file_whose_seal_cannot_be_removed_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgotten, it would stay when those behind it go, and leave a gap."""
    store = await filled(tmp_path, Disk())
    age(store, store.log.segments.files[:2])

    def fail(seals: BlockChecksums, bases: Iterable[int], *, durable: bool = True) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(BlockChecksums, "forget", fail)
        with pytest.raises(OSError, match="Input/output"):
            await store.maintenance.expiry.make_room()
    await store.maintenance.expiry.make_room()
    assert names(tmp_path / "commitlog")[0] == f"{2 * LOG_BYTES:020d}"
    store.close()


async def test_files_that_a_stop_left_are_there_after_it(tmp_path: Path) -> None:
    store = await filled(tmp_path, Disk())
    age(store, store.log.segments.files[:2])
    await store.maintenance.expiry.check()
    store.close()
    again = opened(tmp_path)
    assert again.log.segments.start == 0
    assert_consistent(again)
    again.close()


async def test_the_log_is_kept_while_entries_made_from_it_may_be_lost(tmp_path: Path) -> None:
    store = await unsynced(tmp_path, Disk())
    age(store, store.log.segments.files)
    await store.maintenance.expiry.make_room()
    assert store.log.segments.start == 0
    clock = store.clock
    assert isinstance(clock, VirtualClock)
    clock.advance(store.config.flush_consume_queue_thorough_interval)
    await store.maintenance.flush_entries()
    await store.maintenance.expiry.make_room()
    assert store.log.segments.start > 0
    store.close()


class StampedDisk(Disk):
    """Counts the files whose time is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def modified_ms(self, path: str) -> int:
        self.asked += 1
        return super().modified_ms(path)


async def test_a_round_looks_only_at_files_that_it_may_drop(tmp_path: Path) -> None:
    """A store of 1 TiB may have 32 768 log files, and the loop waits while they are looked at."""
    disk = StampedDisk()
    store = opened(
        tmp_path, VirtualClock(), disk, delete_when="", disk_max_used_space_ratio=5,
        mapped_file_size_commit_log=4_096,
    )  # fmt: skip
    fill(store, 500)
    store.flusher.sync_now()
    clock = store.clock
    assert isinstance(clock, VirtualClock)
    clock.advance(store.config.flush_consume_queue_thorough_interval)
    await store.maintenance.flush_entries()
    count = len(store.log.segments.files)
    assert count > 25
    age(store, store.log.segments.files)
    await store.maintenance.expiry.check()
    assert len(store.log.segments.files) == count - 10
    assert disk.asked == 10
    store.close()


async def test_files_from_the_future_go_with_those_after_them(tmp_path: Path) -> None:
    """The clock was ahead when they were written, and was set back."""
    store = opened(
        tmp_path, VirtualClock(), Disk(), delete_when="", disk_max_used_space_ratio=5,
        mapped_file_size_commit_log=4_096,
    )  # fmt: skip
    fill(store, 500)
    store.flusher.sync_now()
    clock = store.clock
    assert isinstance(clock, VirtualClock)
    clock.advance(store.config.flush_consume_queue_thorough_interval)
    await store.maintenance.flush_entries()
    files = [*store.log.segments.files]
    age(store, files[12:])
    for file in files[:12]:
        os.utime(file.path, (2**32, 2**32))
    await store.maintenance.expiry.check()
    assert len(store.log.segments.files) == len(files) - 10
    store.close()
