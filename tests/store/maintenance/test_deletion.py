"""Deleting the topics of a store. What a crash leaves of it: tests/broker/test_deletion.py."""

import asyncio
import errno
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreError
from cometmq.net.tasks import Tasks
from cometmq.store.config import FlushDiskType
from cometmq.store.files import Buffer, PosixFiles
from tests.store.stores import assert_consistent, bodies, copied, fill, opened, put


class OtherBoot(PosixFiles):
    """The machine was restarted."""

    def boot_id(self) -> str:
        return "another"


class FullBesidesLog(PosixFiles):
    """A full disk, on which only log files have their room already."""

    def __init__(self) -> None:
        self.full = True
        self._logs: set[int] = set()

    def open(self, path: str, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        (self._logs.add if "commitlog" in path else self._logs.discard)(handle)
        return handle

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self.full and handle not in self._logs:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(handle, data, offset)


async def test_a_deleted_topic_begins_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 60)
    await store.maintenance.flush_entries()
    put(store, "other", body=b"kept")
    deletion = store.deletions.delete("t")
    store.flusher.sync_now()
    assert deletion.end == store.written_offset > 0
    assert store.topics() == {"other": [0]}
    assert put(store, "t", 0, b"new")[1] == 0
    store.commit()
    await store.deletions.settle(deletion)
    assert bodies(store, "t", 0) == [b"new"]
    # Killed now, the store knows all of it without reading the log again from its beginning.
    killed = opened(copied(tmp_path / "s", "killed"))
    assert killed.report is not None
    assert killed.report.start >= deletion.end
    assert bodies(killed, "t", 0) == [b"new"]
    assert bodies(killed, "other", 0) == [b"kept"]
    killed.close()
    store.close()


async def test_files_of_a_deleted_topic_leave_the_disk(tmp_path: Path) -> None:
    store, tasks = opened(tmp_path, VirtualClock()), Tasks()
    await store.start(tasks)
    fill(store, 60)
    await store.maintenance.flush_entries()
    await store.deletions.settle(store.deletions.delete("t"))
    async with asyncio.timeout(60):
        while list((tmp_path / "consumequeue" / ".deleted").iterdir()):
            await asyncio.sleep(0.001)
    assert not (tmp_path / "consumequeue" / "t").exists()
    await tasks.close()
    store.close()


def test_a_crash_before_a_deletion_is_settled_brings_everything_back(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 60)
    store.deletions.delete("t")
    killed = copied(tmp_path / "s", "killed")
    for _ in range(2):
        again = opened(killed)
        assert len(assert_consistent(again)) == 60
        again.close()
    assert again.report is not None
    assert again.report.records == 0  # the second start had nothing to repair
    store.close()


def test_what_was_not_noted_after_a_start_stays_unfinished(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 60)
    store.deletions.delete("t")
    killed = copied(tmp_path / "s", "killed")
    files = FullBesidesLog()
    again = opened(killed, files=files)
    files.full = False
    assert again.pool.removals.unfinished
    third = opened(copied(killed, "third"))
    assert len(assert_consistent(third)) == 60
    third.close()
    again.close()
    store.close()


def test_the_former_life_is_dropped_by_its_end(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 60)
    deletion = store.deletions.delete("t")
    put(store, "t", 1, b"new")
    store.commit()
    store.flusher.sync_now()
    after_power_cut = opened(copied(tmp_path / "s", "cut"), files=OtherBoot())
    assert len(bodies(after_power_cut, "t", 0)) == 20
    after_power_cut.deletions.drop_former("t", deletion.end)
    assert after_power_cut.topics() == {"t": [1]}
    assert bodies(after_power_cut, "t", 1) == [b"new"]
    assert put(after_power_cut, "t", 0)[1] == 0
    after_power_cut.commit()
    assert after_power_cut.dispatcher.write(0)
    after_power_cut.deletions.drop_former("t", deletion.end)
    after_power_cut.deletions.drop_former("nothing", deletion.end)
    assert after_power_cut.topics() == {"t": [0, 1]}
    after_power_cut.close()
    store.close()


def test_entries_of_the_former_life_below_a_later_one_are_dropped(tmp_path: Path) -> None:
    """A crash left the queue of the new life at offset 5, so its first message has that offset."""
    store = opened(tmp_path / "s")
    fill(store, 60)
    deletion = store.deletions.delete("t")
    queue = store.queues.queue("t", 1)
    queue.expect(5)
    queue.finish_recovery()
    assert put(store, "t", 1, b"new")[1] == 5
    store.commit()
    store.flusher.sync_now()
    after_power_cut = opened(copied(tmp_path / "s", "cut"), files=OtherBoot())
    assert after_power_cut.queues.queue("t", 1).min_offset == 5
    after_power_cut.deletions.drop_former("t", deletion.end)
    assert bodies(after_power_cut, "t", 1, 5) == [b"new"]
    after_power_cut.close()
    again = opened(tmp_path / "cut")
    assert again.queues.queue("t", 1).min_offset == 5
    assert bodies(again, "t", 1, 5) == [b"new"]
    again.close()
    store.close()


async def test_a_topic_that_cannot_be_moved_aside_stays(tmp_path: Path) -> None:
    class Stuck(PosixFiles):
        def rename(self, source: str, target: str) -> None:
            if source.endswith("/t"):
                raise OSError(errno.EACCES, "Permission denied")
            super().rename(source, target)

    store = opened(tmp_path, files=Stuck())
    fill(store, 60)
    await store.maintenance.flush_entries()
    with pytest.raises(StoreError, match=r"cannot be moved aside: Permission denied.*repeat"):
        store.deletions.delete("t")
    assert len(assert_consistent(store)) == 60
    store.close()


async def test_a_deletion_that_cannot_be_settled_is_told(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 60)
    deletion = store.deletions.delete("t")
    store.files.remove_tree(deletion.pending)
    with pytest.raises(StoreError, match=r"\.deleted"):
        await store.deletions.settle(deletion)
    store.close()


async def test_a_topic_without_queues_needs_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    deletion = store.deletions.delete("unknown")
    assert deletion.pending == ""
    await store.deletions.settle(deletion)
    assert not (tmp_path / "consumequeue" / ".deleted").exists()
    store.close()


async def test_messages_that_wait_for_the_device_are_not_dispatched(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    put(store, "t")
    put(store, "other", body=b"kept")
    store.deletions.delete("t")
    put(store, "t", body=b"new")
    store.commit()
    store.flusher.sync_now()
    assert bodies(store, "t", 0) == [b"new"]
    assert bodies(store, "other", 0) == [b"kept"]
    store.close()
