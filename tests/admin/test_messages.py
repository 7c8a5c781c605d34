"""Stored messages are read in order, found and copied, on a real CometMQ broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.admin import messages as looked_at
from cometmq.admin.api import Admin
from cometmq.admin.messages import (
    EARLIEST,
    LATEST,
    HalfMessage,
    Messages,
    Selection,
    at_offset,
    at_time,
    half_message,
)
from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.core.errors import BrokerRefused, CometError, NotFound, RouteNotFound
from cometmq.message.model import Message, MessageQueue, StoredMessage
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic


@pytest.fixture
def messages(admin: Admin) -> Messages:
    return Messages(admin)


async def all_of(messages: AsyncIterator[StoredMessage]) -> list[bytes]:
    return [message.body async for message in messages]


async def send_to_all(client: Client, topic: str, count: int) -> list[bytes]:
    """Sends one after another, so that no later one has an earlier time."""
    queues = await client.queues(topic)
    bodies = [b"%d" % at for at in range(count)]
    for at, body in enumerate(bodies):
        await client.send(topic, body, tag="ab"[at % 2], queue=queues[at % len(queues)])
    return bodies


async def test_queues_are_merged_by_time(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client)
    bodies = await send_to_all(client, topic, 200)
    found = [message async for message in messages.browse(topic)]
    assert sorted(message.body for message in found) == sorted(bodies)
    times = [message.store_ms for message in found]
    assert times == sorted(times)
    for queue in await client.queues(topic):
        offsets = [each.queue_offset for each in found if each.queue == queue]
        assert offsets == list(range(50))


async def test_memory_of_a_merge_is_bounded(
    client: Client, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await fresh_topic(client)
    bodies = await send_to_all(client, topic, 200)
    counts: list[int] = []
    pull = messages.pull

    async def counted(queue: MessageQueue, offset: int, count: int, *rest: object) -> object:
        counts.append(count)
        return await pull(queue, offset, count, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(messages, "pull", counted)
    monkeypatch.setattr(looked_at, "HELD_MESSAGES_MAX", 8)
    assert len(await all_of(messages.browse(topic))) == len(bodies)
    assert set(counts) <= {1, 2}
    counts.clear()
    monkeypatch.setattr(looked_at, "HELD_MESSAGES_MAX", 4_096)
    monkeypatch.setattr(looked_at, "HELD_BYTES_MAX", 0)
    assert len(await all_of(messages.browse(topic))) == len(bodies)
    assert counts.count(1) > 4


async def test_positions(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)
    bodies = await send_to_all(client, topic, 10)
    stored = [message async for message in messages.browse(topic)]
    assert await all_of(messages.browse(topic, at_offset(3), at_offset(5))) == bodies[3:5]
    assert await all_of(messages.browse(topic, at_offset(99))) == []
    assert await all_of(messages.browse(topic, LATEST)) == []
    assert await all_of(messages.browse(topic, at_time(0))) == bodies
    begin_ms = stored[4].store_ms
    since = [message.body for message in stored if message.store_ms >= begin_ms]
    assert await all_of(messages.browse(topic, at_time(begin_ms))) == since
    assert await all_of(messages.browse(topic, EARLIEST, at_time(begin_ms))) == [
        message.body for message in stored if message.store_ms < begin_ms
    ]


async def test_parts_of_a_topic(client: Client, admin: Admin, messages: Messages) -> None:
    topic = await fresh_topic(client, 2)
    await send_to_all(client, topic, 10)
    assert len(await all_of(messages.browse(topic, selection=Selection(filter="a")))) == 5
    by_sql = Selection(filter="TAGS = 'b'", sql=True)
    assert len(await all_of(messages.browse(topic, selection=by_sql))) == 5
    one = Selection(queues=frozenset({1}))
    assert len(await all_of(messages.browse(topic, selection=one))) == 5
    (broker,) = await admin.brokers()
    assert len(await all_of(messages.browse(topic, selection=Selection(broker.name)))) == 10
    with pytest.raises(NotFound, match="broker 'nobody'"):
        await messages.queues(topic, Selection("nobody"))
    with pytest.raises(NotFound, match="queue '7'"):
        await messages.queues(topic, Selection(queues=frozenset({1, 7})))
    with pytest.raises(RouteNotFound):
        await messages.queues(fresh_name())
    await admin.create_topic(topic, queues=2, perm=2)
    with pytest.raises(RouteNotFound, match="give it permission 6"):
        await messages.queues(topic)


async def test_a_tail_goes_on_after_what_is_stored(
    client: Client, admin: Admin, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looked_at, "_ROUTE_AGAIN_MS", 20)
    topic = await fresh_topic(client, 2)
    bodies = await send_to_all(client, topic, 4)
    tail = messages.tail(topic, EARLIEST)
    async with asyncio.timeout(60):
        assert [(await anext(tail)).body for _ in range(4)] == bodies
        following = asyncio.ensure_future(anext(tail))
        await client.send(topic, b"later", queue=(await client.queues(topic))[1])
        assert (await following).body == b"later"
        await admin.create_topic(topic, queues=3)
        new = MessageQueue(topic, (await admin.brokers())[0].name, 2)
        await client.send(topic, b"in a new queue", queue=new)
        assert (await anext(tail)).body == b"in a new queue"
    await tail.aclose()  # type: ignore[attr-defined]


async def test_a_tail_ends_with_a_refusal(
    client: Client, admin: Admin, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looked_at, "_LONG_POLL_MS", 50)
    topic = await fresh_topic(client, 1)
    tail = messages.tail(topic)
    following = asyncio.ensure_future(anext(tail))
    await eventually(lambda: not following.done())
    await admin.create_topic(topic, queues=1, perm=2)
    async with asyncio.timeout(60):
        with pytest.raises(Exception, match="refused a pull with code 16"):
            await following


async def test_single_messages(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)
    sent = await client.send(topic, b"one", keys=["k"])
    assert (await messages.by_id(sent.offset_id)).body == b"one"
    assert (await messages.by_place(sent.queue, 0)).body == b"one"
    found: list[StoredMessage] = []
    while not found:  # until the index has it
        found = await messages.by_unique_key(topic, sent.message_id)
    assert [each.body for each in found] == [b"one"]
    after = await messages.by_unique_key(topic, sent.message_id, since_ms=found[0].store_ms + 1)
    assert after == []
    with pytest.raises(NotFound, match="holds offsets 0 to 1"):
        await messages.by_place(sent.queue, 5)
    with pytest.raises(NotFound, match="no broker has it in topic"):
        await messages.by_id(sent.message_id[:-1] + "X", topic)


async def test_a_copy_keeps_what_belongs_to_the_message(client: Client, messages: Messages) -> None:
    topic, other = await fresh_topic(client, 1), await fresh_topic(client, 1)
    message = Message(topic, b"x" * 9_000, "t", ("k1", "k2"), 7, properties={"p": "v"})
    sent = await client.send(message)
    original = await messages.by_place(sent.queue, 0)
    stored = await messages.copy(original, other)
    copy = await messages.by_place(stored.queue, stored.queue_offset)
    assert (copy.topic, copy.body, copy.tag, copy.keys) == (other, original.body, "t", ("k1", "k2"))
    assert (copy.flag, copy.properties["p"], copy.born_ms) == (7, "v", original.born_ms)
    assert copy.message_id == stored.message_id != original.message_id
    assert copy.properties["ORIGIN_MESSAGE_ID"] == original.message_id
    assert copy.offset_id == stored.offset_id
    again = await messages.copy(original, message_id="own-id", queue=sent.queue)
    assert (again.message_id, again.queue) == ("own-id", sent.queue)


async def test_a_member_consumes_one_message(client: Client, messages: Messages) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    sent = await client.send(topic, b"again")
    with pytest.raises(NotFound, match="no broker knows it"):
        await messages.consume(await messages.by_place(sent.queue, 0), group)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with client.subscribe(topic, group=group, start="last") as subscription:
        running = asyncio.ensure_future(subscription.run(handle))
        stored = await messages.by_place(sent.queue, 0)
        with pytest.raises(NotFound, match="consumer 'nobody'"):
            await messages.consume(stored, group, "nobody")
        result = await messages.consume(stored, group)
        assert result.consume_result == "CR_SUCCESS"
        running.cancel()
    assert seen.count(b"again") >= 1
    with pytest.raises(NotFound, match="no connected consumer"):
        await messages.consume(stored, group)


async def test_half_messages(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 2)
    found: list[HalfMessage] = []
    async with client.transaction(topic, b"half"), asyncio.timeout(60):
        while not found:  # until the name server has the topic of half messages
            found = [each async for each in messages.half_messages() if each.topic == topic]
    (half,) = found
    assert (half.topic, half.checks) == (topic, 0)
    assert half.queue_id in (0, 1)
    assert half.producer_group
    assert half.transaction_id == half.message.unique_key


async def test_open_transactions(
    client: Client, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await fresh_topic(client, 1)
    async with client.transaction(topic, b"half"), asyncio.timeout(60):
        found: list[HalfMessage] = []
        while not found:
            found = [each for each in await messages.open_transactions() if each.topic == topic]
        assert [each.message.body for each in found] == [b"half"]
    async with asyncio.timeout(60):
        while [each for each in await messages.open_transactions() if each.topic == topic]:
            pass  # until its end is noted
    monkeypatch.setattr(looked_at, "ENDS_MAX", 0)
    with pytest.raises(CometError, match="more than 0 transactions ended"):
        await messages.open_transactions()


async def test_transactions_that_were_given_up(messages: Messages) -> None:
    assert [each async for each in messages.half_messages(given_up=True)] == []


async def test_a_check_begins_again(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)
    async with client.transaction(topic, b"half"), asyncio.timeout(60):
        found: list[HalfMessage] = []
        while not found:
            found = [each for each in await messages.open_transactions() if each.topic == topic]
        (half,) = found
        await messages.resume_check(half)
    async with asyncio.timeout(60):
        while [each for each in await messages.open_transactions() if each.topic == topic]:
            pass  # until its end is noted
    with pytest.raises(BrokerRefused, match="has ended"):
        await messages.resume_check(half)


async def test_entries_of_a_queue(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)
    sent = await client.send(topic, b"1", tag="a")
    found = await messages.queue_entries(sent.queue, 0, 5)
    (entry,) = found.queue_data
    assert (found.min_queue_index, found.max_queue_index) == (0, 1)
    assert entry.physic_offset == (await messages.by_place(sent.queue, 0)).physical_offset
    assert entry.tags_code == ord("a")


async def test_round_trips(client: Client, admin: Admin, messages: Messages) -> None:
    topic = await fresh_topic(client, 2)
    (broker,) = await admin.brokers()
    trips = await messages.round_trips(topic, count=3, size_bytes=5)
    assert [(each.queue.queue_id, each.error) for each in trips] == [
        (0, None),
        (1, None),
        (0, None),
    ]
    assert all(each.duration_ms > 0 for each in trips)
    assert await all_of(messages.browse(topic)) == [b"aaaaa"] * 3
    (own,) = await messages.round_trips(broker.name, broker=broker.name)
    assert own.error is None
    with pytest.raises(NotFound, match="no writable queue there"):
        await messages.round_trips(topic, broker="nobody")
    (refused,) = await messages.round_trips(topic, size_bytes=5 << 20)
    assert isinstance(refused.error, BrokerRefused)


def test_a_half_message_with_odd_properties() -> None:
    properties = {"REAL_QID": "x", "TRANSACTION_CHECK_TIMES": "3"}
    odd = StoredMessage("t", 0, 0, 0, b"", properties, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, 0)
    assert (half_message(odd).queue_id, half_message(odd).checks) == (-1, 3)
