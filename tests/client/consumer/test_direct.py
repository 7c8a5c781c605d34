"""Messages that are consumed at once, past the queues."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client.consumer import adminrequests
from cometmq.client.consumer.acknowledgements import ConsumerSettler, SendBack
from cometmq.client.consumer.adminrequests import DirectConsumption
from cometmq.client.consumer.inflight import Dispatch
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.producer import Producer
from cometmq.client.session import Session
from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import DirectResult
from tests.client.consumer.test_inflight import message
from tests.client.consumer.test_options import options


class Hands:
    """A consumer's dispatch, with nothing in its queues."""

    def __init__(self, session: Session, *, concurrency: int = 2) -> None:
        wanted = options()
        self.dispatch = Dispatch(session.clock, concurrency=concurrency, per_queue=1)
        self.settler = ConsumerSettler(
            session, wanted, self.dispatch, SendBack(session, wanted, Producer(session)), []
        )
        self.direct = DirectConsumption(session.clock, self.dispatch, self.settler, ordered=True)

    def ask(self) -> asyncio.Task[DirectResult]:
        return asyncio.create_task(self.direct.consume(message(7)))

    async def take(self) -> ReceivedMessage:
        taken = await asyncio.wait_for(self.dispatch.take(), 10)
        assert taken is not None
        inflight, stored = taken
        assert inflight in self.direct
        return ReceivedMessage(self.direct.settler_of(inflight), inflight, stored)


async def test_an_acknowledged_message(session: Session) -> None:
    hands = Hands(session)
    asked = hands.ask()
    taken = await hands.take()
    assert taken.queue_offset == 7
    async with taken.processing():
        assert hands.settler.working == 1
    result = await asked
    assert (result.consume_result, result.order, result.auto_commit) == ("CR_SUCCESS", True, True)
    assert result.remark is None
    assert (hands.settler.working, hands.dispatch.handed_out) == (0, 0)


async def test_settled_without_a_block(session: Session) -> None:
    hands = Hands(session)
    asked = hands.ask()
    (await hands.take()).ack()
    assert (await asked).consume_result == "CR_SUCCESS"
    asked = hands.ask()
    await (await hands.take()).retry()
    assert (await asked).consume_result == "CR_LATER"


async def test_a_block_that_raises(session: Session) -> None:
    hands = Hands(session)
    asked = hands.ask()
    async with (await hands.take()).processing():
        raise ValueError("no such key")
    result = await asked
    assert result.consume_result == "CR_THROW_EXCEPTION"
    assert result.remark == "ValueError: no such key"


async def test_a_retry_within_a_block(session: Session) -> None:
    hands = Hands(session)
    asked = hands.ask()
    taken = await hands.take()
    async with taken.processing():
        await taken.retry(3)
    assert (await asked).consume_result == "CR_LATER"


async def test_a_block_that_is_cancelled(session: Session) -> None:
    hands = Hands(session)
    asked = hands.ask()
    taken = await hands.take()
    with pytest.raises(asyncio.CancelledError):
        async with taken.processing():
            raise asyncio.CancelledError
    assert (await asked).consume_result == "CR_RETURN_NULL"
    assert hands.dispatch.handed_out == 0


async def test_it_waits_for_a_free_place(session: Session) -> None:
    hands = Hands(session, concurrency=1)
    first, second = hands.ask(), hands.ask()
    taken = await hands.take()
    assert hands.dispatch.take_now() is None
    taken.ack()
    (await hands.take()).ack()
    assert (await first).consume_result == (await second).consume_result == "CR_SUCCESS"


async def test_nobody_takes_it_in_time(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adminrequests, "TIMEOUT_MS", 10)
    hands = Hands(session)
    with pytest.raises(BadRequest, match="no consumer task took it") as caught:
        await hands.ask()
    assert caught.value.code == 207
    assert hands.dispatch.take_now() is None


async def test_its_consumer_takes_too_long(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adminrequests, "TIMEOUT_MS", 50)
    hands = Hands(session)
    asked = hands.ask()
    taken = await hands.take()
    with pytest.raises(BadRequest, match="did not finish"):
        await asked
    async with taken.processing():
        pass
    assert hands.dispatch.handed_out == 0
