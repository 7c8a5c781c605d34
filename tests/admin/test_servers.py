"""Settings, tables, clean-ups and accounts of servers, on a real CometMQ broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.servers import Account, Applied, Rate, Servers, Traffic
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused, NotConnected, NotFound, RouteNotFound
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.testing.cluster import Cluster, running_cluster
from tests.client.shared_broker import fresh_name, fresh_topic

WHITE: str = "globalWhiteRemoteAddresses:\n- 127.0.0.*\naccounts: []\n"


@pytest.fixture
def servers(admin: Admin) -> Servers:
    return Servers(admin)


async def test_settings_of_brokers(servers: Servers, cometmq_session_cluster: Cluster) -> None:
    (shown,) = await servers.broker_settings()
    assert (shown.address, shown.error) == (cometmq_session_cluster.broker, None)
    assert shown.values["brokerName"] == shown.server
    assert await servers.broker_settings(shown.server) == [shown]
    assert await servers.broker_settings(shown.address) == [shown]
    before = shown.values["maxMessageSize"]
    changed = {"maxMessageSize": str(int(before) - 1)}
    assert await servers.update_brokers(changed, shown.server) == [
        Applied(shown.server, shown.address)
    ]
    (after,) = await servers.broker_settings()
    assert after.values["maxMessageSize"] == changed["maxMessageSize"]
    await servers.update_brokers({"maxMessageSize": before})
    with pytest.raises(NotFound, match="setting 'noSuch'"):
        await servers.update_brokers({"noSuch": "1"})
    (refused,) = await servers.update_brokers({"maxMessageSize": "much"})
    assert isinstance(refused.error, BrokerRefused)
    with pytest.raises(NotFound, match=r"broker 'nobody'.*known: "):
        await servers.broker_settings("nobody")


async def test_settings_of_name_servers(servers: Servers, cometmq_session_cluster: Cluster) -> None:
    (shown,) = await servers.name_server_settings()
    assert shown.address == cometmq_session_cluster.namesrv
    before = shown.values["orderMessageEnable"]
    for value in ("true", before):
        (done,) = await servers.update_name_servers({"orderMessageEnable": value})
        assert done.error is None
        (after,) = await servers.name_server_settings()
        assert after.values["orderMessageEnable"] == value


async def test_servers_that_do_not_answer(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(admin)
    closed = "127.0.0.1:9"
    monkeypatch.setattr(Servers, "name_servers", (closed,))
    (shown,) = await servers.name_server_settings()
    assert isinstance(shown.error, NotConnected)
    (done,) = await servers.update_name_servers({"anything": "1"})
    assert done.address == closed
    assert isinstance(done.error, NotConnected)
    (done,) = await servers.put_kv("n", "k", "v")
    assert isinstance(done.error, NotConnected)


async def test_key_value_tables(servers: Servers) -> None:
    namespace = fresh_name("namespace")
    assert await servers.kv_table(namespace) == {}
    with pytest.raises(NotFound, match="key 'k'"):
        await servers.kv_value(namespace, "k")
    assert [each.error for each in await servers.put_kv(namespace, "k", "v")] == [None]
    assert await servers.kv_table(namespace) == {"k": "v"}
    assert await servers.kv_value(namespace, "k") == "v"
    assert [each.error for each in await servers.delete_kv(namespace, "k")] == [None]
    assert await servers.kv_table(namespace) == {}
    topic = fresh_name()
    await servers.set_order(topic, {"broker-a": 4, "broker-b": 2})
    assert (await servers.kv_table("ORDER_TOPIC_CONFIG"))[topic] == "broker-a:4;broker-b:2"


async def test_topics_on_brokers(client: Client, admin: Admin, servers: Servers) -> None:
    topic = await fresh_topic(client, 2)
    (broker,) = await admin.brokers()
    assert topic in await servers.topics_of_cluster(broker.cluster)
    assert await servers.clusters_of(topic) == [broker.cluster]
    assert (await servers.topic_configs(broker.name)).topic_config_table[topic].perm == 6
    assert await servers.set_topic_perm(topic, 4, broker.name) == [
        Applied(broker.name, broker.address)
    ]
    config = await admin.topic_config(broker.address, topic)
    assert config is not None
    assert (config.perm, config.read_queue_nums) == (4, 2)
    with pytest.raises(RouteNotFound, match="no master of those has it"):
        await servers.set_topic_perm(fresh_name(), 4)
    with pytest.raises(NotFound, match="cluster 'nowhere'"):
        await servers.topics_of_cluster("nowhere")


async def test_write_permission_of_a_broker(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        servers = Servers(Admin(client.session))
        (broker,) = await servers._admin.brokers()
        (told,) = await servers.stop_writes(broker.name)
        assert told.topics > 0
        (told,) = await servers.allow_writes(broker.name)
        assert told.topics > 0
        with pytest.raises(NotFound):
            await servers.stop_writes("nobody")


async def test_clean_ups(servers: Servers) -> None:
    for call in (
        servers.delete_expired_queues(),
        servers.delete_expired_log(),
        servers.delete_unused_topics(),
    ):
        assert [each.error for each in await call] == [None]


async def test_consumption_on_a_broker(client: Client, admin: Admin, servers: Servers) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    await admin.update_group(SubscriptionGroupConfig(group))
    sent = await client.send(topic, b"")
    await admin.commit_group_offsets(group, {sent.queue: 0})
    (broker,) = await admin.brokers()
    found = [each for each in await servers.consumption(broker.name) if each.group == group]
    assert [len(each.stats.offset_table) for each in found] == [1]
    assert await servers.consumption(broker.name, ordered=True) == []


async def test_traffic(client: Client, admin: Admin, servers: Servers) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    for _ in range(3):
        await client.send(topic, b"12345")
    async with client.subscribe(topic, group=group, start="first") as subscription:
        message = await anext(subscription)
        async with message.processing():
            pass
        async with asyncio.timeout(60):
            # Until the broker has taken a sample after the last of them.
            while (found := await servers.topic_traffic(topic)).put.minute.sum < 3:
                pass
    assert found.put.minute.sum == found.put.longest_sum == 3
    assert found.put_bytes.minute.sum > 3 * 5
    assert found.groups[group].sent_back == Traffic()
    (broker,) = await servers.broker_traffic()
    assert broker.put.minute.sum >= 3
    with pytest.raises(RouteNotFound):
        await servers.topic_traffic(fresh_name())


def test_the_longest_window_that_counted() -> None:
    assert Traffic(Rate(1, 0.1), Rate(2, 0.1), Rate(3, 0.1)).longest_sum == 3
    assert Traffic(Rate(1, 0.1), Rate(2, 0.1)).longest_sum == 2
    assert Traffic(Rate(1, 0.1)).longest_sum == 1


async def test_accounts(tmp_path: Path) -> None:
    rules = tmp_path / "conf" / "plain_acl.yml"
    rules.parent.mkdir()
    rules.write_text(WHITE)
    settings: dict[str, str | bool] = {"aclEnable": True, "rocketmqHome": str(tmp_path)}
    async with running_cluster(tmp_path, **settings) as cluster, Client(cluster.namesrv) as client:
        servers = Servers(Admin(client.session))
        account = Account("some-key", "very-secret", admin=False, topic_perms=("t=PUB", "u=SUB"))
        assert "very-secret" not in repr(account)
        (version,) = await servers.acl_versions()
        (done,) = await servers.put_account(account)
        assert done.error is None
        (shown,) = await servers.accounts()
        (found,) = shown.accounts
        assert (found.access_key, found.topic_perms) == ("some-key", ("t=PUB", "u=SUB"))
        assert found.secret_key == "******"
        assert shown.white_list == ("127.0.0.*",)
        (later,) = await servers.acl_versions()
        assert later.files[str(rules)] != version.files[str(rules)]
        (done,) = await servers.put_account(Account("some-key", default_topic_perm="DENY"))
        assert done.error is None
        (done,) = await servers.set_white_list(["127.0.0.*", "10.0.0.1"])
        assert done.error is None
        (shown,) = await servers.accounts()
        assert shown.white_list == ("127.0.0.*", "10.0.0.1")
        assert shown.accounts[0].default_topic_perm == "DENY"
        (done,) = await servers.delete_account("some-key")
        assert done.error is None
        (refused,) = await servers.delete_account("some-key")
        assert isinstance(refused.error, BrokerRefused)


async def test_accounts_without_access_control(servers: Servers) -> None:
    with pytest.raises(BrokerRefused, match="does not enable acl"):
        await servers.accounts()
    (refused,) = await servers.put_account(Account("key-of-it", "secret-of-it"))
    assert "secret-of-it" not in str(refused.error)
