"""The composition of a node: settings find their part, the parts find each other."""

from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.cli.node import (
    join_address,
    node_config,
    running_namesrv,
    running_node,
    set_address,
)
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import SettingsError
from cometmq.namesrv.config import load
from cometmq.testing.cluster import cluster_settings


def test_settings_find_their_part(tmp_path: Path) -> None:
    settings = {
        "orderMessageEnable": "true",
        "brokerName": "broker-z",
        "flush_disk_type": "SYNC_FLUSH",
        "remoteAdminEnable": "true",
        "warmMapedFileEnable": "true",
    }
    config = node_config(tmp_path, settings, namesrv_port=5, broker_port=7, bind="127.0.0.2")
    assert config.namesrv.order_message_enable
    assert config.namesrv.remote_admin_enable
    assert config.broker.remote_admin_enable
    assert (config.namesrv.listen_port, config.broker.listen_port) == (5, 7)
    assert (config.namesrv.bind_address, config.broker.bind_address) == ("127.0.0.2",) * 2
    assert config.broker.broker_name == "broker-z"
    assert config.store.flush_disk_type.name == "SYNC_FLUSH"
    assert config.store.store_path_root_dir == str(tmp_path)
    assert Path(config.namesrv.kv_config_path).is_relative_to(tmp_path)
    assert any("warmMapedFileEnable" in notice for notice in config.notices)


def test_a_node_stays_on_this_machine_unless_told(tmp_path: Path) -> None:
    config = node_config(tmp_path, {})
    assert (config.namesrv.bind_address, config.broker.bind_address) == ("127.0.0.1",) * 2
    told = node_config(tmp_path, {"bindAddress": "127.0.0.3"})
    assert (told.namesrv.bind_address, told.broker.bind_address) == ("127.0.0.3",) * 2


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="flushDiskType"):
        node_config(tmp_path, {"flushDiskTyp": "SYNC_FLUSH"})
    with pytest.raises(SettingsError):
        load({"brokerName": "a"})


def test_the_node_s_own_name_server_comes_first(tmp_path: Path) -> None:
    config = node_config(tmp_path, {"namesrvAddr": "10.0.0.1:9876"}).broker
    assert set_address(config, "127.0.0.1:5").namesrv_addr == "127.0.0.1:5;10.0.0.1:9876"
    assert set_address(node_config(tmp_path, {}).broker, "a:1").namesrv_addr == "a:1"


def test_an_ipv6_address_gets_brackets() -> None:
    assert join_address("::1", 5) == "[::1]:5"
    assert join_address("127.0.0.1", 5) == "127.0.0.1:5"


async def test_a_name_server_gives_its_port(tmp_path: Path) -> None:
    config, _ = load({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")})
    async with running_namesrv(config, SystemClock()) as address:
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0


async def test_a_node_serves_at_the_addresses_it_gives(tmp_path: Path) -> None:
    config = node_config(tmp_path / "store", cluster_settings({"brokerName": "broker-n"}))
    async with running_node(config, SystemClock()) as node, Client(node.namesrv) as client:
        brokers = await Admin(client.session).brokers()
        assert [(broker.name, broker.address) for broker in brokers] == [("broker-n", node.broker)]


def test_the_name_server_of_a_node_has_the_broker_s_certificate_and_accounts(
    tmp_path: Path,
) -> None:
    settings = {
        "tls.server.mode": "permissive",
        "tls.server.certPath": "a.pem",
        "tls.server.keyPath": "a.key",
        "tls.server.need.client.auth": "optional",
        "aclEnable": "true",
    }
    config = node_config(tmp_path, settings)
    assert config.namesrv.tls == config.broker.tls
    assert config.broker.tls.cert_path == "a.pem"
    assert config.namesrv.acl_enable
    assert config.namesrv.rocketmq_home == str(tmp_path)
    assert not config.broker.connects_with_tls


def test_a_node_that_serves_tls_only_connects_with_tls(tmp_path: Path) -> None:
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "a.pem",
        "tls.server.keyPath": "a.key",
    }
    config = node_config(tmp_path, settings)
    assert config.broker.connects_with_tls
    assert config.broker.client_tls.own_cert_path == "a.pem"
    with pytest.raises(SettingsError, match="must connect to its name server"):
        node_config(tmp_path, settings | {"useTLS": "false"})
    asks = {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": "ca.pem"}
    with pytest.raises(SettingsError, match="tlsClientCertPath"):
        node_config(tmp_path, settings | asks)
    shown = {"tls.client.certPath": "c.pem", "tls.client.keyPath": "c.key"}
    assert node_config(tmp_path, settings | asks | shown).broker.client_tls.cert_path == "c.pem"
