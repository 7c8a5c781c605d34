"""Programs of the tests in processes of their own, whose lines nobody counts: that takes half as
long again, and much longer where little else is done."""

import os
import subprocess
import sys

from tests.architecture.rules import ROOT


def run_apart(module: str, *words: str, limit_s: float) -> str:
    """Run ``python -m module words``; gives what it prints. Raises AssertionError with that when it
    fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6_000:]
    return done.stdout
