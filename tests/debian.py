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
MIRROR = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class PackageMissing(Exception):
    """A package could not be fetched; the message says why."""


def unpacked(name: str, packages: Sequence[str], *, suite: str = "") -> Path:
    """Return the folder ``name`` with these packages, and with those they need that this machine
    lacks. They are fetched the first time. Raises PackageMissing.

    Packages of another ``suite`` of Debian come with all they need, the C library included: this
    machine's are too old for them.
    """
    target = cache_dir() / name
    if not target.exists():
        _fetch(target, packages, suite)
    return target


def libraries(folder: Path) -> tuple[Path, ...]:
    """Return the folders of the libraries in a folder of packages."""
    found = {path.parent for path in (folder / "usr" / "lib").glob("*-linux-gnu*/**/*.so*")}
    return tuple(sorted(found))


def _fetch(target: Path, packages: Sequence[str], suite: str) -> None:
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
            _download(files, packages, _own_lists(fresh / "apt", suite) if suite else [])
        except PackageMissing:
            if suite:
                raise
            _download(files, packages, _own_lists(fresh / "apt"))
        for package in sorted(files.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(fresh)], fresh)
        shutil.rmtree(files)
        shutil.rmtree(fresh / "apt", ignore_errors=True)
        if not target.exists():
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _own_lists(state: Path, suite: str = "") -> list[str]:
    """Fetch lists of packages into a folder: of the machine's sources, or of a suite, as if nothing
    was installed. Return apt's options to use them."""
    (state / "lists" / "partial").mkdir(parents=True)
    (state / "cache" / "archives" / "partial").mkdir(parents=True)
    settings = [f"Dir::State::Lists={state / 'lists'}", f"Dir::Cache={state / 'cache'}"]
    settings += ["APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    if suite:
        (state / "sources.list").write_text(f"deb [signed-by={KEYS}] {MIRROR} {suite} main\n")
        (state / "installed").touch()
        settings += [f"Dir::Etc::SourceList={state / 'sources.list'}"]
        settings += ["Dir::Etc::SourceParts=/dev/null", "Acquire::Languages=none"]
        settings += [f"Dir::State::Status={state / 'installed'}"]
    options = [word for setting in settings for word in ("-o", setting)]
    _run(["apt-get", *options, "update"], state)
    return options


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
