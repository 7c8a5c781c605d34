"""Timed messages as a whole: on time, once, over stops and crashes."""

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from cometmq.broker.scheduled.timers.service import LOAD_INTERVAL_MS
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.message import properties as props
from cometmq.store.read.coldreads import ColdReads, Found
from cometmq.store.timerfiles import BUCKET_MS, TIMER_DIRECTORY, TimerFiles
from tests.broker.scheduled.timers.timedworld import TimedWorld, timed_world
from tests.broker.serving import running_broker

HOUR_MS = 3_600_000


async def test_a_broker_delivers_after_a_delay_given_in_ms(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        # Before the send: its answer may take longer than the delay leaves.
        began_ms = SystemClock().wall_ms()
        head = await client.send(
            b"later", i="UNIQ_KEY\x01U1\x02TIMER_DELAY_MS\x01300\x02TAGS\x01red"
        )
        assert head.code == 0
        assert head.ext["recallHandle"]
        async with asyncio.timeout(10):
            while True:
                _, records = await client.pull()
                if records:
                    break
                await asyncio.sleep(0.01)
        (record,) = records
        assert record.body == b"later"
        assert 300 <= record.store_ms - began_ms <= 3_000
        properties = props.decode(record.properties)
        assert properties["TAGS"] == "red"
        assert "TIMER_DEQUEUE_MS" in properties


async def test_it_is_delivered_at_its_time_and_once(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        await world.send(b"a", 5_300, TAGS="red", KEYS="k")
        await world.advance(5_299)
        assert world.bodies() == []
        await world.advance(1 + 25)
        assert world.bodies() == [b"a"]
        await world.advance(60_000)
        assert world.bodies() == [b"a"]


class SendingClock(VirtualClock):
    """While the loading rests, another message of the same bucket comes."""

    __slots__ = ("world",)

    def __init__(self) -> None:
        super().__init__()
        self.world: TimedWorld | None = None

    async def sleep_ms(self, duration_ms: float) -> None:
        world, self.world = self.world, None
        if world is None or duration_ms < LOAD_INTERVAL_MS:
            self.world = world
            await super().sleep_ms(duration_ms)
        else:
            await world.send(b"later", 100_000)
            await world.timers.round()


async def test_a_file_that_cannot_be_read_at_first_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SendingClock()
    until_next_ms = BUCKET_MS - clock.wall_ms() % BUCKET_MS
    fetch, failures = TimerFiles.fetch, [OSError(errno.EIO, "not now")]

    def failing(files: TimerFiles, bucket: int, size: int, crc: int) -> bytes:
        if failures:
            raise failures.pop()
        return fetch(files, bucket, size, crc)

    async with timed_world(tmp_path, clock) as world:
        await world.send(b"early", until_next_ms + 10_000)
        await world.settle()
        monkeypatch.setattr(TimerFiles, "fetch", failing)
        clock.world = world
        await world.advance(until_next_ms - 30_000)
        assert failures == []
        await world.advance(200_000)
        assert world.bodies() == [b"early", b"later"]


async def test_what_cannot_be_taken_in_now_keeps_nothing_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = ColdReads.gather
    async with timed_world(tmp_path) as world:
        await world.send(b"due", 1_000)
        await world.settle()
        later = await world.send(b"later", 2_000)

        async def failing(reads: ColdReads, ranges: list[tuple[int, int]]) -> list[Found]:
            if later.physical_offset in [at for at, _ in ranges]:
                raise OSError(errno.EIO, "not now")
            return await gather(reads, ranges)

        with monkeypatch.context() as patch:
            patch.setattr(ColdReads, "gather", failing)
            await world.advance(3_000)
            assert world.bodies() == [b"due"]
        await world.advance(100)
        assert world.bodies() == [b"due", b"later"]


async def test_far_messages_wait_on_disk(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        for number in range(50):
            await world.send(b"%d" % number, HOUR_MS + number * 1_000)
        await world.settle()
        assert world.timers.pending.wheel.count == 0
        assert world.timers.pending.count == 50
        await world.advance(HOUR_MS + 60_000)
        assert world.bodies() == [b"%d" % number for number in range(50)]
        assert world.timers.pending.count == 0


@pytest.mark.parametrize("crash", [False, True])
async def test_it_survives_a_restart(tmp_path: Path, crash: bool) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock, crash=crash) as world:
        for number in range(20):
            await world.send(b"%d" % number, 1_000 + number * 500)
        await world.send(b"far", 3 * HOUR_MS)
        await world.advance(4_000)
        before = world.bodies()
        assert 0 < len(before) < 20
    clock.advance(1_000)
    async with timed_world(tmp_path, clock) as world:
        assert world.timers.pending.count == 21 - len(before)
        await world.advance(20_000)
        assert world.bodies() == [b"%d" % number for number in range(20)]
        await world.advance(3 * HOUR_MS)
        assert world.bodies()[20:] == [b"far"]


@pytest.mark.parametrize("saved", [True, False])
async def test_a_crash_after_a_note_delivers_nothing_twice(tmp_path: Path, saved: bool) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock, crash=True) as world:
        await world.send(b"1", 1_000)
        await world.send(b"2", 2_000)
        await world.send(b"3", 700_000)
        await world.advance(1_500)
        if saved:
            world.store.flusher.sync_now()
            assert await world.timers.saver.save()
        await world.advance(1_500)
        assert world.bodies() == [b"1", b"2"]
        await world.send(b"4", 1_000)
    async with timed_world(tmp_path, clock) as world:
        await world.advance(800_000)
        assert world.bodies() == [b"1", b"2", b"4", b"3"]


async def test_without_its_files_everything_is_found_in_the_log(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock) as world:
        for number in range(30):
            await world.send(b"%d" % number, number * 60_000 + 1)
        await world.advance(10 * 60_000)
        done = world.bodies()
        assert len(done) == 10
    shutil.rmtree(tmp_path / TIMER_DIRECTORY)
    async with timed_world(tmp_path, clock) as world:
        await world.advance(0)
        assert world.bodies() == done
        await world.advance(HOUR_MS)
        assert world.bodies() == [b"%d" % number for number in range(30)]


async def test_files_of_the_past_go(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        await world.send(b"1", 1_000)
        await world.send(b"2", 2 * BUCKET_MS)
        await world.settle()
        world.store.flusher.sync_now()
        await world.timers.saver.save()
        names = {path.name for path in (tmp_path / TIMER_DIRECTORY).iterdir()}
        assert len(names) == 3
        await world.advance(BUCKET_MS + 1_000)
        world.store.flusher.sync_now()
        await world.timers.saver.save()
        left = {path.name for path in (tmp_path / TIMER_DIRECTORY).iterdir()}
        assert left < names
        assert len(left) == 2
