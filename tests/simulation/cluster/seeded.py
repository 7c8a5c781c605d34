"""Runs seeds and checks each: ``python -m tests.simulation.cluster.seeded FIRST STOP``."""

import gc
import sys
from statistics import median

from tests.simulation.cluster.run import OPERATIONS, run

MEDIAN_OPERATIONS = 200


def main(first: int, stop: int) -> None:
    """Run the seeds. Raise Violated, or AssertionError if too little happened in a seed."""
    # Automatic garbage collection would take a third of the time.
    gc.disable()
    operations = []
    for seed in range(first, stop):
        report = run(seed)
        assert report.operations >= OPERATIONS, seed
        operations.append(report.operations)
        assert report.acknowledged, seed
        assert report.crashes, seed
        gc.collect()
    assert median(operations) >= MEDIAN_OPERATIONS
    print(f"{stop - first} seeds passed")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
