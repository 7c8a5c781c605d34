"""Run seeds of simulated clusters: ``python -m tests.simulation 17``, or ``0:10000`` for many."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.simulation.cluster.run import run
from tests.simulation.search import main


def run_seed(seed: int) -> Sequence[str]:
    """Run one cluster; return a line about it, then its trace."""
    report = run(seed)
    summary = (
        f"seed {seed}: {report.operations} operations, {report.acknowledged} acknowledged, "
        f"{report.crashes} crashes, {report.simulated_ms} ms, trace {report.digest}"
    )
    return summary, *report.lines


if __name__ == "__main__":
    sys.exit(main("tests.simulation", run_seed, None))
