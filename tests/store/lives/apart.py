"""Seeds in a process of their own, whose lines nobody counts: that takes half as long again."""

import os
import subprocess
import sys

from tests.architecture.rules import ROOT

LIMIT_S = 240


def run_seeds(first: int, stop: int) -> None:
    """Run the seeds ``first <= seed < stop``. Raises AssertionError with what was found."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.lives.seeded", f"{first}:{stop}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6_000:]
    assert f"{stop - first} of {stop - first} runs done, 0 failed" in done.stdout
