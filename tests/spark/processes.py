"""The processes below one of ours, as /proc shows them: Spark starts many, and tests end some."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A running process."""

    pid: int
    parent: int
    command: str


def below(*roots: int) -> list[Process]:
    """All processes that come from some, those left out, parents first."""
    running = _all()
    found: list[Process] = []
    parents = set(roots)
    while parents:
        children = [process for process in running if process.parent in parents]
        found += children
        parents = {process.pid for process in children}
    return found


def end(pid: int) -> None:
    """SIGKILL; nothing when it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_group(pid: int) -> None:
    """SIGKILL for a process group; nothing when it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _all() -> list[Process]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "stat").read_text()
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        # The name in brackets may hold blanks and brackets itself.
        state, parent = status.rpartition(")")[2].split()[:2]
        if state != "Z":
            found.append(Process(int(path.name), int(parent), command))
    return found
