"""Wherever a broker's loop is held too long, the watchdog says who held it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from cometmq.net.eventloop import STALL_NS
from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.broker.serving import PULL, pull_fields, running_broker

LONG_S: Final = STALL_NS * 1.5 / 1e9


def hold_the_loop(*_: object) -> None:
    end_s = time.monotonic() + LONG_S
    while time.monotonic() < end_s:
        pass


class SlowHook:
    """Holds the loop after every request with one code."""

    def __init__(self, code: int) -> None:
        self.code = code

    def before(self, peer: Peer, request: Request[Any]) -> None:
        pass

    def after(self, peer: Peer, request: Request[Any], *_: int) -> None:
        if request.code == self.code:
            hold_the_loop()


async def test_a_long_commit_is_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        running.broker.store.listeners.append(hold_the_loop)
        client = await running.connect()
        await client.send()
        assert running.broker.watchdog.stalls["commit"] >= 1


async def test_long_work_behind_a_thread_s_sync_is_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path, flushDiskType="SYNC_FLUSH") as running:
        running.broker.store.listeners.append(hold_the_loop)
        client = await running.connect()
        await client.send()
        assert running.broker.store.flusher.threaded_count == 1
        assert running.broker.watchdog.stalls["synced"] >= 1


async def test_a_long_handler_in_the_loop_is_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        running.broker.router.hooks.append(SlowHook(RequestCode.GET_MAX_OFFSET))
        client = await running.connect()
        await client.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="0")
        assert running.broker.watchdog.stalls["code 30"] >= 1


async def test_a_long_task_is_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        running.broker.router.hooks.append(SlowHook(RequestCode.VIEW_MESSAGE_BY_ID))
        client = await running.connect()
        await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset="0")
        await client.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="0")
        assert running.broker.watchdog.stalls["VIEW_MESSAGE_BY_ID"] >= 1


async def test_long_answers_to_held_pulls_are_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        consumer, producer = await running.connect(), await running.connect()
        await producer.send()
        consumer.post(PULL, **pull_fields(1, sysFlag="6", suspendTimeoutMillis="30000"))
        await consumer.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="1")
        running.broker.consume_hooks.add(SlowHook(PULL))
        await producer.send()
        await consumer.frame()
        await producer.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="1")
        assert running.broker.watchdog.stalls["held pulls"] >= 1


async def test_a_long_farewell_is_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        leaving, staying = await running.connect(), await running.connect()
        for client in (leaving, staying):
            await client.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="1")
        for peer in running.broker.server.peers:
            peer.on_close.append(hold_the_loop)
        leaving.writer.close()
        while len(running.broker.server.peers) == 2:
            await staying.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="1")
        assert running.broker.watchdog.stalls["connection lost"] >= 1
