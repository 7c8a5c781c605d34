"""A name server's settings under upstream's names."""

from pathlib import Path

import pytest

from cometmq.core import settings
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.core.errors import BadRequest, CometError, SettingsError
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NamesrvConfig, apply_kept, kept_path
from cometmq.namesrv.handlers import ConfigHandlers
from cometmq.net.eventloop import Watchdog
from cometmq.net.peer import Peer
from cometmq.net.router import Router
from cometmq.net.tasks import Tasks
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.frame import Request
from cometmq.protocol.headers import NoFields
from cometmq.protocol.registry import Side


def test_upstreams_property_names_are_known() -> None:
    config, used = settings.build(
        NamesrvConfig,
        {
            "listenPort": "9877",
            "bindAddress": "0.0.0.0",
            "kvConfigPath": "kv.json",
            "orderMessageEnable": "true",
        },
    )
    assert len(used) == 4
    assert config == NamesrvConfig("0.0.0.0", 9877, "kv.json", order_message_enable=True)


def test_others_cannot_reach_or_change_it_unless_told() -> None:
    assert NamesrvConfig().bind_address == "127.0.0.1"
    assert not NamesrvConfig().remote_admin_enable


def named(tmp_path: Path) -> NamesrvConfig:
    return NamesrvConfig(listen_port=0, kv_config_path=str(tmp_path / "kvConfig.json"))


async def test_changed_settings_survive_a_restart(tmp_path: Path) -> None:
    config = named(tmp_path)
    handlers = ConfigHandlers(config)
    await update(handlers, b"orderMessageEnable=true\nlistenPort=0")
    await update(handlers, b"expiryScanMs=7")
    assert (config.order_message_enable, config.expiry_scan_ms) == (True, 7)
    config = named(tmp_path)
    server = NameServer(config, SystemClock())
    await server.start()
    await server.stop()
    assert (config.order_message_enable, config.expiry_scan_ms) == (True, 7)


async def test_a_change_that_cannot_be_kept_or_made_changes_nothing(tmp_path: Path) -> None:
    config = named(tmp_path)
    for body in (b"expiryScanMs=7\nlistenPort=5", b"expiryScanMs=7\nx=y", b"expiryScanMs=0"):
        with pytest.raises(BadRequest):
            await update(ConfigHandlers(config), body)
    config.kv_config_path = "/proc/no/kvConfig.json"
    with pytest.raises(CometError, match="so nothing changed"):
        await update(ConfigHandlers(config), b"expiryScanMs=7")
    assert config.expiry_scan_ms == 5_000


def test_name_servers_of_a_folder_keep_settings_apart(tmp_path: Path) -> None:
    paths = {
        kept_path(NamesrvConfig(kv_config_path=str(tmp_path / name)))
        for name in ("ns1.json", "ns2.json")
    }
    assert paths == {str(tmp_path / f"ns{n}-settings.properties") for n in (1, 2)}


def test_kept_settings_are_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(kept_path(named(tmp_path)))
    path.write_text("expiryScanMs=7\nlistenPort=5\nfuture=1\n", encoding="utf-8")
    config = named(tmp_path)
    assert set(apply_kept(config)) == {"expiryScanMs", "listenPort", "future"}
    assert (config.expiry_scan_ms, config.listen_port) == (7, 0)
    assert "kept_setting_ignored key=future" in caplog.text
    path.write_text("expiryScanMs=x\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        apply_kept(named(tmp_path))
    assert caught.value.where == str(path)


async def update(handlers: ConfigHandlers, body: bytes) -> None:
    """Ask for changes as an administrator does."""
    router = Router(Side.NAMESRV, {}, tasks=Tasks())
    peer = Peer(router, clock=VirtualClock(), watchdog=Watchdog(), peers={})
    await handlers.update(peer, Request(Code.UPDATE_NAMESRV_CONFIG, NoFields(), 1, body=body))
