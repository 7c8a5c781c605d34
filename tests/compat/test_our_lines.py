"""Our client, line by line of what RocketMQ's clients can do, against every broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.options import Sql, Start
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.delivery import by_key
from cometmq.client.hooks import ConsumeAttempt, SendAttempt
from cometmq.core.errors import MessageIllegal
from cometmq.message.model import Message
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic, read_all
from tests.compat.conftest import Target
from tests.compat.deadbroker import dead_broker
from tests.compat.lines import proves

MEMORY_RATIO = "accessMessageInMemoryMaxRatio"


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@pytest.fixture
async def topic(client: Client) -> str:
    return await fresh_topic(client)


@proves("async", "unique ids")
async def test_many_sends_are_in_flight_at_once(client: Client, topic: str) -> None:
    results = await asyncio.gather(
        *(client.send(topic, b"%d" % n, keys=[f"k{n}"]) for n in range(200))
    )
    assert len({result.message_id for result in results}) == 200
    found = {message.message_id: message for message in await read_all(client, topic, 200)}
    for number, result in enumerate(results):
        message = found[result.message_id]
        assert (message.body, message.keys) == (b"%d" % number, (f"k{number}",))
        assert message.stored.queue_offset == result.queue_offset
        assert message.stored.queue_id == result.queue.queue_id


@proves("large batch")
async def test_a_large_batch_is_split(client: Client, topic: str) -> None:
    messages = [Message(topic, b"%d" % at, properties={"p": "x" * 1_000}) for at in range(6_000)]
    results = await client.send_many(messages)
    assert len({result.message_id for result in results}) == 6_000
    assert len({result.queue for result in results}) > 1

    async def stored() -> int:
        stats = await Admin(client.session).topic_stats(topic)
        return sum(offset.max_offset for offset in stats.values())

    async with asyncio.timeout(30):  # the Java broker counts a message a moment after its answer
        while await stored() < 6_000:
            await asyncio.sleep(0.05)
    assert await stored() == 6_000


@proves("what is refused, and why")
async def test_what_cannot_be_is_refused(client: Client, topic: str) -> None:
    for message, reason in (
        (Message(topic, bytes(4 * 1024 * 1024 + 1)), "body"),
        (Message(topic, b"", properties={"p": "x" * 33_000}), "properties"),
        (Message("no/such name", b""), "topic"),
        (Message("SCHEDULE_TOPIC_XXXX", b""), "topic"),
    ):
        with pytest.raises(MessageIllegal, match=reason):
            await client.send(message)
    with pytest.raises(MessageIllegal, match="delay"):
        await client.send_batch([Message(topic, b"", delay_level=2)])


@proves("retries on another broker")
async def test_a_send_that_fails_goes_to_another_broker(client: Client, target: Target) -> None:
    name = fresh_name()
    await client.send(name, b"first")
    async with dead_broker(target.namesrv, name) as dead, Client(target.namesrv) as fresh:
        brokers = {queue.broker_name for queue in await fresh.queues(name, "write")}
        assert brokers == {dead, target.broker_name}
        results = [await fresh.send(name, b"%d" % number) for number in range(8)]
    assert {result.queue.broker_name for result in results} == {target.broker_name}


@proves("a queue chosen by hash or by hand")
async def test_a_queue_may_be_chosen(client: Client, topic: str) -> None:
    queues = await client.queues(topic, "write")
    for key in ("x", "y"):
        results = [await client.send(topic, b"x", order_key=key) for _ in range(4)]
        assert {result.queue for result in results} == {by_key(queues, key)}
    assert (await client.send(topic, b"x", queue=queues[2])).queue == queues[2]


class Told:
    """Hooks that keep what they are told."""

    def __init__(self) -> None:
        self.sends: list[tuple[str, SendAttempt]] = []
        self.consumes: list[tuple[str, ConsumeAttempt]] = []

    def before(self, attempt: SendAttempt | ConsumeAttempt) -> None:
        self._keep("before", attempt)

    def after(self, attempt: SendAttempt | ConsumeAttempt) -> None:
        self._keep("after", attempt)

    def _keep(self, when: str, attempt: SendAttempt | ConsumeAttempt) -> None:
        if isinstance(attempt, SendAttempt):
            self.sends.append((when, attempt))
        else:
            self.consumes.append((when, attempt))


@proves("send hooks", "consume hooks")
async def test_hooks_are_told(client: Client, topic: str) -> None:
    told = Told()
    client.send_hooks.append(told)
    client.consume_hooks.append(told)

    def forbid(attempt: SendAttempt) -> None:
        if attempt.messages[0].body == b"forbidden":
            raise MessageIllegal("a hook forbids it")

    client.forbidden_hooks.append(forbid)
    result = await client.send(topic, b"allowed")
    with pytest.raises(MessageIllegal, match="a hook"):
        await client.send(topic, b"forbidden")
    await read_all(client, topic, 1)
    assert [when for when, _ in told.sends][:2] == ["before", "after"]
    assert told.sends[1][1].result == result
    assert [when for when, _ in told.consumes] == ["before", "after"]
    assert told.consumes[0][1].message.message_id == result.message_id


@proves("delay levels")
async def test_a_delayed_message_waits_its_time(client: Client, topic: str) -> None:
    await client.send(topic, b"now")
    await client.send(topic, b"later", delay_level=1)
    await client.send(topic, b"latest", delay_level=2)
    found = {message.body: message for message in await read_all(client, topic, 3)}
    begun = found[b"now"].stored.store_ms
    assert 1_000 <= found[b"later"].stored.store_ms - begun < 3_000
    assert 5_000 <= found[b"latest"].stored.store_ms - begun < 7_000


@asynccontextmanager
async def all_queues_old(client: Client, target: Target) -> AsyncIterator[None]:
    """Java brokers hold no queue for young, so that each group begins where it wants to."""
    if target.name == "cometmq":
        yield
        return
    admin = Admin(client.session)
    await admin.update_broker_config(target.broker, {MEMORY_RATIO: "0"})
    try:
        yield
    finally:
        await admin.update_broker_config(target.broker, {MEMORY_RATIO: "40"})


@proves("SQL92")
async def test_sql92_selects_at_the_broker(client: Client, topic: str) -> None:
    for colour, amount in (("red", 1), ("red", 7), ("green", 8), ("blue", 9)):
        properties = {"colour": colour, "amount": str(amount)}
        await client.send(topic, f"{colour}-{amount}".encode(), properties=properties)
    await client.send(topic, b"bare")
    wanted = Sql("amount > 5 AND colour IN ('red', 'green')")
    found: set[bytes] = set()
    async with client.subscribe(topic, group=f"g-{topic}", filter=wanted, start="first") as given:
        async with asyncio.timeout(60):
            async for message in given:
                message.ack()
                found.add(message.body)
                if len(found) == 2:
                    break
    assert found == {b"red-7", b"green-8"}


@proves("allocation strategies")
@pytest.mark.parametrize(
    ("allocation", "shares"),
    [("average", [[0, 1], [2, 3]]), ("circle", [[0, 2], [1, 3]]), ("consistent-hash", None)],
)
async def test_members_with_a_strategy_share(
    target: Target, client: Client, topic: str, allocation: Any, shares: list[list[int]] | None
) -> None:
    group = f"g-{topic}"
    async with Client(target.namesrv) as other:
        clients = (client, other)
        members = [each.subscribe(topic, group=group, allocation=allocation) for each in clients]
        running = [asyncio.create_task(member.run(ignore)) for member in members]

        def found() -> list[list[int]]:
            queues = (member._consumer.assigned(topic) for member in members)
            return sorted(sorted(queue.queue_id for queue in each) for each in queues)

        def is_shared() -> bool:
            if shares is not None:
                return found() == shares
            # Where two members lie on the ring is chance.
            return sorted(found()[0] + found()[1]) == [0, 1, 2, 3]

        await eventually(is_shared, deadline_s=60)
        for member, task in zip(members, running, strict=True):
            await member.close()
            await task


async def ignore(_: ReceivedMessage) -> None:
    return None


@proves("start positions")
async def test_groups_begin_where_they_want_to(client: Client, target: Target, topic: str) -> None:
    queues = await client.queues(topic)

    async def send(body: bytes) -> int:
        for queue in queues:
            await client.send(topic, body, queue=queue)
        return client.session.clock.wall_ms()

    sent_ms = await send(b"old")
    # A 4.x broker finds the message nearest in time.
    await eventually(lambda: client.session.clock.wall_ms() > sent_ms + 400, deadline_s=5)
    moment_ms = client.session.clock.wall_ms() - 50
    await send(b"timely")
    found: dict[Start, list[bytes]] = {"first": [], "last": [], moment_ms: []}
    async with all_queues_old(client, target):
        running = []
        for start, bodies in found.items():

            async def handle(message: ReceivedMessage, bodies: list[bytes] = bodies) -> None:
                bodies.append(message.body)

            given = client.subscribe(topic, group=fresh_name("g"), start=start)
            running.append((given, asyncio.create_task(given.run(handle))))
        await eventually(
            lambda: all(len(given._consumer.assigned(topic)) == 4 for given, _ in running),
            deadline_s=30,
        )
        await send(b"new")
        wanted: dict[Start, int] = {"first": 12, "last": 4, moment_ms: 8}
        await eventually(
            lambda: all(len(found[start]) >= wanted[start] for start in wanted), deadline_s=30
        )
        for given, task in running:
            await given.close()
            await task
    assert {start: sorted(set(bodies)) for start, bodies in found.items()} == {
        "first": [b"new", b"old", b"timely"],
        "last": [b"new"],
        moment_ms: [b"new", b"timely"],
    }
