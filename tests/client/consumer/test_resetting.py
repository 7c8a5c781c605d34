"""Queues that are moved while they are read."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client.session import Session
from cometmq.protocol.codes import RequestCode as Code
from tests.client.consumer import test_inquiries
from tests.client.consumer.test_inquiries import reset
from tests.client.consumer.test_pushconsumer import bodies, consumer_of, fill, take
from tests.client.fake_broker import FakeBroker
from tests.client.scripted import Answer, eventually

session = test_inquiries.session


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
async def test_a_reset_goes_back_while_messages_are_held(
    session: Session, broker: FakeBroker, language: str
) -> None:
    fill(broker, *"012345")
    async with consumer_of(session, concurrency=2) as consumer:
        assert await bodies(consumer, 3) == [b"0", b"1", b"2"]
        held = await take(consumer)
        assert held.body == b"3"
        # From here on only the reset makes it 1.
        await eventually(lambda: broker.offset("g", "t") == 3)
        reset(broker, session, 1, language=language)
        await eventually(lambda: broker.offset("g", "t") == 1)
        held.ack()  # of a queue that was reset: without effect
        assert await bodies(consumer, 5) == [b"1", b"2", b"3", b"4", b"5"]
        await eventually(lambda: broker.offset("g", "t") == 6)


async def test_a_reset_goes_forward(session: Session, broker: FakeBroker) -> None:
    fill(broker, *"012345")
    async with consumer_of(session, concurrency=1) as consumer:
        held = await take(consumer)
        reset(broker, session, 4)
        await eventually(lambda: broker.offset("g", "t") == 4)
        held.ack()
        assert await bodies(consumer, 2) == [b"4", b"5"]


async def test_an_ordered_queue_is_moved_when_nothing_of_it_is_in_work(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, *"0123")
    async with consumer_of(session, ordered=True) as consumer:
        assert await bodies(consumer, 2) == [b"0", b"1"]
        held = await take(consumer)
        await eventually(lambda: broker.offset("g", "t") == 2)
        reset(broker, session, 0)
        await eventually(lambda: broker.offset("g", "t") == 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.take(), 0.1)
        held.ack()
        assert await bodies(consumer, 4) == [b"0", b"1", b"2", b"3"]
        await eventually(lambda: broker.offset("g", "t") == 4)


async def test_the_last_of_two_resets_holds(session: Session, broker: FakeBroker) -> None:
    fill(broker, *"0123")
    async with consumer_of(session, ordered=True) as consumer:
        held = await take(consumer)
        reset(broker, session, 1)
        await eventually(lambda: broker.offset("g", "t") == 1)
        reset(broker, session, 2)
        await eventually(lambda: broker.offset("g", "t") == 2)
        held.ack()
        assert await bodies(consumer, 2) == [b"2", b"3"]
        await eventually(lambda: broker.offset("g", "t") == 4)


async def test_a_reset_that_its_broker_does_not_store_is_stored_later(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, *"012")
    async with consumer_of(session) as consumer:
        assert await bodies(consumer, 3) == [b"0", b"1", b"2"]
        await eventually(lambda: broker.offset("g", "t") == 3)
        update = broker.peer.scripts[Code.UPDATE_CONSUMER_OFFSET]
        broker.peer.on(Code.UPDATE_CONSUMER_OFFSET, Answer(2, remark="busy"))
        reset(broker, session, 1)
        assert await bodies(consumer, 1) == [b"1"]
        broker.peer.on(Code.UPDATE_CONSUMER_OFFSET, update)
        await eventually(lambda: broker.offset("g", "t") == 2)


async def test_a_consumer_that_closes_meanwhile_keeps_the_reset(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, *"012")
    async with consumer_of(session, ordered=True) as consumer:
        assert await bodies(consumer, 2) == [b"0", b"1"]
        await take(consumer)
        await eventually(lambda: broker.offset("g", "t") == 2)
        reset(broker, session, 1)
        await eventually(lambda: broker.offset("g", "t") == 1)
    assert broker.offset("g", "t") == 1
