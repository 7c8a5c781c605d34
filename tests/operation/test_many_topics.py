"""Many topics are created quickly, and are there after a `kill -9`.

The goal is 10 000 in 30 s; this is a share of it. One at a time, with nobody else to share a write
with, a topic must take clearly less than the 100 ms in which unhurried changes are written.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import cometmq
from cometmq.admin.api import Admin
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode
from cometmq.testing.cluster import ProcessCluster

TOGETHER, AT_ONCE = 1_500, 32
ALONE = 200
LIMIT_S = TOGETHER * 30 / 10_000
ALONE_LIMIT_S = ALONE * 0.05


def creation(topic: str) -> h.CreateTopic:
    return h.CreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=4,
        write_queue_nums=4,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )


async def create(broker: str, names: list[str], at_once: int) -> float:
    """Create topics, some at once; gives the seconds that it takes."""
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    left = iter(names)

    async def work() -> None:
        for name in left:
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            await remoting.call(broker, code, creation(name), timeout_ms=30_000)

    begin = time.monotonic()
    await asyncio.gather(*(work() for _ in range(at_once)))
    took_s = time.monotonic() - begin
    await remoting.close()
    await tasks.close()
    return took_s


async def test_many_topics_are_created_in_time_and_kept(tmp_path: Path) -> None:
    names = [f"topic-{number:05d}" for number in range(TOGETHER + ALONE)]
    with ProcessCluster(tmp_path) as cluster:
        assert await create(cluster.broker, names[:TOGETHER], AT_ONCE) < LIMIT_S
        assert await create(cluster.broker, names[TOGETHER:], 1) < ALONE_LIMIT_S
        async with cometmq.Client(cluster.namesrv) as client:
            # Answered means that it can be routed to.
            assert set(names) <= set(await Admin(client.session).list_topics())
        await asyncio.to_thread(cluster.kill)
        await asyncio.to_thread(cluster.start)
        async with cometmq.Client(cluster.namesrv) as client:
            assert set(names) <= set(await Admin(client.session).list_topics())
