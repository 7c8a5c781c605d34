"""Outgoing connections with TLS, what their errors say, and files with credentials."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.core.errors import NotConnected, RequestTimedOut, SettingsError
from cometmq.net.client import Link, Remoting
from cometmq.net.outgoing import (
    CREDENTIALS_POLL_MS,
    ClientTls,
    ConnectOptions,
    OutgoingFields,
    TlsOptions,
    read_credentials,
    watch_credentials,
)
from cometmq.net.peer import Peer
from cometmq.net.tasks import Tasks
from cometmq.net.tls import ClientAuth, ServerTls, TlsMode
from cometmq.protocol.acl import Credentials, signature
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply, Request
from cometmq.protocol.headers import Topic
from tests.net.serving import Served, serving, tls_settings

BEAT = RequestCode.HEART_BEAT


def beat(peer: Peer, request: Request[Any]) -> Reply | None:
    return Reply()


@asynccontextmanager
async def served(settings: Any) -> AsyncIterator[Served]:
    tls = None if settings is None else ServerTls(settings)
    async with serving({BEAT: beat}, tls=tls) as served:
        yield served


@asynccontextmanager
async def remoting(tls: TlsOptions | None, **options: Any) -> AsyncIterator[Remoting]:
    tasks = Tasks()
    made = Remoting(clock=SystemClock(), tasks=tasks, options=ConnectOptions(tls, **options))
    try:
        yield made
    finally:
        await made.close()
        await tasks.close()


async def problem_of(served: Served, tls: TlsOptions | None, host: str = "127.0.0.1") -> str:
    """Why a request is not answered; empty if it is."""
    async with remoting(tls) as asking:
        try:
            found = await asking.request(f"{host}:{served.port}", BEAT, None, timeout_ms=5_000)
        except NotConnected as error:
            return error.problem
        assert found.code == ResponseCode.SUCCESS
        return ""


def client_files(folder: Path, authority: trustme.CA, **options: Any) -> TlsOptions:
    """Write a client certificate of an authority; return options that trust ``ca.pem``."""
    issued = authority.issue_cert("client.test")
    cert, key = folder / "client.pem", folder / "client.key"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    return TlsOptions(str(folder / "ca.pem"), str(cert), str(key), **options)


async def test_a_server_that_is_trusted_answers(tmp_path: Path) -> None:
    async with served(tls_settings(tmp_path, trustme.CA(), mode=TlsMode.ENFORCING)) as at:
        assert await problem_of(at, TlsOptions(str(tmp_path / "ca.pem"))) == ""
        assert await problem_of(at, TlsOptions(verify=False)) == ""
        assert "it may serve only TLS" in await problem_of(at, None)


async def test_errors_say_what_to_do(tmp_path: Path) -> None:
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority)
    trusting = TlsOptions(str(tmp_path / "ca.pem"))
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    async with served(settings) as at:
        unknown = await problem_of(at, TlsOptions(str(other)))
        assert f"not signed by an authority in {other}" in unknown
        assert "tls.client.trustCertPath" in unknown
        assert "not issued for localhost" in await problem_of(at, trusting, "localhost")
        unchecked = TlsOptions(str(tmp_path / "ca.pem"), check_host_name=False)
        assert await problem_of(at, unchecked, "localhost") == ""
        missing = await problem_of(at, TlsOptions("/nowhere/ca.pem"))
        assert missing.startswith("TLS: setting 'tlsClientTrustCertPath': /nowhere/ca.pem cannot")
    expired = authority.issue_cert("127.0.0.1", not_after=datetime.datetime(2020, 1, 1))
    expired.cert_chain_pems[0].write_to_path(settings.cert_path)
    expired.private_key_pem.write_to_path(settings.key_path)
    async with served(settings) as at:
        assert "its certificate has expired" in await problem_of(at, trusting)
    async with served(None) as at:
        assert "it may not serve TLS" in await problem_of(at, trusting)


async def test_a_server_asks_for_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority, client_auth=ClientAuth.REQUIRE)
    async with served(settings) as at:
        assert await problem_of(at, client_files(tmp_path, authority)) == ""
        without = await problem_of(at, TlsOptions(str(tmp_path / "ca.pem")))
        assert "may ask clients for a certificate: set tls.client.certPath" in without
        strange = await problem_of(at, client_files(tmp_path, trustme.CA()))
        assert f"may refuse the client certificate {tmp_path / 'client.pem'}" in strange


async def test_changed_files_are_used_for_new_connections(tmp_path: Path) -> None:
    """Files that cannot be used leave those before in use."""
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority, client_auth=ClientAuth.REQUIRE)
    options = client_files(tmp_path, trustme.CA())
    async with served(settings) as at, remoting(options) as asking:
        address = f"127.0.0.1:{at.port}"
        with pytest.raises(NotConnected):
            await asking.request(address, BEAT, None, timeout_ms=5_000)
        client_files(tmp_path, authority)
        await asking.request(address, BEAT, None, timeout_ms=5_000)
        spoil(options.cert_path)
        await dropped(at, asking, address)
        await asking.request(address, BEAT, None, timeout_ms=5_000)


def spoil(path: str) -> None:
    """Make a file that is no certificate."""
    Path(path).write_text("nonsense")


async def dropped(at: Served, asking: Remoting, address: str) -> None:
    """Close the connection, as a restarted server does."""
    link = asking.open_link(address)
    assert link is not None
    link.close("closed by the test")
    await link.wait_closed()
    assert not asking.is_connected(address)


async def test_a_server_trusts_its_own_certificate_on_this_machine(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, trustme.CA())
    issued = trustme.CA().issue_cert("broker.test")
    issued.cert_chain_pems[0].write_to_path(settings.cert_path)
    issued.private_key_pem.write_to_path(settings.key_path)
    async with served(settings) as at:
        assert await problem_of(at, TlsOptions(own_cert_path=settings.cert_path)) == ""
        assert await problem_of(at, TlsOptions()) != ""


def write_chain(issued: trustme.LeafCert, settings: Any) -> None:
    """Write a certificate with those of its authorities, and its key."""
    write_certificates(issued, settings.cert_path)
    issued.private_key_pem.write_to_path(settings.key_path)


def write_certificates(issued: trustme.LeafCert, path: str) -> None:
    """Write a certificate with those of its authorities."""
    Path(path).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))


async def test_authorities_behind_the_own_certificate_are_not_trusted(tmp_path: Path) -> None:
    authority = trustme.CA().create_child_ca()
    settings = tls_settings(tmp_path, authority)
    own = TlsOptions(own_cert_path=str(tmp_path / "own.pem"))
    own_certificate = authority.issue_cert("own.test")
    assert len(own_certificate.cert_chain_pems) > 1
    write_certificates(own_certificate, own.own_cert_path)
    for issued in (own_certificate, authority.issue_cert("other.test")):
        write_chain(issued, settings)
        is_own = issued is own_certificate
        async with served(settings) as at:
            problem = await problem_of(at, own)
        assert ("not signed by an authority" in problem) is not is_own, problem


async def test_a_renewed_own_certificate_is_trusted_at_once(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, trustme.CA())
    write_chain(trustme.CA().issue_cert("broker.test"), settings)
    async with remoting(TlsOptions(own_cert_path=settings.cert_path)) as asking:
        for _ in range(2):
            async with served(settings) as at:
                address = f"127.0.0.1:{at.port}"
                await asking.request(address, BEAT, None, timeout_ms=5_000)
            write_chain(trustme.CA().issue_cert("broker.test"), settings)


def test_an_own_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.pem"
    path.write_text("nonsense")
    with pytest.raises(SettingsError, match=r"'tlsServerCertPath': .*own\.pem cannot be used"):
        ClientTls(TlsOptions(own_cert_path=str(path))).load()


async def test_many_connections_wait_for_one_context(tmp_path: Path) -> None:
    options = TlsOptions(str(tmp_path / "ca.pem"))
    async with served(tls_settings(tmp_path, trustme.CA())) as at, remoting(options) as asking:
        address = f"127.0.0.1:{at.port}"
        found = await asyncio.gather(
            *(asking.request(address, BEAT, None, timeout_ms=5_000) for _ in range(50))
        )
        assert {each.code for each in found} == {ResponseCode.SUCCESS}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cert_path": ""}, "'tlsClientCertPath': the key"),
        ({"key_path": "/nowhere"}, "'tlsClientCertPath': .* the key must fit the certificate"),
        ({"ca_path": "/nowhere"}, "'tlsClientTrustCertPath': /nowhere cannot be used"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    authority = trustme.CA()
    tls_settings(tmp_path, authority)
    made = client_files(tmp_path, authority)
    with pytest.raises(SettingsError, match=problem):
        ClientTls(replace(made, **changes)).load()


async def test_a_key_may_have_a_password(tmp_path: Path) -> None:
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority, client_auth=ClientAuth.REQUIRE)
    options = client_files(tmp_path, authority)
    lock(options.key_path, b"hush")
    with pytest.raises(SettingsError, match="tlsClientKeyPassword") as caught:
        ClientTls(replace(options, key_password="wrong")).load()
    assert "wrong" not in str(caught.value)
    with pytest.raises(SettingsError, match="tlsClientKeyPassword"):
        ClientTls(options).load()
    async with served(settings) as at:
        assert await problem_of(at, replace(options, key_password="hush")) == ""


def lock(path: str, password: bytes) -> None:
    """Write a key again, with a password."""
    key = load_pem_private_key(Path(path).read_bytes(), None)
    scheme = BestAvailableEncryption(password)
    Path(path).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, scheme))


def test_secrets_are_not_printed() -> None:
    shown = repr(ConnectOptions(TlsOptions(key_password="hush"), Credentials("key", "hush")))
    assert "hush" not in shown


# ------------------------------------------------------------------------------------- signatures


async def test_every_request_is_signed() -> None:
    received: list[tuple[dict[str, str], bytes]] = []

    def keep(peer: Peer, request: Request[Any]) -> Reply | None:
        received.append((request.fields or {}, request.body))
        return Reply()

    credentials = Credentials("operator", "hush hush", "token")
    async with (
        serving({BEAT: keep}) as at,
        remoting(None, credentials=credentials) as asking,
    ):
        at.router.keep_fields = True
        address = f"127.0.0.1:{at.port}"
        await asking.request(address, BEAT, Topic("t"), b"body", timeout_ms=5_000)
        await asking.oneway(address, BEAT, None, b"beat")
        await asking.request(address, BEAT, None, timeout_ms=5_000)
    assert len(received) == 3
    for fields, body in received:
        assert fields["AccessKey"] == "operator"
        assert fields["SecurityToken"] == "token"
        assert fields["Signature"] == signature("hush hush", fields, body)


async def test_a_connection_that_is_being_opened_uses_changed_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[str] = []

    def keep(peer: Peer, request: Request[Any]) -> Reply | None:
        received.append((request.fields or {}).get("AccessKey", ""))
        return Reply()

    old, new = (Credentials(name, "hush hush") for name in ("old", "new"))
    async with serving({BEAT: keep}) as at, remoting(None, credentials=old) as asking:
        at.router.keep_fields = True
        made = Link.connection_made

        def change(link: Link, transport: asyncio.BaseTransport) -> None:
            made(link, transport)
            asking.use_credentials(new)

        monkeypatch.setattr(Link, "connection_made", change)
        await asking.request(f"127.0.0.1:{at.port}", BEAT, Topic("t"), timeout_ms=5_000)
        asking.use_credentials(None)
        await asking.request(f"127.0.0.1:{at.port}", BEAT, Topic("t"), timeout_ms=5_000)
    assert received == ["new", ""]


# -------------------------------------------------------------------------------------- the file


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_credentials_are_read_as_mqadmin_reads_them(tmp_path: Path) -> None:
    text = "accessKey: operator\nsecretKey: 12345678\n"
    path = write(tmp_path / "tools.yml", text)
    assert read_credentials(path) == Credentials("operator", "12345678")
    path = write(tmp_path / "tools.yml", text + "securityToken: t\n", 0o640)
    assert read_credentials(path) == Credentials("operator", "12345678", "t")


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("accessKey: a\nsecretKey: hush\n", 0o644, "run chmod 600 "),
        ("accessKey: a\n", 0o600, "must not be empty"),
        ("- hush\n", 0o600, "must have the lines accessKey"),
        ("a: [hush", 0o600, "must have the lines accessKey"),
        ("#" * 70_000, 0o600, "must have the lines accessKey"),
    ],
)
def test_files_that_are_no_credentials(tmp_path: Path, text: str, mode: int, problem: str) -> None:
    path = write(tmp_path / "tools.yml", text, mode)
    with pytest.raises(SettingsError, match=problem) as caught:
        read_credentials(path)
    assert "hush" not in str(caught.value)
    assert path in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tools\.yml: No such file"):
        read_credentials(str(tmp_path / "tools.yml"))


async def test_changed_credentials_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another file, and of the same file with other content; a bad file changes nothing."""
    clock, settings, used = VirtualClock(), OutgoingFields(), list[Credentials | None]()
    watching = asyncio.create_task(watch_credentials(settings, used.append, clock))

    async def until_used(*expected: str | None) -> None:
        async with asyncio.timeout(60):
            while [each and each.access_key for each in used] != list(expected):
                clock.advance(CREDENTIALS_POLL_MS)
                await asyncio.sleep(0.001)

    def write(name: str, access_key: str) -> str:
        path = tmp_path / name
        path.write_text(f"accessKey: {access_key}\nsecretKey: '12345678'\n")
        path.chmod(0o600)
        return str(path)

    try:
        await until_used(None)
        settings.credentials_path = write("one.yml", "first")
        await until_used(None, "first")
        write("one.yml", "second-key")
        await until_used(None, "first", "second-key")
        settings.credentials_path = str(tmp_path / "missing.yml")
        async with asyncio.timeout(60):
            while "credentials not in use" not in caplog.text:
                clock.advance(CREDENTIALS_POLL_MS)
                await asyncio.sleep(0.001)
        settings.credentials_path = write("two.yml", "third")
        await until_used(None, "first", "second-key", "third")
    finally:
        watching.cancel()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_silent_tls_peer_delays_an_end_for_a_second(
    factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """Also if the connection was closing before, for example because it was idle."""
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority)
    context = ServerTls(settings).context
    options = TlsOptions(settings.trust_path, check_host_name=False)

    async def run(address: str) -> None:
        async with remoting(options) as asking:
            with pytest.raises(RequestTimedOut):
                await asking.request(address, BEAT, None, timeout_ms=300)
            link = asking.open_link(address)
            assert link is not None
            link.close("idle")
            await asyncio.sleep(0)
            async with asyncio.timeout(20):  # an end by itself takes 30 s
                await asking.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[ssl.SSLSocket] = []

        def accept() -> None:
            accepted.append(context.wrap_socket(listener.accept()[0], server_side=True))

        thread = threading.Thread(target=accept)
        thread.start()
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run(f"127.0.0.1:{listener.getsockname()[1]}"))
        thread.join()
        accepted[0].close()


async def test_open_connections_sign_with_other_credentials() -> None:
    received: list[bytes] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            received.append(data)
        writer.close()

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    try:
        for credentials in (None, Credentials("first-key", "12345678"), None):
            remoting.use_credentials(credentials)
            received.clear()
            with pytest.raises(RequestTimedOut):
                await remoting.request(address, 105, None, timeout_ms=300)
            is_signed = b'"AccessKey":"first-key"' in b"".join(received)
            assert received
            assert is_signed == (credentials is not None)
    finally:
        await remoting.close()
        await tasks.close()
        server.close()
