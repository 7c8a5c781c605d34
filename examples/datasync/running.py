"""The processes of the run that are killed: the outbox's relay and the Spark pipeline."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self


class Running:
    """``python -m WORDS`` in its own process group; a context manager that kills it."""

    def __init__(self, *words: str, log: Path) -> None:
        self.words = words
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def alive(self) -> bool:
        """True while the process is running."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the process and all that it started, like a power failure."""
        if self._process is not None and self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail(self) -> str:
        """Return the end of its output."""
        return self.log.read_text(errors="replace")[-2000:]


def relay(conninfo: str, nameservers: str, log: Path) -> Running:
    """Start ``cometmq outbox relay`` for the base-data platform."""
    return Running("cometmq.cli", "outbox", "relay", conninfo, "-n", nameservers, log=log)
