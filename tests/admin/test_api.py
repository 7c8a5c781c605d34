"""Admin operations against a real CometMQ broker."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from cometmq.admin.api import Admin, Broker
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused, NotConnected, NotFound, RouteNotFound
from cometmq.message.ids import encode_offset_id, pack_host
from cometmq.message.model import Message, MessageQueue, StoredMessage
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Response
from cometmq.protocol.headers import Header
from cometmq.testing.cluster import Cluster


@pytest.fixture
async def topic(admin: Admin) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    await admin.create_topic(name, queues=2)
    return name


async def broker_name(admin: Admin) -> str:
    return (await admin.brokers())[0].name


async def test_the_cluster(admin: Admin, cometmq_session_cluster: Cluster) -> None:
    (broker,) = await admin.brokers()
    assert broker.address == cometmq_session_cluster.broker
    assert broker.broker_id == 0
    assert await admin.brokers(broker.cluster, masters_only=True) == [broker]
    assert await admin.brokers("no such cluster") == []
    assert "brokerVersionDesc" in await admin.broker_runtime(broker.address)


async def test_settings_of_a_broker_can_be_read_and_changed(
    admin: Admin, cometmq_session_cluster: Cluster
) -> None:
    address = cometmq_session_cluster.broker
    before = await admin.broker_config(address)
    assert before["brokerName"] == await broker_name(admin)
    with pytest.raises(BrokerRefused):
        await admin.update_broker_config(address, {"noSuchSetting": "1"})


async def test_a_topic_from_its_creation_to_its_end(admin: Admin) -> None:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    with pytest.raises(RouteNotFound):
        await admin.topic_route(name)
    route = await admin.create_topic(name, queues=3)
    assert [(data.read_queue_nums, data.perm) for data in route.queue_datas] == [(3, 6)]
    assert name in await admin.list_topics()
    changed = await admin.create_topic(
        name, read_queues=4, write_queues=2, perm=4, brokers=[await broker_name(admin)]
    )
    data = changed.queue_datas[0]
    assert (data.read_queue_nums, data.write_queue_nums, data.perm) == (4, 2, 4)
    address = (await admin.brokers())[0].address
    config = await admin.topic_config(address, name)
    assert config is not None
    assert (config.read_queue_nums, config.perm) == (4, 4)
    await admin.delete_topic(name)
    assert name not in await admin.list_topics()
    assert await admin.topic_config(address, name) is None


async def test_a_topic_needs_a_broker(admin: Admin) -> None:
    with pytest.raises(RouteNotFound, match="no master broker"):
        await admin.create_topic("t", brokers=["nobody"])


async def test_a_topic_whose_route_does_not_come(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.admin.api._ROUTE_VISIBLE_MS", 0)

    async def nothing(topic: str) -> None:
        raise RouteNotFound(topic, "not yet")

    monkeypatch.setattr(admin, "topic_route", nothing)
    with pytest.raises(RouteNotFound, match="not yet"):
        await admin.create_topic(f"topic-{uuid.uuid4().hex[:12]}")


async def test_a_cluster_that_is_not_there_is_refused(admin: Admin) -> None:
    for call in (
        admin.delete_topic("t", "nowhere"),
        admin.delete_group("g", "nowhere"),
        admin.update_group(SubscriptionGroupConfig("g"), "nowhere"),
    ):
        with pytest.raises(NotFound, match="cluster 'nowhere': no broker is registered in it"):
            await call


async def test_a_group_needs_a_broker(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object, **__: object) -> list[object]:
        return []

    monkeypatch.setattr(admin, "brokers", none)
    with pytest.raises(NotFound, match="no master broker is registered"):
        await admin.update_group(SubscriptionGroupConfig("g"))


async def test_system_topics(admin: Admin) -> None:
    assert "SCHEDULE_TOPIC_XXXX" in await admin.system_topics()


async def test_offsets_of_a_topic(admin: Admin, client: Client, topic: str) -> None:
    queue = MessageQueue(topic, await broker_name(admin), 1)
    for _ in range(3):
        await client.send(topic, b"", queue=queue)
    stats = await admin.topic_stats(topic)
    assert [each.queue_id for each in stats] == [0, 1]
    assert (stats[queue].min_offset, stats[queue].max_offset) == (0, 3)
    assert stats[queue].last_update_timestamp > 0


async def test_progress_of_a_group(admin: Admin, client: Client, topic: str) -> None:
    group = f"g-{topic}"
    await admin.update_group(SubscriptionGroupConfig(group))
    queues = [MessageQueue(topic, await broker_name(admin), at) for at in range(2)]
    for queue in queues:
        for _ in range(5):
            await client.send(topic, b"", queue=queue)
    await admin.commit_group_offsets(group, {queues[0]: 4, queues[1]: 5})
    assert await admin.group_offsets(group, topic) == {queues[0]: 4, queues[1]: 5}
    progress = await admin.consumer_progress(group, topic)
    lags = {each: at.broker_offset - at.consumer_offset for each, at in progress.items()}
    assert lags == {queues[0]: 1, queues[1]: 0}
    assert group in await admin.groups_of(topic)
    assert await admin.consumer_connections(group) is None
    await admin.delete_group(group)
    assert await admin.consumer_progress(group) == {}


async def test_a_group_without_an_offset(admin: Admin, client: Client, topic: str) -> None:
    queue = MessageQueue(topic, await broker_name(admin), 0)
    await client.send(topic, b"", queue=queue)
    assert await admin.group_offset("never-seen", queue) is None


async def test_members_of_a_group(admin: Admin, client: Client, topic: str) -> None:
    async with client.subscribe(topic, group=f"g-{topic}"):
        connections = await admin.consumer_connections(f"g-{topic}")
        assert connections is not None
        assert [each.client_id for each in connections.connection_set] == [client.client_id]
        assert topic in connections.subscription_table


async def test_messages_are_found_by_their_ids(admin: Admin, client: Client, topic: str) -> None:
    sent = await client.send(topic, b"body", keys=["k1"])
    by_offset_id = await admin.message_by_id(sent.offset_id)
    assert by_offset_id is not None
    assert by_offset_id.unique_key == sent.message_id
    by_key = await _until_found(admin, sent.message_id, topic)
    assert by_key.body == b"body"
    assert by_key.queue == sent.queue
    assert await admin.message_by_id("no id at all") is None
    assert await admin.message_by_id("no id at all", topic) is None
    nowhere = sent.offset_id[:-16] + f"{1 << 40:016X}"
    assert await admin.message_by_id(nowhere) is None
    with pytest.raises(NotFound, match="it is a sender's: give the topic"):
        await admin.message_by_id(sent.message_id)
    with pytest.raises(NotFound, match="give the topic"):
        await admin.message_by_id(sent.message_id[:8] + "00000001" + sent.message_id[16:])


async def _until_found(admin: Admin, message_id: str, topic: str) -> StoredMessage:
    async with asyncio.timeout(60):
        while True:
            found = await admin.message_by_id(message_id, topic)
            if found is not None:
                return found
            await asyncio.sleep(0.02)


async def test_messages_are_found_by_their_keys(admin: Admin, client: Client, topic: str) -> None:
    for at in range(3):
        await client.send(Message(topic, b"%d" % at, keys=("same", f"own-{at}")))
    async with asyncio.timeout(60):
        while len(found := await admin.messages_by_key(topic, "same")) < 3:
            await asyncio.sleep(0.02)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert [each.body for each in await admin.messages_by_key(topic, "own-1")] == [b"1"]
    assert await admin.messages_by_key(topic, "nobody") == []
    assert len(await admin.messages_by_key(topic, "same", max_messages=2)) <= 2
    assert await admin.messages_by_key(topic, "same", end_ms=1) == []


async def test_all_name_servers_are_told_of_a_deletion(
    cometmq_session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, open_ = "127.0.0.1:9", cometmq_session_cluster.namesrv
    async with Client(f"{closed};{open_}") as client:
        admin, told = Admin(client.session), list[str]()
        name = f"topic-{uuid.uuid4().hex[:12]}"
        await admin.create_topic(name, queues=1)
        call = admin.call

        async def noted(
            address: str, code: RequestCode, header: Header | None, **more: int
        ) -> Response:
            if code is RequestCode.DELETE_TOPIC_IN_NAMESRV:
                told.append(address)
            return await call(address, code, header, timeout_ms=more.get("timeout_ms", 0))

        monkeypatch.setattr(admin, "call", noted)
        with pytest.raises(NotConnected, match=r"127\.0\.0\.1:9"):
            await admin.delete_topic(name)
        assert sorted(told) == sorted((closed, open_))


async def test_an_id_that_names_another_address_is_not_asked_there(
    admin: Admin, topic: str, client: Client
) -> None:
    """Who sends a message chooses its id; looking it up must not connect to where it points."""
    asked = asyncio.Event()
    server = await asyncio.start_server(lambda *_: asked.set(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        message_id = encode_offset_id(pack_host("127.0.0.1", port), 0)
        assert await admin.message_by_id(message_id, topic) is None
        with pytest.raises(NotFound, match="no broker of the cluster made this id"):
            await admin.message_by_id(message_id)
    assert not asked.is_set()


async def test_a_broker_may_be_registered_with_a_host_name(
    admin: Admin, topic: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await client.send(topic, b"one")
    (broker,) = await admin.brokers()
    named = replace(broker, address=broker.address.replace("127.0.0.1", "localhost"))

    async def registered(*_: str, **__: bool) -> list[Broker]:
        return [named]

    monkeypatch.setattr(admin, "brokers", registered)
    found = await admin.message_by_id(sent.offset_id)
    assert found is not None
    assert (found.body, found.broker_name) == (b"one", broker.name)
