"""Answers of sends that leave past the transport, over real sockets of uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cometmq.net import eventloop
from tests.broker.serving import SEND, BrokerClient, RunningBroker, running_broker, send_fields

#: More answers than sockets hold.
SENDS = 40_000
LIMIT_S = 60

Scene = Callable[[RunningBroker], Awaitable[None]]

pytestmark = pytest.mark.compiled


async def _opaques(client: BrokerClient, count: int) -> list[int]:
    async with asyncio.timeout(LIMIT_S):
        answers = [(await client.frame())[0] for _ in range(count)]
    assert {answer.code for answer in answers} == {0}
    return [answer.opaque for answer in answers]


async def _post_many(client: BrokerClient, count: int) -> None:
    for number in range(count):
        client.post(SEND, b"x", **send_fields(i=f"UNIQ_KEY\x01{number:032X}"))
        if number % 100 == 0:
            async with asyncio.timeout(LIMIT_S):
                await client.writer.drain()


async def _while_nobody_reads(running: RunningBroker) -> None:
    client, other = await running.connect(), await running.connect()
    await client.send()
    assert all(peer.outlet for peer in running.broker.server.peers)
    posted = asyncio.create_task(_post_many(client, SENDS))
    # Another connection is answered all the while.
    for _ in range(20):
        assert (await other.send()).code == 0
    assert await _opaques(client, SENDS) == list(range(2, SENDS + 2))
    await posted


async def _gone_before_the_answer(running: RunningBroker) -> None:
    staying = await running.connect()
    await staying.send()
    for number in range(50):
        leaving = await running.connect()
        leaving.post(SEND, b"x", **send_fields())
        await leaving.writer.drain()
        leaving.writer.transport.abort()
        # Whoever gets the number of that socket next hears its own answers alone.
        coming = await running.connect()
        assert (await coming.send()).opaque == coming.opaque
        assert (await staying.send()).opaque == staying.opaque == number + 2
        coming.writer.close()


@pytest.mark.parametrize("scene", [_while_nobody_reads, _gone_before_the_answer])
def test_answers_reach_whom_they_are_for(tmp_path: Path, scene: Scene) -> None:
    async def play() -> None:
        async with running_broker(tmp_path, None, mappedFileSizeCommitLog=str(1 << 26)) as running:
            await scene(running)

    eventloop.run(play())
