"""Our client against real Java name servers and brokers, 4.9.7 and 5.5.0, and against ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.sendrequests import SendStatus
from cometmq.core.errors import BrokerRefused, RouteNotFound
from cometmq.message.model import Message, MessageQueue
from cometmq.message.record import Compression, compression
from cometmq.protocol.bodies import SubscriptionGroupConfig
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic, read_all, read_as_broadcast
from tests.compat import anchor
from tests.compat.conftest import Target
from tests.compat.driver import Driver
from tests.compat.lines import proves

ONE_SECOND_LEVEL = 1


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    # A test machine may be busy, and a fresh JVM is slow.
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@pytest.fixture
async def topic(client: Client) -> str:
    return await fresh_topic(client)


@proves("sync", "one-way", "batch", "unique ids", "zlib bodies")
async def test_every_way_to_send_reaches_a_consumer(client: Client, topic: str) -> None:
    single = await client.send(topic, b"single", tag="a", keys=["k1", "k2"], properties={"p": "v"})
    assert single.status is SendStatus.OK
    await client.send_oneway(topic, b"oneway", tag="b")
    large = await client.send(topic, b"large" * 10_000, tag="c")
    batch = await client.send_many([Message(topic, b"batch-%d" % at, "d") for at in range(100)])
    assert [each.queue_offset - batch[0].queue_offset for each in batch] == list(range(100))
    found = {message.body: message for message in await read_all(client, topic, 103)}
    assert set(found) == {
        b"single",
        b"oneway",
        b"large" * 10_000,
        *(b"batch-%d" % at for at in range(100)),
    }
    message = found[b"single"]
    assert (message.tag, message.keys, message.topic) == ("a", ("k1", "k2"), topic)
    assert (message.message_id, message.stored.offset_id) == (
        single.message_id,
        single.offset_id,
    )
    assert message.properties["p"] == "v"
    assert found[b"large" * 10_000].message_id == large.message_id
    assert found[b"batch-7"].stored.offset_id == batch[7].offset_id


async def test_the_first_message_creates_its_topic(client: Client) -> None:
    name = fresh_name()
    result = await client.send(name, b"first")
    assert result.queue_offset == 0
    assert [message.body for message in await read_all(client, name, 1)] == [b"first"]


@proves("tags")
async def test_tags_are_filtered(client: Client, topic: str) -> None:
    for tag in ("insert", "update", "delete", "AaAa", "BBBB"):
        await client.send(topic, tag.encode(), tag=tag)
    found: set[bytes] = set()
    wanted = "insert || update || AaAa"
    async with client.subscribe(topic, group=f"g-{topic}", filter=wanted, start="first") as given:
        async with asyncio.timeout(60):
            async for message in given:
                async with message.processing():
                    found.add(message.body)
                if len(found) == 3:
                    break
    assert found == {b"insert", b"update", b"AaAa"}


@proves("send-back and retry topic", "dead letters")
async def test_a_failed_message_comes_back_and_then_dies(client: Client, topic: str) -> None:
    await client.send(topic, b"poison", keys=["k"])
    group = f"g-{topic}"
    attempts: list[int] = []
    async with client.subscribe(
        topic, group=group, start="first", max_reconsume_times=1
    ) as subscription:
        async with asyncio.timeout(60):
            async for message in subscription:
                assert (message.topic, message.body) == (topic, b"poison")
                attempts.append(message.reconsume_times)
                await message.retry(ONE_SECOND_LEVEL)
                if len(attempts) == 2:
                    break
    assert attempts == [0, 1]
    (dead,) = await read_all(client, f"%DLQ%{group}", 1)
    assert (dead.body, dead.keys) == (b"poison", ("k",))


async def test_a_trace_context_survives_a_broker_and_a_retry(client: Client, topic: str) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.send(topic, b"traced", properties={"traceparent": given, "tracestate": "a=b,c=d"})
    subscription = client.subscribe(topic, group=fresh_name(), start="first")
    for attempt in range(2):
        async with asyncio.timeout(60):
            message = await anext(subscription)
        assert message.reconsume_times == attempt
        assert message.properties["traceparent"] == given
        assert message.properties["tracestate"] == "a=b,c=d"
        if attempt:
            message.ack()
        else:
            await message.retry(ONE_SECOND_LEVEL)
    await subscription.close()


async def test_typed_values_and_what_is_none(client: Client, topic: str) -> None:
    numbers = client.topic(topic, dict[str, int], keys=lambda value: value["n"])
    await numbers.send_batch([{"n": 1}, {"n": 2}], tag="a")
    await client.send(topic, b"no JSON")
    await numbers.send({"n": 3})
    group = fresh_name()
    subscription = numbers.subscribe(group=group, start="first", on_undecodable="dead_letter")
    found = set()
    async for message in subscription:
        async with message.processing():
            assert message.keys == (str(message.value["n"]),)
            found.add(message.value["n"])
        if len(found) == 3:
            break
    assert found == {1, 2, 3}
    # Delivered before or after the last value, so ask once more for what is left.
    waiting = asyncio.ensure_future(anext(subscription))
    await eventually(lambda: subscription.undecodable_count == 1)
    [letter] = await read_all(client, f"%DLQ%{group}", 1)
    assert letter.body == b"no JSON"
    waiting.cancel()
    await asyncio.wait([waiting])
    await subscription.close()


@proves("offsets kept and asked for")
async def test_the_group_remembers_where_it_stood(client: Client, topic: str) -> None:
    queue = (await client.queues(topic))[0]
    for at in range(10):
        await client.send(topic, b"%d" % at, queue=queue)
    group = f"g-{topic}"
    found: list[bytes] = []
    for stop_after in (4, 10):
        async with client.subscribe(topic, group=group, start="first", concurrency=1) as given:
            async with asyncio.timeout(60):
                async for message in given:
                    async with message.processing():
                        found.append(message.body)
                    if len(found) == stop_after:
                        break
    assert found == [b"%d" % at for at in range(10)]
    admin = Admin(client.session)
    assert (await admin.group_offsets(group, topic))[queue] == 10
    progress = await admin.consumer_progress(group, topic)
    assert (progress[queue].broker_offset, progress[queue].consumer_offset) == (10, 10)


@proves("push, clustering", "push, orderly", "queue locks through a rebalance")
async def test_members_share_a_topic_in_order(client: Client, target: Target, topic: str) -> None:
    keys = [f"key-{at}" for at in range(10)]
    seen: dict[str, list[int]] = {key: [] for key in keys}
    shares = [0, 0]

    async def consume(member: Client, number: int) -> None:
        async def handle(message: ReceivedMessage) -> None:
            shares[number] += 1
            seen[message.keys[0]].append(int(message.body))

        given = member.subscribe(topic, group=f"g-{topic}", ordered=True, start="first")
        await given.run(handle)

    async with Client(target.namesrv) as one, Client(target.namesrv) as two:
        running = [asyncio.create_task(consume(each, at)) for at, each in enumerate((one, two))]
        for number in range(400):
            key = keys[number % len(keys)]
            await client.send(topic, b"%d" % number, keys=[key], order_key=key)
        await eventually(
            lambda: len({n for each in seen.values() for n in each}) == 400, deadline_s=60
        )
    await asyncio.gather(*running)
    for numbers in seen.values():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    assert min(shares) > 0


@proves("push, broadcasting")
async def test_broadcasting(client: Client, topic: str, tmp_path: Path) -> None:
    await client.send_many([Message(topic, b"%d" % at) for at in range(20)])
    await read_as_broadcast(client.config.name_servers, topic, 20, tmp_path)


@proves("plain pull", "offsets kept and asked for")
async def test_ranges_and_offsets(client: Client, topic: str) -> None:
    queue = (await client.queues(topic))[1]
    begun_ms = client.session.clock.wall_ms()
    for at in range(100):
        await client.send(topic, b"%d" % at, queue=queue)
    puller = client.puller
    async with asyncio.timeout(30):  # the Java broker lists a message a moment after its answer
        while await puller.max_offset(queue) < 100:
            await asyncio.sleep(0.01)
    assert await puller.min_offset(queue) == 0
    found = [message.body async for part in puller.read_range(queue, 10, 90) for message in part]
    assert found == [b"%d" % at for at in range(10, 90)]
    assert await puller.earliest_store_ms(queue) >= begun_ms - 1000
    assert 0 <= await puller.search_offset(queue, begun_ms) <= 100


async def test_admin_operations(client: Client, target: Target, topic: str) -> None:
    admin = Admin(client.session)
    (broker,) = await admin.brokers()
    assert (broker.name, broker.address) == (target.broker_name, target.broker)
    await asyncio.to_thread(anchor.wait_for_figures, broker.address)
    assert (await admin.broker_runtime(broker.address))["brokerVersionDesc"] == target.version
    assert (await admin.broker_config(broker.address))["brokerName"] == target.broker_name
    assert topic in await admin.list_topics()
    assert "SCHEDULE_TOPIC_XXXX" in await admin.system_topics()
    sent = await client.send(topic, b"body", keys=["k"])
    async with asyncio.timeout(30):  # a Java broker's queues come after the answer
        while not (await admin.topic_stats(topic))[sent.queue].max_offset:
            await asyncio.sleep(0.05)
    assert (await admin.topic_stats(topic))[sent.queue].max_offset == 1
    by_id = await admin.message_by_id(sent.offset_id)
    assert by_id is not None
    assert by_id.body == b"body"
    async with asyncio.timeout(30):
        while not await admin.messages_by_key(topic, "k"):
            await asyncio.sleep(0.05)
    by_key = await admin.message_by_id(sent.message_id, topic)
    assert by_key is not None
    assert by_key.queue == sent.queue
    group = f"g-{topic}"
    await admin.update_group(SubscriptionGroupConfig(group))
    await admin.commit_group_offsets(group, {sent.queue: 1})
    assert (await admin.group_offsets(group, topic))[sent.queue] == 1
    assert await admin.groups_of(topic) == [group]
    assert await admin.consumer_connections(group) is None
    async with client.subscribe(topic, group=group):
        connections = await admin.consumer_connections(group)
        assert connections is not None
        assert connections.connection_set[0].language == "PYTHON"
    await admin.delete_group(group)
    await admin.delete_topic(topic)
    with pytest.raises(RouteNotFound):
        await admin.topic_route(topic)


@proves("batch")
async def test_a_batch_is_stored_as_a_whole(client: Client, topic: str) -> None:
    messages = [Message(topic, b"%d" % at, keys=(f"k{at}",), wait_store=False) for at in range(50)]
    results = await client.send_batch(messages, queue=lambda queues, _: queues[2])
    assert {each.queue.queue_id for each in results} == {2}
    assert [each.queue_offset for each in results] == list(range(50))
    found = {message.keys: message for message in await read_all(client, topic, 50)}
    assert {keys: message.body for keys, message in found.items()} == {
        (f"k{at}",): b"%d" % at for at in range(50)
    }


@pytest.mark.parametrize("packing", ["ZLIB", "LZ4", "ZSTD"])
async def test_bodies_that_java_packed(
    client: Client, driver: Driver, target: Target, topic: str, packing: str
) -> None:
    arguments = {"group": f"{packing}-{topic}", "packing": packing, "size": 50_000, "prefix": "p-"}
    await asyncio.to_thread(driver.send, target.namesrv, topic, **arguments)
    (message,) = await read_all(client, topic, 1)
    assert message.body == b"p-0".ljust(50_000, b"x")
    assert message.stored.size_bytes < 5_000
    assert compression(message.stored.sys_flag) is Compression[packing]


@proves("namespaces")
async def test_tenants_of_a_namespace_in_both_languages(
    client: Client, driver: Driver, target: Target
) -> None:
    namespace, topic = fresh_name("tenant"), fresh_name()
    await Admin(client.session).create_topic(f"{namespace}%{topic}", queues=1)
    arguments = {"group": fresh_name("p"), "namespace": namespace, "prefix": "java-"}
    (sent,) = await asyncio.to_thread(driver.send, target.namesrv, topic, **arguments)
    settings: dict[str, Any] = {"namespace": namespace, "send_timeout_ms": 10_000}
    async with Client(target.namesrv, **settings) as tenant:
        ours = await tenant.send(topic, b"ours")
        assert (ours.queue.topic, ours.queue_offset) == (topic, 1)
        given = tenant.subscribe(topic, group="g", start="first")
        found: list[tuple[str, bytes, str, int]] = []
        async with asyncio.timeout(60):
            async for message in given:
                space = message.properties["INSTANCE_ID"]
                found.append((message.topic, message.body, space, message.reconsume_times))
                if message.reconsume_times == 0:
                    await message.retry(ONE_SECOND_LEVEL)
                else:
                    message.ack()
                if len(found) == 4:
                    break
        await given.close()
    assert sorted(found) == [
        (topic, body, namespace, times) for body in (b"java-0", b"ours") for times in (0, 1)
    ]
    raw = await asyncio.to_thread(
        driver.ask, "pullAll", namesrv=target.namesrv, topic=f"{namespace}%{topic}"
    )
    assert isinstance(raw, dict)
    assert isinstance(raw["messages"], list)
    assert len(raw["messages"]) == 2
    assert sent["queueOffset"] == 0


async def test_what_the_broker_refuses_is_told(client: Client, target: Target, topic: str) -> None:
    queue = MessageQueue(topic, target.broker_name, 99)
    with pytest.raises(BrokerRefused, match="99") as caught:
        await client.send(topic, b"x", queue=queue)
    assert caught.value.code == (29 if target.name == "java5" else 1)
