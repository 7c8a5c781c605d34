"""``cometmq broker promote``, on a slave in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.cli.main import main
from tests.cluster.servers import BrokerProcess, NamesrvProcess


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[BrokerProcess]:
    namesrv = NamesrvProcess(tmp_path)
    namesrv.start()
    broker = BrokerProcess(tmp_path, namesrv.namesrv, number=1)
    broker.start()
    yield broker
    broker.kill()
    namesrv.kill()


def test_a_slave_is_checked_and_promoted(
    slave: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "promote", slave.broker, "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok       the master is gone: it is not connected, and no name server has it"
    assert [line.split()[0] for line in lines] == ["ok", "warning", "warning"]
    assert main(["broker", "promote", slave.broker, "--role", "sync_master"]) == 0
    out = capsys.readouterr().out
    assert f"promoted {slave.broker} name=broker-a role=SYNC_MASTER duration_ms=" in out
    assert "Set brokerRole=SYNC_MASTER and brokerId=0" in out
    assert main(["broker", "promote", slave.broker, "--json"]) == 1
    assert "is SYNC_MASTER, no slave" in capsys.readouterr().err
    # Killed, and started with the settings of before.
    slave.kill()
    slave.start()
    assert main(["broker", "promote", slave.broker]) == 1
    assert "is SYNC_MASTER, no slave" in capsys.readouterr().err


def test_a_promotion_that_is_refused(
    tmp_path: Path, slave: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = slave.settings["namesrvAddr"]
    master = BrokerProcess(tmp_path, namesrv)
    master.start()
    try:
        assert main(["broker", "promote", slave.broker, "--json"]) == 1
        captured = capsys.readouterr()
        found = json.loads(captured.out)
        assert not found["begins"]
        assert found["findings"][0]["weight"] == "refused"
        assert "--force overrides it" in captured.err
    finally:
        master.kill()
