"""The way from what a member reads to what it should read. Locks of ordered queues: got, renewed,
believed for a while, given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.consumer.allocate import Group
from cometmq.client.consumer.offsets import RemoteOffsets
from cometmq.client.consumer.rebalance import Plan, QueueLocks, Rebalancer, plan
from cometmq.client.consumer.refusals import Refusals
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster, fake_cluster, open_session
from tests.client.scripted import Answer, eventually
from tests.client.test_session import FakeMember

QUEUES = st.sets(st.builds(MessageQueue, st.just("t"), st.sampled_from("ab"), st.integers(0, 5)))


@given(QUEUES, QUEUES)
def test_a_plan_leads_from_one_to_the_other(
    current: set[MessageQueue], share: set[MessageQueue]
) -> None:
    change = plan(current, share)
    assert (current - set(change.drop)) | set(change.add) == share
    assert set(change.drop) <= current
    assert not set(change.add) & current


class Reading:
    """Carries plans out on a set."""

    def __init__(self) -> None:
        self.queues: set[MessageQueue] = set()
        self.refusals = Refusals({"t"})
        self.complete = True
        self.plans = 0

    def assigned(self, topic: str) -> list[MessageQueue]:
        return [queue for queue in self.queues if queue.topic == topic]

    async def apply(self, change: Plan) -> bool:
        self.plans += 1
        self.queues = self.queues - set(change.drop) | set(change.add)
        return self.complete


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(brokers=2) as cluster:
        cluster.create("t", 2)
        yield cluster


async def rebalancer(session: Any, reading: Reading, **changes: Any) -> Rebalancer:
    wanted = options(**changes)
    await session.publish_queues("t")
    member = FakeMember("g", *wanted.topics)
    await session.add_member(member)
    return Rebalancer(session, wanted, reading)


async def test_a_single_member_reads_everything(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading)
        assert await rounds.round()
        assert len(reading.assigned("t")) == 4
        assert len(reading.assigned("%RETRY%g")) == 2
        plans = reading.plans
        assert await rounds.round()
        assert reading.plans == plans


async def test_members_share(cluster: FakeCluster) -> None:
    async with open_session(cluster) as one, open_session(cluster) as two:
        mine, theirs = Reading(), Reading()
        first, second = await rebalancer(one, mine), await rebalancer(two, theirs)
        assert await first.round()
        assert await second.round()
        assert len(mine.assigned("t")) == len(theirs.assigned("t")) == 2
        assert not mine.queues & theirs.queues


async def test_everybody_reads_everything_when_broadcasting(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading, mode="broadcasting")
        assert await rounds.round()
        assert len(reading.queues) == 4
        ids = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        assert not any(broker.peer.received(ids) for broker in cluster.brokers)


@pytest.mark.parametrize("answer", [Answer(1, remark="nobody"), Answer(body=b"[]")])
async def test_without_a_list_of_members_everything_stays(
    cluster: FakeCluster, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_session(cluster) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading)
        await rounds.round()
        before = set(reading.queues)
        for broker in cluster.brokers:
            broker.peer.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, answer)
        with caplog.at_level(logging.WARNING):
            assert not await rounds.round()
        assert reading.queues == before
        assert "unavailable topic=t" in caplog.text


async def test_a_broker_that_does_not_know_this_member_hears_of_it(cluster: FakeCluster) -> None:
    async with open_session(cluster, heartbeat_interval_ms=60_000) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading)
        for broker in cluster.brokers:
            broker.members["g"] = {"somebody else": broker.peer.connections[0]}
        assert not await rounds.round()
        assert session.client_id in cluster.brokers[0].members["g"]
        assert not reading.assigned("%RETRY%g")  # the first topic that it asked for


async def test_a_topic_without_queues_is_no_work(cluster: FakeCluster) -> None:
    cluster.create("t", 0)
    async with open_session(cluster) as session:
        reading = Reading()
        wanted = options(mode="clustering")
        await session.refresh("t")
        await session.add_member(FakeMember("g", *wanted.topics))
        cluster.create("%RETRY%g", 0)
        assert await Rebalancer(session, wanted, reading).round()
        assert reading.queues == set()


async def test_rounds_repeat_when_told_when_due_and_when_unfinished(cluster: FakeCluster) -> None:
    async with open_session(cluster, rebalance_interval_ms=60_000) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading)
        running = session.tasks.spawn(rounds.run(), name="rounds")
        await eventually(lambda: len(reading.queues) == 6)
        reading.queues.clear()
        rounds.soon()
        await eventually(lambda: len(reading.queues) == 6)
        running.cancel()
    async with open_session(cluster, rebalance_interval_ms=10) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading)
        session.tasks.spawn(rounds.run(), name="rounds")
        await eventually(lambda: len(reading.queues) == 6)
        reading.queues.clear()
        await eventually(lambda: len(reading.queues) == 6)


async def test_members_share_as_they_are_told(cluster: FakeCluster) -> None:
    def only_the_first(group: Group) -> list[MessageQueue]:
        return [queue for queue in group.queues if queue.queue_id == 0]

    async with open_session(cluster) as session:
        reading = Reading()
        assert await (await rebalancer(session, reading, allocation=only_the_first)).round()
        assert {queue.queue_id for queue in reading.assigned("t")} == {0}


async def test_a_strategy_that_fails_leaves_everything_as_it_is(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(group: Group) -> list[MessageQueue]:
        raise ZeroDivisionError(group.topic)

    async with open_session(cluster) as session:
        reading = Reading()
        with caplog.at_level(logging.WARNING):
            assert not await (await rebalancer(session, reading, allocation=fail)).round()
        assert reading.plans == 0
        assert "the allocation strategy failed: ZeroDivisionError('t')" in caplog.text


async def test_a_round_asks_a_broker_once_for_the_members(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading)
        ids = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        for count in (1, 2):
            assert await rounds.round()
            asked = [request for broker in cluster.brokers for request in broker.peer.received(ids)]
            assert len(asked) == count
        assert {queue.topic for queue in reading.queues} == {"t", "%RETRY%g"}


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
    assert "unavailable topic=t" in caplog.text


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


async def test_another_broker_is_asked_if_one_denies(cluster: FakeCluster) -> None:
    denied = Answer(1, remark="AclException: No default permission for group:g")
    ids = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    first, *others = cluster.brokers
    first.peer.on(ids, denied)
    async with open_session(cluster) as session:
        reading = Reading()
        rounds = await rebalancer(session, reading)
        for _ in range(8):
            assert await rounds.round()
        for broker in others:
            broker.peer.on(ids, denied)
        assert not await rounds.round()
        assert len(reading.assigned("t")) == 4
        error = reading.refusals.error
        assert error is not None
        assert "No default permission for group:g" in str(error)
