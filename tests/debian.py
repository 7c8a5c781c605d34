"""Programs of Debian for tests, unpacked into the cache folder: no root, no installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.compat.anchor import cache_dir

FETCHING_S = 600


class PackageMissing(Exception):
    """A package could not be fetched; the message says why."""


def unpacked(name: str, packages: Sequence[str]) -> Path:
    """Return the folder ``name`` with these packages, and with those they need that this machine
    lacks. They are fetched the first time. Raises PackageMissing."""
    target = cache_dir() / name
    if not target.exists():
        _fetch(target, packages)
    return target


def libraries(folder: Path) -> tuple[Path, ...]:
    """Return the folders of the libraries in a folder of packages."""
    found = {path.parent for path in (folder / "usr" / "lib").glob("*-linux-gnu*/**/*.so*")}
    return tuple(sorted(found))


def _fetch(target: Path, packages: Sequence[str]) -> None:
    """Unpack packages into a folder, which appears whole or not at all."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise PackageMissing(f"neither {', '.join(packages)} nor {tool} is on this machine")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        files = fresh / "packages"
        files.mkdir()
        try:
            _download(files, packages, [])
        except PackageMissing:
            state = fresh / "apt"
            (state / "lists" / "partial").mkdir(parents=True)
            (state / "cache" / "archives" / "partial").mkdir(parents=True)
            own = ["-o", f"Dir::State::Lists={state / 'lists'}"]
            own += ["-o", f"Dir::Cache={state / 'cache'}"]
            own += ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
            _run(["apt-get", *own, "update"], files)
            _download(files, packages, own)
        for package in sorted(files.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(fresh)], fresh)
        shutil.rmtree(files)
        shutil.rmtree(fresh / "apt", ignore_errors=True)
        if not target.exists():
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _download(folder: Path, packages: Sequence[str], options: Sequence[str]) -> None:
    words = ["--simulate", "--no-install-recommends", "install", *packages]
    plan = _run(["apt-get", *options, *words], folder)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    _run(["apt-get", *options, "download", *names], folder)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=FETCHING_S, check=False
    )
    if done.returncode != 0:
        raise PackageMissing(f"{' '.join(command[:3])} ...: {done.stderr.strip()[-1000:]}")
    return done.stdout
