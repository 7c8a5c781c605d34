"""Programs that check the files in packaging/: from the machine, else brought to the cache folder.

Those of PyPI are locked in requirements/packaging.lock. systemd-analyze is Debian's; if the machine
has none, the package is unpacked in the cache folder, without root.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.architecture.rules import ROOT
from tests.compat.anchor import cache_dir
from tests.debian import unpacked

LOCK = ROOT / "requirements" / "packaging.lock"
SYSTEMD = ("systemd", "libsystemd-shared")


def run(words: Sequence[str], **environment: str) -> str:
    """Run a program; gives all that it printed. Raises AssertionError with that if it fails."""
    done = subprocess.run(
        words,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def locked_packages(lock: Path) -> Path:
    """The folder with the packages of a lock file and, in ``bin``, their programs; fetches them
    once."""
    wanted = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    target = cache_dir() / f"{lock.stem}-{wanted}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        run([*install, "--require-hashes", "--target", str(fresh), "--requirement", str(lock)])
        place(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def locked(name: str, *words: str) -> str:
    """Run a program of the locked packages; gives what it printed."""
    folder = locked_packages(LOCK)
    program = folder / "bin" / name
    # The first line of a script names the Python that installed it, which may be gone.
    is_script = program.read_bytes()[:2] == b"#!"
    python = [sys.executable] if is_script else []
    return run([*python, str(program), *words], PYTHONPATH=str(folder))


def systemd_analyze(*words: str) -> str:
    """Run systemd-analyze; gives what it printed."""
    if shutil.which("systemd-analyze"):
        return run(["systemd-analyze", *words])
    target = unpacked("systemd", SYSTEMD)
    libraries = ":".join(str(path.parent) for path in target.rglob("libsystemd-*.so"))
    return run([str(target / "usr/bin/systemd-analyze"), *words], LD_LIBRARY_PATH=libraries)


def place(fresh: Path, target: Path) -> None:
    """Rename a folder, unless another run was faster."""
    try:
        fresh.rename(target)
    except OSError:
        if not target.exists():
            raise
