"""Java's clients and mqadmin over TLS, against a node of ours in each mode."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.compat.anchor import wait_until
from tests.compat.conftest import SharedPeers
from tests.compat.driver import Driver, StepFailed, column

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of an authority: server.pem and server.key, client.pem and client.key,
    ca.pem, and one that signed none of them, other.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    for name, host in (("server", "127.0.0.1"), ("client", "client.test")):
        issued = authority.issue_cert(host)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        (folder / f"{name}.key").write_bytes(anchor.as_pkcs8(issued.private_key_pem.bytes()))
    return folder


def node(home: Path, files: Path, mode: str, **more: str) -> ProcessCluster:
    """A node that shows the server's certificate on both ports."""
    settings = {
        "tls.server.mode": mode,
        "tls.server.certPath": str(files / "server.pem"),
        "tls.server.keyPath": str(files / "server.key"),
        **more,
    }
    return ProcessCluster(home, **settings)


def secure(home: Path, files: Path, version: str, **more: str) -> Driver:
    """Java's client with TLS, which checks the server's certificate."""
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.config.file": str(files / "none"),
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(files / "ca.pem"),
        **more,
    }
    return Driver(anchor.fetch_jars(version), home, properties)


@pytest.fixture(params=["4.9.7", "5.5.0"])
def version(request: pytest.FixtureRequest, peers: SharedPeers) -> str:
    """The version of the client."""
    peers.stop_java()
    return str(request.param)


def test_both_kinds_of_clients_are_served(tmp_path: Path, files: Path, version: str) -> None:
    """Java's client with TLS and one without share a topic."""
    driver = secure(tmp_path / "secure", files, version)
    plain = Driver(anchor.fetch_jars(version), tmp_path / "plain")
    try:
        with node(tmp_path / "node", files, "permissive") as served:
            for each, prefix in ((driver, "secure"), (plain, "plain")):
                sent = each.send(served.namesrv, "mixed", count=20, prefix=prefix)
                assert set(column(sent, "status")) == {"SEND_OK"}
                wait_until(lambda: anchor.route_code(served.namesrv, "mixed") == 0, "a route")
            pulled = driver.ask("pullAll", namesrv=served.namesrv, topic="mixed")
            assert isinstance(pulled, dict)
            assert isinstance(pulled["messages"], list)
            assert len(pulled["messages"]) == 40
            listed = driver.mqadmin("clusterList", "-n", served.namesrv)
            assert served.broker in listed
    finally:
        driver.kill()
        plain.kill()


def test_clients_are_asked_for_a_certificate(tmp_path: Path, files: Path, version: str) -> None:
    """One that the authority signed is served; a client without one is not."""
    shown = {
        "tls.client.certPath": str(files / "client.pem"),
        "tls.client.keyPath": str(files / "client.key"),
    }
    known = secure(tmp_path / "known", files, version, **shown)
    unknown = secure(tmp_path / "unknown", files, version)
    mutual = {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(files / "ca.pem"),
    }
    try:
        with node(tmp_path / "node", files, "permissive", **mutual) as served:
            assert column(known.send(served.namesrv, "mutual"), "status") == ["SEND_OK"]
            with pytest.raises(StepFailed):
                unknown.send(served.namesrv, "mutual", group="unknown")
    finally:
        known.kill()
        unknown.kill()


def test_a_client_refuses_a_server_of_another_authority(
    tmp_path: Path, files: Path, version: str
) -> None:
    driver = secure(
        tmp_path / "driver",
        files,
        version,
        **{"tls.client.trustCertPath": str(files / "other.pem")},
    )
    try:
        with node(tmp_path / "node", files, "permissive") as served, pytest.raises(StepFailed):
            driver.send(served.namesrv, "refused")
    finally:
        driver.kill()
