"""Builds the compiled core: every `speedups/compiled/NAME.pyx` becomes one extension module.

As a program it builds beside the sources what changed since the last time, and says in one line
why when it cannot; its exit code is 0 even then (but with --strict), because plain Python does
the same work. As hatchling's build hook it puts the modules into wheels and the generated C into
source distributions.

A compiler is $CC, cc, gcc or clang. With --fetch, what is missing is put under build/compiler: zig
as the C compiler (PyPI), Python's headers (Debian's package). The modules use CPython's limited
API, so one file serves Python 3.11 and later.

Environment: CC             the compiler to use
             COMETMQ_PURE   1 builds nothing: wheels of plain Python
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "cometmq/speedups/compiled"
SOURCES = ROOT / "src" / PACKAGE
BUILD = ROOT / "build" / "core"
FETCHED = ROOT / "build" / "compiler"
SUFFIX = ".abi3.so"

CYTHON = "cython>=3.3,<3.4"
CYTHON_FLAGS = ("-3", "--fast-fail", "-X", "binding=False")
LIMITED_API = ("-DPy_LIMITED_API=0x030B0000", "-DCYTHON_LIMITED_API=1")
C_FLAGS = ("-O3", "-DNDEBUG", "-fPIC", "-fwrapv", "-fvisibility=hidden", "-g0")
LINK_FLAGS = ("-shared", "-s")
PROBE = "#include <Python.h>\nint probe(void) { return PyErr_Occurred() != 0; }\n"


class BuildError(Exception):
    """The core cannot be built; the text says why in one line."""


class Toolchain(NamedTuple):
    """A C compiler and the folders of Python's headers."""

    command: tuple[str, ...]
    include: tuple[str, ...]

    def compile(self, source: Path, target: Path, flags: Sequence[str]) -> None:
        """Compile one C file to a shared library. Raises BuildError."""
        headers = [f"-I{folder}" for folder in self.include]
        run([*self.command, *flags, *LIMITED_API, *headers, str(source), "-o", str(target)])


def run(command: Sequence[str]) -> str:
    """Run a command and return what it printed. Raises BuildError with its first error."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        telling = [line for line in lines if "error" in line.lower()]
        raise BuildError(f"{command[0]}: {(telling or lines)[0].strip()}")
    return done.stdout


# ---- what is to be built


def modules() -> dict[str, Path]:
    """Return the source of each module, by name."""
    return {path.stem: path for path in sorted(SOURCES.glob("*.pyx"))}


def digest(pyx: Path, flags: Sequence[str]) -> str:
    """Return what a module's file depends on, as one hash."""
    try:
        cython = version("cython")
    except PackageNotFoundError:
        cython = "none"
    parts = [*flags, cython, sysconfig.get_platform(), os.environ.get("CC", "")]
    files = [pyx, *sorted(SOURCES.glob("*.pxd")), Path(__file__)]
    whole = hashlib.sha256("\0".join(parts).encode())
    for path in files:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


class Build:
    """The modules in one folder, and what they were built from."""

    def __init__(self, target: Path, flags: Sequence[str] = (*C_FLAGS, *LINK_FLAGS)) -> None:
        self.target = target
        self.flags = flags
        self.state = BUILD / f"{hashlib.sha256(str(target).encode()).hexdigest()[:8]}.json"

    def files(self) -> dict[str, Path]:
        """Return where each module is, once it is built."""
        return {name: self.target / f"{name}{SUFFIX}" for name in modules()}

    def stale(self) -> list[str]:
        """Return the modules that are not built from what their sources are now."""
        built = json.loads(self.state.read_text()) if self.state.exists() else {}
        files = self.files()
        return [
            name
            for name, pyx in modules().items()
            if not files[name].exists() or built.get(name) != digest(pyx, self.flags)
        ]

    def make(self, toolchain: Toolchain) -> None:
        """Build what is stale, and drop modules whose source is gone. Raises BuildError."""
        for path in self.target.glob(f"*{SUFFIX}"):
            if path not in self.files().values():
                path.unlink()
        names = self.stale()
        BUILD.mkdir(parents=True, exist_ok=True)
        self.target.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda name: self._make_one(name, toolchain), names))
        built = {name: digest(pyx, self.flags) for name, pyx in modules().items()}
        self.state.write_text(json.dumps(built))

    def _make_one(self, name: str, toolchain: Toolchain) -> None:
        path = self.files()[name]
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            library = Path(folder, path.name)
            toolchain.compile(generated(name), library, self.flags)
            # A process may have the old file mapped: it keeps it.
            library.replace(path)


def generated(name: str) -> Path:
    """Return the C of a module: the source distribution's, else made by Cython now.

    Raises BuildError.
    """
    shipped = SOURCES / f"{name}.c"
    if shipped.exists():
        return shipped
    BUILD.mkdir(parents=True, exist_ok=True)
    source = BUILD / f"{name}.c"
    command = [sys.executable, "-m", "cython", *CYTHON_FLAGS]
    run([*command, str(modules()[name]), "--output-file", str(source)])
    return source


# ---- what builds it


def find_toolchain(*, fetch: bool) -> Toolchain:
    """Return the first compiler that compiles against Python's headers, on this machine or, with
    ``fetch``, brought here. Raises BuildError."""
    reasons = []
    for command in compilers(fetch=fetch):
        for include in header_folders(fetch=fetch):
            toolchain = Toolchain(command, include)
            try:
                probe(toolchain)
            except BuildError as error:
                reasons.append(str(error))
            else:
                return toolchain
    raise BuildError(reasons[0] if reasons else "no C compiler")


def probe(toolchain: Toolchain) -> None:
    """Compile a few lines. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(PROBE)
        toolchain.compile(source, Path(folder, "probe.so"), (*C_FLAGS, *LINK_FLAGS))


def compilers(*, fetch: bool) -> Iterator[tuple[str, ...]]:
    """Yield the commands that may compile C."""
    if chosen := os.environ.get("CC"):
        yield tuple(shlex.split(chosen))
        return
    yield from (("cc",), ("gcc",), ("clang",))


def header_folders(*, fetch: bool) -> Iterator[tuple[str, ...]]:
    """Yield the folders that may have Python's headers."""
    paths = sysconfig.get_paths()
    yield tuple(dict.fromkeys((paths["include"], paths["platinclude"])))


# ---- as hatchling's build hook


class CoreHook(BuildHookInterface[Any]):
    """Puts the modules into wheels, and their C into source distributions."""

    def dependencies(self) -> list[str]:
        """Return what has to be installed for the build."""
        return [] if any(SOURCES.glob("*.c")) or pure() else [CYTHON]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and say in ``build_data`` which files go where."""
        if self.target_name == "sdist":
            for name in modules():
                build_data["force_include"][str(generated(name))] = f"src/{PACKAGE}/{name}.c"
        elif version == "standard" and not pure():
            try:
                build = Build(BUILD / "wheel")
                build.make(find_toolchain(fetch=False))
            except BuildError as error:
                self.app.display_warning(f"a wheel of plain Python: {error}")
                return
            for path in build.files().values():
                build_data["force_include"][str(path)] = f"{PACKAGE}/{path.name}"
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"


def pure() -> bool:
    """Whether only plain Python is wanted."""
    return os.environ.get("COMETMQ_PURE") == "1"


# ---- as a program


def say(text: str) -> None:
    """Print one line for people."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build beside the sources; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build CometMQ's compiled core.")
    parser.add_argument("--fetch", action="store_true", help="bring a compiler and headers here")
    parser.add_argument("--strict", action="store_true", help="exit 1 when it cannot be built")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    build = Build(SOURCES)
    names = build.stale()
    if not names:
        return 0
    try:
        toolchain = find_toolchain(fetch=options.fetch)
        build.make(toolchain)
    except BuildError as error:
        say(f"core: not compiled, plain Python runs ({error}); get it: {REMEDY}")
        return int(options.strict)
    seconds = time.monotonic() - started
    say(f"core: built {', '.join(names)} with {' '.join(toolchain.command)} in {seconds:.1f} s")
    return 0


REMEDY = "apt-get install -y gcc libc6-dev python3-dev && make core"

if __name__ == "__main__":
    sys.exit(main())
