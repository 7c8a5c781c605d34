"""Runs seeds in a child process."""

from tests.apart import run_apart

LIMIT_S = 240


def run_seeds(first: int, stop: int) -> None:
    """Run the seeds ``first <= seed < stop``. Raise AssertionError with the failures."""
    said = run_apart("tests.simulation.store", f"{first}:{stop}", limit_s=LIMIT_S)
    assert f"{stop - first} of {stop - first} seeds done, 0 failed" in said
