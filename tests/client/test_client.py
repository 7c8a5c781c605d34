"""The client against a real CometMQ broker: what users write, end to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import cometmq
from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.pushconsumer import Subscription
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.hooks import ConsumeAttempt, SendAttempt
from cometmq.core.errors import BrokerRefused, CometError, MessageIllegal, SettingsError
from cometmq.message.model import Message, MessageQueue
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import DEADLINE_S, fresh_name, fresh_topic, read_as_broadcast

#: Delay level of one second.
ONE_SECOND = 1


@pytest.fixture
async def client(cometmq_session_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cometmq_session_cluster.namesrv, rebalance_interval_ms=500) as client:
        yield client


@pytest.fixture
async def topic(client: Client) -> str:
    return await fresh_topic(client)


async def test_the_first_example(client: Client, topic: str) -> None:
    result = await client.send(topic, b"row", tag="update", keys=["AD-02"], order_key="AD-02")
    assert result.status is cometmq.SendStatus.OK
    await client.send(topic, b"other", tag="delete")
    found: list[ReceivedMessage] = []
    subscription = client.subscribe(
        topic, group=f"g-{topic}", filter="insert || update", concurrency=8, start="first"
    )
    async for message in subscription:
        async with message.processing():
            found.append(message)
        break
    assert (found[0].body, found[0].tag, found[0].keys) == (b"row", "update", ("AD-02",))
    assert found[0].message_id == result.message_id
    assert (found[0].queue, found[0].queue_offset) == (result.queue, result.queue_offset)


async def test_messages_come_at_their_times_and_may_be_recalled(client: Client, topic: str) -> None:
    begun = datetime.now(UTC)
    moment = begun.replace(microsecond=400_000) + timedelta(seconds=2)
    never = await client.send(topic, b"never", deliver_at=moment)
    second = await client.send(topic, b"second", deliver_at=moment)
    first = await client.send(topic, b"first", delay_s=0.3)
    assert first.recall_handle
    assert second.recall_handle
    await client.recall(never)
    found: dict[bytes, int] = {}
    async for message in client.subscribe(topic, group=f"g-{topic}", start="first"):
        async with message.processing():
            found[message.body] = message.store_ms
        if message.body == b"second":
            break
    assert list(found) == [b"first", b"second"]
    assert found[b"first"] >= begun.timestamp() * 1_000 + 300
    assert 0 <= found[b"second"] - moment.timestamp() * 1_000 + 20 < 2_000
    with pytest.raises(BrokerRefused, match="timestamp invalid"):
        await client.recall(second)


async def test_what_has_no_time_of_its_own_cannot_be_recalled(client: Client, topic: str) -> None:
    sent = await client.send(topic, b"now")
    with pytest.raises(MessageIllegal, match="cannot be recalled"):
        await client.recall(sent)
    with pytest.raises(MessageIllegal, match="has no time zone"):
        await client.send(topic, b"when", deliver_at=datetime(2030, 1, 1))
    with pytest.raises(BrokerRefused, match="timerMaxDelaySec"):
        await client.send(topic, b"too late", delay_s=4 * 24 * 3_600)


async def test_every_message_is_consumed_once_by_a_group_and_once_by_another(
    client: Client, topic: str, cometmq_session_cluster: Cluster
) -> None:
    messages = [Message(topic, b"%d" % at, tag="x") for at in range(500)]
    await client.send_many(messages[:250])
    seen: dict[str, list[bytes]] = {"one": [], "two": [], "other": []}

    async def consume(member: Client, name: str, group: str) -> None:
        async def handle(message: ReceivedMessage) -> None:
            seen[name].append(message.body)

        await member.subscribe(topic, group=group, start="first").run(handle)

    group = f"g-{topic}"
    other = Client(cometmq_session_cluster.namesrv, rebalance_interval_ms=500)
    async with other:
        running = [
            asyncio.create_task(consume(client, "one", group)),
            asyncio.create_task(consume(other, "two", group)),
            asyncio.create_task(consume(other, "other", f"{group}-other")),
        ]
        await client.send_many(messages[250:])
        await eventually(lambda: len(seen["other"]) == 500)
        # A queue may change hands with messages in work, which then come twice.
        await eventually(lambda: len({*seen["one"], *seen["two"]}) == 500)
        assert sorted(seen["other"]) == sorted(message.body for message in messages)
    await client.close()
    await asyncio.gather(*running)


async def test_a_failed_message_comes_again(client: Client, topic: str) -> None:
    await client.send(topic, b"row", tag="x", keys=["k"])
    attempts: list[tuple[int, str]] = []
    async with client.subscribe(topic, group=f"g-{topic}", start="first") as subscription:
        async for message in subscription:
            async with message.processing():
                attempts.append((message.reconsume_times, message.topic))
                if message.reconsume_times == 0:
                    await message.retry(ONE_SECOND)
                    continue
            break
    assert attempts == [(0, topic), (1, topic)]


@pytest.mark.cometmq_handler_errors(raises=ValueError)
async def test_order_holds_for_each_key(client: Client, topic: str) -> None:
    keys = ["a", "b", "c", "d", "e"]
    seen: dict[str, list[int]] = {key: [] for key in keys}
    failed: set[int] = set()

    async def handle(message: ReceivedMessage) -> None:
        number = int(message.body)
        if number % 25 == 0 and number not in failed:
            failed.add(number)
            raise ValueError("the first attempt fails")
        seen[message.keys[0]].append(number)

    async with Client(client.config.name_servers, ordered_retry_pause_ms=5) as consumer:
        subscription = consumer.subscribe(topic, group=f"g-{topic}", ordered=True, start="first")
        running = asyncio.create_task(subscription.run(handle))
        for number in range(200):
            key = keys[number % len(keys)]
            await client.send(topic, b"%d" % number, keys=key, order_key=key)
        await eventually(lambda: sum(map(len, seen.values())) == 200)
    await running
    assert len(failed) == 8
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_broadcasting_gives_everything_to_everybody(
    client: Client, topic: str, tmp_path: Path
) -> None:
    await client.send_many([Message(topic, b"%d" % at) for at in range(20)])
    await read_as_broadcast(client.config.name_servers, topic, 20, tmp_path)


async def test_one_way_and_ready_made_messages(client: Client, topic: str) -> None:
    queue = MessageQueue(topic, (await client.queues(topic))[0].broker_name, 2)
    await client.send_oneway(topic, b"1", tag="x", keys=["k"], queue=queue)
    await client.send(Message(topic, b"2", properties={"a": "b"}), queue=queue)
    found = [message async for part in client.puller.read_range(queue, 0, 2) for message in part]
    assert [(message.body, message.tag) for message in found] == [(b"1", "x"), (b"2", "")]
    assert found[1].properties["a"] == "b"
    assert await client.queues(topic, "write") == await client.queues(topic)


async def test_hooks(client: Client, topic: str) -> None:
    seen: list[str] = []

    class Sending:
        def before(self, attempt: SendAttempt) -> None:
            seen.append(f"sends {attempt.messages[0].body!r}")

        def after(self, attempt: SendAttempt) -> None:
            seen.append(f"sent {attempt.result is not None}")

    class Consuming:
        def before(self, attempt: ConsumeAttempt) -> None:
            seen.append(f"works on {attempt.message.body!r}")

        def after(self, attempt: ConsumeAttempt) -> None:
            seen.append(f"{attempt.outcome} {attempt.error!r}")

    def forbid(attempt: SendAttempt) -> None:
        if attempt.messages[0].tag == "secret":
            raise CometError("no secrets")

    subscription = client.subscribe(topic, group=f"g-{topic}", start="first")
    client.consume_hooks.append(Consuming())
    client.send_hooks.append(Sending())
    client.forbidden_hooks.append(forbid)
    with pytest.raises(CometError, match="no secrets"):
        await client.send(topic, b"0", tag="secret")
    await client.send(topic, b"1")
    async for message in subscription:
        async with message.processing():
            pass
        break
    assert seen == ["sends b'1'", "sent True", "works on b'1'", "Outcome.ACKNOWLEDGED None"]


async def test_tenants_of_two_namespaces_share_names_and_nothing_else(
    client: Client, cometmq_session_cluster: Cluster
) -> None:
    found: dict[str, list[tuple[str, str, int]]] = {}
    for tenant in ("north", "south"):
        name = fresh_name(tenant)
        servers = cometmq_session_cluster.namesrv
        async with Client(servers, namespace=name, rebalance_interval_ms=500) as own:
            await Admin(own.session).create_topic(f"{name}%orders", queues=1)
            sent = await own.send("orders", tenant.encode())
            queue = (await own.queues("orders"))[0]
            assert queue == sent.queue
            assert await own.puller.max_offset(queue) == 1
            (read,) = [each async for part in own.puller.read_range(queue, 0, 1) for each in part]
            assert read.body == tenant.encode()
            async for message in own.subscribe("orders", group="g", start="first"):
                at = message.reconsume_times
                found.setdefault(tenant, []).append((message.topic, message.body.decode(), at))
                if at == 1:
                    message.ack()
                    break
                await message.retry(ONE_SECOND)
        raw = MessageQueue(f"{name}%orders", queue.broker_name, 0)
        assert await client.puller.max_offset(raw) == 1
    assert found == {
        tenant: [("orders", tenant, 0), ("orders", tenant, 1)] for tenant in ("north", "south")
    }


async def test_queue_selectors_and_batches(client: Client, topic: str) -> None:
    result = await client.send(topic, b"1", queue=lambda queues, _: queues[3])
    assert result.queue.queue_id == 3
    results = await client.send_batch([Message(topic, b"2"), Message(topic, b"3")], order_key="k")
    assert [each.queue_offset for each in results][1] == results[0].queue_offset + 1
    with pytest.raises(MessageIllegal, match="delayed"):
        await client.send_batch([Message(topic, b"", delay_level=1)])


async def test_recommended_settings(cometmq_session_cluster: Cluster) -> None:
    config = cometmq.ClientConfig.recommended(cometmq_session_cluster.namesrv)
    async with Client(config=config) as client:
        topic = await fresh_topic(client)
        assert (await client.send(topic, b"1")).status is cometmq.SendStatus.OK


async def test_a_client_that_is_not_open(cometmq_session_cluster: Cluster) -> None:
    client = Client(cometmq_session_cluster.namesrv)
    for use in (lambda: client.session, lambda: client.producer, lambda: client.client_id):
        with pytest.raises(RuntimeError, match="not open"):
            use()
    await client.close()
    await client.start()
    await client.start()
    assert "@" in client.client_id
    await client.close()
    with pytest.raises(RuntimeError):
        client.subscribe("t", group="g")


async def test_what_cannot_be_is_said(client: Client) -> None:
    with pytest.raises(SettingsError, match="no_such_setting"):
        Client("127.0.0.1:1", no_such_setting=5)
    with pytest.raises(SettingsError):
        Client("")
    with pytest.raises(TypeError, match="body is missing: pass b'' for an empty one"):
        await client.send("t")  # type: ignore[call-overload]
    with pytest.raises(MessageIllegal):
        await client.send("no good", b"")


async def test_subscriptions_that_ended_are_forgotten(client: Client, topic: str) -> None:
    for _ in range(3):
        async with client.subscribe(topic, group=f"g-{topic}"):
            pass
    client.subscribe(topic, group=f"g-{topic}")
    assert len(client._subscriptions) == 1


async def take(subscription: Subscription, count: int) -> list[bytes]:
    """The bodies of so many messages, each acknowledged."""
    found: list[bytes] = []
    async with subscription, asyncio.timeout(DEADLINE_S):
        async for message in subscription:
            message.ack()
            found.append(message.body)
            if len(found) == count:
                break
    return found


async def test_properties_are_filtered_by_the_broker(client: Client, topic: str) -> None:
    for at in range(5):
        await client.send(topic, b"%d" % at, properties={"number": str(at)})
    wanted = cometmq.Sql("number BETWEEN 2 AND 3")
    group = f"g-{topic}"
    assert sorted(
        await take(client.subscribe(topic, group=group, filter=wanted, start="first"), 2)
    ) == [b"2", b"3"]
    async with client.pull_consumer({topic: wanted}, group=f"p-{topic}", start="first") as consumer:
        found: list[bytes] = []
        while len(found) < 2:
            found += [message.body for message in await consumer.poll()]
    assert sorted(found) == [b"2", b"3"]


async def test_a_new_group_that_wants_the_last_gets_nothing_older(
    client: Client, topic: str
) -> None:
    await client.send_many([Message(topic, b"old") for _ in range(20)])
    subscription = client.subscribe(topic, group=f"g-{topic}", start="last")
    async with subscription:
        consumer = subscription._consumer
        await eventually(lambda: len(consumer.assigned(topic)) == 4, deadline_s=DEADLINE_S)
        await client.send(topic, b"new")
        assert await take(subscription, 1) == [b"new"]


async def test_a_group_that_was_there_before_its_topic_gets_everything(client: Client) -> None:
    topic = fresh_name()
    async with client.subscribe(topic, group=f"g-{topic}", start="last") as subscription:
        await client.send(topic, b"first")
        assert await take(subscription, 1) == [b"first"]


async def test_members_that_subscribe_to_different_things_are_seen(
    client: Client, cometmq_session_cluster: Cluster, topic: str
) -> None:
    group, admin = f"g-{topic}", Admin(client.session)

    async def seen() -> dict[str, dict[str, str]] | None:
        connections = await admin.consumer_connections(group)
        assert connections is not None
        return connections.conflicting_subscriptions

    async with (
        Client(cometmq_session_cluster.namesrv) as other,
        client.subscribe(topic, group=group, filter="a"),
    ):
        assert await seen() is None
        async with other.subscribe(topic, group=group, filter="b || c"):
            assert await seen() == {
                client.client_id: {topic: "a"},
                other.client_id: {topic: "b || c"},
            }
            runtime = await admin.broker_runtime(cometmq_session_cluster.broker)
            assert group in runtime["conflictingGroups"].split()
            assert int(runtime["subscriptionConflicts"]) >= 1
        assert await seen() is None


async def test_a_broker_in_the_place_of_a_name_server_is_told(
    cometmq_session_cluster: Cluster,
) -> None:
    broker = cometmq_session_cluster.broker
    async with Client(broker) as client:
        with pytest.raises(BrokerRefused, match=f"^{broker} is a broker, not a name server: give"):
            await client.send("t", b"")
        with pytest.raises(BrokerRefused, match=f"^{broker} is a broker, not a name server: give"):
            await Admin(client.session).brokers()


async def test_clients_and_consumers_show_what_they_are(cometmq_session_cluster: Cluster) -> None:
    servers = cometmq_session_cluster.namesrv
    client = Client(servers)
    assert repr(client) == f"<Client of {servers}, not open>"
    async with client:
        topic = await fresh_topic(client, queues=2)
        subscription = client.subscribe({topic: "a || b"}, group=f"g-{topic}")
        told = f"<Subscription of group g-{topic} to {topic} (a || b), "
        assert repr(subscription) == f"{told}not joined yet, 0 queues>"
        async with subscription:
            # Those of the topic, and the group's retry topic.
            await eventually(lambda: repr(subscription) == f"{told}joined, 3 queues>")
            opened = f"<Client {client.client_id} of {servers}, open, 1 consumers>"
            assert repr(client) == opened
        assert repr(subscription) == f"{told}closed, 0 queues>"
        consumer = client.pull_consumer(group="p")
        assert repr(consumer) == "<PullConsumer of group p to assigned queues, 0 queues>"
        assert repr(client.producer) == "<Producer of group COMETMQ_PRODUCER>"
    assert repr(client) == f"<Client of {servers}, not open>"
    assert repr(cometmq.BlockingClient(servers)) == (
        f"<BlockingClient over <Client of {servers}, not open>>"
    )


async def test_drain_ends_all_subscriptions_together_and_leaves_sending(
    client: Client,
) -> None:
    topics = [await fresh_topic(client, queues=1) for _ in range(2)]
    begun: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.topic)
        await asyncio.Event().wait()

    running = []
    for topic in topics:
        await client.send(topic, b"1")
        given = client.subscribe(topic, group=fresh_name("g"), start="first")
        running.append(asyncio.create_task(given.run(handle)))
    await eventually(lambda: len(begun) == 2)
    async with asyncio.timeout(5):
        assert await client.drain(timeout_ms=50) == 2
    assert (await client.send(topics[0], b"2")).queue_offset == 1
    assert await client.drain() == 2
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("turns", [1, 50])
async def test_a_cancelled_close_ends_connections_and_tasks(
    cometmq_session_cluster: Cluster, turns: int
) -> None:
    before = asyncio.all_tasks()
    client = Client(cometmq_session_cluster.namesrv, trace=True, linger_ms=1_000)
    await client.start()
    topic = await fresh_topic(client)
    session, hooks = client.session, len(client.consume_hooks)
    await client.send(topic, b"one")
    subscription = client.subscribe(topic, group=f"g-{topic}", start="first")
    message = await anext(aiter(subscription))
    async with message.processing():
        # It waits for this message.
        closing = asyncio.create_task(client.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not closing.done()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert session.remoting.in_flight() == {}
        assert asyncio.all_tasks() == before
        with pytest.raises(RuntimeError, match="not open"):
            _ = client.session
        assert len(client.consume_hooks) == hooks - 1
        await client.close()
    async with client:
        assert (await client.send(topic, b"two")).queue.topic == topic


async def test_a_close_that_was_cancelled_while_connections_end_is_finished_by_another(
    cometmq_session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    client = Client(cometmq_session_cluster.namesrv)
    await client.start()
    remoting = client.session.remoting
    await client.send(await fresh_topic(client), b"one")
    end, reached, may_end = remoting.close, asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        reached.set()
        await may_end.wait()
        await end()

    monkeypatch.setattr(remoting, "close", slow)
    closing = asyncio.create_task(client.close())
    await reached.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    may_end.set()
    await client.close()
    assert remoting.in_flight() == {}
    assert asyncio.all_tasks() == before
    with pytest.raises(RuntimeError, match="not open"):
        _ = client.session
