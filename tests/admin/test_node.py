"""A node as a child process: ready, stopped, killed, started again, refused."""

import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cometmq.admin.node import VIP_DISTANCE, NodeFailed, NodeProcess, lasting_port
from cometmq.core.clock import SystemClock
from cometmq.testing.cluster import ProcessCluster


class Words(NodeProcess):
    """Runs a line of Python instead of a node."""

    code = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.code]


def words(tmp_path: Path, code: str) -> Words:
    node = Words(tmp_path / "store")
    node.code = code
    return node


def reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


def test_a_node_keeps_its_ports_and_store_over_restarts(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        addresses = cluster.namesrv, cluster.broker
        assert all(reachable(address) for address in addresses)
        cluster.restart()
        assert (cluster.namesrv, cluster.broker) == addresses
        assert all(reachable(address) for address in addresses)
        cluster.kill()
        assert not any(reachable(address) for address in addresses)
        cluster.start()
        assert cluster.terminate() == 0
        assert not any(reachable(address) for address in addresses)
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_a_second_node_on_the_same_store_is_refused(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path):
        second = ProcessCluster(tmp_path)
        with pytest.raises(NodeFailed, match="in use by another process") as failed:
            second.start()
    assert failed.value.exit_code == 2


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path / "first") as first:
        port = int(first.broker.rpartition(":")[2])
        second = NodeProcess(tmp_path / "second", broker_port=port, settings=first.settings)
        with pytest.raises(NodeFailed, match="choose another port") as failed:
            second.start()
    assert failed.value.exit_code == 2
    assert second.process is None


def test_a_bad_setting_is_told_by_the_log(tmp_path: Path) -> None:
    node = ProcessCluster(tmp_path, brokerNam="a")
    with pytest.raises(NodeFailed, match="brokerName"):
        node.start()


def test_a_process_that_says_nothing_is_ended_at_the_deadline(tmp_path: Path) -> None:
    node = words(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(NodeFailed, match="not ready within 300 ms") as failed:
        node.start(timeout_ms=300)
    assert failed.value.exit_code is None
    assert node.process is None


def test_a_process_that_says_something_else_is_no_node(tmp_path: Path) -> None:
    node = words(tmp_path, "print('hello', flush=True)")
    with pytest.raises(NodeFailed):
        node.start()


def test_a_node_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready namesrv=a:1 broker=b:2', flush=True); time.sleep(60)"
    )
    node = words(tmp_path, code)
    node.start()
    assert (node.namesrv, node.broker) == ("a:1", "b:2")
    with pytest.raises(NodeFailed, match="did not stop within 300 ms"):
        node.terminate(timeout_ms=300)
    assert node.process is None


def test_the_log_tail_without_a_log_is_empty(tmp_path: Path) -> None:
    assert NodeProcess(tmp_path / "store").log_tail() == ""


def test_a_node_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; "
        "from cometmq.testing.cluster import ProcessCluster; "
        "cluster = ProcessCluster(Path(sys.argv[1])); cluster.start(); "
        "print(cluster.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
    node = Path("/proc", done.stdout.strip(), "cmdline")
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + 60_000
    while lives(node):
        assert clock.monotonic_ms() < deadline_ms, "the node lives on"
        time.sleep(0.02)
    assert "broker stopped" in (tmp_path / "cluster.log").read_text()


def lives(command_line: Path) -> bool:
    """Whether the process has not ended, told by its file below /proc."""
    try:
        return bool(command_line.read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_lasting_port_is_free_and_below_what_connections_take() -> None:
    port = lasting_port(VIP_DISTANCE)
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert port < first_ephemeral
    for each in (port, port - VIP_DISTANCE):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", each))


def test_no_lasting_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("cometmq.admin.node._own_ports", lambda: itertools.repeat(port))
        with pytest.raises(OSError, match="no free port"):
            lasting_port()


def test_no_two_processes_get_the_same_lasting_port() -> None:
    """Also while nobody listens on it: its node may be about to start again."""
    code = (
        "from cometmq.admin.node import lasting_port; print(*(lasting_port() for _ in range(90)))"
    )
    own = {lasting_port() for _ in range(90)}
    for _ in range(3):
        others = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
        found = {int(port) for port in others.stdout.split()}
        assert found
        assert not own & found
