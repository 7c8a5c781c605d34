"""The brokers in the benchmarks that speak RocketMQ's protocol: CometMQ and Apache RocketMQ.

Their stores are kept across stops, kills and starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from benchmarks.loading import BenchmarkFailed, need_tools
from cometmq.admin.node import NodeProcess
from tests.compat import anchor

WAIT_S: Final = 300
#: The Java broker's heap in production, if there is enough memory.
JAVA_HEAP: Final = ("4g", "4g")
LOG_FILE_BYTES: Final = "mappedFileSizeCommitLog"
JAVA_SETTINGS: Final = {
    LOG_FILE_BYTES: str(1 << 30),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    # By default it refuses sends after 200 ms in the queue, which happens on a saturated machine.
    "waitTimeMillsInSendQueue": "5000",
}
#: An option of the brokers in short tests, removed here: it disables the second of the JVM's two
#: compilers.
QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"


class Server(Protocol):
    """A broker that can be stopped, killed and started again on the same store."""

    name: str
    home: Path

    @property
    def port(self) -> int:
        """Port of the broker."""
        ...

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        ...

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        ...

    def start(self) -> None:
        """Start the broker, and return when it serves."""
        ...

    def stop(self) -> None:
        """Stop the broker and wait for its end."""
        ...

    def kill(self) -> None:
        """Kill the broker."""
        ...


class OurServer:
    """CometMQ, started like by a user, with log files of the size that the others have."""

    name = "cometmq"

    def __init__(
        self, home: Path, settings: Mapping[str, str] | None = None, *, is_plain: bool = False
    ) -> None:
        self.home = home
        prefix = ("env", "COMETMQ_PURE=1") if is_plain else ()
        settings = {LOG_FILE_BYTES: JAVA_SETTINGS[LOG_FILE_BYTES], **(settings or {})}
        self._node = NodeProcess(home / "store", settings=settings, prefix=prefix)
        self.kill = self._node.kill

    @property
    def log_path(self) -> Path:
        """Path of the log output."""
        return self._node.log_path

    @property
    def namesrv(self) -> str:
        return self._node.namesrv

    @property
    def port(self) -> int:
        return int(self._node.broker.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._node.process is not None
        return self._node.process.pid

    def start(self) -> None:
        self._node.start(WAIT_S * 1000)

    def stop(self) -> None:
        self._node.terminate(WAIT_S * 1000)


class JavaServer:
    """The Java broker. Its name server keeps running, since only the broker is measured."""

    name = "java"

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, str] | None = None,
        *,
        version: str = anchor.VERSION,
    ) -> None:
        need_tools("java", "mvn")
        self.home = home
        lines = {**JAVA_SETTINGS, **(settings or {})}
        self._cluster = anchor.JavaCluster(
            anchor.fetch_jars(version), home, lines, heap=JAVA_HEAP, openings=("-XX:+UseG1GC",)
        )
        self._broker = self._cluster.broker_server
        self._broker.command.remove(QUICK_COMPILER)

    @property
    def namesrv(self) -> str:
        return self._cluster.namesrv

    @property
    def port(self) -> int:
        return int(self._cluster.broker.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._broker.pid

    def start(self) -> None:
        if self._cluster.namesrv_server.process is None:
            self._cluster.namesrv_server.start()
        self._broker.start()

    def stop(self) -> None:
        process = self._broker.process
        assert process is not None
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WAIT_S)
        self._broker.stop()

    def kill(self) -> None:
        self._cluster.kill()


MAKERS: Final[Mapping[str, type[OurServer] | type[JavaServer]]] = {
    "cometmq": OurServer,
    "java": JavaServer,
}


def report(
    name: str,
    home: Path,
    measure: Callable[[Server], dict[str, object]],
    settings: Mapping[str, str] | None = None,
    **about: object,
) -> bool:
    """Measure a broker in its own folder, print the results as one JSON line, and remove the
    folder.

    After a failure the line has ``about`` and the reason. Return whether there are results.
    """
    try:
        line = measure(MAKERS[name](home, settings))
    except (BenchmarkFailed, anchor.AnchorFailed, subprocess.SubprocessError) as error:
        line = {"broker": name, **about, "failed": str(error)[-500:]}
    print(json.dumps(line), flush=True)
    shutil.rmtree(home, ignore_errors=True)
    return "failed" not in line


def proc_numbers(pid: int, name: str) -> dict[str, int]:
    """Return the numbers in a file such as "status" or "io" under /proc/PID."""
    lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    fields = (line.partition(":") for line in lines)
    words = ((key, value.split()) for key, _, value in fields)
    return {key: int(found[0]) for key, found in words if found and found[0].isdigit()}


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous_mib(pid: int) -> float:
    """Return the anonymous memory of a process (RssAnon), MiB."""
    return round(proc_numbers(pid, "status")["RssAnon"] / 1024, 1)
