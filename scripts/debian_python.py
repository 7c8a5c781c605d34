"""A Python that this machine lacks: Debian's of a later release, unpacked into the cache folder.

It needs a newer C library than this machine may have. So all its libraries come with it, and a
script starts it through their loader. Programs that it starts use this machine's libraries.

    .venv/bin/python -m scripts.debian_python 3.14    fetches it, and prints the path of the script
"""

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from tests.debian import PackageMissing, unpacked

#: Releases of Debian that have it, in the order in which they are asked.
SUITES = {"3.14": ("forky", "sid")}


def interpreter(version: str) -> Path:
    """Return the script that starts a Python of SUITES; it is fetched the first time.

    Raises PackageMissing.
    """
    folder = fetched(version)
    program = folder / "usr" / "bin" / f"python{version}"
    loaders = list((folder / "usr" / "lib").glob("*-linux-gnu/ld-linux-*.so.*"))
    if len(loaders) != 1 or not program.exists():
        raise PackageMissing(f"{folder} does not hold Python {version} and a loader; delete it")
    [loader] = loaders
    words = [str(loader), "--library-path", str(loader.parent), "--argv0"]
    script = program.with_name("python")
    # The name that it was called by tells Python its environment, and what to start again.
    text = f'#!/bin/sh\nexec {shlex.join(words)} "$0" {shlex.quote(str(program))} "$@"\n'
    if not script.exists() or script.read_text() != text:
        place(script, text)
    return script


def fetched(version: str) -> Path:
    """Return the folder of Debian's packages of a Python. Raises PackageMissing."""
    # Wheels may need the library of C++, which Python itself does not.
    packages = [f"python{version}", "libstdc++6"]
    reasons = []
    for suite in SUITES[version]:
        try:
            return unpacked(f"python{version}", packages, suite=suite)
        except PackageMissing as error:
            reasons.append(f"{suite}: {error}")
    raise PackageMissing("; ".join(reasons))


def place(script: Path, text: str) -> None:
    """Write a program in one step: another run may start it at the same time."""
    descriptor, name = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    Path(name).chmod(0o755)
    Path(name).replace(script)


def main() -> int:
    """Print the path. Return the exit code."""
    parser = argparse.ArgumentParser(description="Fetch a Python of Debian, and print its path.")
    parser.add_argument("version", choices=SUITES)
    version = parser.parse_args().version
    try:
        print(interpreter(version))
    except PackageMissing as error:
        print(f"Python {version} could not be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
