"""When sends and puts are acknowledged, and what they get when the disk fails."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.core.errors import StoreFull, StoreOffline
from tests.broker.serving import (
    IO_ERROR,
    NO_SPACE,
    SEND,
    FailingFiles,
    running_broker,
    send_fields,
)

RECORD = OutgoingRecord(
    "t", 0, b"put", {"TAGS": "a", "KEYS": "k1 k2"}, 1, b"\x7f\0\0\x01\0\0\0\x01"
)


class SlowFiles(FailingFiles):
    """Syncs wait while ``blocked``; they run in a thread because they were slow from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = False
        self.syncs = 0

    def datasync(self, handle: int) -> None:
        self.syncs += 1
        deadline = time.monotonic() + 10
        while self.blocked and time.monotonic() < deadline:
            time.sleep(0.001)
        super().datasync(handle)


async def test_a_put_is_stored_with_its_tag_and_keys(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        result = await running.broker.appender.put(RECORD)
        assert (result.code, result.queue_offset) == (0, 0)
        client = await running.connect()
        await client.send(e="0")
        _, records = await client.pull(queueId="0", subscription="a")
        assert [record.body for record in records] == [b"put"]
        assert result.message_id.endswith(f"{records[0].physical_offset:016X}")


async def test_puts_of_one_turn_are_committed_together(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        put = running.broker.appender.put
        results = await asyncio.gather(*(put(RECORD) for _ in range(50)))
        assert [result.queue_offset for result in results] == list(range(50))


async def test_who_appends_by_itself_hears_of_the_end_of_the_turn(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files, flushDiskType="SYNC_FLUSH") as running:
        appender, store = running.broker.appender, running.broker.store
        await appender.turn_outcome(nothing=True)
        placed = appender.place(RECORD)
        await appender.turn_outcome()
        assert placed.done()
        assert store.durable_offset >= placed.result().physical_offset
        files.write_errno = NO_SPACE
        appender.place(RECORD).add_done_callback(lambda done: done.exception())
        with pytest.raises(StoreFull):
            await appender.turn_outcome()


async def test_a_failing_write_reaches_whoever_put(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files) as running:
        put = running.broker.appender.put
        files.write_errno = NO_SPACE
        with pytest.raises(StoreFull):
            await put(RECORD)
        files.write_errno = 0
        async with asyncio.timeout(60):  # the store looks by itself whether there is room again
            while running.broker.store.state.refusal is not None:
                await asyncio.sleep(0.02)
        assert (await put(RECORD)).queue_offset == 0


async def test_sync_flush_answers_after_the_sync_and_shows_nothing_before(tmp_path: Path) -> None:
    files = SlowFiles()
    async with running_broker(tmp_path, files, flushDiskType="SYNC_FLUSH") as running:
        client, reader = await running.connect(), await running.connect()
        assert (await client.send(b"first")).code == 0
        before = files.syncs
        files.blocked = True
        client.post(SEND, b"waits", **send_fields())
        async with asyncio.timeout(60):
            while files.syncs == before:
                await asyncio.sleep(0.001)
        _, records = await reader.pull()
        assert [record.body for record in records] == [b"first"]
        not_waiting = await reader.send(b"does not wait", e="2", i="WAIT\x01false")
        assert not_waiting.code == 0
        files.blocked = False
        head, _ = await client.frame()
        assert (head.code, head.ext["queueOffset"]) == (0, "1")
        _, records = await reader.pull()
        assert [record.body for record in records] == [b"first", b"waits"]


async def test_a_sync_that_takes_too_long_is_flush_disk_timeout(tmp_path: Path) -> None:
    files = SlowFiles()
    settings: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "50"}
    async with running_broker(tmp_path, files, **settings) as running:
        client = await running.connect()
        await client.send(b"first")
        files.blocked = True
        head = await client.send(b"late")
        files.blocked = False
        assert head.code == 10
        assert head.ext["queueOffset"] == "1"
        assert "50 ms" in (head.remark or "")
        assert running.broker.appender.waiting_sends == 0


async def test_after_a_failed_sync_writes_are_refused_and_reads_go_on(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files, flushDiskType="SYNC_FLUSH") as running:
        client = await running.connect()
        await client.send(b"kept")
        files.sync_errno = IO_ERROR
        failed = await client.send(b"unproven")
        files.sync_errno = 0
        refused = await client.send(b"after")
        _, records = await client.pull()
        with pytest.raises(StoreOffline):
            await running.broker.appender.put(RECORD)
    assert (failed.code, refused.code) == (14, 14)
    assert "until a restart" in (refused.remark or "")
    assert [record.body for record in records] == [b"kept"]


async def test_a_send_that_says_twice_whether_it_waits_goes_by_the_last(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files, flushDiskType="SYNC_FLUSH") as running:
        client = await running.connect()
        files.sync_errno = IO_ERROR
        assert (await client.send(i="WAIT\x01false\x02WAIT\x01true")).code == 14


async def test_what_changes_the_store_waits_for_the_turn_that_is_on(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files) as running:
        appender, store = running.broker.appender, running.broker.store
        ended: list[int] = []
        put = asyncio.ensure_future(appender.put(RECORD))
        await asyncio.sleep(0)  # the record is in the turn's buffer now
        before = store.written_offset
        files.write_errno = NO_SPACE
        waiting = asyncio.ensure_future(
            appender.between_turns(lambda: ended.append(store.written_offset))
        )
        assert ended == []
        with pytest.raises(StoreFull):
            await put
        await waiting
        files.write_errno = 0
        assert ended == [before]


async def test_what_fails_between_turns_tells_its_caller(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no")

    async with running_broker(tmp_path) as running:
        appender = running.broker.appender
        put = asyncio.ensure_future(appender.put(RECORD))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="no"):
            await appender.between_turns(fail)
        assert (await put).code == 0


async def test_a_send_that_does_not_wait_is_synced_and_seen_all_the_same(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "flushDiskType": "SYNC_FLUSH",
        "flushIntervalCommitLog": "60000",
    }
    async with running_broker(tmp_path, **settings) as running:
        client = await running.connect()
        assert (await client.send(b"quick", i="WAIT\x01false")).code == 0
        async with asyncio.timeout(60):
            while not (await client.pull())[1]:
                await asyncio.sleep(0.001)
