"""Locks of ordered queues: got, renewed, believed for a while, given back."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from cometmq.client.consumer.offsets import RemoteOffsets
from cometmq.client.consumer.queuelocks import QueueLocks
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.client.fake_broker import FakeBroker, FakeCluster, open_session
from tests.client.scripted import Answer, eventually

LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
QUEUE = MessageQueue("t", "broker-0", 0)


async def test_locks(cluster: FakeCluster, broker: FakeBroker) -> None:
    async with open_session(cluster, lock_expiry_ms=80) as session:
        locks = QueueLocks(session, "g")
        assert not locks.held(QUEUE)
        assert await locks.acquire([QUEUE]) == {QUEUE}
        assert (locks.held(QUEUE), locks.epoch(QUEUE)) == (True, 1)
        await locks.acquire([QUEUE])
        assert locks.epoch(QUEUE) == 1
        script = broker.peer.scripts[LOCK]
        broker.peer.on(LOCK, Answer(1, remark="no"))
        assert await locks.acquire([QUEUE]) == {QUEUE}  # believed until its time is up
        assert not await locks.renew([QUEUE])
        await eventually(lambda: not locks.held(QUEUE))
        broker.peer.on(LOCK, script)
        assert await locks.acquire([QUEUE]) == {QUEUE}
        assert await locks.renew([QUEUE])
        assert locks.epoch(QUEUE) == 2
        await locks.release(QUEUE)
        await locks.release(QUEUE)
        assert broker.locks == {}
        assert not locks.held(QUEUE)


async def test_an_unlock_that_fails_is_only_logged(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Request[Any]) -> Answer:
        return Answer(1, remark="no")

    broker.peer.on(UNLOCK, refuse)
    async with open_session(cluster) as session:
        locks = QueueLocks(session, "g")
        await locks.acquire([QUEUE])
        with caplog.at_level(logging.WARNING):
            await locks.release(QUEUE)
    assert "unlock_failed" in caplog.text


async def test_a_queue_that_is_released_during_a_renewal_stays_released(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    script = broker.peer.scripts[LOCK]
    async with open_session(cluster) as session:
        locks = QueueLocks(session, "g")
        await locks.acquire([QUEUE])
        broker.peer.on(LOCK, None)
        under_way = asyncio.create_task(locks.renew([QUEUE]))
        await eventually(lambda: len(broker.peer.received(LOCK)) == 2)
        release = asyncio.create_task(locks.release(QUEUE))
        behind = asyncio.create_task(locks.renew([QUEUE]))
        # Requests come in order: had the release been sent, it would be here before this one.
        assert await RemoteOffsets(session, "g").peek(QUEUE) is None
        assert not broker.peer.received(UNLOCK)
        broker.peer.on(LOCK, script)
        broker.peer.connections[0].answer(broker.peer.received(LOCK)[-1])
        await asyncio.gather(under_way, behind, release)
        assert (broker.locks, locks.held(QUEUE)) == ({}, False)
        assert (len(broker.peer.received(LOCK)), len(broker.peer.received(UNLOCK))) == (2, 1)
        assert await locks.acquire([QUEUE]) == {QUEUE}
