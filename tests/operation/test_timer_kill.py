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
            sending = asyncio.ensure_future(
                timed.send(
                    cluster.broker,
                    100_000,
                    lambda _, now: now + randomness.randrange(50, 2_500),
                )
            )
            await asyncio.sleep(0)
            while len(await deliveries(cluster.broker)) == 0:
                await asyncio.sleep(0.05)
            async with asyncio.timeout(30):
                delay_s = randomness.uniform(0.3, 1.2)
                end = asyncio.get_running_loop().time() + delay_s
                while asyncio.get_running_loop().time() < end:
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(cluster.kill)
            await sending
            await asyncio.to_thread(cluster.start)
        last_ms = CLOCK.wall_ms() + 3_000
        found = await wait_for(cluster.broker, timed.due_by(last_ms), 60)
        timed.check(found, last_ms)
        assert len(found) > 1_000
        waiting = await runtime(cluster.broker)
        assert int(waiting["timerWaiting"]) >= 2_000
        assert not [key for key in found if int(key) < 2_000]
