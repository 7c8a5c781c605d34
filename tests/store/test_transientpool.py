"""A transient pool: what is acknowledged before it is written, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreError, StoreFull, StoreOffline
from cometmq.message import batch
from cometmq.store import transientpool
from cometmq.store.files import Buffer
from cometmq.store.messagestore import MessageStore
from cometmq.store.transientpool import TransientPool
from tests.broker.serving import IO_ERROR, NO_SPACE, FailingFiles
from tests.store.stores import (
    assert_consistent,
    bodies,
    copied,
    fill,
    log_of,
    opened,
    put,
    shared,
)

pytestmark = pytest.mark.core
LATE: dict[str, Any] = {"transient_store_pool_enable": True}


class CountingFiles(FailingFiles):
    """Counts what is written to the log."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        self.writes.append(len(data))
        super().pwrite(handle, data, offset)


def pool_of(store: MessageStore) -> TransientPool:
    assert store.transient is not None
    return store.transient


def run_late(store: MessageStore, ms: int) -> None:
    """The round that writes, so many milliseconds later."""
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(ms)
    asyncio.run(pool_of(store).write_late())


def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.transient is None
    put(store)
    store.commit()
    assert store.written_offset == store.committed_offset == store.log.position
    store.write_out()
    store.close()


def test_turns_are_written_together_and_seen_once_they_are(tmp_path: Path) -> None:
    files = CountingFiles()
    store = opened(tmp_path, files=files, **LATE)
    progress: list[int] = []
    store.on_progress.append(lambda: progress.append(store.written_offset))
    before = len(files.writes)
    for number in range(5):
        assert put(store, body=b"%d" % number)[1] == number
        store.commit()
    assert store.written_offset == store.dispatched_offset == 0
    assert store.committed_offset == store.log.position == pool_of(store).waiting_bytes
    assert bodies(store, "t", 0) == []
    assert store.message_at(0) is None
    assert len(files.writes) == before
    run_late(store, 199)
    assert store.written_offset == 0
    run_late(store, 1)
    assert files.writes[before:] == [store.committed_offset]
    assert progress == [store.committed_offset]
    assert store.written_offset == store.dispatched_offset == store.committed_offset
    assert bodies(store, "t", 0) == [b"%d" % number for number in range(5)]
    run_late(store, 1_000)
    assert len(files.writes) == before + 1
    store.close()


def test_enough_pages_are_written_in_another_turn(tmp_path: Path) -> None:
    store = opened(tmp_path, commit_commit_log_least_pages=1, **LATE)
    later: list[Callable[[], None]] = []
    store.backlog.start(later.append)
    put(store, body=bytes(3_000))
    store.commit()
    pool_of(store).write_soon()
    assert not later
    put(store, body=bytes(3_000))
    store.commit()
    pool_of(store).write_soon()
    pool_of(store).write_soon()
    assert len(later) == 1
    assert store.written_offset == 0
    # What is appended meanwhile is no part of it.
    put(store, body=b"of the next turn")
    later.pop()()
    assert store.written_offset == store.committed_offset < store.log.position
    store.commit()
    store.write_out()
    assert len(bodies(store, "t", 0)) == 3
    assert_consistent(store)
    store.close()


def test_more_than_the_bound_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "files", transient_store_pool_size=1, **LATE)
    assert pool_of(store).most_bytes == 16_384
    store.close()
    monkeypatch.setattr(transientpool, "POOL_MAX_BYTES", 10_000)
    store = opened(tmp_path / "bytes", **LATE)
    put(store, body=bytes(5_000))
    store.commit()
    assert store.written_offset == 0
    put(store, body=bytes(5_000))
    store.commit()
    assert store.written_offset == store.committed_offset == store.dispatched_offset > 10_000
    store.close()


def test_files_are_rolled_over_before_they_are_written(tmp_path: Path) -> None:
    """Singles, batches and long records over many small files, written in few steps."""
    store = opened(tmp_path / "s", **LATE)
    expected: list[bytes] = []
    for number in range(30):
        body = b"%06d" % number + bytes(number * 1_111 % 9_000)
        put(store, body=body)
        parts = [(0, b"batch %d %d" % (number, each), b"") for each in range(5)]
        store.append_batch(store.queue("t", 0), batch.pack(parts), shared(store))
        expected += [body, *(part for _, part, _ in parts)]
        store.commit()
        if number == 20:
            store.write_out()
    assert store.committed_offset - store.written_offset > 2 * 16_384
    store.write_out()
    assert bodies(store, "t", 0) == expected
    assert_consistent(store)
    store.close()
    again = opened(tmp_path / "s")
    assert bodies(again, "t", 0) == expected
    again.close()


def test_a_stop_writes_all(tmp_path: Path) -> None:
    store = opened(tmp_path, **LATE)
    fill(store, 50)
    put(store, body=b"of the last turn")
    store.close()
    again = opened(tmp_path, **LATE)
    assert len(assert_consistent(again)) == 51
    again.close()


def test_a_kill_loses_what_waits_and_nothing_else(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **LATE)
    fill(store, 40)
    store.write_out()
    fill(store, 30, first=40)
    killed = opened(copied(tmp_path / "s", "killed"), **LATE)
    assert len(assert_consistent(killed)) == 40
    fill(killed, 5, first=40)
    killed.close()
    store.write_out()
    assert len(assert_consistent(store)) == 70
    store.close()


def test_a_topic_that_is_deleted_takes_its_waiting_records_along(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **LATE)
    fill(store, 20)
    deletion = store.deletions.delete("t")
    assert deletion.end == store.written_offset == store.committed_offset > 0
    put(store, body=b"anew")
    store.commit()
    store.write_out()
    assert bodies(store, "t", 0) == [b"anew"]
    store.close()


def test_a_full_disk_keeps_what_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files, **LATE)
    fill(store, 10)
    store.write_out()
    fill(store, 10, first=10)
    files.write_errno = NO_SPACE
    with caplog.at_level(logging.ERROR):
        run_late(store, 300)
        run_late(store, 300)
    waits = [line for line in caplog.messages if line.startswith("acknowledged_records_wait")]
    assert len(waits) == 1
    assert "records=10" in waits[0]
    # The rounds that look at the disk do not allow writes while it waits.
    store.state.update()
    with pytest.raises(StoreFull):
        put(store)
    with pytest.raises(StoreFull):
        store.write_out()
    assert len(assert_consistent_so_far(store)) == 10
    files.write_errno = 0
    run_late(store, 300)
    assert store.state.refusal is None
    fill(store, 5, first=20)
    store.write_out()
    assert len(assert_consistent(store)) == 25
    assert pool_of(store).lost == 0
    store.close()


def assert_consistent_so_far(store: MessageStore) -> list[object]:
    """Consumers see just what is written."""
    records = [record for record in log_of(store) if record.physical_offset < store.written_offset]
    seen = [body for queue in range(3) for body in bodies(store, "t", queue)]
    assert sorted(seen) == sorted(record.body for record in records)
    return list(records)


def test_a_stop_on_a_full_disk_says_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files, **LATE)
    fill(store, 10)
    store.write_out()
    fill(store, 7, first=10)
    files.write_errno = NO_SPACE
    run_late(store, 300)
    with caplog.at_level(logging.ERROR):
        pool_of(store).close()
    assert [line for line in caplog.messages if "acknowledged_records_lost records=7" in line]
    files.write_errno = 0
    store.close()
    again = opened(tmp_path, **LATE)
    assert again.report is not None
    assert len(assert_consistent(again)) == 10
    fill(again, 3, first=10)
    again.close()


def test_a_device_that_fails_loses_what_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files, **LATE)
    fill(store, 10)
    store.write_out()
    fill(store, 8, first=10)
    heard: list[StoreError] = []
    pool_of(store).on_lost.append(heard.append)
    failures = store.state.put_failures
    files.write_errno = IO_ERROR
    with caplog.at_level(logging.ERROR):
        run_late(store, 300)
    assert [line for line in caplog.messages if "acknowledged_records_lost records=8" in line]
    assert isinstance(heard[0], StoreOffline)
    assert (pool_of(store).lost, store.state.put_failures - failures) == (8, 8)
    files.write_errno = 0
    assert store.committed_offset == store.written_offset == store.log.position
    assert len(assert_consistent(store)) == 10
    with pytest.raises(StoreOffline):
        put(store)
    store.close()
    assert len(heard) == 1


def test_a_turn_that_meets_the_failure_fails_with_the_others(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files, transient_store_pool_size=1, **LATE)
    for number in range(20):
        put(store, body=bytes(1_000))
        if number == 10:
            files.write_errno = IO_ERROR
        if store.log.position >= 16_384:
            break
        store.commit()
    with pytest.raises(StoreOffline):
        store.commit()
    assert store.queue("t", 0).next_offset == 0
    assert store.log.position == store.written_offset == 0
    store.close()


def test_a_turn_that_is_open_when_the_device_fails_is_not_stored(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files, **LATE)
    put(store, body=b"committed")
    store.commit()
    put(store, body=b"appended")
    files.write_errno = IO_ERROR
    run_late(store, 300)
    assert pool_of(store).lost == 1
    with pytest.raises(StoreOffline):
        store.commit()
    assert store.dispatched_offset == store.written_offset == store.log.position == 0
    assert bodies(store, "t", 0) == []
    store.close()


def test_a_sync_that_fails_ends_what_waits(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files, **LATE)
    fill(store, 6)
    store.write_out()
    fill(store, 6, first=6)
    files.sync_errno = IO_ERROR
    store.flusher.sync_now()
    with pytest.raises(StoreOffline):
        store.write_out()
    assert pool_of(store).lost == 6
    assert store.written_offset == store.log.position
    store.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_turns_and_kills_lose_the_end_alone(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    root, number, at = tmp_path / "0", 0, 0
    files = FailingFiles()
    store = opened(root, files=files, transient_store_pool_size=chance.choice((1, 5)), **LATE)
    sent: list[bytes] = []
    for step in range(300):
        what = chance.random()
        if what < 0.6 and store.state.refusal is None:
            body = b"%06d" % number + bytes(chance.choice((0, 50, 3_000)))
            queue = store.queue("t", 0)
            if chance.random() < 0.5:
                put(store, body=body)
                sent.append(body)
            else:
                parts = [(0, b"%d/%d" % (number, each), b"") for each in range(3)]
                store.append_batch(queue, batch.pack(parts), shared(store))
                sent += [part for _, part, _ in parts]
            number += 1
        elif what < 0.8:
            store.commit()
        elif what < 0.9:
            run_late(store, chance.choice((1, 100, 300)))
        elif what < 0.94:
            files.write_errno = NO_SPACE if chance.random() < 0.3 else 0
        elif what < 0.96:
            files.write_errno = 0
            run_late(store, 300)
            kept = bodies(store, "t", 0)
            assert kept == sent[: len(kept)]
            root = copied(root, f"killed-{step}")
            store = opened(root, files=files, **LATE)
            sent = bodies(store, "t", 0)
            assert sent == kept
            assert_consistent(store)
            at += 1
    files.write_errno = 0
    run_late(store, 300)
    store.write_out()
    assert bodies(store, "t", 0) == sent
    assert len(assert_consistent(store)) == len(sent)
    assert at
    store.close()
