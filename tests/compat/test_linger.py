"""Automatic batches of our client reach real brokers, Java's 4.9.7 and 5.5.0 and ours, as if each
message had been sent alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.sendrequests import SendResult, SendStatus
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageQueue
from tests.client.shared_broker import fresh_topic, read_all
from tests.compat.conftest import Target

COUNT = 300
KEYS = 7


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(
        target.namesrv, send_timeout_ms=10_000, linger_ms=5, linger_batch_messages=64
    ) as client:
        yield client


async def test_lingering_sends_arrive_with_their_own_ids_and_in_order(client: Client) -> None:
    topic = await fresh_topic(client)
    results = await asyncio.gather(
        *(
            client.send(topic, b"%d" % at, tag=f"t{at % 3}", keys=[f"k{at}"], order_key=at % KEYS)
            for at in range(COUNT)
        ),
        *(client.send(topic, b"free-%d" % at) for at in range(COUNT)),
        client.send(topic, b"large" * 2_000),
    )
    assert {result.status for result in results} == {SendStatus.OK}
    assert len({(result.queue, result.queue_offset) for result in results}) == 2 * COUNT + 1
    found = {each.message_id: each for each in await read_all(client, topic, 2 * COUNT + 1)}
    for at, result in enumerate(results):
        message = found[result.message_id]
        assert message.stored.offset_id == result.offset_id
        assert (message.stored.queue, message.stored.queue_offset) == (
            result.queue, result.queue_offset,
        )  # fmt: skip
        if at < COUNT:
            assert (message.body, message.tag, message.keys) == (
                b"%d" % at, f"t{at % 3}", (f"k{at}",),
            )  # fmt: skip
    for key in range(KEYS):
        mine = results[key:COUNT:KEYS]
        assert len({result.queue for result in mine}) == 1
        offsets = [result.queue_offset for result in mine]
        assert offsets == sorted(offsets)
    # The broker finds each by its key, as one that was sent alone.
    admin = Admin(client.session)
    (by_key,) = await admin.messages_by_key(topic, "k17")
    assert by_key.message_id == results[17].message_id


async def test_one_task_hands_over_more_than_a_buffer_holds(client: Client, target: Target) -> None:
    topic = await fresh_topic(client)
    async with Client(target.namesrv, linger_buffer_bytes=20_000, send_timeout_ms=10_000) as small:
        waiting = [await small.send_soon(topic, b"%d" % at) for at in range(COUNT)]
        results = await asyncio.gather(*waiting)
    bodies = {each.message_id: each.body for each in await read_all(client, topic, COUNT)}
    assert [bodies[result.message_id] for result in results] == [b"%d" % at for at in range(COUNT)]


async def test_a_refused_batch_fails_each_of_its_messages(client: Client) -> None:
    topic = await fresh_topic(client)
    queue = (await client.queues(topic))[0]
    nowhere = MessageQueue(topic, queue.broker_name, 99)
    results = await asyncio.gather(
        *(client.send(topic, b"no-%d" % at, queue=nowhere) for at in range(3)),
        *(client.send(topic, b"yes-%d" % at, queue=queue) for at in range(3)),
        return_exceptions=True,
    )
    errors, stored = results[:3], results[3:]
    assert [type(error) for error in errors] == [BrokerRefused] * 3
    assert len({id(error) for error in errors}) == 3
    assert [each.queue_offset for each in stored if isinstance(each, SendResult)] == [0, 1, 2]
