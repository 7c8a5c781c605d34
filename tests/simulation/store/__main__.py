"""Run seeds of simulated stores: ``python -m tests.simulation.store 17``, or ``0:100000`` for
many."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.simulation.search import main
from tests.simulation.store.seeded import run


def run_seed(seed: int) -> Sequence[str]:
    """Run the lives of one store; return a line about them, then their trace."""
    trace = run(seed)
    return f"seed {seed}: {len(trace)} steps", *trace


if __name__ == "__main__":
    sys.exit(main("tests.simulation.store", run_seed, None))
