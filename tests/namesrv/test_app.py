"""A name server as a whole: it starts, forgets silent brokers, and stops."""

from pathlib import Path

import pytest
from msgspec import field

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import NotConnected, StoreCorrupt
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.routes import BROKER_EXPIRY_MS
from cometmq.protocol import headers as h
from cometmq.protocol.acl import ACCESS_KEY, SIGNATURE, Credentials, signed
from cometmq.protocol.codes import RequestCode as Code
from cometmq.speedups import DESCRIPTION
from tests.namesrv.serving import name_server, topics, until


async def test_a_silent_broker_is_forgotten_and_its_connection_closed(tmp_path: Path) -> None:
    async with name_server(tmp_path) as served:
        silent, lively = served.asker(), served.asker()
        await silent.register(topics("t"))
        await lively.register(topics("u"), name="broker-b", address="b:1")
        scans = (BROKER_EXPIRY_MS + 10_000) // served.server.config.expiry_scan_ms
        for _ in range(scans):
            await until(lambda: len(served.clock._sleepers) > 0)
            served.clock.advance(served.server.config.expiry_scan_ms)
            header = h.BrokerIdentity("broker-b", "b:1", "c", 0)
            await lively.ask(Code.QUERY_DATA_VERSION, header, b'{"counter":1,"timestamp":1}')
            if served.server.routes.data_version("a:1") is not None:
                # Its connection is in use, so that it is not closed for being idle.
                await silent.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))
        await until(lambda: served.server.routes.data_version("a:1") is None)
        assert served.server.routes.data_version("b:1") is not None
        await until(lambda: not silent.remoting.is_connected(served.address))
        assert (await lively.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))).code == 17


async def test_the_log_says_which_core_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cometmq.namesrv.app")
    async with name_server(tmp_path) as served:
        port = served.address.rpartition(":")[2]
        assert f"name server started port={port} core={DESCRIPTION}" in caplog.messages


async def test_keys_are_there_after_a_restart(tmp_path: Path) -> None:
    async with name_server(tmp_path) as served:
        await served.asker().ask(Code.PUT_KV_CONFIG, h.PutKvConfig("n", "k", "v"))
    async with name_server(tmp_path) as served:
        found = await served.asker().ask(Code.GET_KV_CONFIG, h.KvKey("n", "k"))
        assert found.ext == {"value": "v"}


async def test_a_stopped_name_server_is_gone(tmp_path: Path) -> None:
    async with name_server(tmp_path) as served:
        asker = served.asker()
        await asker.register(topics("t"))
        await served.server.stop()
        await until(lambda: not asker.remoting.is_connected(served.address))
        with pytest.raises(NotConnected):
            await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))


def broken_file(folder: Path) -> Path:
    path = folder / "kvConfig.json"
    path.write_bytes(b"{")
    return path


async def test_an_unreadable_key_file_stops_the_start(tmp_path: Path) -> None:
    path = broken_file(tmp_path)
    server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=str(path)), VirtualClock())
    with pytest.raises(StoreCorrupt):
        await server.start()
    await server.stop()


async def test_a_taken_port_stops_the_start(tmp_path: Path) -> None:
    async with name_server(tmp_path) as served:
        server = NameServer(NamesrvConfig(listen_port=served.port), VirtualClock())
        with pytest.raises(OSError, match="in use"):
            await server.start()
        await server.stop()


def test_the_home_folder_may_be_named_by_its_sign() -> None:
    server = NameServer(NamesrvConfig(kv_config_path="~/x.json"), VirtualClock())
    assert server.kv._path == Path.home() / "x.json"


class SignedPut(h.PutKvConfig):
    """A change of a key with a signature."""

    access_key: str = field(default="", name="AccessKey")
    signature: str = field(default="", name="Signature")


async def test_with_accounts_only_an_administrator_changes_something(tmp_path: Path) -> None:
    """Routes and registrations stay open: clients and brokers need them."""
    rules = tmp_path / "conf" / "plain_acl.yml"
    rules.parent.mkdir()
    entry = "- accessKey: {0}-key\n  secretKey: secret-of-{0}\n  admin: {1}\n"
    rules.write_text("accounts:\n" + entry.format("admin", "true") + entry.format("other", "false"))
    async with name_server(tmp_path, NamesrvConfig(acl_enable=True)) as served:
        asker = served.asker()

        async def put(name: str, secret: str) -> str | None:
            values = {"namespace": "n", "key": "k", "value": "v"}
            added = signed(Credentials(f"{name}-key", secret), values)
            header = SignedPut(**values, access_key=added[ACCESS_KEY], signature=added[SIGNATURE])
            return (await asker.ask(Code.PUT_KV_CONFIG, header)).remark

        await asker.register(topics("t"))
        assert (await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))).code == 0
        refused = await asker.ask(Code.PUT_KV_CONFIG, h.PutKvConfig("n", "k", "v"))
        assert refused.remark == "No accessKey is configured"
        assert "Need admin permission" in (await put("other", "secret-of-other") or "")
        assert "Check signature failed" in (await put("admin", "secret-of-other") or "")
        assert (await asker.ask(Code.GET_KV_CONFIG, h.KvKey("n", "k"))).code == 22
        assert await put("admin", "secret-of-admin") is None
        assert (await asker.ask(Code.GET_KV_CONFIG, h.KvKey("n", "k"))).ext == {"value": "v"}
