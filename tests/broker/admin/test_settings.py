"""Settings that are changed while a broker runs, and kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.admin import settings
from cometmq.broker.app import Broker
from cometmq.broker.config import BrokerConfig, apply_kept, change, kept_path, load, read_kept
from cometmq.broker.replication.roles import MasterPart
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BadRequest, SettingsError, StoreError
from cometmq.protocol.codes import RequestCode as Code
from cometmq.store.config import StoreConfig
from tests.broker.world import open_parts


def fresh(tmp_path: Path) -> tuple[BrokerConfig, StoreConfig]:
    """The settings of a new start."""
    return BrokerConfig(), StoreConfig(store_path_root_dir=str(tmp_path))


def kept_lines(root: str) -> list[str]:
    """The kept settings of a store, without the comments."""
    path = Path(kept_path(root))
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if not line.startswith("#")]


async def test_changed_settings_survive_a_restart(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        root = parts.store.config.store_path_root_dir
        for body in (
            b"startAcceptSendRequestTimeStamp=7\nfileReservedTime=48",
            b"brokerPermission=4",
        ):
            assert (await parts.ask(Code.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert parts.store.config.file_reserved_time == 48
    config, store = fresh(Path(root))
    apply_kept(config, store)
    assert (config.start_accept_send_request_time_stamp, config.broker_permission) == (7, 4)
    assert store.file_reserved_time == 48
    assert kept_lines(root) == [
        "brokerPermission=4",
        "fileReservedTime=48",
        "startAcceptSendRequestTimeStamp=7",
    ]


async def test_a_key_is_kept_once_however_it_is_spelled(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        root = parts.store.config.store_path_root_dir
        for body in (b"brokerPermission=4", b"broker_permission=6"):
            await parts.ask(Code.UPDATE_BROKER_CONFIG, body=body)
    assert read_kept(root) == {"broker_permission": "6"}


async def test_what_cannot_be_kept_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    async with open_parts(tmp_path) as parts:
        monkeypatch.setattr(settings, "keep_settings", full)
        with pytest.raises(StoreError, match="they are unchanged"):
            await parts.ask(Code.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=48")
        assert parts.store.config.file_reserved_time == 72


async def test_a_refused_change_is_not_kept(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        root = parts.store.config.store_path_root_dir
        body = b"brokerPermission=4\nlistenPort=1"
        with pytest.raises(BadRequest, match="listenPort"):
            await parts.ask(Code.UPDATE_BROKER_CONFIG, body=body)
        assert kept_lines(root) == []


def keep(tmp_path: Path, text: str) -> None:
    path = Path(kept_path(str(tmp_path)))
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def test_kept_keys_that_are_not_known_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a downgrade; and what is no live setting cannot have been kept."""
    keep(tmp_path, "fromTheFuture=1\nlistenPort=5\nbrokerPermission=4\n")
    config, store = fresh(tmp_path)
    apply_kept(config, store)
    assert (config.broker_permission, config.listen_port) == (4, 10911)
    assert "fromTheFuture" in caplog.text
    assert "listenPort" in caplog.text


@pytest.mark.parametrize("text", ["brokerPermission=many\n", "nonsense\n"])
def test_a_kept_value_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str) -> None:
    keep(tmp_path, text)
    config, store = fresh(tmp_path)
    with pytest.raises(SettingsError) as caught:
        apply_kept(config, store)
    assert caught.value.where == kept_path(str(tmp_path))


async def test_limits_of_pulls_and_of_replication_change_at_once(tmp_path: Path) -> None:
    _, store, _ = load({"storePathRootDir": str(tmp_path), "mappedFileSizeCommitLog": "65536"})
    broker = Broker(BrokerConfig(listen_port=0), store, SystemClock())
    await broker.start()
    try:
        assert isinstance(broker.replication.part, MasterPart)
        before = broker.replication.part.master.settings
        change(broker.config, store, {"maxTransferCountOnMessageInMemory": "5"})
        change(broker.config, store, {"haSlaveFallbehindMax": "7", "haTransferBatchSize": "8"})
        for listener in broker.admin.settings.on_change:
            listener()
        assert broker.store.limits.hot_max_count == 5
        after = broker.replication.part.master.settings
        assert after == replace(before, fall_behind_max_bytes=7, transfer_bytes=8)
    finally:
        await broker.stop()
