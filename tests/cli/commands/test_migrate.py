"""``cometmq migrate``, from one broker of ours to another, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import BlockingClient
from cometmq.cli.commands.migrate import CONFIG_NAME
from cometmq.cli.main import main
from cometmq.core.settings import parse_properties
from tests.cluster.servers import BrokerProcess, NamesrvProcess


@pytest.fixture
def master(tmp_path: Path) -> Iterator[BrokerProcess]:
    namesrv = NamesrvProcess(tmp_path)
    namesrv.start()
    broker = BrokerProcess(tmp_path, namesrv.namesrv)
    broker.start()
    yield broker
    broker.kill()
    namesrv.kill()


def send(namesrv: str, body: bytes) -> None:
    with BlockingClient(namesrv) as client:
        client.send("t", body)


def test_a_broker_is_moved_step_by_step(
    tmp_path: Path, master: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = master.settings["namesrvAddr"]
    where = ["-n", namesrv]
    send(namesrv, b"one")
    new = BrokerProcess(tmp_path, namesrv, number=1)
    store, port = new.store, new.broker.rpartition(":")[2]
    words = [master.broker, str(store), "--port", port, *where]
    assert main(["migrate", "plan", *words]) == 0
    assert (
        "ok       topics, groups, offsets and the whole log are copied"
    ) in capsys.readouterr().out
    assert main(["migrate", "plan", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "broker-a"
    for text in ("written", "exists already"):
        assert main(["migrate", "attach", *words, "--write-only"]) == 0
        assert text in capsys.readouterr().out
    new.settings = parse_properties((store / CONFIG_NAME).read_text())
    new.start()
    try:
        assert main(["migrate", "status", new.broker, "--watch", *where]) == 0
        assert "state=near " in capsys.readouterr().out
        assert main(["migrate", "status", new.broker, "--json", *where]) == 0
        assert json.loads(capsys.readouterr().out)["behind_bytes"] == 0
        assert main(["migrate", "promote", new.broker, *where]) == 0
        assert f"Stop {master.broker} now" in capsys.readouterr().out
        assert main(["migrate", "plan", new.broker, str(store), *where]) == 0
    finally:
        new.kill()


def test_the_address_goes_along(
    tmp_path: Path, master: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = master.settings["namesrvAddr"]
    where = ["-n", namesrv]
    send(namesrv, b"one")
    new = BrokerProcess(tmp_path, namesrv, number=1)
    new.start()
    own = new.broker
    try:
        assert main(["migrate", "promote", own, "--stop-with", "true", *where]) == 2
        assert "needs --take-address" in capsys.readouterr().err
        assert main(["migrate", "take-address", own, master.broker]) == 1
        assert "promote this broker" in capsys.readouterr().err
        assert master.process is not None
        words = ["--take-address", "--stop-with", f"kill {master.process.pid}"]
        assert main(["migrate", "promote", own, *words, *where]) == 0
        assert f"{own} also listens on {master.broker}" in capsys.readouterr().out
        send(namesrv, b"two")
        assert main(["migrate", "take-address", own, master.broker]) == 0
        assert "registered by it" in capsys.readouterr().out
        assert main(["topic", "describe", "t", "--json", *where]) == 0
        host, _, old_port = master.broker.rpartition(":")
        (described,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert [row["addresses"] for row in described["brokers"]] == [
            [{"id": 0, "address": {"host": host, "port": int(old_port)}}]
        ]
    finally:
        new.kill()


def test_a_slave_cannot_be_moved(
    tmp_path: Path, master: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    slave = BrokerProcess(tmp_path, master.settings["namesrvAddr"], number=1)
    slave.start()
    try:
        where = ["-n", master.settings["namesrvAddr"]]
        for command in ("plan", "attach"):
            words = ["migrate", command, slave.broker, str(tmp_path / "x"), *where]
            assert main(words) == 1
            assert "cannot be moved: see the refusals above" in capsys.readouterr().err
    finally:
        slave.kill()
