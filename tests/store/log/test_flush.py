"""Syncs: inline or in a thread, shared by who waits, and what a failed one means."""

import asyncio
import errno
from pathlib import Path

import pytest

from cometmq.core.clock import SystemClock
from cometmq.core.errors import StoreError, StoreOffline
from cometmq.store.config import FlushDiskType
from cometmq.store.log.flush import INLINE_BOUND_NS, Latency
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.opening import open_store
from tests.store.faults import FailingFiles
from tests.store.stores import STORE_HOST, assert_consistent, config, opened, put


def sync_store(root: Path, files: FailingFiles) -> MessageStore:
    made = config(root, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = open_store(made, SystemClock(), files)
    store.store_host = STORE_HOST
    return store


def send(store: MessageStore, token: object) -> None:
    phys, _ = put(store)
    store.commit()
    store.durable.park(phys + 1, 1 << 60, token)


async def until(condition: list[object], count: int) -> None:
    async with asyncio.timeout(10):
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
