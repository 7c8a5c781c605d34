"""The peers that all tests here share, and who meets whom.

A test that asks for `driver` (Java's client and tools) and `target` (a name server and a broker)
runs once a pair `CLIENT-BROKER`; one that asks for `target` alone, for our client, once a broker.
Clients are RocketMQ's 4.9.7 and 5.5.0; brokers `cometmq`, `java` (RocketMQ 4.9.7) and `java5`
(RocketMQ 5.5.0). Tests with our client call it `client`, and meet `java5` too.
`@pytest.mark.runs("4.9.7-java", ...)` names other pairs than the usual ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.compat.driver import Driver
from tests.compat.groups import Groups

NOT_RUN = "needs Java 17 and Maven: apt-get install -y openjdk-17-jdk-headless maven"

#: Who meets whom unless a test says otherwise, by those of these fixtures that it asks for.
USUAL: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("driver",): ("4.9.7", "5.5.0"),
    ("target",): ("cometmq", "java", "java5"),
    ("driver", "target"): ("4.9.7-cometmq", "5.5.0-cometmq", "4.9.7-java", "5.5.0-java"),
    ("client", "target"): ("cometmq", "java", "java5"),
    ("client", "driver", "target"): (
        *("4.9.7-cometmq", "5.5.0-cometmq", "4.9.7-java"),
        *("5.5.0-java", "5.5.0-java5"),
    ),
}
#: Left to `make deep`: each side of these meets others in every run.
DEEP_PAIRS: Final = {"5.5.0-java"}

#: Open transactions are asked for within a test's patience.
EAGER_CHECKS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
#: The topic of message traces is there from the start.
TRACING: Final = {"traceTopicEnable": "true"}
#: RocketMQ 5 notes 3 s late which transactions have ended, and asks for these meanwhile; it recalls
#: nothing unless it is told to.
OF_ROCKETMQ_5: Final = {"transactionOpBatchInterval": "100", "recallMessageEnable": "true"}


@dataclass(frozen=True, slots=True)
class Target:
    """A name server and a broker, whoever wrote them; addresses are `host:port`."""

    name: str
    namesrv: str
    broker: str
    broker_name: str
    cluster_name: str = "DefaultCluster"
    version: str = "V4_9_7"


class SharedPeers:
    """The clusters, each started when it is first asked for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._java: dict[str, anchor.JavaCluster] = {}
        self._ours: ProcessCluster | None = None

    def java(self, version: str = anchor.VERSION) -> Target:
        """The Java cluster of a version."""
        if version not in self._java:
            jars = anchor.fetch_jars(version)
            home = self._home / f"java-{version}"
            self._java[version] = anchor.JavaCluster(
                jars, home, EAGER_CHECKS | TRACING | OF_ROCKETMQ_5
            )
        cluster = self._java[version]
        if cluster.broker_server.process is None:
            cluster.start()
        name = "java" if version == anchor.VERSION else "java5"
        shown = "V" + version.replace(".", "_")
        return Target(name, cluster.namesrv, cluster.broker, "broker-a", version=shown)

    def ours(self) -> Target:
        """CometMQ."""
        if self._ours is None:
            self._ours = ProcessCluster(self._home / "cometmq", **EAGER_CHECKS, **TRACING)
            self._ours.start()
        return Target("cometmq", self._ours.namesrv, self._ours.broker, "broker-a")

    def called(self, name: str) -> Target:
        """The cluster of a name: cometmq, java or java5."""
        if name == "cometmq":
            return self.ours()
        return self.java({"java": anchor.VERSION, "java5": anchor.LATEST}[name])

    def stop_java(self) -> None:
        """Ends the Java clusters, so that a test may start one of its own. They are killed, since a
        Java broker takes half a minute for its leave."""
        for cluster in self._java.values():
            cluster.kill()

    def close(self) -> None:
        """Ends all."""
        self.stop_java()
        if self._ours is not None:
            self._ours.terminate()


class Drivers:
    """Java's client and tools: a JVM a version, each started when it is first asked for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: dict[str, Driver] = {}

    def of(self, version: str) -> Driver:
        """The one of a version."""
        if version not in self._running:
            home = self._home / version
            self._running[version] = Driver(anchor.fetch_jars(version), home)
        return self._running[version]

    def end(self, version: str) -> None:
        """Ends the one of a version."""
        self._running.pop(version).kill()

    def close(self) -> None:
        """Ends all."""
        for version in [*self._running]:
            self.end(version)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share brokers go first: the others end these to have the machine for their own."""

    def has_its_own(item: pytest.Item) -> bool:
        return isinstance(item, pytest.Function) and "target" not in item.fixturenames

    here = [at for at, item in enumerate(items) if item.path.is_relative_to(anchor.HERE)]
    for at, item in zip(here, sorted((items[at] for at in here), key=has_its_own), strict=True):
        items[at] = item


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeats a test for everyone that it is to meet."""
    asked = tuple(name for name in ("client", "driver", "target") if name in metafunc.fixturenames)
    names = tuple(name for name in asked if name != "client")
    if not names:
        return
    chosen = metafunc.definition.get_closest_marker("runs")
    pairs = chosen.args if chosen else USUAL[asked]
    values = [
        pytest.param(*pair.split("-"), id=pair, marks=[pytest.mark.deep] * (pair in DEEP_PAIRS))
        for pair in pairs
    ]
    metafunc.parametrize(names, values, indirect=True)


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of RocketMQ 4.9.7's jars."""
    if anchor.missing_tool() is not None:
        pytest.skip(NOT_RUN)
    return anchor.fetch_jars()


@pytest.fixture(scope="session")
def peers(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedPeers]:
    """All clusters."""
    shared = SharedPeers(tmp_path_factory.mktemp("peers"))
    yield shared
    shared.close()


# One for each module: clients of 5.5.0 leave threads behind that wake up all the time. After some
# hundred tests they take all processors.
@pytest.fixture(scope="module")
def drivers(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """Java's clients and tools."""
    running = Drivers(tmp_path_factory.mktemp("drivers"))
    yield running
    running.close()


@pytest.fixture
def driver(request: pytest.FixtureRequest, drivers: Drivers) -> Driver:
    """Java's client and tools, of the version that the pair names."""
    return drivers.of(request.param)


@pytest.fixture
def target(request: pytest.FixtureRequest, peers: SharedPeers) -> Target:
    """The cluster that the pair names: a test holds for the protocol, not for one broker."""
    return peers.called(request.param)


@pytest.fixture
def groups(driver: Driver, target: Target) -> Iterator[Groups]:
    """Consumer groups of the Java client; they end with the test."""
    made = Groups(driver, target)
    yield made
    made.close()
