"""The peers that all tests here share: one Java broker, one CometMQ, one JVM of test programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.compat.driver import Driver

NOT_RUN = "needs Java 17 and Maven: apt-get install -y openjdk-17-jdk-headless maven"

#: Open transactions are asked for within a test's patience.
EAGER_CHECKS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}


@dataclass(frozen=True, slots=True)
class Target:
    """A name server and a broker, whoever wrote them; addresses are `host:port`."""

    name: str
    namesrv: str
    broker: str
    broker_name: str
    cluster_name: str = "DefaultCluster"


class SharedPeers:
    """Both clusters, each started when it is first asked for."""

    def __init__(self, jars: Path, home: Path) -> None:
        self._java = anchor.JavaCluster(jars, home / "java", EAGER_CHECKS)
        self._ours = ProcessCluster(home / "cometmq", **EAGER_CHECKS)
        self._ours_runs = False

    def java(self) -> Target:
        """The Java cluster."""
        if self._java.broker_server.process is None:
            self._java.start()
        return Target("java", self._java.namesrv, self._java.broker, "broker-a")

    def ours(self) -> Target:
        """CometMQ."""
        if not self._ours_runs:
            self._ours.start()
            self._ours_runs = True
        return Target("cometmq", self._ours.namesrv, self._ours.broker, "broker-a")

    def stop_java(self) -> None:
        """Ends the Java cluster, so that a test may start one of its own."""
        self._java.stop()

    def close(self) -> None:
        """Ends both."""
        self._java.stop()
        if self._ours_runs:
            self._ours.terminate()


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of RocketMQ's jars."""
    if anchor.missing_tool() is not None:
        pytest.skip(NOT_RUN)
    return anchor.fetch_jars()


@pytest.fixture(scope="session")
def peers(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedPeers]:
    """Both clusters."""
    shared = SharedPeers(jars, tmp_path_factory.mktemp("peers"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def driver(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Java's client and tools."""
    running = Driver(jars, tmp_path_factory.mktemp("driver"))
    yield running
    running.close()


@pytest.fixture(params=["cometmq", "java"])
def target(request: pytest.FixtureRequest, peers: SharedPeers) -> Target:
    """Each test that asks for it runs twice, so that it holds for the protocol and not for us."""
    return peers.ours() if request.param == "cometmq" else peers.java()


@pytest.fixture
def java(peers: SharedPeers) -> Target:
    """The Java cluster alone."""
    return peers.java()
