"""Calls of our administration, on Java name servers and brokers and on ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.deadletters import DeadLetter, DeadLetters, Destination, Outcome
from cometmq.admin.groups import GroupInUse, Groups
from cometmq.admin.messages import (
    EARLIEST,
    LATEST,
    HalfMessage,
    Messages,
    Selection,
    at_offset,
    at_time,
)
from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.core.errors import NotFound
from cometmq.message.model import Message, StoredMessage
from cometmq.protocol.bodies import SubscriptionGroupConfig
from tests.admin.dead import die
from tests.client.shared_broker import fresh_name, fresh_topic
from tests.compat.conftest import Target

pytestmark = pytest.mark.runs("cometmq", "java")


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@pytest.fixture
def admin(client: Client) -> Admin:
    return Admin(client.session)


@pytest.fixture
def messages(admin: Admin) -> Messages:
    return Messages(admin)


async def test_a_topic_is_browsed(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client)
    queues = await client.queues(topic)
    bodies = [b"%d" % at for at in range(100)]
    for at, body in enumerate(bodies):
        await client.send(topic, body, tag="ab"[at % 2], queue=queues[at % len(queues)])
    found = [message async for message in messages.browse(topic)]
    assert [message.body for message in found] == bodies
    begin_ms = found[60].store_ms
    since = [message.body async for message in messages.browse(topic, at_time(begin_ms))]
    assert since == [message.body for message in found if message.store_ms >= begin_ms]
    selection = Selection(queues=frozenset({1}), filter="b")
    one = [each.body async for each in messages.browse(topic, at_offset(5), selection=selection)]
    assert one == bodies[21::4]


async def test_sql_selects_where_the_broker_allows_it(
    client: Client, admin: Admin, messages: Messages, target: Target
) -> None:
    topic = await fresh_topic(client, 1)
    await client.send_many([Message(topic, b"", "ab"[at % 2]) for at in range(10)])
    await admin.update_broker_config(target.broker, {"enablePropertyFilter": "true"})
    by_sql = Selection(filter="TAGS = 'a'", sql=True)
    assert len([each async for each in messages.browse(topic, selection=by_sql)]) == 5


async def test_a_topic_is_tailed(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 2)
    first, second = await client.queues(topic)
    await client.send(topic, b"stored", queue=first)
    tail = messages.tail(topic, EARLIEST)
    async with asyncio.timeout(60):
        assert (await anext(tail)).body == b"stored"
        following = asyncio.ensure_future(anext(tail))
        await client.send(topic, b"later", queue=second)
        assert (await following).body == b"later"
        await client.send(topic, b"last", queue=first)
        assert (await anext(tail)).body == b"last"


async def test_messages_are_found_and_copied(client: Client, messages: Messages) -> None:
    topic, other = await fresh_topic(client, 1), await fresh_topic(client, 1)
    sent = await client.send(Message(topic, b"one", "t", ("k",), properties={"p": "v"}))
    original = await messages.by_id(sent.offset_id)
    assert original.body == (await messages.by_place(sent.queue, 0)).body == b"one"
    with pytest.raises(NotFound):
        await messages.by_place(sent.queue, 1)
    found: list[StoredMessage] = []
    while not found:  # until the index has it
        found = await messages.by_unique_key(topic, sent.message_id)
    stored = await messages.copy(original, other)
    copy = await messages.by_id(stored.offset_id)
    assert (copy.topic, copy.body, copy.tag, copy.keys) == (other, b"one", "t", ("k",))
    assert copy.properties["p"] == "v"
    with pytest.raises(NotFound):
        await messages.by_id("0" * 32, topic)


async def test_a_member_consumes_one_message(client: Client, messages: Messages) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    sent = await client.send(topic, b"again")
    stored = await messages.by_place(sent.queue, 0)
    with pytest.raises(NotFound, match="no broker knows it"):
        await messages.consume(stored, group)

    async def handle(message: ReceivedMessage) -> None:
        assert message.body == b"again"

    async with client.subscribe(topic, group=group, start="last") as subscription:
        running = asyncio.ensure_future(subscription.run(handle))
        assert (await messages.consume(stored, group)).consume_result == "CR_SUCCESS"
        running.cancel()


async def test_half_messages(client: Client, messages: Messages) -> None:
    topic = await fresh_topic(client, 1)
    found: list[HalfMessage] = []
    async with client.transaction(topic, b"half"), asyncio.timeout(30):
        while not found:  # until the name server has the topic of half messages
            found = [each async for each in messages.half_messages() if each.topic == topic]
    assert [(each.message.body, each.queue_id, each.checks) for each in found] == [(b"half", 0, 0)]


async def test_dead_letters_are_sent_again_once(client: Client, admin: Admin) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    await die(client, topic, group, [b"one"])
    dead = DeadLetters(admin)
    (listed,) = [each for each in await dead.groups() if each.group == group]
    assert listed.letters == 1
    (letter,) = [each async for each in dead.browse(group)]
    assert (letter.origin, letter.message.body) == (topic, b"one")
    assert (await dead.resend(letter)).outcome is Outcome.SENT
    await until_repeated(dead, letter, Destination.ORIGIN)
    assert (await dead.resend(letter, Destination.RETRY)).outcome is Outcome.SENT
    await until_repeated(dead, letter, Destination.RETRY)
    bodies = [each.body async for each in Messages(admin).browse(topic)]
    assert bodies == [b"one", b"one"]
    async with asyncio.timeout(60):
        async with client.subscribe(topic, group=group, start="last") as subscription:
            message = await anext(subscription)
            async with message.processing():
                assert (message.topic, message.body) == (topic, b"one")


async def until_repeated(dead: DeadLetters, letter: DeadLetter, destination: Destination) -> None:
    """Waits until the index has the copy that was sent to a destination."""
    async with asyncio.timeout(30):
        while True:
            resent = await dead.resend(letter, destination, dry_run=True)
            if resent.outcome is Outcome.REPEATED:
                return


async def test_groups_and_plans_of_offsets(client: Client, admin: Admin) -> None:
    groups = Groups(admin)
    topic, group = await fresh_topic(client, 2), fresh_name("g")
    queues = list(await client.queues(topic))
    for queue in queues:
        await client.send_batch([Message(topic, b"%d" % at) for at in range(10)], queue=queue)
    with pytest.raises(NotFound):
        await groups.progress(group)
    await admin.update_group(SubscriptionGroupConfig(group, retry_max_times=3))
    assert (await groups.progress(group)).lag is None
    await groups.apply(await groups.plan_reset(group, topic, at_offset(4)))
    assert (await groups.progress(group, topic)).lag == 12
    assert group in await groups.names()
    (row,) = await groups.summaries([group])
    assert (row.members, row.lag) == (0, 12)
    plan = await groups.plan_reset(group, topic, EARLIEST, queues=[1])
    assert [(each.committed, each.wanted, each.repeated) for each in plan.changes] == [(4, 0, 4)]
    clone = await groups.plan_clone(group, group + "-copy", topic)
    await groups.apply(clone)
    assert (await groups.progress(group + "-copy")).lag == 12
    async with client.subscribe(topic, group=group, start="first") as subscription:
        async with asyncio.timeout(60):
            message = await anext(subscription)
        async with message.processing():
            pass
        (state,) = await groups.status(group)
        assert state.info is not None, state.problem
        with pytest.raises(GroupInUse):
            await groups.apply(plan)
        whole = await groups.plan_reset(group, topic, LATEST)
        assert await groups.apply(whole) == {queue: 10 for queue in queues}
    await groups.forget_offsets(group)
    assert [each.retry_max_times for each in (await groups.config(group)).values()] == [3]
    await groups.delete(group, topics=True)
    assert group not in await groups.names()
    assert set(await groups.allocation(topic, ["a", "b"])) == {"a", "b"}
    producers = client.session.config.producer_group
    await client.session.introduce(producers)
    assert await groups.producers(producers)
    assert producers in await groups.all_producers()
