"""The table: CometMQ beside other brokers and the machine's limits, alternating rounds in one run.

    .venv/bin/python -m benchmarks.compare [--case TEXT ...] [--peer NAME ...] [--rounds 3]
        [--seconds 2] [--warm 60] [--awake] [--record] [--check [FILE]] [--document FILE]

README.md describes the cases and the table. Prints Markdown; the document (JSON) and the chart
(SVG) of a run are written under build/bench. With --check the exit status is 1 if a ratio is more
than 5 % worse than the recorded one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import charts, figures, limits
from benchmarks.cases import ALL, CASES, OURS, Case, Setup
from benchmarks.figures import Document, Row
from benchmarks.loading import BUILD, HERE, BenchmarkFailed, awake, build_program, end_cleanly
from benchmarks.rounds import Bench, Load, Target
from benchmarks.servers import anonymous_mib
from benchmarks.targets import JVMS, SETTINGS, make
from benchmarks.topics import many_topics
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.tasks import Tasks
from cometmq.speedups import DESCRIPTION
from tests.compat.anchor import AnchorFailed

#: Errors of a target that invalidate a round, a case or all its results.
FAILURES: Final = (
    BenchmarkFailed, AnchorFailed, CometError, OSError, subprocess.CalledProcessError, TimeoutError,
)  # fmt: skip
RECORDED: Final = HERE / "recorded.json"
START: Final = "start to first acknowledgement"
IDLE: Final = "idle RssAnon"
TOPICS: Final = "10 000 topics against 1"
LIMITS: Final = "limits"
IDLE_S: Final = 3.0


@dataclass(slots=True)
class Words:
    """The options of the command line."""

    cases: Sequence[str]
    peers: Sequence[str]
    rounds: int
    seconds: float
    warm: float

    def wants(self, name: str) -> bool:
        """Return whether a case is requested."""
        return any(text in name for text in self.cases)


@dataclass(slots=True)
class Table:
    """A run in progress."""

    words: Words
    document: Document
    programs: Path
    remoting: Remoting
    left_out: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Measure all requested cases, and store the results in the document."""
        cases = [case for case in CASES if any(self.words.wants(row.name) for row in case.rows)]
        for setup in dict.fromkeys(case.setup for case in cases):
            await self._setup(setup, [case for case in cases if case.setup == setup])
        if self.words.wants(START) or self.words.wants(IDLE):
            await self._starts()
        if self.words.wants(LIMITS) or self.words.cases == [""]:
            await self._limits()
        if self.words.wants(TOPICS):  # last: removing 100 000 files takes minutes on some disks
            await self._many_topics()

    async def _setup(self, setup: Setup, cases: Sequence[Case]) -> None:
        """Measure the cases that share a setup, on brokers that are started once."""
        names = dict.fromkeys(name for case in cases for name in case.targets)
        with tempfile.TemporaryDirectory(prefix="stores-", dir=BUILD) as home:
            bench = Bench(self.programs, self.words.seconds, [])
            targets: list[Target] = []
            try:
                for name in names:
                    targets += await self._started(name, setup, Path(home), bench)
                bench.targets = targets
                for target in targets:
                    if target.name in JVMS:
                        await self._warm_up(bench, target, cases)
                for case in cases:
                    await self._case(bench, case)
            finally:
                remove_all(targets)
                await bench.stack.aclose()

    async def _started(self, name: str, setup: Setup, home: Path, bench: Bench) -> list[Target]:
        """Start a target and return it. If it fails, return none and record the reason in the
        document."""
        if name not in self.words.peers:
            return []
        target = None
        try:
            target = await asyncio.to_thread(make, name, setup, home / name, self.remoting)
            await asyncio.to_thread(target.start)
            await target.ready(bench)
        except FAILURES as error:
            self._leave_out(name, str(error))
            remove_all([target] if target is not None else [])
            return []
        except BaseException:
            remove_all([target] if target is not None else [])
            raise
        self.document.peers[name] = SETTINGS[name]
        return [target]

    def _leave_out(self, name: str, reason: str) -> None:
        if name not in self.left_out:
            self.left_out.add(name)
            self.document.left_out.append(f"{name}: {' '.join(reason.split())[:300]}")

    async def _warm_up(self, bench: Bench, target: Target, cases: Sequence[Case]) -> None:
        """Warm up a target: each case runs its share of the load that warms up a JVM."""
        mine = [case for case in cases if case.warms and target.name in case.targets]
        said(f"warm-up of {target.name}")
        bench.seconds = self.words.warm / max(1, len(mine))
        for case in mine:
            try:
                await case.measure(bench, target)
            except FAILURES as error:
                said(f"warm-up of {target.name}, {case.name}: {error}")
            await bench.empty(target)
        bench.seconds = self.words.seconds
        await bench.empty(target, 1 << 30)

    async def _case(self, bench: Bench, case: Case) -> None:
        targets = [target for target in bench.targets if target.name in case.targets]
        rows = [Row(row.name, row.unit, row.better, row.wanted) for row in case.rows]
        for row in rows:  # to keep the order of a table's columns
            row.rounds = {target.name: [] for target in targets}
        said(case.name)
        for number in range(self.words.rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                try:
                    found = await case.measure(bench, target)
                except FAILURES as error:
                    rows[0].problems.append(f"{target.name}: {type(error).__name__} {error}")
                    continue
                for row, made in zip(rows, case.rows, strict=True):
                    row.rounds[target.name].append(round(found[made.key], 3))
                await bench.empty(target)
        await bench.stack.aclose()
        for target in targets:
            await bench.empty(target, 1 << 30)
        self.document.rows += rows

    async def _starts(self) -> None:
        """Measure the time from the start of the process to its first acknowledged message, and the
        memory when idle."""
        names = [name for name in ALL if name in self.words.peers and name not in self.left_out]
        start = Row(START, "s", "less", 0.1, rounds={name: [] for name in names})
        idle = Row(IDLE, "MiB", "less", 0.15, rounds={name: [] for name in names})
        said(START)
        for number in range(self.words.rounds):
            # Starting a JVM takes seconds, so a few rounds are enough.
            for name in names if number < 3 else OURS:
                if name not in names:
                    continue
                try:
                    start_s, idle_mib = await self._first_message(name, looks=number == 0)
                except FAILURES as error:
                    start.problems.append(f"{name}: {error}")
                    continue
                start.rounds[name].append(round(start_s, 3))
                idle.rounds[name] += [idle_mib] * (number == 0)
        self.document.rows += [start, idle]

    async def _first_message(self, name: str, *, looks: bool) -> tuple[float, float]:
        with tempfile.TemporaryDirectory(prefix="stores-", dir=BUILD) as home:
            target = await asyncio.to_thread(
                make, name, "ASYNC_FLUSH", Path(home, name), self.remoting
            )
            bench = Bench(self.programs, 0.001, [target])
            build_program(target.program, self.programs)
            try:
                begin = time.perf_counter()
                await asyncio.to_thread(target.start)
                await bench.topic(target, "first")
                found = await bench.run(target, Load("send", "first", 1, 1, 1, 0.001))
                took_s = time.perf_counter() - begin
                if found["errors"]:
                    raise BenchmarkFailed("the first message was refused")
                if looks:
                    await asyncio.sleep(IDLE_S)
                return took_s, anonymous_mib(target.pid)
            finally:
                target.remove()

    async def _limits(self) -> None:
        said("limits")
        found: dict[str, list[float]] = {}
        try:
            found = await limits.measure(self.programs, self.words.rounds, self.words.seconds)
        except FAILURES as error:
            self._leave_out("limits", str(error))
        self.document.rows += limits.held_rows(self.document.rows, found)

    async def _many_topics(self) -> None:
        said(TOPICS)
        row = Row(TOPICS, "share of the rate", "more")
        try:
            row.rounds["cometmq"] = await asyncio.to_thread(
                many_topics, self.programs, self.words.rounds, self.words.seconds
            )
        except FAILURES as error:
            row.problems.append(f"cometmq: {error}")
        # The bound 0.85 is relative to CometMQ's own rate with one topic, which is used as the
        # limit.
        row.wanted, row.against, row.rounds[figures.LIMIT] = 0.85, figures.LIMIT, [1.0]
        self.document.rows.append(row)


def remove_all(targets: Sequence[Target]) -> None:
    """End every target and remove its files, even if one of them fails."""
    with ExitStack() as stack:
        for target in targets:
            stack.callback(target.remove)


def said(text: str) -> None:
    """Print progress on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, str]:
    """Return the properties of the machine that matter to a reader."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "processor": model,
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the programs."""
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    optimised = "yes" if "--enable-optimizations" in _config_args() else "no"
    return {
        "cometmq": commit.stdout.strip() or "unknown",
        "core": DESCRIPTION,
        "Python": f"{platform.python_version()}, profile-guided {optimised}",
    }


def _config_args() -> str:
    import sysconfig

    return str(sysconfig.get_config_var("CONFIG_ARGS"))


async def measure(words: Words, document: Document, programs: Path) -> None:
    """Measure the table, and store it in the document."""
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    try:
        await Table(words, document, programs, remoting).run()
    finally:
        await remoting.close()
        await tasks.close()


def stamp() -> str:
    """Return the current time in the form for file names."""
    return time.strftime("%Y-%m-%dT%H%M%S", time.gmtime())


def new_document(options: dict[str, str]) -> Document:
    """Return a document without rows."""
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return Document(at, machine(), versions(), options, {})


def write(document: Document, stem: str, chart: str) -> Path:
    """Write a run's JSON and SVG under build/bench. Return the path of the JSON."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"{stem}-{stamp()}.json"
    path.write_bytes(figures.encode(document))
    path.with_suffix(".svg").write_text(chart, encoding="utf-8")
    said(f"{path} and {path.with_suffix('.svg').name}")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", action="append", help="only rows whose name holds this text")
    parser.add_argument("--peer", action="append", choices=ALL, help="only these brokers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load a round")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of load on a JVM first")
    parser.add_argument(
        "--awake",
        action="store_true",
        help="keep idle processors awake: measures brokers, not how a virtual machine wakes up",
    )
    parser.add_argument("--record", action="store_true", help=f"write ratios to {RECORDED.name}")
    parser.add_argument(
        "--check", nargs="?", type=Path, const=RECORDED, help="fail when a recorded ratio fell"
    )
    parser.add_argument("--document", type=Path, help="an earlier run's JSON, instead of a run")
    return parser


def new_run(asked: argparse.Namespace) -> Document | None:
    """Measure the requested cases and write the document.

    Return None, and print the reason, if nothing can be measured. After an interrupt, the results
    so far are written.
    """
    words = Words(asked.case or [""], asked.peer or ALL, asked.rounds, asked.seconds, asked.warm)
    names = ("rounds", "seconds", "warm", "awake")
    document = new_document({name: str(getattr(asked, name)) for name in names})
    end_cleanly()
    programs = BUILD / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    try:
        build_program("load", programs)
        with awake(asked.awake):
            run(measure(words, document, programs))
    except BenchmarkFailed as error:
        print(error, file=sys.stderr)
        return None
    except KeyboardInterrupt:
        document.left_out.append("all that was not measured before an interrupt")
    title = f"CometMQ beside other brokers, {document.at}"
    write(document, "table", charts.bars(title, document.rows))
    return document


def main() -> int:
    """Run the command line."""
    asked = _parser().parse_args()
    if asked.document is not None:
        document: Document | None = figures.decode(asked.document.read_bytes())
    else:
        document = new_run(asked)
    if document is None:
        return 2
    print(figures.table(document))
    if asked.record:
        known = figures.load_recorded(RECORDED)
        figures.save_recorded(RECORDED, known | figures.recorded_of(document))
    if asked.check is None:
        return 0
    recorded = figures.load_recorded(asked.check)
    if not recorded:
        print(f"nothing is recorded in {asked.check}; --record writes it")
    fallen = figures.falls(document, recorded)
    for fall in fallen:
        print(f"fell by {fall.share:.0%}: {fall.name}, {fall.recorded} recorded, {fall.now} now")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
