"""A Spark cluster of this machine: a master and two workers from the pip package, on loopback."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from cometmq.admin.node import lasting_port
from tests.spark.processes import Process, below, end_group

WORKERS = 2
START_S = 120
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(slots=True)
class Standalone:
    """The running cluster: its address, and what runs below its workers."""

    folder: Path
    url: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start master and workers, and wait until these are known to it."""
        port = lasting_port()
        self.url = f"spark://127.0.0.1:{port}"
        words = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        self._run("master.Master", *words)
        self._await_lines("I have been elected leader", 1)
        for number in range(WORKERS):
            words = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            words += ["--work-dir", str(self.folder / f"work{number}"), self.url]
            self._run("worker.Worker", *words)
        self._await_lines("Registering worker", WORKERS)

    def stop(self) -> None:
        """End all of it; executors go with their workers' groups."""
        for process in self.processes:
            for executor in self.executors():
                end_group(executor.pid)
            end_group(process.pid)
            process.wait(30)

    def executors(self) -> list[Process]:
        """The JVMs of the applications that run."""
        workers = (process.pid for process in self.processes[1:])
        return [each for each in below(*workers) if EXECUTOR in each.command]

    def _run(self, role: str, *words: str) -> None:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with (self.folder / f"{role}{len(self.processes)}.log").open("ab") as log:
            command = [str(program), f"org.apache.spark.deploy.{role}", *words]
            self.processes.append(
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _await_lines(self, words: str, count: int) -> None:
        log = self.folder / "master.Master0.log"
        deadline = time.monotonic() + START_S
        while log.read_text(errors="replace").count(words) < count:
            assert all(process.poll() is None for process in self.processes), log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """A cluster for as long as the block; its logs lie in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Standalone(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
