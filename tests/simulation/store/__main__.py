"""Runs seeds of the store's simulation.

    python -m tests.simulation.store 17          one run; prints a failure and its last steps
    python -m tests.simulation.store 0:100000    many
        --state FILE     record there what is done, and continue from it next time
        --seconds N      stop after this time; the next call runs the rest

The exit code is 0 if all seeds passed, 1 if one failed, 3 if seeds are left.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.store.seeded import run

_STRETCH = 100


def search(seeds: range, state: Path | None = None, seconds: float = 1e9) -> tuple[int, int]:
    """Run seeds; return the number that failed, in earlier searches too, and the number left.

    ``state`` gets a line for each finished stretch (``first stop``) and each failure (``failed
    seed``).
    """
    deadline = time.monotonic() + seconds
    noted = state.read_text().split("\n") if state is not None and state.exists() else []
    failed = {int(line.split()[1]) for line in noted if line.startswith("failed ")}
    done = {line for line in noted if line and not line.startswith("failed ")}
    left = 0
    for first in range(seeds.start, seeds.stop, _STRETCH):
        stop = min(first + _STRETCH, seeds.stop)
        if f"{first} {stop}" in done:
            continue
        if time.monotonic() > deadline:
            left += stop - first
            continue
        found = [seed for seed in range(first, stop) if not _is_well(seed)]
        failed.update(found)
        if state is not None:
            with state.open("a") as file:
                file.writelines(f"failed {seed}\n" for seed in found)
                file.write(f"{first} {stop}\n")
    return len(failed.intersection(seeds)), left


def _is_well(seed: int) -> bool:
    try:
        run(seed)
    except Exception:
        traceback.print_exc()
        return False
    return True


def main(words: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.store")
    parser.add_argument("seeds", nargs="+", help="a seed, or FIRST:STOP")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    asked = parser.parse_args(words)
    total = failures = left = 0
    begun = time.monotonic()
    for text in asked.seeds:
        first, _, stop = text.partition(":")
        seeds = range(int(first), int(stop or int(first) + 1))
        spare = asked.seconds - (time.monotonic() - begun)
        failed, unrun = search(seeds, asked.state, spare)
        total, failures, left = total + len(seeds), failures + failed, left + unrun
    seconds = time.monotonic() - begun
    print(f"{total - left} of {total} runs done, {failures} failed, {seconds:.0f} s this time")
    return 1 if failures else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
