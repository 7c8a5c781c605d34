"""A real Chromium for tests of the page: Debian's, headless, without root and an installation.

It is the machine's, or Debian's packages are downloaded into the cache folder and unpacked there.
Playwright's Python package drives it if it is installed; its own browsers are not used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FETCHING_S = 600


class BrowserMissing(Exception):
    """Chromium is not on this machine and could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Browser:
    """The program, and the folders of the libraries that were fetched for it."""

    program: Path
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment that its processes need."""
        words = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}
        if self.libraries:
            words["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, self.libraries))
        return words


def chromium() -> Browser:
    """Chromium; it is fetched the first time. Raises BrowserMissing."""
    for name in ("/usr/bin/chromium", "/usr/bin/google-chrome"):
        if Path(name).exists():
            return Browser(Path(name))
    cache = os.environ.get("COMETMQ_TEST_CACHE")
    folder = Path(cache) if cache else Path.home() / ".cache" / "cometmq-tests"
    target = folder / "chromium"
    program = target / "usr" / "lib" / "chromium" / "chromium"
    if not program.exists():
        _fetch(target)
    found = {path.parent for path in (target / "usr" / "lib").glob("*-linux-gnu*/**/*.so*")}
    return Browser(program, tuple(sorted(found)))


def _fetch(target: Path) -> None:
    """Unpack Debian's packages into a folder, which appears whole or not at all."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise BrowserMissing(f"neither Chromium nor {tool} is on this machine")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="chromium.", dir=target.parent))
    try:
        packages = fresh / "packages"
        packages.mkdir()
        try:
            _download(packages, [])
        except BrowserMissing:
            state = fresh / "apt"
            (state / "lists" / "partial").mkdir(parents=True)
            (state / "cache" / "archives" / "partial").mkdir(parents=True)
            own = ["-o", f"Dir::State::Lists={state / 'lists'}"]
            own += ["-o", f"Dir::Cache={state / 'cache'}"]
            own += ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
            _run(["apt-get", *own, "update"], packages)
            _download(packages, own)
        for package in sorted(packages.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(fresh)], fresh)
        shutil.rmtree(packages)
        shutil.rmtree(fresh / "apt", ignore_errors=True)
        if not target.exists():
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _download(folder: Path, options: Sequence[str]) -> None:
    words = ["--simulate", "--no-install-recommends", "install", "chromium", "fonts-dejavu-core"]
    plan = _run(["apt-get", *options, *words], folder)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    _run(["apt-get", *options, "download", *names], folder)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=FETCHING_S, check=False
    )
    if done.returncode != 0:
        raise BrowserMissing(f"{' '.join(command[:3])} ...: {done.stderr.strip()[-1000:]}")
    return done.stdout
