"""A message is acknowledged, retried or given back exactly once, whatever its block does."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest
from msgspec import structs

from cometmq.client.consumer.callbackerrors import recorded
from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.received import ReceivedMessage, UnreadMessage
from cometmq.client.hooks import ConsumeAttempt, Outcome
from cometmq.message.model import MessageList, MessageQueue, MessageView, StoredMessage
from tests.client.consumer.test_inflight import message

QUEUE = MessageQueue("t", "a", 0)


class Settling:
    """Writes down what messages come to."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, message: MessageView) -> None:
        self.calls.append("begin")

    def end(
        self, attempt: ConsumeAttempt | None, outcome: Outcome | None, error: BaseException | None
    ) -> None:
        assert outcome is not None
        self.calls.append(f"end {outcome.value}" + (f" {error!r}" if error is not None else ""))

    def succeeded(self, inflight: InFlight, message: StoredMessage) -> None:
        self.calls.append("ack")

    async def failed(
        self, inflight: InFlight, message: StoredMessage, delay_level: int, pause_ms: int = 0
    ) -> None:
        self.calls.append(f"retry {delay_level}")

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        self.calls.append("back")


def received(settling: Settling, **properties: str) -> ReceivedMessage:
    stored = structs.replace(message(5), properties=properties, body=b"body", broker_name="a")
    return ReceivedMessage(settling, InFlight(QUEUE, 0), stored)


def test_a_message_of_a_batch_is_made_when_somebody_looks_at_it() -> None:
    batch = MessageList([message(4), message(5)])
    unread = UnreadMessage(Settling(), InFlight(QUEUE, 0), batch, 1)
    holders = sys.getrefcount(batch)
    assert unread.queue_offset == 5
    assert unread.stored is batch[1]
    assert type(unread) is ReceivedMessage
    assert sys.getrefcount(batch) == holders - 1  # it is let go
    with pytest.raises(AttributeError):
        unread.nothing  # noqa: B018


def test_an_unread_message_has_no_other_names() -> None:
    unread = UnreadMessage(Settling(), InFlight(QUEUE, 0), MessageList([message(4)]), 0)
    with pytest.raises(AttributeError):
        unread.nothing  # noqa: B018


async def test_leaving_the_block_acknowledges() -> None:
    settling = Settling()
    async with received(settling).processing() as inside:
        assert inside.body == b"body"
        assert settling.calls == ["begin"]
    assert settling.calls == ["begin", "ack", "end acknowledged"]


async def test_an_exception_sends_it_to_be_retried(caplog: pytest.LogCaptureFixture) -> None:
    settling = Settling()
    with caplog.at_level(logging.WARNING):
        async with received(settling, UNIQ_KEY="ID").processing():
            raise ValueError("bad row")
    assert settling.calls == ["begin", "retry 0", "end retried ValueError('bad row')"]
    assert "message=ID attempt=1 error=ValueError('bad row')" in caplog.text


async def test_an_exception_may_go_further_after_all() -> None:
    settling = Settling()
    with recorded() as failures, pytest.raises(AssertionError, match="2 is not 3"):
        async with received(settling).processing(reraise=True):
            raise AssertionError("2 is not 3")
    assert settling.calls == ["begin", "retry 0", "end retried AssertionError('2 is not 3')"]
    assert failures == []


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (AssertionError(), logging.ERROR),
        (AttributeError(), logging.ERROR),
        (NameError(), logging.ERROR),
        (UnboundLocalError(), logging.ERROR),
        (TypeError(), logging.ERROR),
        (ImportError(), logging.ERROR),
        (NotImplementedError(), logging.ERROR),
        (ValueError(), logging.WARNING),
        (KeyError(), logging.WARNING),
        (OSError(), logging.WARNING),
    ],
)
async def test_a_wrong_program_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int
) -> None:
    with recorded() as failures:
        async with received(Settling()).processing():
            raise error
    (record,) = caplog.records
    assert record.levelno == level
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert [failure.error for failure in failures] == [error]


async def test_a_cancelled_block_gives_it_back() -> None:
    settling = Settling()

    async def work() -> None:
        async with received(settling).processing():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert settling.calls == ["begin", "back", "end returned CancelledError()"]


async def test_what_the_block_decided_stands() -> None:
    settling = Settling()
    async with received(settling).processing() as inside:
        await inside.retry(3)
        inside.ack()
    async with received(settling).processing() as inside:
        inside.ack()
        raise ValueError("after the acknowledgement")
    assert settling.calls == [
        *("begin", "retry 3", "end retried"),
        *("begin", "ack", "end acknowledged ValueError('after the acknowledgement')"),
    ]


async def test_cancelled_after_the_decision() -> None:
    settling = Settling()

    async def work() -> None:
        async with received(settling).processing() as inside:
            inside.ack()
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await work()
    assert settling.calls == ["begin", "ack", "end acknowledged CancelledError()"]


def test_what_a_message_says() -> None:
    given = received(Settling(), TAGS="up", KEYS="a b", UNIQ_KEY="ID", mine="x")
    assert (given.topic, given.tag, given.keys) == ("t", "up", ("a", "b"))
    assert (given.message_id, given.queue, given.queue_offset) == ("ID", QUEUE, 5)
    assert given.properties["mine"] == "x"
    assert (given.reconsume_times, given.born_ms, given.store_ms) == (0, 0, 0)
    assert repr(given) == "<ReceivedMessage ID of 't' tag 'up'>"


def test_a_retried_message_names_its_first_topic() -> None:
    given = received(Settling(), RETRY_TOPIC="regions")
    assert given.topic == "regions"
    assert given.stored.topic == "t"
