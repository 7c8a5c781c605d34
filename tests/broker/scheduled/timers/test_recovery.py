"""A start finds what waits, whatever the end before it was."""

import random
import shutil
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.timerfiles import TIMER_DIRECTORY
from tests.broker.scheduled.timers.timedworld import TimedWorld, timed_world


async def save(world: TimedWorld) -> None:
    world.store.flusher.sync_now()
    world.timers.saver.know()
    assert await world.timers.saver.save()


@pytest.mark.parametrize("seed", range(12))
async def test_each_message_is_delivered_once_over_any_ends(tmp_path: Path, seed: int) -> None:
    randomness = random.Random(seed)
    clock = VirtualClock(1_700_000_000_000 + randomness.randrange(600_000))
    expected: dict[bytes, int] = {}
    number = 0
    for _ in range(6):
        crash = randomness.random() < 0.6
        async with timed_world(tmp_path, clock, crash=crash) as world:
            for _ in range(randomness.randrange(1, 8)):
                for _ in range(randomness.randrange(12)):
                    delay_ms = randomness.choice((1, 40, 900, 2_500, 30_000, 700_000))
                    delay_ms = randomness.randrange(1, delay_ms + 1)
                    body = b"%d" % number
                    number += 1
                    expected[body] = clock.wall_ms() + delay_ms
                    await world.send(body, delay_ms)
                await world.advance(randomness.choice((0, 10, 30, 500, 3_000, 90_000)))
                if randomness.random() < 0.3:
                    await save(world)
            late = [body for body, due_ms in expected.items() if due_ms <= clock.wall_ms() - 60]
            assert set(late) <= set(world.bodies())
        if randomness.random() < 0.15:
            shutil.rmtree(tmp_path / TIMER_DIRECTORY, ignore_errors=True)
        clock.advance(randomness.choice((1, 400, 2_000, 800_000)))
    async with timed_world(tmp_path, clock) as world:
        waiting = len(expected) - len(world.bodies())
        assert world.timers.pending.count == waiting
        await world.advance(1_500_000)
        assert sorted(world.bodies()) == sorted(expected)
        assert all(each.store_ms >= expected[each.body] for each in world.read())
        assert world.timers.pending.count == 0


async def test_a_file_that_cannot_be_believed_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock) as world:
        for number in range(20):
            await world.send(b"%d" % number, 1_000 + number * 100_000)
        await world.advance(150_000)
        assert world.bodies() == [b"0", b"1"]
    for path in (tmp_path / TIMER_DIRECTORY).iterdir():
        if path.name != "state.json":
            raw = bytearray(path.read_bytes())
            raw[1] ^= 1
            path.write_bytes(raw)
    async with timed_world(tmp_path, clock) as world:
        await world.advance(0)
        assert "timer_file_bad" in caplog.text
        await world.advance(3_000_000)
        assert world.bodies() == [b"%d" % number for number in range(20)]


async def test_a_log_that_lost_its_end_makes_the_note_worthless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock) as world:
        await world.send(b"a", 1_000)
        for _ in range(5):
            await world.put("plain", b"x", 0, {})
    shutil.copytree(tmp_path / TIMER_DIRECTORY, tmp_path / "later")
    other = tmp_path / "other"
    async with timed_world(other, VirtualClock()) as world:
        await world.send(b"a", 1_000)
    shutil.rmtree(other / TIMER_DIRECTORY)
    shutil.copytree(tmp_path / "later", other / TIMER_DIRECTORY)
    async with timed_world(other, clock) as world:
        assert "timers_rebuilt" in caplog.text
        await world.advance(2_000)
        assert world.bodies() == [b"a"]


async def test_files_that_are_missing_are_made_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock) as world:
        await world.send(b"a", 1_000_000)
    for path in (tmp_path / TIMER_DIRECTORY).iterdir():
        if path.name != "state.json":
            path.unlink()
    async with timed_world(tmp_path, clock) as world:
        assert world.timers.pending.count == 1
        await world.advance(1_000_000)
        assert world.bodies() == [b"a"]
