"""The role that a promotion leaves behind."""

from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig, BrokerRole
from cometmq.broker.replication.roles import keep_role, role_path, role_to_begin_in
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import PosixFiles

SLAVE = BrokerConfig(broker_role=BrokerRole.SLAVE, broker_id=2)
MASTER = BrokerConfig(broker_role=BrokerRole.ASYNC_MASTER)


def begin(root: Path, config: BrokerConfig) -> BrokerConfig:
    return role_to_begin_in(config, str(root), PosixFiles())


def test_without_a_kept_role_the_settings_count(tmp_path: Path) -> None:
    assert begin(tmp_path, SLAVE) is SLAVE


def test_a_kept_role_overrides_settings_over_a_slave_s_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_role(BrokerRole.SYNC_MASTER, str(tmp_path), PosixFiles(), VirtualClock())
    for _ in range(2):
        config = begin(tmp_path, SLAVE)
        assert (config.broker_role, config.broker_id) == (BrokerRole.SYNC_MASTER, 0)
    assert role_path(str(tmp_path)) in caplog.text
    assert "set brokerRole=SYNC_MASTER and brokerId=0" in caplog.text


def test_it_goes_once_the_settings_say_master(tmp_path: Path) -> None:
    keep_role(BrokerRole.SYNC_MASTER, str(tmp_path), PosixFiles(), VirtualClock())
    assert begin(tmp_path, MASTER) is MASTER
    assert begin(tmp_path, SLAVE) is SLAVE


def test_a_file_that_says_nothing_is_not_guessed_at(tmp_path: Path) -> None:
    path = Path(role_path(str(tmp_path)))
    path.parent.mkdir()
    path.write_text('{"role":"KING","sinceMs":1}')
    with pytest.raises(StoreCorrupt, match="remove the file to use the setting brokerRole"):
        begin(tmp_path, SLAVE)
