"""Background work: flushing, files made ahead, the stop."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreFull
from cometmq.net.tasks import Tasks
from cometmq.store.checkpoint import read_checkpoint, read_positions
from cometmq.store.config import FlushDiskType
from cometmq.store.files import Buffer, PosixFiles
from cometmq.store.messagestore import MessageStore
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles
from tests.simulation.faults.threads import SteppedThreads
from tests.store.faults import FailingFiles
from tests.store.stores import assert_consistent, copied, fill, opened, put, run_round


async def until(store: MessageStore, condition: Callable[[], bool], step_ms: int = 500) -> None:
    assert isinstance(store.clock, VirtualClock)
    async with asyncio.timeout(60):
        while not condition():
            store.clock.advance(step_ms)
            await asyncio.sleep(0.001)


async def test_the_log_is_synced_and_the_next_file_made(tmp_path: Path) -> None:
    store = opened(tmp_path)
    tasks = Tasks()
    await store.start(tasks)
    fill(store, 100)
    await until(store, lambda: store.durable_offset == store.written_offset)
    await until(store, lambda: not store.log.wants_next_file())
    put(store, body=b"few bytes wait for the thorough interval")
    store.commit()
    await until(store, lambda: store.durable_offset == store.written_offset, 2_000)
    await tasks.close()
    store.close()


async def test_sync_flush_without_anybody_waiting(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    put(store)
    store.commit()
    await store.maintenance.flush_log()
    await until(store, lambda: store.queue("t", 0).max_offset == 1)
    store.close()


async def test_rounds_note_how_far_the_files_go(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = opened(tmp_path, clock)
    root = str(tmp_path)
    fill(store, 50)
    await store.maintenance.flush_entries()
    found = read_positions(store.files, root)
    assert found is not None
    assert (found.written, found.synced, found.clean) == (store.written_offset, 0, False)
    assert found.queues == 3
    assert read_checkpoint(store.files, root) == (0, 0, 0)
    clock.advance(60_000)
    thorough = asyncio.create_task(store.maintenance.flush_entries())
    await until(store, thorough.done, 1)
    await thorough
    found = read_positions(store.files, root)
    assert found is not None
    assert found.synced == store.durable_offset == store.written_offset
    assert read_checkpoint(store.files, root).log_ms == store.state.last_ms
    store.close()


async def test_a_log_that_cannot_be_synced_is_not_noted_as_synced(tmp_path: Path) -> None:
    files = FailingFiles()
    clock = VirtualClock()
    store = opened(tmp_path, clock, files)
    fill(store, 50)
    store.log.fail("for the test")
    clock.advance(60_000)
    await store.maintenance.flush_entries()
    found = read_positions(files, str(tmp_path))
    assert found is not None
    assert (found.written, found.synced) == (store.written_offset, 0)
    store.close()


async def test_full_index_files_are_finished_in_a_round(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 200)
    await store.maintenance.flush_entries()
    assert len(store.index.files) > 2
    assert store.index.full_files() == []
    assert_consistent(store)
    killed = opened(copied(tmp_path, "killed"))
    assert len(assert_consistent(killed)) == 200
    killed.close()
    store.close()


async def test_entries_that_cannot_be_synced_are_tried_again(tmp_path: Path) -> None:
    files = FailingFiles()
    clock = VirtualClock()
    store = opened(tmp_path, clock, files)
    fill(store, 10)
    store.flusher.sync_now()
    clock.advance(60_000)
    files.failing["datasync"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        await store.maintenance.flush_entries()
    assert store.pool.unsynced
    files.failing.clear()
    await store.maintenance.flush_entries()
    assert not store.pool.unsynced
    store.close()


async def test_a_failing_round_is_logged_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    tasks = Tasks()
    await store.start(tasks)
    files.failing["datasync"] = errno.EIO
    fill(store, 10)
    store.log.durable = store.log.written
    await until(store, lambda: "store_maintenance_failed work=flush_entries" in caplog.text, 20_000)
    files.failing.clear()
    await until(store, lambda: not store.pool.unsynced, 20_000)
    await tasks.close()
    store.close()


async def test_entries_that_cannot_be_written_refuse_messages(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    fill(store, 10)
    files.failing["pwrite"] = errno.ENOSPC
    await store.maintenance.flush_entries()
    with pytest.raises(StoreFull, match="queue or index files"):
        put(store)
    files.failing.clear()
    await store.maintenance.flush_entries()
    put(store)
    store.commit()
    assert len(assert_consistent(store)) == 11
    store.close()


async def test_a_next_file_that_cannot_be_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    files.failing["allocate"] = errno.ENOSPC
    await store.maintenance.flush_log()
    assert "next_log_file_failed" in caplog.text
    fill(store, 3)
    files.failing.clear()
    await store.maintenance.flush_log()
    assert not store.log.wants_next_file()
    store.close()


def test_a_stop_that_fails_is_not_called_clean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    fill(store, 30)
    store.flusher.sync_now()
    files.failing["pwrite"] = errno.ENOSPC
    store.close()
    assert "store_stopped_unclean" in caplog.text
    assert (tmp_path / "abort").exists()
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == 30
    again.close()


def test_a_stop_without_a_working_device(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    fill(store, 30)
    files.failing["datasync"] = errno.EIO
    store.close()
    assert (tmp_path / "abort").exists()
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == 30
    again.close()


async def stepped(
    threads: SteppedThreads, work: Coroutine[Any, Any, None] | asyncio.Task[None]
) -> BaseException | None:
    """Have work done with its jobs in between; gives its error."""
    task = asyncio.ensure_future(work)
    while not task.done():
        threads.step()
        await asyncio.sleep(0)
    return task.exception()


async def test_an_index_file_that_goes_while_it_is_finished_or_synced() -> None:
    for turns in range(8):
        clock = VirtualClock()
        threads = SteppedThreads(Random(turns), split=1)
        files = MemoryFiles(Disk(), clock, Random(0), threads=threads)
        store = opened(Path("/s"), clock, files)
        fill(store, 300)
        store.flusher.sync_now()
        store.dispatcher.write_index(0)
        dropped = store.index.full_files()[0]
        clock.advance(store.config.flush_consume_queue_thorough_interval)
        round_ = asyncio.create_task(store.maintenance.flush_entries())
        for _ in range(turns):
            threads.step()
            await asyncio.sleep(0)
        store.index.drop_before(dropped.end_phys + 1)
        assert dropped not in store.index.files
        assert await stepped(threads, round_) is None
        assert store.index.full_files() == []
        store.close()


async def test_a_failed_sync_of_entries_leaves_nothing_to_believe(tmp_path: Path) -> None:
    """Their pages may be forgotten: until they are written anew, a start makes them again."""
    for seed in range(20):
        clock = VirtualClock()
        threads = SteppedThreads(Random(seed), split=0)
        disk = Disk()
        files = MemoryFiles(disk, clock, Random(seed), threads=threads)
        store = opened(Path("/s"), clock, files)
        fill(store, 60)
        store.flusher.sync_now()
        assert await stepped(threads, store.maintenance.flush_entries()) is None
        clock.advance(store.config.flush_consume_queue_thorough_interval)
        place = "consumequeue" if seed % 2 else "index"
        files.faults.append(Fault("datasync", errno.EIO, 1, place))
        for failing in (True, False):
            error = await stepped(threads, store.maintenance.flush_entries())
            assert isinstance(error, OSError) is failing
            if failing and seed % 4 < 2:
                disk.kill(Random(seed))
                break
        else:
            disk.lose_power(Random(seed))
        again = opened(Path("/s"), clock, MemoryFiles(disk, clock, Random(seed)))
        assert len(assert_consistent(again)) == 60
        again.close()


class Order(PosixFiles):
    """In which order positions and checkpoint are changed, and what the positions were then."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[str] = []
        self.before = b""

    def _name(self, handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    def datasync(self, handle: int) -> None:
        super().datasync(handle)
        self.steps.append(f"sync {self._name(handle)}")

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.steps.append(f"sync {Path(path).name}")

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self._name(handle) == "checkpoint":
            self.steps.append("checkpoint")
            self.before = (self.root / "cometmq-positions.json").read_bytes()
        super().pwrite(handle, data, offset)


@pytest.mark.parametrize("stops", [False, True])
def test_a_power_cut_while_the_checkpoint_changes(tmp_path: Path, stops: bool) -> None:
    """Whether the checkpoint is the old one then or the new one, the positions count."""
    root = tmp_path / "store"
    files = Order(root)
    store = opened(root, VirtualClock(), files)
    fill(store, 10)
    run_round(store, thorough=True)
    old = (root / "checkpoint").read_bytes()
    fill(store, 10, first=10)
    files.steps.clear()
    if stops:
        store.close()
    else:
        run_round(store, thorough=True)
    at = files.steps.index("checkpoint")
    assert files.steps[at - 2 : at] == ["sync cometmq-positions.json.tmp", "sync store"]
    new = (root / "checkpoint").read_bytes()
    (root / "cometmq-progress.json").unlink(missing_ok=True)
    (root / "cometmq-positions.json").write_bytes(files.before)
    for times in (old, new):
        (root / "checkpoint").write_bytes(times)
        assert read_positions(PosixFiles(), str(root)) is not None
    if not stops:
        store.close()


async def test_no_failure_of_one_round_ends_the_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without rounds nothing is synced, and an ASYNC_FLUSH broker would tell nobody."""
    store = opened(tmp_path)

    def fail() -> bool:
        raise ValueError("unexpected")

    tasks = Tasks()
    with monkeypatch.context() as patched:
        patched.setattr(type(store.log), "wants_next_file", lambda _log: fail())
        await store.start(tasks)
        await until(store, lambda: "work=flush_log" in caplog.text)
    fill(store, 100)
    await until(store, lambda: store.durable_offset == store.written_offset)
    assert "unexpected" in caplog.text
    await tasks.close()
    store.close()


class WatchedThreads(FailingFiles):
    """Notes which threads write to files of queues and of the index."""

    def __init__(self) -> None:
        super().__init__()
        self.users: set[int] = set()

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if "consumequeue" in path or "index" in path:
            self.users.add(threading.get_ident())
        super().pwrite(handle, data, offset)


async def test_files_are_written_again_by_the_loop_alone(tmp_path: Path) -> None:
    """A thread would undo what the loop writes between its read and its write."""
    files, clock = WatchedThreads(), VirtualClock()
    store = opened(tmp_path, clock, files)
    fill(store, 50)
    store.flusher.sync_now()
    interval_ms = store.config.flush_consume_queue_thorough_interval
    for operation in ("datasync", "index"):
        clock.advance(interval_ms)
        if operation == "datasync":
            files.failing["datasync"] = errno.EIO
            with pytest.raises(OSError, match="Input/output"):
                await store.maintenance.flush_entries()
        else:
            for file in store.index.files:
                file._failed = file.unsynced = True
        files.failing.clear()
        files.users.clear()
        await store.maintenance.flush_entries()
        assert files.users == {threading.get_ident()}
        assert store.maintenance.synced == store.written_offset
    assert_consistent(store)
    store.close()


async def test_what_is_appended_while_files_are_written_again_stays(tmp_path: Path) -> None:
    files, clock = FailingFiles(), VirtualClock()
    store = opened(tmp_path, clock, files)
    fill(store, 50)
    store.flusher.sync_now()
    clock.advance(store.config.flush_consume_queue_thorough_interval)
    files.failing["datasync"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        await store.maintenance.flush_entries()
    files.failing.clear()
    paths, directories = store.pool.take_unsynced()
    assert paths
    for _ in store.pool.rewrite_failed(paths):
        fill(store, 30, first=50)
        store.dispatcher.write(store.clock.wall_ms())
    store.pool.give_back(paths, directories)
    assert_consistent(store)
    store.close()
    again = opened(tmp_path)
    assert_consistent(again)
    again.close()
