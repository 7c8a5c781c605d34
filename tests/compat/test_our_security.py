"""TLS and accounts of what we send, to Java's servers, and of Java's servers beside ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.users import PolicyEntry, User, users_of
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused, ClientError, NotConnected
from cometmq.message.model import Message
from cometmq.net.outgoing import TlsOptions
from cometmq.protocol.acl import Credentials
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import Header
from tests.cluster.load import Load, names, until
from tests.cluster.logs import assert_same_logs, log_end
from tests.cluster.secured import ADMIN, WRONG, Files, make_files
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.compat import anchor
from tests.compat.conftest import SharedPeers, Target
from tests.compat.driver import Driver, column
from tests.compat.groups import Group

pytestmark = pytest.mark.compat

TOPIC: Final = "pairs"
SMALL: Final = {"mappedFileSizeCommitLog": str(1 << 20)}
_AUTH: Final = "org.apache.rocketmq.auth"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(autouse=True)
def few_peers(peers: SharedPeers) -> None:
    """The shared Java clusters make room."""
    peers.stop_java()


def java_tls(files: Files, *, mutual: bool = False) -> dict[str, str]:
    """System properties of Java's servers: they serve and speak TLS only."""
    found = {
        "tls.server.mode": "enforcing",
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.config.file": files.path("none"),
        "tls.server.certPath": files.path("server.pem"),
        "tls.server.keyPath": files.path("server.key"),
        "tls.server.trustCertPath": files.path("ca.pem"),
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": files.path("ca.pem"),
        "tls.client.certPath": files.path("client.pem"),
        "tls.client.keyPath": files.path("client.key"),
    }
    if mutual:
        found |= {"tls.server.authClient": "true", "tls.server.need.client.auth": "require"}
    return found


def java_accounts(version: str) -> dict[str, str]:
    """Settings of a Java broker with accounts: ACL 1.0, or in RocketMQ 5 one user of ACL 2.0."""
    if version == "4.9.7":
        return {"aclEnable": "true"}
    authentication, authorization = f"{_AUTH}.authentication", f"{_AUTH}.authorization"
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{authentication}.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": (
            f"{authentication}.provider.LocalAuthenticationMetadataProvider"
        ),
        "initAuthenticationUser": json.dumps(
            {"username": ADMIN.access_key, "password": ADMIN.secret_key}
        ),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
        ),
        "authorizationEnabled": "true",
        "authorizationProvider": f"{authorization}.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": (
            f"{authorization}.provider.LocalAuthorizationMetadataProvider"
        ),
    }


@asynccontextmanager
async def secured(namesrv: str, files: Files, who: Credentials | None) -> AsyncIterator[Client]:
    """A client with TLS. A fresh JVM is slow."""
    async with Client(
        namesrv,
        tls=files.options,
        credentials=who,
        send_timeout_ms=20_000,
        request_timeout_ms=10_000,
    ) as client:
        yield client


async def started(java: anchor.JavaCluster, files: Files, who: Credentials | None) -> None:
    """Start Java's servers and wait until the broker is registered."""
    await asyncio.to_thread(java.namesrv_server.start)
    await asyncio.to_thread(java.broker_server.start)
    async with secured(java.namesrv, files, who) as client, asyncio.timeout(60):
        while not await is_registered(client):
            await asyncio.sleep(0.1)


async def is_registered(client: Client) -> bool:
    try:
        return bool(await Admin(client.session).brokers())
    except ClientError:
        return False


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def java(
    request: pytest.FixtureRequest, files: Files, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[anchor.JavaCluster]:
    """Java's servers with TLS only, certificates of both sides, and accounts."""
    version: str = request.param
    home = tmp_path_factory.mktemp("java")
    cluster = anchor.JavaCluster(
        anchor.fetch_jars(version),
        home,
        SMALL | java_accounts(version),
        properties=java_tls(files, mutual=True),
    )
    (home / "conf" / "plain_acl.yml").write_text(
        (files.folder / "conf" / "plain_acl.yml").read_text()
    )
    try:
        asyncio.run(started(cluster, files, ADMIN))
        yield cluster
    finally:
        cluster.kill()


async def test_a_java_client_beside_ours(
    java: anchor.JavaCluster, files: Files, tmp_path: Path
) -> None:
    """Both send to a topic, with TLS and an account; each reads what the other sent."""
    account = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
    driver = Driver(anchor.fetch_jars(), tmp_path, java_tls(files))
    try:
        async with secured(java.namesrv, files, ADMIN) as client:
            await Admin(client.session).create_topic("shared", queues=2)
            load = Load("shared")
            await load.send(client, 20)
            assert load.failures == []
            sent = await asyncio.to_thread(
                driver.send, java.namesrv, "shared", count=20, prefix="java", **account
            )
            assert set(column(sent, "status")) == {"SEND_OK"}
            assert len(await names(client, "shared")) == 40
            target = Target("java", java.namesrv, java.broker, "broker-a")
            group = Group(driver, target, "beside", "shared")
            try:
                first = {"from": "FIRST_OFFSET"}
                member = await asyncio.to_thread(group.join, **account, **first)
                received = await asyncio.to_thread(group.received, member, 40)
                assert len({str(row["body"]) for row in received}) == 40
            finally:
                group.close()
    finally:
        driver.kill()


async def test_our_client_sends_reads_and_administers(
    java: anchor.JavaCluster, files: Files
) -> None:
    async with secured(java.namesrv, files, ADMIN) as client:
        admin = Admin(client.session)
        await admin.create_topic(TOPIC, queues=4)
        load = Load(TOPIC)
        await load.send(client, 300)
        await client.send_many([Message(TOPIC, b"b%08d" % at) for at in range(50)])
        assert load.failures == []
        assert load.acked <= set(await names(client, TOPIC))
        assert TOPIC in await admin.list_topics()
        found: set[bytes] = set()
        async with asyncio.timeout(60):
            subscription = client.subscribe(TOPIC, group="readers", start="first")
            async for message in subscription:
                message.ack()
                found.add(message.body)
                if len(found) == 350:
                    break
        async with client.transaction(Message(TOPIC, b"both or none")) as transaction:
            assert transaction.message_id


class Username(Header):
    """Request header of 3001 (AUTH_CREATE_USER)."""

    username: str


class Subject(Header):
    """Request header of 3006 (AUTH_CREATE_ACL)."""

    subject: str


async def test_users_of_rocketmq_5_are_read(
    java: anchor.JavaCluster, files: Files, request: pytest.FixtureRequest
) -> None:
    async with secured(java.namesrv, files, ADMIN) as client:
        admin, call = Admin(client.session), client.session.remoting.call
        if request.node.callspec.params["java"] == "4.9.7":
            with pytest.raises(BrokerRefused) as refused:
                await users_of(admin, java.broker)
            assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return
        reader = {"username": "reader", "password": "never-shown", "userType": "Normal"}
        entry = {
            "resource": "Topic:orders", "actions": ["Sub"], "decision": "Allow",
            "sourceIps": ["10.0.0.0/8"],
        }  # fmt: skip
        policies = [{"policyType": "Custom", "entries": [entry]}]
        acl = {"subject": "User:reader", "policies": policies}
        for code, header, body in (
            (3001, Username("reader"), reader),
            (3006, Subject("User:reader"), acl),
        ):
            await call(java.broker, code, header, json.dumps(body).encode(), timeout_ms=10_000)
        found = {each.name: each for each in await users_of(admin, java.broker)}
        assert found[ADMIN.access_key].is_super
        allowed = PolicyEntry("Topic:orders", ("Sub",), ("10.0.0.0/8",), "Allow")
        assert found["reader"] == User("reader", False, True, (allowed,))


async def test_a_wrong_secret_is_refused(java: anchor.JavaCluster, files: Files) -> None:
    async with secured(java.namesrv, files, ADMIN) as client:
        await Admin(client.session).create_topic(TOPIC, queues=4)
    async with secured(java.namesrv, files, WRONG) as client:
        with pytest.raises(BrokerRefused) as refused:
            await client.send(Message(TOPIC, b"forged"))
    assert any(each in str(refused.value) for each in ("compare the credentials", "signature"))


async def test_certificates_that_do_not_fit(java: anchor.JavaCluster, files: Files) -> None:
    """The error names the address, the reason and what to do."""
    cases = {
        "not signed by an authority": TlsOptions(files.path("other.pem")),
        "may ask clients for a certificate": TlsOptions(files.path("ca.pem")),
        "may serve only TLS": None,
    }
    for problem, tls in cases.items():
        async with Client(java.namesrv, tls=tls, credentials=ADMIN) as client:
            with pytest.raises(NotConnected, match=problem) as caught:
                await Admin(client.session).brokers()
            assert java.namesrv in str(caught.value)


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_our_slave_under_a_java_master(tmp_path: Path, files: Files, role: str) -> None:
    """It registers and copies the tables over TLS, signed; Java's replication port is plain."""
    settings = SMALL | java_accounts("4.9.7") | {"brokerRole": role}
    java = anchor.JavaCluster(
        anchor.fetch_jars(), tmp_path / "java", settings, properties=java_tls(files)
    )
    rules = (files.folder / "conf" / "plain_acl.yml").read_text()
    (tmp_path / "java" / "conf" / "plain_acl.yml").write_text(rules)
    with ExitStack() as stack:
        stack.callback(java.kill)
        await started(java, files, ADMIN)
        own = SMALL | files.mutual | files.accounts
        slave = BrokerProcess(tmp_path, java.namesrv, number=1, settings=own)
        slave.start()
        stack.callback(slave.kill)
        async with secured(java.namesrv, files, ADMIN) as client:
            await Admin(client.session).create_topic(TOPIC, queues=4)
            load = Load(TOPIC)
            await load.send(client, 500)
            await until(lambda: log_end(java.store) == log_end(slave.store) > 0, "a copy")
            assert assert_same_logs(java.store, slave.store) > 0
            assert load.failures == []
            topics = slave.store / "config" / "topics.json"
            await until(lambda: topics.exists() and TOPIC in topics.read_text(), "its topics")


async def test_a_java_slave_and_a_java_name_server_beside_ours(
    tmp_path: Path, files: Files
) -> None:
    """Both ways: our master registers with Java's name server, Java's slave copies our tables."""
    settings = SMALL | {"brokerRole": "SLAVE", "brokerId": "1"}
    java = anchor.JavaCluster(
        anchor.fetch_jars(), tmp_path / "java", settings, properties=java_tls(files)
    )
    with ExitStack() as stack:
        stack.callback(java.kill)
        await asyncio.to_thread(java.namesrv_server.start)
        master = BrokerProcess(tmp_path, java.namesrv, settings=SMALL | files.mutual)
        master.start()
        stack.callback(master.kill)
        await asyncio.to_thread(java.broker_server.start)
        async with secured(java.namesrv, files, None) as client:
            await Admin(client.session).create_topic(TOPIC, queues=4)
            load = Load(TOPIC)
            await load.send(client, 500)
            assert load.failures == []
            await until(lambda: log_end(java.store) == log_end(master.store) > 0, "a copy")
            topics = java.store / "config" / "topics.json"
            await until(lambda: topics.exists() and TOPIC in topics.read_text(), "its topics")


async def test_a_java_broker_and_client_with_our_name_server(tmp_path: Path, files: Files) -> None:
    server = {key: value for key, value in files.mutual.items() if ".server." in key}
    with ExitStack() as stack:
        namesrv = NamesrvProcess(tmp_path, **server)
        namesrv.start()
        stack.callback(namesrv.kill)
        java = anchor.JavaCluster(
            anchor.fetch_jars(),
            tmp_path / "java",
            SMALL,
            namesrv_seen_by_broker=namesrv.namesrv,
            properties=java_tls(files, mutual=True),
        )
        stack.callback(java.kill)
        await asyncio.to_thread(java.broker_server.start)
        driver = Driver(anchor.fetch_jars(), tmp_path / "driver", java_tls(files))
        stack.callback(driver.kill)
        async with secured(namesrv.namesrv, files, None) as client, asyncio.timeout(60):
            while not await is_registered(client):
                await asyncio.sleep(0.1)
            await Admin(client.session).create_topic(TOPIC, queues=4)
            sent = await asyncio.to_thread(driver.send, namesrv.namesrv, TOPIC, count=20)
            assert set(column(sent, "status")) == {"SEND_OK"}
            assert len(await names(client, TOPIC)) == 20
