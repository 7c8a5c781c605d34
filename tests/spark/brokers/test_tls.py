"""Encrypted connections to a peer with real certificates."""

import os
import socket
import ssl
import threading
from pathlib import Path

import pytest
import trustme

from cometmq.core.errors import NotConnected
from cometmq.net.outgoing import TlsOptions
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import TopicQueue
from cometmq.spark.brokers import wire
from cometmq.spark.brokers.access import Access, parse_tls, tls_context
from cometmq.spark.options import BadOption
from tests.spark.scripted import ScriptedPeer

CODE = int(RequestCode.GET_MAX_OFFSET)
HEADER = TopicQueue(topic="T", queue_id=7)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


class Tunnel:
    """Ends TLS on a port of its own and passes on one connection to a plain peer."""

    def __init__(self, authority: trustme.CA, name: str, peer: str, *, asks: bool = False) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self._context)
        if asks:
            authority.configure_trust(self._context)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._peer = ("127.0.0.1", int(peer.rpartition(":")[2]))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Tunnel":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        wire.close_all()
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        plain, _ = self._listener.accept()
        try:
            with (
                self._context.wrap_socket(plain, server_side=True) as opened,
                socket.create_connection(self._peer) as inner,
            ):
                while data := opened.recv(65_536):
                    inner.sendall(data)
                    opened.sendall(inner.recv(65_536))
        except OSError:
            return


def asked(tunnel: Tunnel, found: TlsOptions) -> str:
    return wire.call(tunnel.address, CODE, HEADER, Access((), 5_000, tls=found)).ext["offset"]


def test_an_encrypted_answer(authority: trustme.CA, ca_file: str) -> None:
    with (
        ScriptedPeer(lambda _: (0, {"offset": "9"}, b"")) as peer,
        Tunnel(authority, "127.0.0.1", peer.address) as tunnel,
    ):
        assert asked(tunnel, TlsOptions(ca_file)) == "9"


def test_an_unknown_authority_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    with (
        ScriptedPeer(lambda _: None) as peer,
        Tunnel(authority, "127.0.0.1", peer.address) as tunnel,
        pytest.raises(NotConnected, match=r"TLS handshake failed.*certificate verify failed"),
    ):
        asked(tunnel, TlsOptions(str(other)))


def test_a_certificate_has_to_name_the_host(authority: trustme.CA, ca_file: str) -> None:
    with ScriptedPeer(lambda _: (0, {"offset": "9"}, b"")) as peer:
        with (
            Tunnel(authority, "elsewhere.test", peer.address) as tunnel,
            pytest.raises(NotConnected, match=r"not valid for '127\.0\.0\.1'"),
        ):
            asked(tunnel, TlsOptions(ca_file))
        with Tunnel(authority, "elsewhere.test", peer.address) as tunnel:
            assert asked(tunnel, TlsOptions(ca_file, check_host_name=False)) == "9"


def test_a_server_may_ask_who_we_are(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    own = authority.issue_cert("reader.test")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = TlsOptions(ca_file, str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with ScriptedPeer(lambda _: (0, {"offset": "9"}, b"")) as peer:
        with Tunnel(authority, "127.0.0.1", peer.address, asks=True) as tunnel:
            assert asked(tunnel, files) == "9"
        with (
            Tunnel(authority, "127.0.0.1", peer.address, asks=True) as tunnel,
            pytest.raises(NotConnected, match=r"CERTIFICATE_REQUIRED|EOF|closed|reset"),
        ):
            asked(tunnel, TlsOptions(ca_file))


def test_a_server_without_encryption() -> None:
    with (
        ScriptedPeer(lambda _: None) as peer,
        pytest.raises(NotConnected, match="TLS handshake failed"),
    ):
        wire.call(peer.address, CODE, HEADER, Access((), 200, tls=TlsOptions()))


def test_files_that_cannot_be_used_are_named(tmp_path: Path, ca_file: str) -> None:
    missing = str(tmp_path / "missing.pem")
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    for files, option, name in (
        (TlsOptions(missing), "tlsCaFile", "missing"),
        (TlsOptions(ca_file, missing), "tlsCertFile", "missing"),
        (TlsOptions(ca_file, ca_file, missing), "tlsKeyFile", "missing"),
        (TlsOptions(str(rubbish)), "tlsCaFile", "rubbish"),
        (TlsOptions(ca_file, str(rubbish)), "tlsCertFile", "rubbish"),
    ):
        with pytest.raises(BadOption, match=rf"'{option}': .*{name}\.pem"):
            tls_context(files, "localhost")


def test_a_file_that_was_replaced_is_read_again(
    authority: trustme.CA, tmp_path: Path, ca_file: str
) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(Path(ca_file).read_text())
    first = tls_context(TlsOptions(str(path)), "localhost")
    assert tls_context(TlsOptions(str(path)), "localhost") is first
    trustme.CA().cert_pem.write_to_path(path)
    os.utime(path, ns=(1, 1))
    assert tls_context(TlsOptions(str(path)), "localhost") is not first


def test_options() -> None:
    assert parse_tls({}) is None
    assert parse_tls({"useTls": "true"}) == TlsOptions()
    given = {"tlsCaFile": "a", "tlsCertFile": "b", "tlsKeyFile": "c", "tlsCheckHostname": "false"}
    assert parse_tls({"useTls": "TRUE", **given}) == TlsOptions(
        "a", "b", "c", check_host_name=False
    )
    with pytest.raises(BadOption, match="'tlsCaFile': has no effect unless useTls"):
        parse_tls({"tlsCaFile": "a"})
    with pytest.raises(BadOption, match="'tlsKeyFile'"):
        parse_tls({"useTls": "true", "tlsKeyFile": "c"})
