"""Runs a node (name server and broker in one) as a child process.

Standard output carries only the ready line; standard error goes to a file, so that no pipe fills
up. Standard input is a pipe that nothing is written to: it closes when this process ends, for
whatever reason, and the node then stops. All waits are bounded. The calls block: run them in a
thread when there is an event loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import random
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError

READY_TIMEOUT_MS: Final = 30_000
STOP_TIMEOUT_MS: Final = 30_000
#: Distance below its port at which a broker also listens.
VIP_DISTANCE: Final = 2
_LOG_TAIL_BYTES: Final = 2_000
_LASTING_PORTS: Final = (16_384, 32_768)
#: Each process takes its lasting ports from one part of the range, and one port from each block of
#: a part: a broker also listens on ports next to its own.
_PARTS: Final = 32
_BLOCK_PORTS: Final = 8
_PORT_IN_BLOCK: Final = 5


def lasting_port(distance: int = 0) -> int:
    """Return a free port that remains usable for a node that will be restarted.

    Outgoing connections use the ephemeral range (from 32768 on in Linux) and may take a port there
    that a node just released; this port is below that range. With ``distance``, the port that far
    below is free too. No other process of this user gets the port from here while this one runs,
    even if nothing listens on it. Raises OSError when none is found.
    """
    ports = _own_ports()
    for _ in range((_LASTING_PORTS[1] - _LASTING_PORTS[0]) // _PARTS // _BLOCK_PORTS):
        port = next(ports)
        try:
            for each in {port, port - distance}:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port
    raise OSError(f"no free port among {_LASTING_PORTS}")


@functools.cache
def _own_ports() -> Iterator[int]:
    """Return an endless iterator over the ports of a part that this process has for itself.

    A file in the folder for temporary files locks the part. If no part can be locked, it is a
    random one.
    """
    parts = random.sample(range(_PARTS), _PARTS)
    part = next(filter(_lock_part, parts), parts[0])
    low, end = _LASTING_PORTS
    size = (end - low) // _PARTS
    first = low + part * size + _PORT_IN_BLOCK
    return itertools.cycle(range(first, low + (part + 1) * size, _BLOCK_PORTS))


def _lock_part(part: int) -> bool:
    """Lock a part of the lasting ports until this process ends; return whether that succeeded."""
    path = os.path.join(tempfile.gettempdir(), f"cometmq-ports-{os.getuid()}-{part}")
    try:
        lock = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    except OSError:
        return False
    try:
        # The descriptor stays open, and with it the lock, until the process ends.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    return True


class NodeFailed(CometError):
    """A node ended too early, or did not start or stop in time.

    ``exit_code`` is None if it was still running.
    """

    def __init__(self, problem: str, exit_code: int | None, log_tail: str) -> None:
        self.exit_code = exit_code
        self.log_tail = log_tail
        super().__init__(f"{problem}: {log_tail.strip() or 'it logged nothing'}")


class NodeProcess:
    """``cometmq start`` on ``store``, with ports and settings that a restart keeps.

    After :meth:`start`, ``namesrv`` and ``broker`` are the addresses that it serves. ``prefix`` are
    words before the command, such as ``nsenter`` and its options; they must exec the rest.
    """

    def __init__(
        self,
        store: Path,
        *,
        namesrv_port: int = 0,
        broker_port: int = 0,
        settings: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.store = store
        self.prefix = tuple(prefix)
        self.settings = dict(settings or {})
        self.log_path = log_path or store.with_name(f"{store.name}.log")
        self.namesrv = f"127.0.0.1:{namesrv_port}"
        self.broker = f"127.0.0.1:{broker_port}"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Return the command line that starts the node."""
        words = [*self.prefix, sys.executable, "-m", "cometmq.cli", "start", "--stop-with-input"]
        words += ["--store", str(self.store)]
        words += ["--namesrv-port", self.namesrv.rpartition(":")[2]]
        words += ["--broker-port", self.broker.rpartition(":")[2]]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        return words

    def start(self, timeout_ms: int = READY_TIMEOUT_MS) -> None:
        """Start the node and wait for its ready line.

        Raises NodeFailed when it ends, or is not ready within ``timeout_ms``.
        """
        assert self.process is None, "the node is already running"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        line = self._read_line(timeout_ms)
        if not line.startswith("ready "):
            still_ran = self.process.poll() is None
            code = None if still_ran else self.process.returncode
            self.kill()
            problem = f"ended with code {code}"
            if still_ran:
                problem = f"not ready within {timeout_ms} ms"
            raise NodeFailed(problem, code, self.log_tail())
        fields = dict(word.partition("=")[::2] for word in line.split()[1:])
        self.namesrv = fields.get("namesrv", self.namesrv)
        self.broker = fields.get("broker", self.broker)

    def terminate(self, timeout_ms: int = STOP_TIMEOUT_MS) -> int:
        """Ask the node to stop (SIGTERM), wait for it and return its exit code.

        Raises NodeFailed when it had to be killed after ``timeout_ms``.
        """
        assert self.process is not None, "the node is not running"
        self.process.terminate()
        try:
            code = self.process.wait(timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            self.kill()
            problem = f"did not stop within {timeout_ms} ms"
            raise NodeFailed(problem, None, self.log_tail()) from None
        self._forget()
        return code

    def kill(self) -> None:
        """Kill the node at once (SIGKILL); do nothing if it does not run."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._forget()

    def log_tail(self) -> str:
        """Return the end of the node's log."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def _forget(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process = None

    def _read_line(self, timeout_ms: int) -> str:
        """Return the first line of standard output; empty if it ends or times out before that."""
        assert self.process is not None
        assert self.process.stdout is not None
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + timeout_ms
        read = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in read:
                left_ms = deadline_ms - clock.monotonic_ms()
                if left_ms <= 0 or not selector.select(left_ms / 1000):
                    return ""
                part = os.read(self.process.stdout.fileno(), 4096)
                if not part:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.process.wait(left_ms / 1000)
                    return ""
                read += part
        return read.partition(b"\n")[0].decode()
