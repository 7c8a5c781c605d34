"""Old log files go, what waits in them stays."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.config import StoreConfig
from cometmq.store.files import DiskSpace, PosixFiles
from tests.broker.scheduled.timers.timedworld import TimedWorld, timed_world
from tests.broker.world import SMALL_STORE

HOUR_MS = 3_600_000
STORE = replace(SMALL_STORE, mapped_file_size_commit_log=16_384, delete_when="")


class Disk(PosixFiles):
    """A disk of 100 bytes, as full as it is told to be."""

    used = 10

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(100, self.used, 100 - self.used)


async def fill(world: TimedWorld, log_files: int) -> None:
    """Plain messages until the log has so many files, and all of it on the device."""
    while len(world.store.log.segments.files) < log_files:
        await world.put("plain", bytes(500), 0, {})
    world.store.flusher.sync_now()
    world.clock.advance(world.store.config.flush_consume_queue_thorough_interval)
    await world.store.maintenance.flush_entries()


def age(world: TimedWorld) -> None:
    """Let all log files be older than is kept."""
    hours = StoreConfig().file_reserved_time + 1
    moment = world.clock.wall_ms() // 1_000 - hours * 3_600
    for file in world.store.log.segments.files:
        os.utime(file.path, (moment, moment))


async def expire(world: TimedWorld) -> None:
    """A round of the store, and what follows from it."""
    await world.store.maintenance.expiry.make_room()
    if world.timers.rolling.is_wanted:
        await world.timers.rolling.roll()


@pytest.mark.parametrize("crash", [False, True])
async def test_messages_outlive_their_log_file(tmp_path: Path, crash: bool) -> None:
    clock, disk = VirtualClock(), Disk()
    disk.used = 80
    async with timed_world(tmp_path, clock, store_config=STORE, files=disk, crash=crash) as world:
        for number in range(5):
            wish = {props.TIMER_DELAY_SEC: "7200"} if number == 4 else {}
            await world.send(b"%d" % number, 2 * HOUR_MS + number * 1_000, **wish)
        await fill(world, 3)
        await world.settle()
        age(world)
        await expire(world)
        assert world.store.log.segments.start == 0
        await expire(world)
        assert world.store.log.segments.start > 0
        assert world.timers.facts()["timerRolled"] == "5"
        assert world.waiting == 10
        await world.settle()
        assert world.timers.pending.count == 5
        again = world.read(TIMER_TOPIC, 0)
        assert {props.decode(each.properties)["TIMER_ROLL_TIMES"] for each in again} == {"1"}
    async with timed_world(tmp_path, clock, store_config=STORE, files=disk) as world:
        await world.advance(3 * HOUR_MS)
        assert sorted(world.bodies()) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_crash_while_rolling_delivers_once(tmp_path: Path) -> None:
    clock, disk = VirtualClock(), Disk()
    disk.used = 80
    async with timed_world(tmp_path, clock, store_config=STORE, files=disk, crash=True) as world:
        for number in range(5):
            await world.send(b"%d" % number, HOUR_MS)
        await fill(world, 3)
        await world.settle()
        world.timers.saver.know()
        assert await world.timers.saver.save()
        age(world)
        await expire(world)
        assert world.waiting == 10  # rolled, and nothing of that is noted
    async with timed_world(tmp_path, clock, store_config=STORE, files=disk) as world:
        assert world.timers.pending.count == 5
        await world.advance(2 * HOUR_MS)
        assert world.bodies() == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_is_due_soon_is_waited_for(tmp_path: Path) -> None:
    clock, disk = VirtualClock(), Disk()
    async with timed_world(tmp_path, clock, store_config=STORE, files=disk) as world:
        await fill(world, 2)
        thorough_ms = world.store.config.flush_consume_queue_thorough_interval
        await world.send(b"soon", thorough_ms + 30_000)
        await world.send(b"far", HOUR_MS)
        await fill(world, 4)
        disk.used = 80
        await world.settle()
        age(world)
        await expire(world)
        await expire(world)
        # Files before that of the waiting message may go.
        first = world.store.log.segments.start
        assert 0 < first < world.store.log.segments.end - 2 * 16_384
        await world.advance(60_000)
        assert world.bodies() == [b"soon"]
        await expire(world)
        await expire(world)
        assert world.store.log.segments.start > first
        await world.advance(HOUR_MS)
        assert world.bodies() == [b"soon", b"far"]


async def test_a_full_disk_does_not_make_it_copy_what_it_cannot_shrink(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, disk = VirtualClock(), Disk()
    async with timed_world(tmp_path, clock, store_config=STORE, files=disk) as world:
        while len(world.store.log.segments.files) < 3:
            await world.send(bytes(300), HOUR_MS)
        await fill(world, 3)
        await world.settle()
        disk.used = 86
        await expire(world)
        await expire(world)
        assert world.store.log.segments.start == 0
        assert world.timers.facts()["timerRolled"] == "0"
        assert "log_files_kept" in caplog.text
        waiting = world.waiting
        disk.used = 10
        await world.advance(HOUR_MS)
        assert len(world.bodies()) == waiting


async def test_without_timed_messages_nothing_is_held(tmp_path: Path) -> None:
    clock, disk = VirtualClock(), Disk()
    async with timed_world(tmp_path, clock, store_config=STORE, files=disk) as world:
        await fill(world, 4)
        disk.used = 86
        await world.store.maintenance.expiry.make_room()
        assert world.store.log.segments.start > 0
        assert not (tmp_path / "cometmq-timers").exists()
