"""A master and a slave of one name behind a name server, ours or Java's, to lose the master of."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cometmq.spark.brokers import cluster
from cometmq.testing.cluster import SMALL_FILES
from tests.compat.anchor import JavaCluster, JavaServer, answers, free_port, wait_until
from tests.spark.topics import access

ROLE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


@dataclass(frozen=True, slots=True)
class Pair:
    """``namesrv`` as ``host:port``; ``master`` and ``slave`` likewise."""

    namesrv: str
    master: str
    slave: str
    master_server: JavaServer | Server

    def lose_master(self) -> None:
        """Kill the master at once."""
        self.master_server.stop(signal.SIGKILL)

    def wait_for_slave(self, topic: str) -> None:
        """Return once the route of a topic names both; a slave learns of topics every 10 s."""
        reached = access(self.namesrv)

        def is_there() -> bool:
            route = cluster.routes([topic], reached, age_max_ms=0).get(topic)
            return route is not None and "1" in route.broker_datas[0].broker_addrs

        wait_until(is_there, "the slave in the route")


class Server:
    """A name server or a broker of ours in a process of its own."""

    def __init__(self, home: Path, kind: str, port: int, **settings: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "cometmq.cli", kind]
        for key, value in {"listenPort": str(port), **settings}.items():
            words += ["--set", f"{key}={value}"]
        with (home / f"{kind}.log").open("wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd=home)
        wait_until(lambda: answers(port), f"{kind} on port {port}")

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> None:
        """End it."""
        self._process.send_signal(sent)
        self._process.wait(60)


@contextmanager
def our_pair(home: Path) -> Iterator[Pair]:
    """Two brokers of ours."""
    names, master, slave = free_port(), free_port(-2, 1), free_port(-2, 1)
    namesrv = f"127.0.0.1:{names}"
    both = {**SMALL_FILES, "namesrvAddr": namesrv, "brokerName": "broker-a"}
    both |= {"brokerIP1": "127.0.0.1"}
    with ExitStack() as stack:

        def start(kind: str, port: int, **settings: str) -> Server:
            server = Server(home / f"{kind}-{port}", kind, port, **settings)
            stack.callback(server.stop)
            return server

        start("namesrv", names)
        store = {"storePathRootDir": str(home / "master")}
        first = start("broker", master, **both, **store)
        store = {"storePathRootDir": str(home / "slave")}
        start("broker", slave, **both, **store, **ROLE)
        yield Pair(namesrv, f"127.0.0.1:{master}", f"127.0.0.1:{slave}", first)


@contextmanager
def java_pair(jars: Path, home: Path) -> Iterator[Pair]:
    """Two Java brokers."""
    first = JavaCluster(jars, home / "master")
    second = JavaCluster(jars, home / "slave", {**ROLE, "namesrvAddr": first.namesrv})
    with ExitStack() as stack:
        stack.callback(first.kill)
        first.start()
        stack.callback(second.broker_server.stop, signal.SIGKILL)
        second.broker_server.start()
        yield Pair(first.namesrv, first.broker, second.broker, first.broker_server)
