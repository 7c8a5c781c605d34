"""The processes of the run: the outbox's relay and the Spark pipeline. They are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self


class Running:
    """``python -m WORDS`` in a process group of its own; a context manager, which kills it."""

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
        """Whether it runs still."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to it and all that it started, as a power cut would."""
        if self._process is not None and self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail(self) -> str:
        """The last of what it said."""
        return self.log.read_text(errors="replace")[-2000:]


def relay(conninfo: str, nameservers: str, log: Path) -> Running:
    """``cometmq outbox relay`` beside the base-data platform."""
    return Running("cometmq.cli", "outbox", "relay", conninfo, "-n", nameservers, log=log)
