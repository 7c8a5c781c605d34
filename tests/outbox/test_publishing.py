"""A page goes to its queues in order; what fails stays, what can never be sent is told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client.client import Client
from cometmq.core.errors import (
    BrokerRefused,
    CometError,
    MessageIllegal,
    NotConnected,
    NotOpen,
    RouteNotFound,
)
from cometmq.message.model import Message
from cometmq.outbox.publishing import Outcome, Publisher, is_refusal
from cometmq.outbox.row import Row, headers_of
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request
from tests.client.fake_broker import FakeCluster, fake_cluster
from tests.client.scripted import Answer
from tests.client.shared_broker import fresh_topic
from tests.outbox.boxes import body, first_copies, keyed, stored


def rows(topic: str, numbered: list[tuple[str | None, int]]) -> list[Row]:
    """Rows as a page has them."""
    return [
        Row(at, topic, key, "{}", body(key, number), 1_700_000_000_000)
        for at, (key, number) in enumerate(numbered, 1)
    ]


async def publish(client: Client, page: list[Row], *, hold_keys: bool = True) -> Outcome:
    outcome = Outcome()
    async with asyncio.timeout(60):
        await Publisher(client, hold_keys=hold_keys).publish(page, outcome)
    return outcome


async def test_each_key_goes_to_its_queue_in_order(client: Client) -> None:
    topic = await fresh_topic(client)
    keys = [f"k{number}" for number in range(20)]
    page = rows(topic, [*keyed(keys, 50), (None, 1), (None, 2)])
    outcome = await publish(client, page)
    assert set(outcome.published) == {row.id for row in page}
    assert (outcome.refused, outcome.failed) == ({}, {})
    found = await stored(client, topic)
    assert first_copies(found) == {key: list(range(50)) for key in keys} | {"": [1, 2]}
    assert len(found) == len(page)
    probe = await client.send(topic, b"probe:0", order_key="k7")
    assert {m.queue_id for m in found if m.body.startswith(b"k7:")} == {probe.queue.queue_id}


async def test_a_row_keeps_its_id_however_often_it_is_sent(client: Client) -> None:
    topic = await fresh_topic(client)
    page = rows(topic, keyed(["a", "b"], 5))
    for _ in range(2):
        await publish(client, page)
    found = await stored(client, topic)
    assert len(found) == 20
    assert first_copies(found) == {key: list(range(5)) for key in "ab"}
    assert {message.message_id for message in found} == {row.message_id for row in page}


async def test_headers_reach_the_consumer(client: Client) -> None:
    topic = await fresh_topic(client)
    message = Message(topic, b"x", "update", ("AD-02",), properties={"table": "regions"})
    await publish(client, [Row(1, topic, "AD-02", headers_of(message), b"x", 0)])
    [found] = await stored(client, topic)
    assert (found.tag, found.keys) == ("update", ("AD-02",))
    assert found.properties["table"] == "regions"


async def test_a_row_that_is_no_message_is_refused_and_holds_its_key(client: Client) -> None:
    topic = await fresh_topic(client)
    page = rows(topic, keyed(["a", "b"], 3))
    page[2] = Row(3, topic, "a", '{"tga": ""}', b"a:1", 0)
    outcome = await publish(client, page)
    assert set(outcome.published) == {1, 2, 4, 6}
    assert list(outcome.refused) == [3]
    outcome = await publish(client, page, hold_keys=False)
    assert set(outcome.published) == {1, 2, 4, 5, 6}


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with fake_cluster() as cluster:
        cluster.create("t", 1)
        cluster.create("u", 1)
        yield cluster


async def open_client(fake: FakeCluster) -> Client:
    client = Client(fake.namesrv.address, send_retries=0, send_timeout_ms=10_000)
    await client.start()
    return client


async def test_the_one_that_a_broker_does_not_take_is_found_in_its_batch(fake: FakeCluster) -> None:
    """A broker with a lower limit than the client's refuses the whole batch."""
    [broker] = fake.brokers
    obedient = {
        code: broker.peer.scripts[code] for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
    }

    def strict(request: Request[Any]) -> Answer | None:
        if b"a:1" in request.body:
            return Answer(ResponseCode.MESSAGE_ILLEGAL, remark="too large")
        return obedient[Code(request.code)](request)

    for code in obedient:
        broker.peer.on(code, strict)
    client = await open_client(fake)
    outcome = await publish(client, rows("t", keyed(["a", "b"], 3)))
    assert set(outcome.published) == {1, 2, 4, 6}
    assert list(outcome.refused) == [3]
    assert "too large" in outcome.refused[3]
    await client.close()


async def test_nothing_goes_behind_what_failed_and_other_topics_go_on(fake: FakeCluster) -> None:
    [broker] = fake.brokers
    sends = {
        code: broker.peer.scripts[code] for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
    }

    def busy(request: Request[Any]) -> Answer | None:
        if request.header.topic == "t":
            return Answer(ResponseCode.SYSTEM_BUSY, remark="busy")
        return sends[Code(request.code)](request)

    for code in sends:
        broker.peer.on(code, busy)
    client = await open_client(fake)
    others = [Row(10, "u", "a", "{}", b"a:1", 0)]
    others += [Row(at, "nowhere", "a", "{}", b"a:1", 0) for at in (11, 12)]
    page = [*rows("t", keyed(["a"], 2)), *others]
    outcome = await publish(client, page)
    assert set(outcome.published) == {10}
    assert outcome.refused == {}
    assert set(outcome.failed) == {"t", "nowhere"}
    await client.close()


async def test_what_is_stored_less_safely_is_sent_again(fake: FakeCluster) -> None:
    [broker] = fake.brokers
    obedient = broker.peer.scripts[Code.SEND_MESSAGE_V2]

    def unsafe(request: Request[Any]) -> Answer | None:
        answer = obedient(request)
        assert answer is not None
        return Answer(ResponseCode.FLUSH_DISK_TIMEOUT, answer.header, ext=answer.ext)

    broker.peer.on(Code.SEND_MESSAGE_V2, unsafe)
    client = await open_client(fake)
    outcome = await publish(client, rows("t", [("a", 1)]))
    assert outcome.published == {}
    assert "FLUSH_DISK_TIMEOUT" in str(outcome.failed["t"])
    await client.close()


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (MessageIllegal("too large"), True),
        (BrokerRefused("b", 310, ResponseCode.MESSAGE_ILLEGAL, "too large"), True),
        (BrokerRefused("b", 310, ResponseCode.NO_PERMISSION, "read only"), False),
        (NotConnected("b", "gone"), False),
        (RouteNotFound("t", "unknown"), False),
        (NotOpen("the client is closed"), False),
        (CometError("b: bad answer to a batch"), False),
    ],
)
def test_only_what_can_never_be_sent_is_a_refusal(error: Any, refusal: bool) -> None:
    assert is_refusal(error) == refusal
