"""Builds the compiled core: every `speedups/compiled/NAME.pyx` becomes one extension module.

As a program it builds the changed modules beside the sources, and prints one line with the reason
if it cannot. Even then the exit code is 0 (except with --strict), because plain Python does the
same work. As hatchling's build hook it puts the modules into wheels and the generated C into source
distributions.

A compiler is $CC, cc, gcc or clang. With --fetch, missing parts are downloaded to build/compiler:
zig as the C compiler (PyPI), Python's headers (Debian's package). The modules use CPython's limited
API, so one file works for Python 3.11 and later.

Environment: CC                       the compiler to use

             COMETMQ_PURE             1 builds nothing: wheels of plain Python
             COMETMQ_WHEEL_PLATFORM   builds a wheel for one of PLATFORMS, with zig
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
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
ZIG = FETCHED / "zig" / "ziglang" / "zig"
# Without this, zig uses every instruction of this processor, which others of its kind may lack.
ZIG_CC = ("cc", "-mcpu=baseline")
SUFFIX = ".abi3.so"

CYTHON = "cython>=3.3,<3.4"
CYTHON_FLAGS = ("-3", "--fast-fail", "-X", "binding=False")
LIMITED_API = ("-DPy_LIMITED_API=0x030B0000", "-DCYTHON_LIMITED_API=1")
C_FLAGS = ("-O3", "-DNDEBUG", "-fPIC", "-fwrapv", "-fvisibility=hidden", "-g0")
# With these, Apple's linker accepts symbols that Python provides at run time.
APPLE_LINK_FLAGS = ("-undefined", "dynamic_lookup")
LINK_FLAGS = ("-shared", "-s", *(APPLE_LINK_FLAGS if sys.platform == "darwin" else ()))
RUN_LIMIT_S = 600

#: The platforms that zig builds wheels for: wheel tag to zig's name of the target.
PLATFORMS = {
    "manylinux_2_17_x86_64.manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64.manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}


class BuildError(Exception):
    """Raised if the core cannot be built: the reason in one line, and the output of the tool."""

    def __init__(self, reason: str, printed: str = "") -> None:
        super().__init__(reason)
        self.printed = printed


class Toolchain(NamedTuple):
    """A C compiler and the folders of Python's headers."""

    command: tuple[str, ...]
    include: tuple[str, ...]

    def compile(self, source: Path, target: Path, flags: Sequence[str]) -> None:
        """Compile one C file to a shared library. Raises BuildError."""
        headers = [f"-I{folder}" for folder in self.include]
        run([*self.command, *flags, *LIMITED_API, *headers, str(source), "-o", str(target)])


def run(command: Sequence[str], folder: str | None = None) -> None:
    """Run a command, in a folder. Raises BuildError with the first error in its output."""
    program = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(FETCHED / "zig-cache")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise BuildError(f"{program}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{program}: not done within {RUN_LIMIT_S} s") from error
    if done.returncode:
        printed = done.stderr + done.stdout
        lines = printed.strip().splitlines() or [f"exit {done.returncode}"]
        telling = [line for line in lines if re.search("^E:|error: ", line, re.IGNORECASE)]
        raise BuildError(f"{program}: {(telling or lines)[0].strip()}", printed)


# ---- modules


def modules() -> dict[str, Path]:
    """Return the source of each module, by name."""
    return {path.stem: path for path in sorted(SOURCES.glob("*.pyx"))}


def digest(pyx: Path, flags: Sequence[str]) -> str:
    """Return a hash of all inputs of a module."""
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
    """The modules in one folder, and the inputs they were built from."""

    def __init__(self, target: Path, flags: Sequence[str] = (*C_FLAGS, *LINK_FLAGS)) -> None:
        self.target = target
        self.flags = flags
        self.state = BUILD / f"{hashlib.sha256(str(target).encode()).hexdigest()[:8]}.json"

    def files(self) -> dict[str, Path]:
        """Return the path of each built module."""
        return {name: self.target / f"{name}{SUFFIX}" for name in modules()}

    def stale(self) -> list[str]:
        """Return the modules that are missing or not built from their current sources."""
        try:
            built = json.loads(self.state.read_text())
        except (OSError, ValueError):
            built = {}
        files = self.files()
        return [
            name
            for name, pyx in modules().items()
            if not files[name].exists() or built.get(name) != digest(pyx, self.flags)
        ]

    def make(self, toolchain: Toolchain) -> None:
        """Build the stale modules, and delete modules without a source.

        Raises BuildError, and then all stale modules are deleted, so that none can be imported.
        """
        names, files = self.stale(), self.files()
        for path in self.target.glob(f"*{SUFFIX}"):
            if path not in files.values():
                path.unlink()
        BUILD.mkdir(parents=True, exist_ok=True)
        self.target.mkdir(parents=True, exist_ok=True)
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda name: self._make_one(name, toolchain), names))
        except BuildError:
            self.drop(names)
            raise
        built = {name: digest(pyx, self.flags) for name, pyx in modules().items()}
        self.state.write_text(json.dumps(built))

    def drop(self, names: Sequence[str]) -> None:
        """Delete modules, so that plain Python runs in place of code from an older source."""
        for name in names:
            self.files()[name].unlink(missing_ok=True)

    def _make_one(self, name: str, toolchain: Toolchain) -> None:
        path = self.files()[name]
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            library = Path(folder, path.name)
            toolchain.compile(generated(name, Path(folder)), library, self.flags)
            # A process may have mapped the old file; replacing it leaves that mapping intact.
            library.replace(path)


def generated(name: str, folder: Path) -> Path:
    """Return the C file of a module: the one in a source distribution, else one generated by Cython
    in the folder.

    Raises BuildError.
    """
    shipped = SOURCES / f"{name}.c"
    if shipped.exists():
        return shipped
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / shipped.name
    command = [sys.executable, "-m", "cython", *CYTHON_FLAGS]
    run([*command, str(modules()[name]), "--output-file", str(source)])
    return source


# ---- toolchain


def find_toolchain(*, fetch: bool) -> Toolchain:
    """Return a compiler that works with headers that it finds, from this machine or, with
    ``fetch``, downloaded. Raises BuildError."""
    compilers = (Toolchain(command, ()) for command in compiler_commands(fetch=fetch))
    compiler = first_working(compilers, "#include <stdlib.h>", "C compiler")
    with_headers = (compiler._replace(include=include) for include in header_folders(fetch=fetch))
    return first_working(with_headers, "#include <Python.h>", "headers of Python")


def first_working(candidates: Iterator[Toolchain], text: str, wanted: str) -> Toolchain:
    """Return the first candidate that compiles the text to a library. Raises BuildError."""
    reasons = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(f"{text}\nint probe(void) {{ return 0; }}\n")
        try:
            for candidate in candidates:
                try:
                    candidate.compile(source, Path(folder, "probe.so"), (*C_FLAGS, *LINK_FLAGS))
                except BuildError as error:
                    reasons.append(str(error))
                else:
                    return candidate
        except BuildError as error:  # nothing could be downloaded
            reasons.append(str(error))
    raise BuildError(": ".join([f"no {wanted}", *reasons[-1:]]))


def compiler_commands(*, fetch: bool) -> Iterator[tuple[str, ...]]:
    """Yield the commands that may compile C. Raises BuildError if a download fails."""
    if chosen := os.environ.get("CC"):
        yield tuple(shlex.split(chosen))
        return
    yield from ((name,) for name in ("cc", "gcc", "clang") if shutil.which(name))
    if fetch:
        fetch_zig()
    if ZIG.exists():
        yield (str(ZIG), *ZIG_CC)


def fetch_zig() -> None:
    """Install zig from PyPI if it is missing. Raises BuildError."""
    if not ZIG.exists():
        say("core: installing the compiler zig, of PyPI, under build/compiler (0.4 GB)")
        lock = ROOT / "requirements" / "compiler.lock"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes"]
        run([*install, "--no-deps", "--target", str(ZIG.parents[1]), "--requirement", str(lock)])


def header_folders(*, fetch: bool) -> Iterator[tuple[str, ...]]:
    """Yield the folders that may have Python's headers. Raises BuildError if a download fails."""
    paths = sysconfig.get_paths()
    yield tuple(dict.fromkeys((paths["include"], paths["platinclude"])))
    unpacked = FETCHED / "headers" / "usr" / "include"
    if fetch and not unpacked.exists():
        say("core: no headers of Python here; unpacking Debian's under build/compiler")
        fetch_headers(FETCHED / "headers")
    for folder in sorted(unpacked.glob("python3.*")):
        # Debian keeps pyconfig.h in a folder per architecture.
        yield (str(folder), str(folder.parent), *map(str, unpacked.glob(f"*/{folder.name}")))


def fetch_headers(target: Path) -> None:
    """Unpack the headers of a Python that Debian or Ubuntu packages.

    With the limited API, those of any version from 3.11 on will do. Raises BuildError.
    """
    FETCHED.mkdir(parents=True, exist_ok=True)
    reasons: list[BuildError] = []
    minors = sorted(range(11, 20), key=lambda minor: minor != sys.version_info.minor)
    with tempfile.TemporaryDirectory(dir=FETCHED) as folder:
        own_lists = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        for options in ([], own_lists):
            if options:
                # A machine without package lists, such as a container image.
                for name in ("lists/partial", "cache/archives/partial"):
                    Path(folder, name).mkdir(parents=True)
                run(["apt-get", "--quiet", *options, "update"])
            for minor in minors:
                try:
                    run(["apt-get", *options, "download", f"libpython3.{minor}-dev"], folder)
                except BuildError as error:
                    reasons.append(error)
                    continue
                [package] = Path(folder).glob("*.deb")
                run(["dpkg-deb", "--extract", str(package), f"{folder}/unpacked"])
                Path(folder, "unpacked").replace(target)
                return
    raise reasons[0]


# ---- as hatchling's build hook


class CoreHook(BuildHookInterface[Any]):
    """Puts the modules into wheels, and their C files into source distributions."""

    def dependencies(self) -> list[str]:
        """Return the packages required by the build."""
        return [] if any(SOURCES.glob("*.c")) or pure() else [CYTHON]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and list the files of the distribution in ``build_data``."""
        included = build_data["force_include"]
        if self.target_name == "sdist":
            for name in modules():
                included[str(generated(name, BUILD))] = f"src/{PACKAGE}/{name}.c"
        elif version == "standard" and not pure():
            wanted = os.environ.get("COMETMQ_WHEEL_PLATFORM", "")
            try:
                build = build_for(wanted) if wanted else build_here()
            except BuildError as error:
                if wanted:
                    raise
                self.app.display_warning(f"a wheel of plain Python: {error}")
                return
            for path in build.files().values():
                included[str(path)] = f"{PACKAGE}/{path.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{wanted or this_platform()}"


def this_platform() -> str:
    """Return the tag of wheels for machines like this one."""
    return re.sub("[-.]", "_", sysconfig.get_platform())


def build_here() -> Build:
    """Build for this machine. Raises BuildError."""
    build = Build(BUILD / "wheel")
    build.make(find_toolchain(fetch=False))
    return build


def build_for(tag: str) -> Build:
    """Build for one of PLATFORMS. Raises BuildError."""
    target = PLATFORMS.get(tag)
    if target is None:
        raise BuildError(f"COMETMQ_WHEEL_PLATFORM={tag} is none of {', '.join(PLATFORMS)}")
    fetch_zig()
    zig = Toolchain((str(ZIG), *ZIG_CC, "-target", target), ())
    apple = APPLE_LINK_FLAGS if "macos" in target else ()
    build = Build(BUILD / target, (*C_FLAGS, *LINK_FLAGS, *apple))
    build.make(zig._replace(include=find_toolchain(fetch=True).include))
    return build


def pure() -> bool:
    """Return whether only plain Python is wanted."""
    return os.environ.get("COMETMQ_PURE") == "1"


# ---- as a program


def say(text: str) -> None:
    """Print one line to standard error."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build beside the sources. Return the exit code."""
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
    except BuildError as error:
        build.drop(names)
        say(f"core: not compiled, plain Python runs ({error}); get it: {REMEDY}")
        return int(options.strict)
    try:
        build.make(toolchain)
    except BuildError as error:
        say(error.printed)
        say(f"core: not compiled, plain Python runs ({error}); mend it: make core")
        return int(options.strict)
    seconds = time.monotonic() - started
    compiler = Path(toolchain.command[0]).name
    say(f"core: built {', '.join(names)} with {compiler} in {seconds:.1f} s")
    return 0


REMEDY = "apt-get install -y gcc libc6-dev python3-dev && make core"

if __name__ == "__main__":
    sys.exit(main())
