"""The load generators (load/*.c): required tools, build, and runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
#: The folder for everything that benchmarks download, build and write; never committed.
BUILD: Final = HERE.parent / "build" / "bench"
#: The commands that install missing tools.
TOOLS: Final[Mapping[str, str]] = {
    "gcc": "apt-get install gcc libc6-dev",
    "java": "apt-get install openjdk-17-jdk-headless",
    "javac": "apt-get install openjdk-17-jdk-headless",
    "mvn": "apt-get install maven",
    "go": "apt-get install golang-go",
}
#: Time that a run of a generator may take in addition to the load.
GRACE_S: Final = 60.0


class BenchmarkFailed(Exception):
    """Raised if a round is invalid."""


class ToolMissing(BenchmarkFailed):
    """Raised if a program that a row needs is not on this machine."""


def need_tools(*names: str) -> None:
    """Raise ToolMissing for the first tool that is missing, with the command that installs it."""
    for name in names:
        if shutil.which(name) is None:
            raise ToolMissing(f"{name} is missing; `{TOOLS[name]}` gets it")


def build_program(name: str, directory: Path) -> Path:
    """Compile a load generator. Raises ToolMissing, CalledProcessError."""
    need_tools("gcc")
    path = directory / name
    source = HERE / "load" / f"{name}.c"
    subprocess.run(["gcc", "-O2", "-o", path, source, "-ldl"], check=True)
    return path


def build_load(directory: Path) -> Path:
    """Compile the load generator for RocketMQ. Raises ToolMissing, CalledProcessError."""
    return build_program("load", directory)


async def run_program(
    command: Sequence[str], what: str, limit_s: float | None = None
) -> dict[str, float]:
    """Run a program and return the JSON line that it prints. Raises BenchmarkFailed, naming
    ``what``."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit_s)
    except TimeoutError:
        raise BenchmarkFailed(f"{what}: {command[0]} did not end in {limit_s} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BenchmarkFailed(f"{what}: {command[0]} ended with {process.returncode}")
    try:
        found: dict[str, float] = json.loads(output)
    except ValueError:
        raise BenchmarkFailed(f"{what}: {command[0]} printed {output[:200]!r}") from None
    return found


def end_cleanly() -> None:
    """Handle SIGTERM as an interrupt, so that brokers are ended and stores are removed."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextmanager
def awake(wanted: bool) -> Iterator[None]:
    """Spin on every processor, in the scheduling class that runs only when nothing else does.

    With one request in flight all brokers mostly sleep. A halted virtual processor takes 40 us or
    more to wake up, twice per request, which is more than a broker needs for the request.
    """
    code = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    count = (os.cpu_count() or 1) if wanted else 0
    spinners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
