"""Cost of accounts: CometMQ and Java's broker, each with and without them, in one run.

    .venv/bin/python -m benchmarks.accounts [--rounds 5] [--seconds 2] [--warm 30] [--case TEXT ...]

Four brokers run on the machine, and the same generator loads them by turns; towards those with
accounts it signs every request (load/signing.h). The account's permissions are checked, too: an
administrator's would not be. Prints Markdown: the median of the rounds with the lowest and the
highest, and what share of its own rate without accounts each broker keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.compare import FAILURES, remove_all, said
from benchmarks.loading import BUILD, BenchmarkFailed, build_program, end_cleanly
from benchmarks.rounds import Bench, Load, RocketTarget, Target
from benchmarks.servers import JavaServer, OurServer
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.outgoing import ConnectOptions
from cometmq.net.tasks import Tasks
from cometmq.protocol.acl import Credentials

OPERATOR: Final = Credentials("operator-key", "secret-of-operator")
LOADER: Final = Credentials("loader-key", "secret-of-loader")
RULES: Final = f"""\
accounts:
- accessKey: {OPERATOR.access_key}
  secretKey: {OPERATOR.secret_key}
  admin: true
- accessKey: {LOADER.access_key}
  secretKey: {LOADER.secret_key}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
OURS, JAVA, GUARDED = "cometmq", "rocketmq-4.9.7", " with accounts"
NAMES: Final = (OURS, OURS + GUARDED, JAVA, JAVA + GUARDED)
#: The loads: one name for each row of the table.
LOADS: Final[Mapping[str, Load]] = {
    "single 128 B, 8 x 64": Load("send", "single", 8, 64, 128, 0),
    "single 128 B, 64 x 1": Load("send", "wide", 64, 1, 128, 0),
    "batch 64 x 128 B, 8 x 4": Load("batch", "batch", 8, 4, 128, 0, 64),
    "transactions, 8 x 64": Load("commit", "transactions", 8, 64, 128, 0),
    "pull 32, 8 consumers": Load("pull", "single", 8, 1, 0, 0, 32),
}
#: Time of sends before pulls.
_FILL_S: Final = 0.5


class GuardedTarget(RocketTarget):
    """A broker with accounts, which it has again after its files were removed."""

    def start(self) -> None:
        conf = self.home / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "plain_acl.yml").write_text(RULES)
        super().start()

    def words(self, load: Load) -> list[str]:
        return [*super().words(load), f"sign={LOADER.access_key}:{LOADER.secret_key}"]


@dataclass(slots=True)
class Measured:
    """Rounds of one load: messages a second and microseconds of processor time, by broker."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})
    problems: list[str] = field(default_factory=list)


def make(name: str, home: Path, plain: Remoting, signing: Remoting) -> RocketTarget:
    """Return a broker that is not started yet. Raises ToolMissing, AnchorFailed."""
    home.mkdir()
    settings = {}
    is_guarded = name.endswith(GUARDED)
    if is_guarded:
        settings["aclEnable"] = "true"
        if name.startswith(OURS):
            settings["rocketmqHome"] = str(home)
    server = (OurServer if name.startswith(OURS) else JavaServer)(home, settings)
    if is_guarded:
        return GuardedTarget(name, home, server, signing)
    return RocketTarget(name, home, server, plain)


async def measure(asked: argparse.Namespace) -> dict[str, Measured]:
    """Return what was measured, by the name of the load. Raises what a start may raise."""
    loads = {name: load for name, load in LOADS.items() if any(t in name for t in asked.case)}
    found = {name: Measured() for name in loads}
    targets: list[Target] = []
    async with AsyncExitStack() as stack:
        tasks = Tasks()
        stack.push_async_callback(tasks.close)
        clock = SystemClock()
        options = ConnectOptions(credentials=OPERATOR)
        remotings = (
            Remoting(clock=clock, tasks=tasks),
            Remoting(clock=clock, tasks=tasks, options=options),
        )
        for each in remotings:
            stack.push_async_callback(each.close)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stores-", dir=BUILD)))
        stack.callback(remove_all, targets)
        for name in NAMES:
            targets.append(make(name, home / name.replace(" ", "-"), *remotings))
            await asyncio.to_thread(targets[-1].start)
        bench = Bench(BUILD / "programs", asked.seconds, targets)
        for target in targets:
            seconds = asked.warm if target.name.startswith(JAVA) else 1.0
            said(f"warm-up of {target.name}")
            for load in loads.values():
                await one(bench, target, load, seconds / len(loads))
        for number in range(asked.rounds):
            for name, load in loads.items():
                said(f"round {number + 1}: {name}")
                for target in targets if number % 2 == 0 else reversed(targets):
                    await into(found[name], bench, target, load)
    return found


async def into(measured: Measured, bench: Bench, target: Target, load: Load) -> None:
    """Add a round; one that fails is a problem."""
    try:
        rate, cpu_us = await one(bench, target, load, bench.seconds)
    except FAILURES as error:
        measured.problems.append(f"{target.name}: {error}")
        return
    measured.rates[target.name].append(rate)
    measured.cpu_us[target.name].append(cpu_us)


async def one(bench: Bench, target: Target, load: Load, seconds: float) -> tuple[float, float]:
    """Load a broker once. Return its rate, and its processor time a message."""
    if load.kind == "pull":  # the store may have been emptied
        await bench.load(target, _for(LOADS["single 128 B, 8 x 64"], _FILL_S))
    found = await bench.load(target, _for(load, seconds))
    await bench.empty(target)
    return found["messages_per_s"], found["cpu_us"]


def _for(load: Load, seconds: float) -> Load:
    return Load(
        load.kind, load.topic, load.connections, load.window, load.body_bytes, seconds,
        load.messages,
    )  # fmt: skip


def table(found: Mapping[str, Measured]) -> str:
    """Return the results as Markdown."""
    lines = [
        "| messages a second | " + " | ".join(NAMES) + " | kept | Java keeps | ours / Java |",
        "|---" * (len(NAMES) + 4) + "|",
    ]
    for name, measured in found.items():
        middle = {each: statistics.median(rates or [0.0]) for each, rates in measured.rates.items()}
        cells = [_cell(measured.rates[each]) for each in NAMES]
        shares = (
            _share(middle[OURS + GUARDED], middle[OURS]),
            _share(middle[JAVA + GUARDED], middle[JAVA]),
            _share(middle[OURS + GUARDED], middle[JAVA + GUARDED]),
        )
        lines.append(f"| {name} | " + " | ".join((*cells, *shares)) + " |")
        times = [f"{statistics.median(measured.cpu_us[each] or [0.0]):.2f}" for each in NAMES]
        lines.append("| processor time a message, us | " + " | ".join(times) + " | | | |")
        lines += [f"\n{problem}" for problem in measured.problems]
    return "\n".join(lines)


def _cell(rates: Sequence[float]) -> str:
    if not rates:
        return "-"
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", action="append", help="only rows whose name holds this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load a round")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds of load on a JVM first")
    asked = parser.parse_args()
    asked.case = asked.case or [""]
    end_cleanly()
    (BUILD / "programs").mkdir(parents=True, exist_ok=True)
    try:
        build_program("load", BUILD / "programs")
        print(table(run(measure(asked))))
    except BenchmarkFailed as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
