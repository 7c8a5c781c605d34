"""Builds the published files into `dist`: the source distribution, a wheel for each platform that
zig compiles for, and one of plain Python for all others.

A wheel with the compiled core works for every CPython from 3.11 on.
"""

import os
import shutil
import subprocess
import sys

from scripts.build_core import PLATFORMS, ROOT

DIST = ROOT / "dist"


def build(kind: str, **environment: str) -> None:
    """Build one distribution. Raises CalledProcessError."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(DIST), "-t", kind]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)


def main() -> None:
    """Build all distributions."""
    shutil.rmtree(DIST, ignore_errors=True)
    build("sdist")
    build("wheel", COMETMQ_PURE="1")
    for tag in PLATFORMS:
        build("wheel", COMETMQ_WHEEL_PLATFORM=tag)


if __name__ == "__main__":
    main()
