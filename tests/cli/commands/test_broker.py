"""``cometmq broker promote|drain|undrain``, on brokers in processes of their own."""

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
    assert (
        lines[0] == "ok       the master is gone: it is not connected, and no name server lists it"
    )
    assert [line.split()[0] for line in lines] == ["ok", "warning", "warning"]
    assert main(["broker", "promote", slave.broker, "--role", "sync_master"]) == 0
    out = capsys.readouterr().out
    assert f"promoted {slave.broker} name=broker-a role=SYNC_MASTER duration_ms=" in out
    assert "Set brokerRole=SYNC_MASTER and brokerId=0" in out
    assert main(["broker", "promote", slave.broker, "--json"]) == 1
    assert "is SYNC_MASTER, not a slave" in capsys.readouterr().err
    # Killed, and started with the settings of before.
    slave.kill()
    slave.start()
    assert main(["broker", "promote", slave.broker]) == 1
    assert "is SYNC_MASTER, not a slave" in capsys.readouterr().err


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
        assert "--force overrides them" in captured.err
        # Nobody can be asked here.
        assert main(["broker", "promote", slave.broker, "--force"]) == 2
        asked = capsys.readouterr().err
        assert f"Promote {slave.broker} despite its refusals (" in asked
        assert "add --yes to do it" in asked
        assert main(["broker", "promote", slave.broker, "--check"]) == 1, "it still is a slave"
        capsys.readouterr()
        assert main(["broker", "promote", slave.broker, "--force", "--yes"]) == 0
        assert f"promoted {slave.broker} " in capsys.readouterr().out
    finally:
        master.kill()


def test_a_broker_is_drained_and_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = NamesrvProcess(tmp_path)
    broker = BrokerProcess(tmp_path, namesrv.namesrv)
    where = ["-n", namesrv.namesrv]
    namesrv.start()
    try:
        broker.start()
        assert main(["topic", "create", "t", *where]) == 0
        for word, permissions in (("drain", "R-"), ("undrain", "RW")):
            capsys.readouterr()
            assert main(["broker", word, "broker-a", *where]) == 0
            told = f"{word}ed broker=broker-a name_server={namesrv.namesrv} topics="
            assert capsys.readouterr().out.startswith(told)
            assert main(["topic", "describe", "t", "--json", *where]) == 0
            (row,) = json.loads(capsys.readouterr().out)["brokers"]
            assert row["permissions"].startswith(permissions)
        assert main(["broker", "drain", "nobody", "--json", *where]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "no name server has a topic of broker nobody" in captured.err
        assert main(["broker", "drain", "broker-a", "-n", f"{namesrv.namesrv};127.0.0.1:1"]) == 1
        captured = capsys.readouterr()
        assert captured.out.startswith("drained broker=broker-a")
        assert "not reached, run the command again: 127.0.0.1:1" in captured.err
    finally:
        broker.kill()
        namesrv.kill()
