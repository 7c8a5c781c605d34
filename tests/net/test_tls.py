"""TLS of a server: its modes, client certificates, files that change, and files that cannot be
used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import SettingsError
from cometmq.net.outgoing import ClientTls, TlsOptions
from cometmq.net.peer import Peer
from cometmq.net.tls import ClientAuth, ServerTls, TlsMode, TlsSettings, server_tls
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Reply, Request
from tests.net.serving import RawClient, serving, tls_settings

BEAT = RequestCode.HEART_BEAT


def beat(peer: Peer, request: Request[Any]) -> Reply | None:
    return Reply()


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    """A client that trusts the authority."""
    made = ssl.create_default_context()
    authority.configure_trust(made)
    return made


def spoil(path: str) -> None:
    """Make a file that is no certificate."""
    Path(path).write_text("nonsense")
    os.utime(path, ns=(1, 1))


async def answers(port: int, context: ssl.SSLContext | None) -> bool:
    """Whether a request over a new connection is answered."""
    try:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
    except OSError:
        return False
    try:
        client.send(BEAT)
        await client.frame()
    except (OSError, EOFError):
        return False
    finally:
        client.writer.close()
        with contextlib.suppress(OSError):
            await client.writer.wait_closed()
    return True


async def test_enforcing_refuses_plain_connections(tmp_path: Path) -> None:
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority, mode=TlsMode.ENFORCING)
    async with serving({BEAT: beat}, tls=ServerTls(settings)) as served:
        assert await answers(served.port, client_context(authority))
        assert not await answers(served.port, None)
        assert not await answers(served.port, client_context(trustme.CA()))
        assert await answers(served.port, client_context(authority))


@pytest.mark.parametrize(
    ("client_auth", "certificate", "is_served"),
    [
        (ClientAuth.REQUIRE, "good", True),
        (ClientAuth.REQUIRE, "none", False),
        (ClientAuth.REQUIRE, "strange", False),
        (ClientAuth.OPTIONAL, "none", True),
        (ClientAuth.OPTIONAL, "strange", False),
        (ClientAuth.NONE, "strange", True),
    ],
)
async def test_client_certificates(
    tmp_path: Path, client_auth: ClientAuth, certificate: str, is_served: bool
) -> None:
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority, client_auth=client_auth)
    context = client_context(authority)
    if certificate != "none":
        signer = authority if certificate == "good" else trustme.CA()
        signer.issue_cert("client.test").configure_cert(context)
    async with serving({BEAT: beat}, tls=ServerTls(settings)) as served:
        assert await answers(served.port, context) is is_served


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@pytest.mark.parametrize("client_auth", list(ClientAuth))
def test_plain_clients_beside_required_certificates_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: TlsMode, client_auth: ClientAuth
) -> None:
    ServerTls(tls_settings(tmp_path, trustme.CA(), mode=mode, client_auth=client_auth))
    is_warned = mode is TlsMode.PERMISSIVE and client_auth is ClientAuth.REQUIRE
    assert caplog.text.count("plain clients served without certificates") == is_warned


async def test_changed_files_are_used_for_new_connections(tmp_path: Path) -> None:
    """A file that cannot be used leaves those before in use."""
    first, second = trustme.CA(), trustme.CA()
    settings = tls_settings(tmp_path, first)
    tls, clock = ServerTls(settings), VirtualClock()
    async with serving({BEAT: beat}, tls=tls) as served:
        watching = asyncio.create_task(tls.watch(clock))
        open_before = RawClient(
            *await asyncio.open_connection("127.0.0.1", served.port, ssl=client_context(first))
        )

        async def looked() -> None:
            async with asyncio.timeout(60):
                while not clock._sleepers:
                    await asyncio.sleep(0.001)
            clock.advance(1_000)
            async with asyncio.timeout(60):
                while not clock._sleepers:
                    await asyncio.sleep(0.001)

        spoil(settings.cert_path)
        await looked()
        assert await answers(served.port, client_context(first))
        tls_settings(tmp_path, second)
        await looked()
        assert await answers(served.port, client_context(second))
        assert not await answers(served.port, client_context(first))
        open_before.send(BEAT)
        await open_before.frame()
        open_before.writer.close()
        watching.cancel()


async def test_files_are_read_again_after_a_passing_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that their times do not show, such as too many open files; it is logged once."""
    tls = ServerTls(tls_settings(tmp_path, trustme.CA()))
    before = tls.context
    tls_settings(tmp_path, trustme.CA())
    with monkeypatch.context() as patch:

        def fails(_: object) -> ssl.SSLContext:
            raise SettingsError("tlsServerCertPath", "too many open files")

        patch.setattr("cometmq.net.tls._context", fails)
        for _ in range(3):
            await tls._look()
        assert tls.context is before
    await tls._look()
    assert tls.context is not before
    assert caplog.text.count("tls files not in use") == 1


def test_client_files_are_read_again_after_a_passing_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "authority.pem"
    trustme.CA().cert_pem.write_to_path(path)
    tls = ClientTls(TlsOptions(str(path)))
    before = tls.load()
    trustme.CA().cert_pem.write_to_path(path)
    os.utime(path, ns=(1, 1))
    with monkeypatch.context() as patch:

        def fails(*_: object) -> ssl.SSLContext:
            raise SettingsError("tlsClientTrustCertPath", "too many open files")

        patch.setattr("cometmq.net.outgoing._make_context", fails)
        assert tls.load() is tls.load() is before
    assert tls.load() is not before
    assert caplog.text.count("tls client files not in use") == 1


def test_disabled_needs_no_files() -> None:
    assert server_tls(TlsSettings()) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cert_path": ""}, "setting 'tlsServerCertPath': tlsServerMode=permissive needs this"),
        ({"key_path": ""}, "setting 'tlsServerKeyPath': tlsServerMode=permissive needs this"),
        ({"cert_path": "/nowhere/x.pem"}, "/nowhere/x.pem with the key"),
        (
            {"client_auth": ClientAuth.REQUIRE, "trust_path": ""},
            "setting 'tlsServerTrustCertPath': tlsServerNeedClientAuth=require needs the authority",
        ),
        (
            {"client_auth": ClientAuth.REQUIRE, "trust_path": "/nowhere/ca.pem"},
            "setting 'tlsServerTrustCertPath': /nowhere/ca.pem cannot be used",
        ),
    ],
)
def test_settings_that_cannot_be_used(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    settings = tls_settings(tmp_path, trustme.CA(), **changes)
    with pytest.raises(SettingsError) as caught:
        ServerTls(settings)
    assert problem in str(caught.value)


def test_a_key_of_another_certificate_is_told(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, trustme.CA())
    other = trustme.CA().issue_cert("127.0.0.1")
    other.private_key_pem.write_to_path(settings.key_path)
    with pytest.raises(SettingsError, match="the key must fit the certificate"):
        ServerTls(settings)
