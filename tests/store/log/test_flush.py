"""Syncs: inline or in a thread, shared by who waits, and what a failed one means."""

import asyncio
import errno
import os
import select
from pathlib import Path

import pytest

from cometmq.core.clock import SystemClock
from cometmq.core.errors import StoreError, StoreOffline
from cometmq.speedups import CORE
from cometmq.store.config import FlushDiskType
from cometmq.store.files import PosixFiles
from cometmq.store.log.flush import INLINE_BOUND_NS, Latency
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.opening import open_store
from tests.store.faults import FailingFiles
from tests.store.stores import STORE_HOST, assert_consistent, config, opened, put


def sync_store(root: Path, files: PosixFiles, **settings: int) -> MessageStore:
    made = config(root, flush_disk_type=FlushDiskType.SYNC_FLUSH, **settings)
    store = open_store(made, SystemClock(), files)
    store.store_host = STORE_HOST
    return store


def send(store: MessageStore, token: object) -> None:
    phys, _ = put(store)
    store.commit()
    store.sync_waiters.park(phys + 1, 1 << 60, token)


async def until(condition: list[object], count: int) -> None:
    async with asyncio.timeout(60):
        while len(condition) < count:
            await asyncio.sleep(0.001)


def test_latency_is_quick_while_all_but_one_of_a_hundred_are() -> None:
    latency = Latency()
    slow = INLINE_BOUND_NS + 1
    seen: list[bool] = [latency.is_quick]
    for durations in ([1] * 10, [slow], [1] * 98, [slow], [1] * 100):
        for duration_ns in durations:
            latency.add(duration_ns)
        seen.append(latency.is_quick)
    assert seen == [False, True, False, True, False, True]


async def test_a_quick_device_is_synced_inline(tmp_path: Path) -> None:
    store = sync_store(tmp_path, FailingFiles())
    released: list[object] = []
    store.on_durable.append(released.extend)
    for _ in range(10):
        store.flusher.latency.add(1)
    send(store, 1)
    store.sync()
    assert released == [1]
    assert store.flusher.inline_count == 1
    store.sync()
    assert store.flusher.inline_count == 1
    store.close()


async def test_many_waiting_share_a_thread_s_sync(tmp_path: Path) -> None:
    store = sync_store(tmp_path, FailingFiles())
    released: list[object] = []
    store.on_durable.append(released.extend)
    for _ in range(10):
        store.flusher.latency.add(1)
    for number in range(20):
        send(store, number)
    store.sync()
    for number in range(20, 30):
        send(store, number)
        store.sync()
    await until(released, 30)
    assert released == list(range(30))
    assert store.flusher.threaded_count == 2
    assert store.queue("t", 0).max_offset == 30
    store.close()


@pytest.mark.parametrize("quick", [False, True])
async def test_a_failed_sync_takes_the_log_offline(tmp_path: Path, quick: bool) -> None:
    files = FailingFiles()
    store = sync_store(tmp_path, files)
    failed: list[object] = []
    errors: list[StoreError] = []

    def on_failed(tokens: list[object], error: StoreError) -> None:
        failed.extend(tokens)
        errors.append(error)

    store.on_sync_failed.append(on_failed)
    if quick:
        for _ in range(10):
            store.flusher.latency.add(1)
    send(store, "lost")
    files.failing["datasync"] = errno.EIO
    store.sync()
    await until(failed, 1)
    files.failing.clear()
    assert failed == ["lost"]
    assert errors[0].code == 14
    assert "Input/output error" in str(errors[0])
    assert store.queue("t", 0).max_offset == 0
    with pytest.raises(StoreOffline, match="until a restart"):
        put(store)
    store.sync()
    store.flusher.sync_in_thread()
    assert store.flusher.threaded_count + store.flusher.inline_count == 1
    store.close()
    again = opened(tmp_path)
    assert_consistent(again)
    again.close()


async def test_unclaimed_tokens_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = sync_store(tmp_path, files)
    send(store, 1)
    store.flusher.sync_now()
    assert "durable_tokens_unclaimed count=1" in caplog.text
    send(store, 2)
    files.failing["datasync"] = errno.EIO
    store.flusher.sync_now()
    assert "failed_tokens_unclaimed count=1" in caplog.text
    files.failing.clear()
    store.close()


async def test_waiting_messages_are_stored_by_the_stop(tmp_path: Path) -> None:
    store = sync_store(tmp_path, FailingFiles())
    released: list[object] = []
    store.on_durable.append(released.extend)
    send(store, 1)
    store.close()
    assert released == [1]
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == 1
    again.close()


async def test_a_sync_that_fails_while_the_store_stops_is_no_clean_stop(tmp_path: Path) -> None:
    files = FailingFiles()
    store = sync_store(tmp_path, files)
    failed: list[object] = []
    store.on_sync_failed.append(lambda tokens, error: failed.extend(tokens))
    send(store, "unproven")
    files.failing["datasync"] = errno.EIO
    store.flusher.sync_in_thread()
    store.flusher.close()
    files.failing.clear()  # the kernel says it once; asked again, it has nothing to report
    store.close()
    assert failed == ["unproven"]
    assert (tmp_path / "abort").exists()


# ---- the core's thread, which the plain file layer gets

needs_core = pytest.mark.skipif(CORE == "plain", reason="plain Python has no such thread")


def failure_of_the_thread(store: MessageStore) -> None:
    """Wait until the thread has failed, without a turn of the loop, which would report it."""
    core = store.flusher._core
    assert core is not None
    core.wait()
    assert core.take()[2] == errno.EINVAL
    os.eventfd_write(core.event, 1)


@needs_core
async def test_the_core_s_thread_syncs_what_was_written_meanwhile(tmp_path: Path) -> None:
    store = sync_store(tmp_path, PosixFiles())
    released: list[object] = []
    store.on_durable.append(released.extend)
    for number in range(300):
        send(store, number)
        store.sync()
        if number % 50 == 0:
            await asyncio.sleep(0)
        # Nothing is acknowledged, or visible, beyond what is known to be durable.
        assert store.queue("t", 0).max_offset == len(released)
        assert store.durable_offset <= store.written_offset
    await until(released, 300)
    assert released == list(range(300))
    assert store.durable_offset == store.written_offset
    assert 0 < store.flusher.threaded_count <= 300
    assert store.flusher.inline_count + store.flusher.threaded_count <= 300
    # With nothing left to do, a quick device is synced inline again.
    for _ in range(100):
        store.flusher.latency.add(1)
    inline = store.flusher.inline_count
    send(store, 300)
    store.sync()
    assert (released[-1], store.flusher.inline_count) == (300, inline + 1)
    store.close()


@needs_core
async def test_the_core_s_thread_syncs_both_files_of_a_roll(tmp_path: Path) -> None:
    store = sync_store(tmp_path, PosixFiles())
    released: list[object] = []
    store.on_durable.append(released.extend)
    count = 0
    while len(store.log.segments.files) < 4:
        send(store, count)
        count += 1
        store.sync()
    await until(released, count)
    assert released == list(range(count))
    assert store.durable_offset == store.written_offset
    store.close()
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == count
    again.close()


@needs_core
async def test_a_failed_sync_of_the_core_s_thread_takes_the_log_offline(tmp_path: Path) -> None:
    store = sync_store(tmp_path, PosixFiles())
    released: list[object] = []
    failed: list[object] = []
    store.on_durable.append(released.extend)
    store.on_sync_failed.append(lambda tokens, error: failed.extend(tokens))
    send(store, "kept")
    store.sync()
    await until(released, 1)
    durable = store.durable_offset
    send(store, "lost")
    file = store.log.segments.files[-1]
    reader, writer = os.pipe()  # which cannot be synced
    handle, file.handle = file.handle, writer
    store.flusher.sync_in_thread()
    file.handle = handle
    failure_of_the_thread(store)
    send(store, "lost as well")
    store.sync()
    await until(failed, 2)
    assert (released, failed) == (["kept"], ["lost", "lost as well"])
    assert (store.durable_offset, store.queue("t", 0).max_offset) == (durable, 1)
    with pytest.raises(StoreOffline, match=f"cannot sync {file.path}: Invalid argument"):
        put(store)
    store.flusher.sync_in_thread()
    store.flusher.sync_now()
    assert store.durable_offset == durable
    # What the thread says now wakes the loop once, not for ever.
    core = store.flusher._core
    assert core is not None
    os.eventfd_write(core.event, 1)
    poll = select.poll()
    poll.register(core.event, select.POLLIN)
    async with asyncio.timeout(60):
        while poll.poll(0):
            await asyncio.sleep(0)
    store.close()
    assert (tmp_path / "abort").exists()
    os.close(reader)
    os.close(writer)


@needs_core
async def test_a_sync_on_the_loop_hears_of_the_thread_s_failure(tmp_path: Path) -> None:
    store = sync_store(tmp_path, PosixFiles())
    released: list[object] = []
    failed: list[object] = []
    store.on_durable.append(released.extend)
    store.on_sync_failed.append(lambda tokens, error: failed.extend(tokens))
    send(store, "lost")
    file = store.log.segments.files[-1]
    reader, writer = os.pipe()
    handle, file.handle = file.handle, writer
    store.flusher.sync_in_thread()
    file.handle = handle
    store.flusher.sync_now()  # it would succeed
    assert (released, failed) == ([], ["lost"])
    assert store.flusher.inline_count == 0
    store.close()
    os.close(reader)
    os.close(writer)


@needs_core
async def test_a_failure_of_the_thread_while_the_store_stops_is_no_clean_stop(
    tmp_path: Path,
) -> None:
    store = sync_store(tmp_path, PosixFiles())
    failed: list[object] = []
    store.on_sync_failed.append(lambda tokens, error: failed.extend(tokens))
    send(store, "unproven")
    file = store.log.segments.files[-1]
    reader, writer = os.pipe()
    handle, file.handle = file.handle, writer
    store.flusher.sync_in_thread()
    file.handle = handle
    failure_of_the_thread(store)
    store.close()
    assert failed == ["unproven"]
    assert (tmp_path / "abort").exists()
    os.close(reader)
    os.close(writer)


@needs_core
async def test_a_deleted_file_is_noticed_after_the_thread_s_sync(tmp_path: Path) -> None:
    store = sync_store(tmp_path, PosixFiles())
    failed: list[object] = []
    errors: list[StoreError] = []

    def on_failed(tokens: list[object], error: StoreError) -> None:
        failed.extend(tokens)
        errors.append(error)

    store.on_sync_failed.append(on_failed)
    send(store, "nowhere")
    os.unlink(store.log.segments.files[-1].path)
    store.flusher.sync_in_thread()
    await until(failed, 1)
    assert "deleted or replaced" in str(errors[0])
    store.close()


@needs_core
async def test_too_many_files_for_the_thread_are_synced_on_the_loop(tmp_path: Path) -> None:
    store = sync_store(tmp_path, PosixFiles())
    released: list[object] = []
    store.on_durable.append(released.extend)
    count = 0
    while len(store.log.segments.files) < 70:
        send(store, count)
        count += 1
    store.sync()
    assert released == list(range(count))
    assert (store.flusher.inline_count, store.flusher.threaded_count) == (1, 0)
    store.close()
