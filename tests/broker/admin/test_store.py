"""What is too old goes when an administrator says so."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreError
from cometmq.protocol.codes import RequestCode as Code
from cometmq.store.layout import SCHEDULE_TOPIC
from tests.broker.world import SMALL_STORE, Parts, open_parts
from tests.store.faults import FailingFiles

FILE_BYTES = 16_384
STORE = replace(
    SMALL_STORE,
    mapped_file_size_commit_log=FILE_BYTES,
    file_reserved_time=1,
    delete_when="",
    disk_max_used_space_ratio=101,
    flush_consume_queue_thorough_interval=0,
)


@asynccontextmanager
async def aged(root: Path, files: FailingFiles | None = None) -> AsyncIterator[Parts]:
    """A broker whose topic ``old``, and a delayed message, are in files of two hours ago."""
    clock = VirtualClock()
    async with open_parts(root, BrokerConfig(), clock, store_config=STORE, files=files) as parts:
        for number in range(4):
            await parts.put("old", b"%d" % number, number % 2)
        await parts.put(SCHEDULE_TOPIC, b"x")
        parts.offsets.commit("readers", "old", 0, 2)
        while parts.store.log.segments.end < 4 * FILE_BYTES:
            await parts.put("new", bytes(1_000))
        parts.store.flusher.sync_now()
        await parts.store.maintenance.flush_entries()
        clock.jump_wall(1_000_000_000_000)
        yield parts


async def test_old_log_files_go_at_any_hour(tmp_path: Path) -> None:
    async with aged(tmp_path) as parts:
        await parts.store.maintenance.expiry.make_room()
        assert parts.store.log.segments.start == 0
        assert (await parts.ask(Code.DELETE_EXPIRED_COMMITLOG)).code == 0
        assert parts.store.log.segments.start >= 2 * FILE_BYTES
        assert not (tmp_path / "commitlog" / f"{0:020d}").exists()
        assert parts.store.queue("old", 0).min_offset == 2
        kept = parts.store.queue("new", 0)
        assert 0 < kept.min_offset < kept.max_offset


async def test_files_that_cannot_be_removed_are_told(tmp_path: Path) -> None:
    files = Undying()
    async with aged(tmp_path, files) as parts:
        files.failing["unlink"] = errno.EIO
        with pytest.raises(StoreError, match="cannot remove old log files"):
            await parts.ask(Code.DELETE_EXPIRED_COMMITLOG)
        files.failing.clear()


class Undying(FailingFiles):
    """Files that can be told to stay."""

    def unlink(self, path: str) -> None:
        self._check("unlink")
        super().unlink(path)


async def test_queues_without_messages_go_and_begin_again(tmp_path: Path) -> None:
    async with aged(tmp_path) as parts:
        await parts.ask(Code.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert parts.store.topics()["old"] == [0, 1]
        await parts.ask(Code.DELETE_EXPIRED_COMMITLOG)
        await parts.ask(Code.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert "old" not in parts.store.topics()
        assert not (tmp_path / "consumequeue" / "old" / "0").exists()
        # A delivery counts on the offsets of its level, so those go on.
        assert parts.store.queue(SCHEDULE_TOPIC, 0).max_offset == 1
        assert parts.offsets.query("readers", "old", 0) == 0
        assert b'"old@readers":{0:0' in (tmp_path / "config" / "consumerOffset.json").read_bytes()
        assert (await parts.put("old", b"again")).queue_offset == 0
        assert [record.body for record in parts.read("old")] == [b"again"]
    async with open_parts(tmp_path, store_config=STORE) as again:
        assert [record.body for record in again.read("old")] == [b"again"]
        assert again.store.topics()["old"] == [0]


async def test_a_queue_that_cannot_be_removed_is_told(tmp_path: Path) -> None:
    files = Undying()
    async with aged(tmp_path, files) as parts:
        await parts.ask(Code.DELETE_EXPIRED_COMMITLOG)
        files.failing["rename"] = errno.EIO
        with pytest.raises(StoreError, match="cannot remove the queues of topic old"):
            await parts.ask(Code.CLEAN_EXPIRED_CONSUMEQUEUE)
        files.failing.clear()
