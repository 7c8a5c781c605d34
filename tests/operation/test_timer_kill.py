"""`kill -9` with many timed messages waiting, in the middle of deliveries and of sends."""

import asyncio
import random
from pathlib import Path

import pytest

from cometmq.core.clock import SystemClock
from cometmq.testing.cluster import ProcessCluster
from tests.operation.timed import Timed, deliveries, runtime, wait_for

CLOCK = SystemClock()
HOUR_MS = 3_600_000


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_nothing_acknowledged_is_lost_or_delivered_twice(tmp_path: Path, flush: str) -> None:
    randomness = random.Random(7)
    timed = Timed()
    with ProcessCluster(tmp_path, flush_disk_type=flush) as cluster:
        await timed.create_topic(cluster.broker)
        await timed.send(cluster.broker, 2_000, lambda number, now: now + HOUR_MS + number * 97)
        for _ in range(3):
            sending = asyncio.create_task(
                timed.send(
                    cluster.broker,
                    100_000,
                    lambda _, now: now + randomness.randrange(50, 2_500),
                )
            )
            while not await deliveries(cluster.broker):
                await asyncio.sleep(0.05)
            end_ms = CLOCK.monotonic_ms() + randomness.randrange(300, 1_200)
            while CLOCK.monotonic_ms() < end_ms:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(cluster.kill)
            await sending
            await asyncio.to_thread(cluster.start)
        last_ms = CLOCK.wall_ms() + 3_000
        found = await wait_for(cluster.broker, timed.due_by(last_ms), 120)
        timed.check(found, last_ms)
        assert len(found) > 1_000
        waiting = await runtime(cluster.broker)
        assert int(waiting["timerWaiting"]) >= 2_000
        assert not [key for key in found if int(key) < 2_000]


@pytest.mark.deep
async def test_a_million_wait_through_kills(tmp_path: Path) -> None:
    """They cost little memory, a start after a kill is quick, and each is delivered once."""
    count, near = 1_000_000, 20_000
    timed = Timed()
    with ProcessCluster(tmp_path, mapped_file_size_commit_log=1 << 28) as cluster:
        await timed.create_topic(cluster.broker)
        await timed.send(cluster.broker, count, far)
        for _ in range(2):
            await asyncio.to_thread(cluster.kill)
            begin_ms = CLOCK.monotonic_ms()
            await asyncio.to_thread(cluster.start)
            assert CLOCK.monotonic_ms() - begin_ms < 5_000
            assert int((await runtime(cluster.broker))["timerWaiting"]) == count
            assert cluster.process is not None
            assert rss_anon_bytes(cluster.process.pid) < 300 << 20
        due_ms = CLOCK.wall_ms() + 15_000
        await timed.send(cluster.broker, near, lambda number, _: due_ms + number % 1_000)
        assert CLOCK.wall_ms() < due_ms, "this machine is too slow for it"
        while CLOCK.wall_ms() < due_ms + 300:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.kill)
        await asyncio.to_thread(cluster.start)
        due = timed.due_by(due_ms + 1_000)
        found = await wait_for(cluster.broker, due, 60)
        timed.check(found, due_ms + 1_000)
        assert found.keys() == due
        assert len(due) == near
        assert int((await runtime(cluster.broker))["timerWaiting"]) == count


def far(number: int, now_ms: int) -> int:
    """Some time between one hour and two days from now on."""
    return now_ms + HOUR_MS + number * 2_654_435_761 % (47 * HOUR_MS)


def rss_anon_bytes(pid: int) -> int:
    """Memory of a process that is no file's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
