"""``python -m tests.simulation 17`` runs a seed, ``0:10000`` many: see the package."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import SystemClock
from tests.simulation.cluster.invariants import Violated
from tests.simulation.cluster.run import run
from tests.simulation.ledger import Ledger, program_hash

if TYPE_CHECKING:
    from tests.simulation.cluster.run import Report

_TELL_EVERY: Final = 100
_COLLECT_EVERY: Final = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds in ``arguments``; return the number that violated an invariant, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", help="a seed, or first:end")
    parser.add_argument("--ledger", type=Path, help="a file that remembers which seeds were run")
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    chosen = parser.parse_args(arguments)
    first, colon, end = chosen.seeds.partition(":")
    seeds = range(int(first), int(end) if colon else int(first) + 1)
    ledger = Ledger(chosen.ledger, program_hash() if chosen.ledger else "")
    return min(run_all(seeds, ledger, stop=chosen.stop, trace=chosen.trace), 100)


def run_all(seeds: range, ledger: Ledger, *, stop: bool = False, trace: bool = False) -> int:
    """Run the seeds that are not in the ledger; return the number that violated an invariant."""
    clock = SystemClock()
    failures = 0
    took_ms: list[int] = []
    # Automatic garbage collection would take a third of the time.
    gc.freeze()
    gc.disable()
    for seed in seeds:
        if seed in ledger.passed or seed in ledger.failed:
            failures += seed in ledger.failed
            continue
        begin_ns = clock.monotonic_ns()
        try:
            report = run(seed)
        except Violated as error:
            failures += 1
            ledger.note_failed(seed, error.name)
            print(f"seed {seed} VIOLATED {error}\n" + "\n".join(error.__notes__), flush=True)
            if stop:
                break
            continue
        took_ms.append((clock.monotonic_ns() - begin_ns) // 1_000_000)
        ledger.note_passed(seed, report.digest)
        if len(seeds) == 1:
            print(_line(report), *(report.lines if trace else ()), sep="\n", flush=True)
        elif len(took_ms) % _TELL_EVERY == 0:
            median_ms = sorted(took_ms)[len(took_ms) // 2]
            print(f"{seed}: {failures} violated, median {median_ms} ms", flush=True)
        if len(took_ms) % _COLLECT_EVERY == 0:
            gc.collect()
    gc.enable()
    known = sum(seed in ledger.passed for seed in seeds)
    print(f"{known} of {len(seeds)} seeds passed, {failures} violated an invariant", flush=True)
    return failures


def _line(report: Report) -> str:
    return (
        f"seed {report.seed}: {report.operations} operations, {report.acknowledged} acknowledged, "
        f"{report.crashes} crashes, {report.simulated_ms} ms, trace {report.digest}"
    )


if __name__ == "__main__":
    sys.exit(main())
