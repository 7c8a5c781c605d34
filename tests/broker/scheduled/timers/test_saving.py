"""Notes on disk: when they are written, and what they never say."""

import errno
from pathlib import Path

import pytest

from cometmq.broker.scheduled.timers import snapshot
from cometmq.broker.scheduled.timers.snapshot import read_snapshot
from cometmq.core.clock import VirtualClock
from cometmq.store.files import Buffer, PosixFiles
from cometmq.store.timerfiles import TIMER_DIRECTORY
from tests.broker.scheduled.timers.timedworld import TimedWorld, timed_world

FILES = PosixFiles()


def noted(directory: Path) -> tuple[int, int] | None:
    found = read_snapshot(FILES, str(directory / TIMER_DIRECTORY))
    return None if found is None else (found.position, found.count)


async def save(world: TimedWorld) -> bool:
    world.store.flusher.sync_now()
    world.timers.saver.know()
    return await world.timers.saver.save()


async def test_a_broker_without_timed_messages_writes_nothing(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        await world.settle()
        assert await save(world)
    assert not (tmp_path / TIMER_DIRECTORY).exists()


async def test_what_waits_is_noted(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        await world.send(b"a", 5_000)
        await world.settle()
        assert await save(world)
        assert noted(tmp_path) == (1, 1)
        await world.advance(6_000)
        assert await save(world)
        assert noted(tmp_path) == (1, 0)
        before = (tmp_path / TIMER_DIRECTORY / "state.json").stat().st_mtime_ns
        await world.advance(6_000)
        assert await save(world)
        assert (tmp_path / TIMER_DIRECTORY / "state.json").stat().st_mtime_ns == before


async def test_a_grown_log_is_noted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with timed_world(tmp_path) as world:
        await world.send(b"a", 500_000)
        await world.settle()
        assert await save(world)
        first = read_snapshot(FILES, str(tmp_path / TIMER_DIRECTORY))
        monkeypatch.setattr(snapshot, "SAVE_LOG_BYTES", 1_000)
        for _ in range(10):
            await world.put("plain", bytes(500), 0, {})
        await world.settle()
        assert await save(world)
        second = read_snapshot(FILES, str(tmp_path / TIMER_DIRECTORY))
        assert first is not None
        assert second is not None
        assert second.log_offset > first.log_offset


async def test_nothing_is_known_in_the_middle_of_what_is_late(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock, crash=True) as world:
        await world.settle()
        clock.advance(25)
        await world.settle()
        clock.jump_wall(-20)
        await world.send(b"a", 5)
        # Due, by the ticks that are over, and not delivered: it is in no file.
        await world.timers.round()
        assert await save(world)
        assert noted(tmp_path) is None
    async with timed_world(tmp_path, clock) as world:
        await world.advance(100)
        assert world.bodies() == [b"a"]


class FullDisk(PosixFiles):
    """Takes no rows while it is full."""

    full = False

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self.full and len(data) % 28 == 0:
            raise OSError(errno.ENOSPC, "full")
        super().pwrite(handle, data, offset)


async def test_a_full_disk_is_told_and_tried_again(tmp_path: Path) -> None:
    disk = FullDisk()
    async with timed_world(tmp_path, files=disk) as world:
        await world.send(b"a", 5_000)
        await world.timers.round()
        disk.full = True
        assert not await save(world)
        assert noted(tmp_path) is None
        disk.full = False
        assert await save(world)
        assert noted(tmp_path) == (1, 1)


async def test_rows_that_cannot_be_written_wait_for_room(tmp_path: Path) -> None:
    disk = FullDisk()
    async with timed_world(tmp_path, files=disk) as world:
        for _ in range(600):
            await world.send(b"a", 5_000)
        disk.full = True
        world.timers.pending.files.buffered_bytes = 2 << 20
        await world.timers.round()
        behind = world.timers.pending.position
        assert 0 < behind < 600
        disk.full = False
        await world.timers.round()
        assert world.timers.pending.position == 600
