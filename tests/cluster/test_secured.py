"""A cluster in which everything is encrypted, certified on both sides, and signed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.cli.main import main
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused, NotConnected, RouteNotFound
from cometmq.message.model import Message
from cometmq.net.outgoing import TlsOptions
from cometmq.testing.cluster import ProcessCluster
from tests.cluster.load import Load, names, until
from tests.cluster.logs import assert_same_logs, log_end
from tests.cluster.secured import ADMIN, SELLER, WRONG, make_files
from tests.cluster.servers import BrokerProcess, NamesrvProcess

TOPIC = "pairs"


async def test_a_master_and_its_slave(tmp_path: Path) -> None:
    """Registration, tables, the log and clients: with certificates of both sides and accounts."""
    files = make_files(tmp_path / "files")
    accounts = {"aclEnable": "true", "rocketmqHome": str(files.folder)}
    with ExitStack() as stack:
        namesrv = NamesrvProcess(tmp_path, **{**_own(files.mutual), **accounts})
        namesrv.start()
        stack.callback(namesrv.kill)
        settings = {**files.mutual, **files.accounts, "haTlsEnable": "true"}
        brokers = [
            BrokerProcess(tmp_path, namesrv.namesrv, number=number, settings=settings)
            for number in (0, 1)
        ]
        for broker in brokers:
            broker.start()
            stack.callback(broker.kill)
        master, slave = brokers
        async with Client(namesrv.namesrv, tls=files.options, credentials=ADMIN) as client:
            admin = Admin(client.session)
            await admin.create_topic(TOPIC, queues=4)
            load = Load(TOPIC)
            await load.send(client, 1_000)
            assert load.failures == []
            assert load.acked <= set(await names(client, TOPIC))
            await until(lambda: log_end(master.store) == log_end(slave.store) > 0, "a copy")
            assert assert_same_logs(master.store, slave.store) > 0
            config = slave.store / "config" / "topics.json"
            await until(lambda: config.exists() and TOPIC in config.read_text(), "its topics")
        async with Client(namesrv.namesrv, tls=files.options, credentials=SELLER) as client:
            await client.send(Message(TOPIC, b"sold"))
            with pytest.raises(BrokerRefused, match=f"topic:{TOPIC}"):
                await client.puller.pull(
                    (await client.queues(TOPIC))[0], 0, group="CID_RMQ_SYS_TEST"
                )


def _own(settings: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if ".server." in key}


def test_commands_connect_with_tls_and_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By options, and by the environment; no secret is an argument."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    files = make_files(tmp_path / "files")
    with ProcessCluster(tmp_path, **files.mutual, **files.accounts) as node:
        where = ["-n", node.namesrv]
        shown = ["--tls-ca", files.path("ca.pem"), "--tls-cert", files.path("client.pem")]
        shown += ["--tls-key", files.path("client.key"), "--credentials", files.path("tools.yml")]
        assert main(["topic", "create", TOPIC, *where, *shown]) == 0
        assert main(["topic", "list", *where]) == 1
        assert "it may serve only TLS" in capsys.readouterr().err
        variables = {
            "ACCESS_KEY": ADMIN.access_key,
            "SECRET_KEY": ADMIN.secret_key,
            "TLS_CA": files.path("ca.pem"),
            "TLS_CERT": files.path("client.pem"),
            "TLS_KEY": files.path("client.key"),
        }
        for name, value in variables.items():
            monkeypatch.setenv(f"COMETMQ_{name}", value)
        monkeypatch.setenv("NAMESRV_ADDR", node.namesrv)
        assert main(["send", TOPIC, "body"]) == 0
        monkeypatch.setenv("COMETMQ_SECRET_KEY", WRONG.secret_key)
        assert main(["send", TOPIC, "body"]) == 1
        said = capsys.readouterr().err
        assert "Check signature failed" in said
        assert WRONG.secret_key not in said


@pytest.mark.parametrize("home", ["mutual", "server"])
async def test_a_node_that_serves_tls_only(tmp_path: Path, home: str) -> None:
    """Its broker registers with its name server, whose certificate is its own; errors say why."""
    files = make_files(tmp_path / "files")
    settings = files.mutual if home == "mutual" else files.server
    with ProcessCluster(tmp_path, **settings, **files.accounts) as node:
        async with Client(node.namesrv, tls=files.options, credentials=ADMIN) as client:
            admin = Admin(client.session)
            await admin.create_topic(TOPIC, queues=1)
            await client.send(Message(TOPIC, b"sent"))
            assert len(await client.send_batch([Message(TOPIC, b"a"), Message(TOPIC, b"b")])) == 2
            await client.send_oneway(Message(TOPIC, b"one way"))
            async with asyncio.timeout(60):
                subscription = client.subscribe(TOPIC, group="readers", start="first")
                bodies = set()
                async for message in subscription:
                    message.ack()
                    bodies.add(message.body)
                    if len(bodies) == 4:
                        break
            assert bodies == {b"sent", b"a", b"b", b"one way"}
        async with Client(node.namesrv, tls=files.options, credentials=WRONG) as client:
            with pytest.raises(BrokerRefused) as refused:
                await client.send(Message(TOPIC, b"forged"))
            assert "Check signature failed for accessKey=admin-key" in str(refused.value)
            assert "compare the credentials" in str(refused.value)
        other = TlsOptions(files.path("other.pem"))
        async with Client(node.namesrv, tls=other, credentials=ADMIN) as client:
            with pytest.raises((NotConnected, RouteNotFound), match="not signed by an authority"):
                await client.send(Message(TOPIC, b"astray"))
        async with Client(node.namesrv) as client:
            with pytest.raises((NotConnected, RouteNotFound), match="it may serve only TLS"):
                await client.send(Message(TOPIC, b"plain"))
