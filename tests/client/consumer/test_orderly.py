"""Ordered consumers: one at a time, retried in place, and only under the broker's lock."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from cometmq.message.model import MessageQueue, from_record
from cometmq.protocol.bodies import QueueKey
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.client.consumer.test_pushconsumer import bodies, consumer_of, fill, joined, take
from tests.client.fake_broker import FakeBroker, FakeCluster, open_session
from tests.client.scripted import Answer, eventually

LOCK = RequestCode.LOCK_BATCH_MQ
KEY = QueueKey(topic="t", broker_name="broker-0", queue_id=0)
QUEUE = MessageQueue("t", "broker-0", 0)


def ahead(broker: FakeBroker, topic: str, offset: int) -> list[Request[Any]]:
    """Pulls of a topic from an offset on."""
    return [
        request
        for request in broker.peer.received(RequestCode.PULL_MESSAGE)
        if (request.header.topic, request.header.queue_offset) == (topic, offset)
    ]


async def test_messages_of_a_queue_come_one_by_one(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    fill(broker, "a1", "a2", queue_id=0)
    fill(broker, "b1", "b2", queue_id=1)
    async with joined(cluster, ordered=True) as consumer:
        held = {(await take(consumer)).body: at for at in range(2)}
        assert set(held) == {b"a1", b"b1"}
        third = asyncio.create_task(consumer.take())
        # Everything is pulled: both queues are asked for what comes behind it.
        await eventually(lambda: {each.header.queue_id for each in ahead(broker, "t", 2)} == {0, 1})
        assert not third.done()
        third.cancel()
    assert broker.locks == {}


async def test_a_failed_message_is_given_again_before_the_next(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1", "2")
    async with joined(cluster, ordered=True) as consumer:
        for attempt in range(3):
            message = await take(consumer)
            assert (message.body, message.reconsume_times) == (b"1", attempt)
            await message.retry()
        assert await bodies(consumer, 2) == [b"1", b"2"]
    assert not broker.peer.received(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert broker.offset("g", "t") == 2


async def test_what_is_given_back_comes_again_at_once(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1", "2")
    async with joined(cluster, ordered=True) as consumer:
        (await take(consumer)).give_back()
        assert await bodies(consumer, 2) == [b"1", b"2"]


@pytest.mark.parametrize(("most", "level"), [(1, 0), (-1, -1)])
async def test_after_the_last_attempt_it_makes_room(
    cluster: FakeCluster, broker: FakeBroker, most: int, level: int
) -> None:
    fill(broker, "1", "2", tag="x")
    async with joined(cluster, ordered=True, max_reconsume_times=most) as consumer:
        if most > 0:
            await (await take(consumer)).retry()
        await (await take(consumer)).retry(level)
        second = await take(consumer)
        while second.topic != "t" or second.body != b"2":
            second.ack()  # the retry topic, which this broker delivers at once
            second = await take(consumer)
        second.ack()
    (stored,) = broker.stored("%RETRY%g")
    message = from_record(stored)
    assert (message.body, message.tag) == (b"1", "x")
    assert message.properties["RETRY_TOPIC"] == "t"
    header = broker.peer.received(RequestCode.SEND_MESSAGE_V2)[0].header
    # The broker makes it a dead letter, because no attempt is left.
    assert header.reconsume_times >= header.max_reconsume_times == max(most, 0)


async def test_a_dead_letter_that_cannot_leave_is_tried_again(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1")
    broker.peer.on(RequestCode.SEND_MESSAGE_V2, Answer(13, remark="no"))
    with caplog.at_level(logging.WARNING):
        async with joined(cluster, ordered=True, max_reconsume_times=0) as consumer:
            await (await take(consumer)).retry()
            again = await take(consumer)
            assert again.reconsume_times == 1
            again.ack()
    assert "send_back_failed" in caplog.text


async def test_a_broadcast_message_that_failed_for_good_is_dropped(
    cluster: FakeCluster, broker: FakeBroker, tmp_path: Any
) -> None:
    fill(broker, "1", "2")
    wanted = {"ordered": True, "mode": "broadcasting", "max_reconsume_times": 0}
    async with joined(cluster, {"offsets_dir": tmp_path}, **wanted) as consumer:
        await (await take(consumer)).retry()
        assert await bodies(consumer, 1) == [b"2"]
    assert not broker.peer.received(LOCK)


async def test_a_locked_queue_waits_for_its_lock(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, "1")
    broker.locks[KEY] = "somebody else"
    async with joined(cluster, {"rebalance_interval_ms": 20}, ordered=True) as consumer:
        await eventually(lambda: len(broker.peer.received(LOCK)) >= 2)
        assert consumer.assigned("t") == []
        broker.offsets["g", "t", 0] = 0
        del broker.locks[KEY]
        assert await bodies(consumer, 1) == [b"1"]


async def test_after_a_lost_lock_the_group_is_asked_where_it_stands(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1", "2", "3")
    settings = {"lock_renewal_interval_ms": 10}
    with caplog.at_level(logging.WARNING):
        async with joined(cluster, settings, ordered=True) as consumer:
            first = await take(consumer)
            broker.locks[KEY] = "somebody else"
            await eventually(lambda: "lock_lost" in caplog.text)
            first.ack()  # too late: it has no effect
            broker.offsets["g", "t", 0] = 2  # the other one went on
            broker.put("t", 0, b"4")  # wakes the pull that is held
            del broker.locks[KEY]
            assert await bodies(consumer, 2) == [b"3", b"4"]
            await eventually(lambda: broker.offset("g", "t") == 4)


async def test_a_lock_that_expired_is_asked_for_until_it_is_back(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    settings = {"lock_expiry_ms": 30, "lock_renewal_interval_ms": 60_000}
    async with joined(cluster, settings, ordered=True) as consumer:
        await eventually(lambda: consumer.assigned("t"))
        broker.locks[KEY] = "somebody else"
        before = len(broker.peer.received(LOCK))
        locks = consumer._locks
        assert locks is not None
        await eventually(lambda: not locks.held(QUEUE))
        fill(broker, "1")  # ends the pull that is held; the next needs the lock
        await eventually(lambda: len(broker.peer.received(LOCK)) > before + 3)
        broker.offsets["g", "t", 0] = 0
        broker.locks[KEY] = consumer._session.client_id
        assert await bodies(consumer, 1) == [b"1"]


async def test_a_renewal_that_failed_is_tried_again_soon(
    cluster: FakeCluster, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.consumer.pushconsumer._RENEW_AGAIN_MS", 10)
    async with joined(cluster, {"lock_renewal_interval_ms": 1_000}, ordered=True) as consumer:
        await eventually(lambda: consumer.assigned("t"))
        broker.peer.on(LOCK, Answer(1, remark="no"))
        before = len(broker.peer.received(LOCK))
        # One a second would take longer than anybody waits here.
        await eventually(lambda: len(broker.peer.received(LOCK)) >= before + 20)


async def test_a_dropped_queue_is_unlocked_when_its_message_is_done(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    async with joined(cluster, {"client_id": "a"}, ordered=True) as one:
        await eventually(lambda: len(one.assigned("t")) == 2)
        fill(broker, "x", "y", queue_id=1)
        message = await take(one)
        async with joined(cluster, {"client_id": "b"}, ordered=True) as two:
            await eventually(lambda: len(one.assigned("t")) == 1)
            before = len(broker.peer.received(LOCK))
            await eventually(lambda: len(broker.peer.received(LOCK)) > before + 2)
            assert two.assigned("t") == []  # x is still in work
            message.ack()
            second = await take(two)
            assert second.body == b"y"  # x was done under the first one's lock
            second.ack()


async def test_a_failed_message_of_a_dropped_queue_goes_to_its_next_owner_at_once(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    async with joined(cluster, {"client_id": "a"}, ordered=True) as one:
        await eventually(lambda: len(one.assigned("t")) == 2)
        fill(broker, "x", queue_id=1)
        message = await take(one)
        async with joined(cluster, {"client_id": "b"}, ordered=True) as two:
            await eventually(lambda: len(one.assigned("t")) == 1)
            await message.retry()
            again = await take(two)
            assert (again.body, again.reconsume_times) == (b"x", 0)
            again.ack()


async def test_a_pause_of_one_s_own(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, "1", "2")
    async with joined(cluster, {"ordered_retry_pause_ms": 60_000}, ordered=True) as consumer:
        await (await take(consumer)).retry(pause_ms=1)
        assert await bodies(consumer, 2) == [b"1", b"2"]


async def test_a_lock_lost_and_regained_gives_no_second_message_while_one_is_in_work(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1", "2")
    async with joined(cluster, ordered=True) as consumer:
        held = await take(consumer)
        with caplog.at_level(logging.WARNING):
            broker.locks[KEY] = "somebody else"
            await eventually(lambda: "lock_lost queue" in caplog.text)
        pulls = len(ahead(broker, "t", 0))
        broker.locks.clear()
        fill(broker, "3")  # ends the pull that is held
        await eventually(lambda: len(ahead(broker, "t", 0)) > pulls)  # it is read anew
        again = asyncio.create_task(consumer.take())
        await eventually(lambda: ahead(broker, "t", 3))
        assert not again.done()
        held.ack()
        message = await asyncio.wait_for(again, 10)
        assert message is not None
        assert message.body == b"1"
        message.ack()
        assert await bodies(consumer, 2) == [b"2", b"3"]


async def test_an_ordered_queue_is_not_handed_over_while_its_message_is_in_work(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    async with joined(cluster, {"client_id": "a"}, ordered=True) as one:
        await eventually(lambda: len(one.assigned("t")) == 2)
        fill(broker, "x", "y", queue_id=1)
        message = await take(one)
        async with joined(cluster, {"client_id": "b"}, ordered=True) as two:
            await eventually(lambda: len(one.assigned("t")) == 1)
            renewed = len(broker.peer.received(RequestCode.LOCK_BATCH_MQ))
            await eventually(
                lambda: len(broker.peer.received(RequestCode.LOCK_BATCH_MQ)) >= renewed + 4
            )
            assert two.assigned("t") == []
            message.ack()
            assert await bodies(two, 1) == [b"y"]
        assert broker.offset("g", "t", 1) == 2


async def test_the_lock_of_work_that_goes_on_after_a_close_is_left_to_expire(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    async with open_session(cluster) as session:
        async with consumer_of(session, ordered=True) as consumer:
            await eventually(lambda: len(consumer.assigned("t")) == 2)
            fill(broker, "x", queue_id=1)
            message = await take(consumer)
            block = message.processing()
            await block.__aenter__()
            assert await consumer.close(20) == 1
        assert {key.queue_id for key in broker.locks if key.topic == "t"} == {1}
