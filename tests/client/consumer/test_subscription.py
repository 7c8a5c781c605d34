"""Subscriptions as users hold them: iterated, run, shared, closed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.client.consumer.pushconsumer import Subscription
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.producer import Producer
from cometmq.client.session import Session
from cometmq.protocol.codes import RequestCode
from tests.client.consumer.test_options import options
from tests.client.consumer.test_pushconsumer import fill
from tests.client.fake_broker import FakeBroker
from tests.client.scripted import eventually


def subscription(session: Session, concurrency: int = 8) -> Subscription:
    wanted = options(start="first", concurrency=concurrency)
    return Subscription(session, Producer(session), wanted)


async def test_iterating_joins_and_closing_ends_it(broker: FakeBroker, session: Session) -> None:
    fill(broker, "1", "2", "3")
    found = []
    given = subscription(session)
    async for message in given:
        async with message.processing():
            found.append(message.body)
        if len(found) == 3:
            await given.close()
    assert found == [b"1", b"2", b"3"]
    assert broker.offset("g", "t") == 3
    assert not session.members
    assert [message async for message in given] == []


async def test_tasks_may_share_an_iteration(broker: FakeBroker, session: Session) -> None:
    fill(broker, *map(str, range(20)))
    found: list[bytes] = []

    async def work(given: Subscription) -> None:
        async for message in given:
            async with message.processing():
                found.append(message.body)
                await asyncio.sleep(0)

    async with subscription(session) as given:
        workers = [asyncio.create_task(work(given)) for _ in range(4)]
        await eventually(lambda: len(found) == 20)
    await asyncio.gather(*workers)
    assert sorted(found) == sorted(b"%d" % at for at in range(20))


async def test_no_more_messages_than_the_concurrency_are_in_work(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, *map(str, range(30)))
    working, most, done = 0, 0, 0

    async def handle(_: ReceivedMessage) -> None:
        nonlocal working, most, done
        working += 1
        most = max(most, working)
        await asyncio.sleep(0)
        working -= 1
        done += 1

    async with subscription(session, concurrency=3) as given:
        running = asyncio.create_task(given.run(handle))
        await eventually(lambda: done == 30)
    await running
    assert most == 3
    assert broker.offset("g", "t") == 30


async def test_a_handler_that_raises_gets_the_message_again(
    broker: FakeBroker, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1", "2")
    seen: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"1" and message.reconsume_times == 0:
            raise ValueError("not yet")

    with caplog.at_level(logging.WARNING):
        async with subscription(session) as given:
            running = asyncio.create_task(given.run(handle))
            await eventually(lambda: len(seen) == 3)
        await running
    assert sorted(seen) == [(b"1", 0), (b"1", 1), (b"2", 0)]
    assert "processing_failed" in caplog.text


async def test_a_plain_function_may_handle(broker: FakeBroker, session: Session) -> None:
    fill(broker, "1", "2")
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with subscription(session) as given:
        running = asyncio.create_task(given.run(handle))
        await eventually(lambda: len(seen) == 2)
    await running
    assert broker.offset("g", "t") == 2


async def test_a_cancelled_run_gives_its_messages_back(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, "1")
    begun = asyncio.Event()

    async def handle(_: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with subscription(session) as given:
        running = asyncio.create_task(given.run(handle))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        message = await anext(given)
        assert (message.body, message.reconsume_times) == (b"1", 0)
        message.ack()


async def test_several_who_start_it_join_once(broker: FakeBroker, session: Session) -> None:
    given = subscription(session)
    await asyncio.gather(*(given.start() for _ in range(5)))
    assert len(session.members) == 1
    await given.close()
    await given.start()
    assert not session.members


async def test_everybody_who_closes_it_waits_for_its_end(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, "1")
    given = subscription(session)
    (await anext(given)).ack()
    await asyncio.gather(given.close(), given.close())
    assert broker.offset("g", "t") == 1
    await given.close()


async def test_closing_waits_for_work_no_longer_than_it_is_told(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, "1", "2")
    begun: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.body)
        if message.body == b"2":
            await asyncio.Event().wait()

    given = subscription(session)
    running = asyncio.create_task(given.run(handle))
    await eventually(lambda: len(begun) == 2)
    assert await given.close(timeout_ms=20) == 1
    assert broker.offset("g", "t") == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_closing_counts_nothing_that_ends_in_time(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, "1")
    begun, end = asyncio.Event(), asyncio.Event()

    async def handle(_: ReceivedMessage) -> None:
        begun.set()
        await end.wait()

    given = subscription(session)
    running = asyncio.create_task(given.run(handle))
    await begun.wait()
    closing = asyncio.create_task(given.close(timeout_ms=30_000))
    await eventually(lambda: given.closed)
    end.set()
    assert await closing == 0
    await running
    assert broker.offset("g", "t") == 1


async def test_one_that_was_never_used_can_be_closed(session: Session) -> None:
    async with subscription(session):
        unused = subscription(session)
        await unused.close()
        assert session.members
        second = subscription(session)
        with pytest.raises(ValueError, match="already"):
            await second.start()
        await second.close()
        assert session.members


async def test_a_handler_that_waits_for_nothing_leaves_turns_to_others(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, *map(str, range(300)))
    given = subscription(session, concurrency=1)
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with given:
        pulls = broker.peer.received
        # Everything is at hand when the pull behind it is there.
        await eventually(
            lambda: any(pull.header.queue_offset == 300 for pull in pulls(RequestCode.PULL_MESSAGE))
        )
        ticking = asyncio.create_task(tick())
        seen = []
        async for message in given:
            message.ack()
            seen.append(turns)
            if len(seen) == 300:
                break
        ticking.cancel()
    assert len(set(seen)) >= 4
