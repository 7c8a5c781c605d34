"""What subscribers do with messages that nobody settles, and with errors around handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import IncorrectState, NackMessage, SetupError

from cometmq.client.client import Client
from cometmq.core.errors import NotOpen
from cometmq.faststream import RocketMQRouter, TestRocketMQBroker
from cometmq.faststream.subscriber import RocketMQSubscriber, received_of
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name
from tests.faststream.conftest import Make
from tests.faststream.test_broker import DEADLINE_S, Seen, dead_letters


async def test_a_handler_that_awaits_a_cancelled_task_ends_no_worker(
    make: Make, topic: str
) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), ordered=True, start="first")
    async def handle(body: str) -> None:
        if seen.add(body) == 1:
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task

    async with broker:
        await broker.publish_batch("a", "b", topic=topic, order_key="one")
        await broker.start()
        assert await seen.wait(3) == ["a", "a", "b"]


async def test_a_wrong_argument_of_nack_is_a_retry(make: Make, topic: str) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), ordered=True, start="first")
    async def handle(body: str) -> None:
        if seen.add(body) == 1:
            raise NackMessage(delay=3)

    async with broker:
        await broker.publish_batch("a", "b", topic=topic, order_key="one")
        await broker.start()
        assert await seen.wait(3) == ["a", "a", "b"]


async def test_the_policy_of_a_broker_holds_in_routers(make: Make, topic: str) -> None:
    router, group = RocketMQRouter(), fresh_name()
    seen, again = Seen(), Seen()

    @router.subscriber(topic, group=group, start="first")
    async def hold(body: str) -> None:
        seen.add(body)

    broker = make(routers=[router], ack_policy=AckPolicy.MANUAL)
    async with broker:
        await broker.publish("held", topic)
        await broker.start()
        await seen.wait(1)
    broker = make()

    @broker.subscriber(topic, group=group, start="first")
    async def handle(body: str) -> None:
        again.add(body)

    async with broker:
        await broker.publish("after", topic)
        await broker.start()
        assert await again.wait(2) == ["held", "after"]


@pytest.mark.parametrize(
    "policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK]
)
async def test_a_message_that_cannot_be_parsed_does_not_stay_with_get_one(
    make: Make, client: Client, topic: str, policy: AckPolicy
) -> None:
    broker, group = make(), fresh_name()

    async def parser(message: Any, original: Any) -> Any:
        if message.body == b"bad" and not message.stored.reconsume_times:
            raise ValueError("bad")
        return await original(message)

    async with broker:
        await broker.publish_batch("bad", "good", topic=topic, order_key="one")
        subscriber = broker.subscriber(
            topic, group=group, ordered=True, start="first", parser=parser, ack_policy=policy
        )
        await subscriber.start()
        with pytest.raises(ValueError, match="bad"):
            await subscriber.get_one(timeout=DEADLINE_S)
        message = await subscriber.get_one(timeout=DEADLINE_S)
        assert message is not None
        retried = policy is AckPolicy.NACK_ON_ERROR
        assert message.body == (b"bad" if retried else b"good")
        if policy is AckPolicy.REJECT_ON_ERROR:
            async with asyncio.timeout(DEADLINE_S):
                while not await dead_letters(client, group):
                    await asyncio.sleep(0.05)


async def test_a_cancelled_get_one_gives_the_messages_of_its_batch_back(
    make: Make, topic: str
) -> None:
    broker = make()
    async with broker:
        await broker.publish("a", topic)
        subscriber = broker.subscriber(
            topic, group=fresh_name(), batch=True, max_records=2, batch_timeout_s=30, start="first"
        )
        await subscriber.start()
        taking = asyncio.create_task(subscriber.get_one(timeout=DEADLINE_S))
        assert subscriber._subscription is not None
        dispatch = subscriber._subscription._consumer._dispatch
        await eventually(lambda: dispatch.handed_out, deadline_s=DEADLINE_S)
        taking.cancel()
        await asyncio.wait([taking])
        assert not dispatch.handed_out
        await broker.publish("b", topic)
        message = await subscriber.get_one(timeout=DEADLINE_S)
        assert message is not None
        assert await message.decode() == ["a", "b"]


async def test_a_stop_ends_an_iteration_that_works_on_a_message(make: Make, topic: str) -> None:
    broker, group = make(), fresh_name()
    async with broker:
        await broker.publish("a", topic)
        subscriber = broker.subscriber(topic, group=group, start="first")
        async with asyncio.timeout(DEADLINE_S):
            async for _ in subscriber:
                await subscriber.stop()
        with pytest.raises(IncorrectState, match="is stopped"):
            await subscriber.get_one()
        await subscriber.start()
        assert await subscriber.get_one(timeout=DEADLINE_S) is not None


class SlowJoin:
    """Holds a client back while it joins a group: ``began`` tells, and ``may_go`` lets it."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.may_go = asyncio.Event(), asyncio.Event()
        self._add = client.session.add_member
        monkeypatch.setattr(client.session, "add_member", self._wait)

    async def _wait(self, member: Any) -> None:
        self.began.set()
        await self.may_go.wait()
        await self._add(member)


async def test_a_cancelled_start_joins_no_group(
    make: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make()
    subscriber = broker.subscriber(topic, group=fresh_name(), start="first")
    client = await broker.connect()
    join = SlowJoin(client, monkeypatch)
    starting = asyncio.create_task(subscriber.start())
    async with asyncio.timeout(DEADLINE_S):
        await join.began.wait()
        starting.cancel()
        join.may_go.set()
        await asyncio.wait([starting])
    assert not client.session.members
    await broker.publish("a", topic)
    await subscriber.start()
    assert await subscriber.get_one(timeout=DEADLINE_S) is not None
    await broker.stop()


async def test_a_cancelled_stop_leaves_no_worker(make: Make, topic: str) -> None:
    broker, seen = make(graceful_timeout=DEADLINE_S), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def hang(body: str) -> None:
        try:
            seen.add(body)
            await asyncio.Event().wait()
        finally:
            seen.add("ended")

    async with broker:
        await broker.publish("a", topic)
        await broker.start()
        await seen.wait(1)
        (subscriber,) = broker.subscribers
        stopping = asyncio.create_task(subscriber.stop())
        await eventually(lambda: not subscriber.running, deadline_s=DEADLINE_S)
        stopping.cancel()
        await asyncio.wait([stopping])
        assert seen.found == ["a", "ended"]


async def test_a_broker_stopped_during_its_start_reads_after_the_next(
    make: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(body: str) -> None:
        seen.add(body)

    client = await broker.connect()
    join = SlowJoin(client, monkeypatch)
    await broker.publish("a", topic)
    starting = asyncio.create_task(broker.start())
    async with asyncio.timeout(DEADLINE_S):
        await join.began.wait()
        stopping = asyncio.create_task(broker.stop())
        await eventually(lambda: client._subscriptions[0].closed)
        join.may_go.set()
        await asyncio.wait([starting, stopping])
    async with broker:
        await broker.start()
        assert await seen.wait(1) == ["a"]


async def test_a_worker_that_fails_is_told(make: Make, topic: str, monkeypatch: Any) -> None:
    broker = make()
    broker.subscriber(topic, group=fresh_name(), start="first", max_workers=2)(print)
    (subscriber,) = broker.subscribers

    async def fail(*_: Any) -> None:
        raise OSError("no more")

    monkeypatch.setattr(subscriber, "_take", fail)
    async with broker:
        await broker.start()
        assert isinstance(subscriber, RocketMQSubscriber)
        await eventually(lambda: subscriber.problem, deadline_s=DEADLINE_S)
        assert "no more" in subscriber.problem
        assert not await broker.ping()


async def test_a_broker_is_real_again_after_a_test_in_memory(make: Make, topic: str) -> None:
    broker = make()
    subscriber = broker.subscriber(topic, group=fresh_name(), start="first")

    async def fail() -> None:
        async with TestRocketMQBroker(broker):
            assert await subscriber.get_one(timeout=0.01) is None
            raise ValueError("of the test")

    with pytest.raises(ValueError, match="of the test"):
        await fail()
    async with broker:
        await broker.publish("a", topic)
        await broker.start()
        message = await subscriber.get_one(timeout=DEADLINE_S)
        assert message is not None
        assert await message.decode() == "a"


async def test_a_start_that_fails_leaves_nothing(make: Make, topic: str) -> None:
    broker, group = make(), fresh_name()
    for _ in range(2):
        broker.subscriber(topic, group=group)(print)
    client = await broker.connect()
    with pytest.raises(SetupError, match="two subscribers have the group"):
        await broker.start()
    assert not any(each.running for each in broker.subscribers)
    with pytest.raises(NotOpen):
        client.status()


async def test_a_batch_has_no_message_of_a_queue_that_was_given_up(make: Make, topic: str) -> None:
    broker = make()
    async with broker:
        await broker.publish("a", topic)
        subscriber = broker.subscriber(
            topic, group=fresh_name(), batch=True, batch_timeout_s=4, start="first"
        )
        await subscriber.start()
        taking = asyncio.create_task(subscriber.get_one(timeout=5))
        assert subscriber._subscription is not None
        consumer = subscriber._subscription._consumer
        await eventually(lambda: consumer._dispatch.handed_out, deadline_s=DEADLINE_S)
        for queue in consumer._fetcher.queues():
            consumer._fetcher.stop(queue)
        # The next rebalance takes the queues back: their messages may come again within the time.
        found = await taking
        again = () if found is None else received_of(found.raw_message)
        assert not any(each.is_given_up for each in again)
        assert consumer._dispatch.handed_out == len(again)


async def test_subscribers_come_and_go_while_the_broker_runs(make: Make, topic: str) -> None:
    broker, group = make(), fresh_name()
    async with broker:
        await broker.start()
        await broker.publish_batch("a", "b", topic=topic, order_key="one")
        for body in ("a", "b"):
            subscriber = broker.subscriber(topic, group=group, start="first", persistent=False)
            await subscriber.start()
            message = await subscriber.get_one(timeout=DEADLINE_S)
            assert message is not None
            assert await message.decode() == body
            await message.ack()
            await subscriber.stop()
            await subscriber.stop()


async def test_a_broker_that_is_started_twice_delivers_once(make: Make, topic: str) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(body: str) -> None:
        seen.add(body)

    for body in ("a", "b"):
        async with broker:
            await broker.start()
            await broker.start()
            await broker.publish(body, topic)
            await seen.wait(1 if body == "a" else 2)
    assert seen.found == ["a", "b"]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_handler_can_stop_its_broker(make: Make, topic: str, whole: bool) -> None:
    broker, seen = make(graceful_timeout=4), Seen()

    @broker.subscriber(topic, group=fresh_name(), max_workers=2, start="first")
    async def handle(body: str) -> None:
        begun = asyncio.get_running_loop().time()
        await (broker if whole else broker.subscribers[0]).stop()
        seen.add(asyncio.get_running_loop().time() - begun)

    client = await broker.connect()
    await broker.publish("a", topic)
    await broker.start()
    (took,) = await seen.wait(1)
    assert took < 7.9  # the grace of four seconds, once
    await broker.stop()
    with pytest.raises(NotOpen):
        client.status()


async def test_a_batch_may_be_complete_after_the_timeout_of_get_one(make: Make, topic: str) -> None:
    broker = make()
    async with broker:
        await broker.publish("a", topic)
        subscriber = broker.subscriber(
            topic, group=fresh_name(), batch=True, batch_timeout_s=1, start="first"
        )
        await subscriber.start()
        assert subscriber._subscription is not None
        dispatch = subscriber._subscription._consumer._dispatch
        await eventually(lambda: dispatch._turns, deadline_s=DEADLINE_S)
        message = await subscriber.get_one(timeout=0.2)
        assert message is not None
        assert await message.decode() == ["a"]


async def test_a_cancelled_stop_closes_the_client(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make()
    client = await broker.connect()
    began, drain = asyncio.Event(), client.drain

    async def hang() -> int:
        began.set()
        monkeypatch.setattr(client, "drain", drain)
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(client, "drain", hang)
    stopping = asyncio.create_task(broker.stop())
    async with asyncio.timeout(DEADLINE_S):
        await began.wait()
        stopping.cancel()
        await asyncio.wait([stopping])
    assert stopping.cancelled()
    with pytest.raises(NotOpen):
        client.status()
