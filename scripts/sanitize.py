"""Runs Python with a compiled core under the address and undefined-behaviour sanitizers.

    python -m scripts.sanitize [PYTHON ARGUMENTS]      (default: -m pytest -q tests/speedups)

The extension modules are built into a copy of the package, `build/sanitized`, which comes first on
the path. Python allocates every object with malloc, so that reading one byte past an object is
detected. The first fault ends the process with a report. It needs gcc and its sanitizers.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from scripts.build_core import PACKAGE, ROOT, Build, BuildError, find_toolchain

COPY = ROOT / "build" / "sanitized"
# Without -fwrapv, which the real build has, so that unintended overflows are detected.
FLAGS = (
    *("-shared", "-fPIC", "-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
# A fault is reported on standard error by native code, so pytest must not capture the descriptor.
TESTS = ("-m", "pytest", "-q", "--capture=sys", "-p", "no:cacheprovider", "tests/speedups")
IS_WATCHED = """
import sys, cometmq.speedups as s, cometmq.speedups.compiled as c
sys.exit(0 if s.CORE == "compiled" and c.__path__[0].startswith(sys.argv[1]) else s.DESCRIPTION)
"""


def build() -> None:
    """Copy the package and build its extension modules. Raises BuildError."""
    shutil.rmtree(COPY, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "src" / "cometmq", COPY / "cometmq", ignore=ignored)
    Build(COPY / PACKAGE, FLAGS).make(find_toolchain(fetch=False))


def runtimes() -> str:
    """Return the sanitizers' libraries, which must be loaded before Python's own."""
    # Reports of C++ exceptions need libstdc++; without it the sanitizer stops at the first one.
    names = ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ask = ("gcc", "-print-file-name=")
    found = [
        subprocess.run([ask[0], ask[1] + name], capture_output=True, text=True, check=True).stdout
        for name in names
    ]
    return ":".join(path.strip() for path in found)


def main(arguments: Sequence[str]) -> int:
    """Build, check that the sanitized core is in use, and run. Return the exit code."""
    try:
        build()
    except BuildError as error:
        print(f"sanitize: {error}\n{error.printed}", file=sys.stderr)
        return 2
    environment = {name: value for name, value in os.environ.items() if name != "COMETMQ_PURE"} | {
        "PYTHONPATH": str(COPY),
        "LD_PRELOAD": runtimes(),
        "PYTHONMALLOC": "malloc",
        # Python never frees some memory before its end.
        "ASAN_OPTIONS": "detect_leaks=0:" + os.environ.get("ASAN_OPTIONS", ""),
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    for command in (["-c", IS_WATCHED, str(COPY)], [*(arguments or TESTS)]):
        code = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
