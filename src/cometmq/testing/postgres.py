"""A real PostgreSQL server for tests and examples.

Its data is in a temporary directory, and so is the socket on which it listens. It needs neither
root nor an installation.

It uses the machine's programs if there are any. Otherwise `apt-get download` fetches Debian's
packages into a cache folder, and `dpkg -x` unpacks them there. The server refuses to run as root;
in that case it runs as ``nobody``, and the cache is a folder that ``nobody`` can read.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.core.errors import CometError

#: Packages that the server depends on but runs without: a compiler for long queries, Perl, ...
_NOT_NEEDED: Final = ("libllvm", "libjson", "libcommon")
_NOBODY: Final = 65_534
_STARTING_S: Final = 60
_STOPPING_S: Final = 30
_FETCHING_S: Final = 600

#: Settings for data that a test creates and throws away.
_SETTINGS: Final = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    "shared_buffers": "16MB",
    "max_connections": "50",
    "timezone": "GMT",
    "log_timezone": "GMT",
}


class PostgresMissing(CometError):
    """PostgreSQL is not on this machine and could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder of ``initdb`` and ``postgres``, and the folder of libraries fetched for them."""

    folder: Path
    libraries: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables that their processes need."""
        variables = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        if self.libraries is not None:
            variables["LD_LIBRARY_PATH"] = str(self.libraries)
        return variables


def programs() -> Programs:
    """Return PostgreSQL's programs. If the machine has none, fetch them the first time.

    Raises PostgresMissing if that fails.
    """
    installed = _newest(Path("/usr"))
    if installed is not None:
        return Programs(installed)
    target = _cache() / "postgresql"
    if _newest(target / "usr") is None:
        _fetch(target)
    folder = _newest(target / "usr")
    if folder is None:
        raise PostgresMissing(f"the packages in {target} hold no postgres")
    libraries = next((target / "usr" / "lib").glob("*/libpq.so.5"), None)
    return Programs(folder, None if libraries is None else libraries.parent)


@contextmanager
def running_postgres(directory: Path | None = None) -> Iterator[str]:
    """Run a server with an empty database during the block; yield its conninfo.

    Data and log are in ``directory``, which is kept, or in a temporary directory, which is removed.
    Raises PostgresMissing if there is no PostgreSQL.
    """
    found = programs()
    root = Path(tempfile.mkdtemp(prefix="cometmq-pg-")) if directory is None else directory
    root.mkdir(parents=True, exist_ok=True)
    identity = _identity(root)
    try:
        process = _start(found, root, identity)
        try:
            yield f"host={root} user=postgres dbname=postgres"
        finally:
            _stop(process)
    finally:
        if directory is None:
            shutil.rmtree(root, ignore_errors=True)


def _start(found: Programs, root: Path, identity: dict[str, Any]) -> subprocess.Popen[bytes]:
    data, log = root / "data", root / "postgres.log"
    words = ["initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    environment = found.environment()
    with log.open("ab") as output:
        if not data.exists():
            subprocess.run(
                [str(found.folder / words[0]), *words[1:], "--no-sync", "--locale=C"],
                env=environment, cwd=root, stdout=output, stderr=output,
                timeout=_STARTING_S, check=True, **identity,
            )  # fmt: skip
        command = [str(found.folder / "postgres"), "-D", str(data), "-k", str(root)]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        process = subprocess.Popen(
            command, env=environment, cwd=root, stdout=output, stderr=output, **identity
        )
    try:
        _await_ready(process, root)
    except BaseException:
        _stop(process)
        raise
    return process


def _await_ready(process: subprocess.Popen[bytes], root: Path) -> None:
    """Wait until the server accepts connections: it then writes ``ready`` into its pid file."""
    pid_file = root / "data" / "postmaster.pid"
    for _ in range(_STARTING_S * 50):
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            pass
        else:
            log = (root / "postgres.log").read_text(errors="replace")
            raise PostgresMissing(f"postgres ended with {process.returncode}: {log[-2000:]}")
        try:
            if "ready" in pid_file.read_text().splitlines()[-1]:
                return
        except (OSError, IndexError):
            continue
    raise PostgresMissing(f"postgres did not get ready within {_STARTING_S} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # fast: ends the connections
        try:
            process.wait(_STOPPING_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)  # immediate: ends the server and its children
            process.wait(_STOPPING_S)


def _identity(root: Path) -> dict[str, Any]:
    """Return the user that the server runs as: this one, or nobody instead of root."""
    if os.geteuid() != 0:
        return {}
    os.chown(root, _NOBODY, _NOBODY)
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


def _newest(prefix: Path) -> Path | None:
    """Return the folder of the newest PostgreSQL's programs under a prefix, or None."""
    found = [path.parent for path in prefix.glob("lib/postgresql/*/bin/initdb")]
    return max(found, key=lambda path: float(path.parent.name), default=None)


# ---------------------------------------------------------------------- Debian's packages


def _cache() -> Path:
    if chosen := os.environ.get("COMETMQ_TEST_CACHE"):
        folder = Path(chosen)
    elif os.geteuid() == 0:
        return Path("/var/cache/cometmq-tests")
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cometmq-tests"
    # The user nobody must be able to enter all folders above the cache.
    if os.geteuid() == 0 and not all(path.stat().st_mode & 1 for path in folder.parents):
        return Path("/var/cache/cometmq-tests")
    return folder


def _fetch(target: Path) -> None:
    """Unpack Debian's PostgreSQL into a folder, which appears whole or not at all."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise PostgresMissing(f"neither PostgreSQL nor {tool} is on this machine")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="postgresql.", dir=target.parent))
    try:
        fresh.chmod(0o755)
        packages = fresh / "packages"
        packages.mkdir()
        _download(packages, fresh / "apt")
        for package in sorted(packages.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(fresh)], fresh)
        shutil.rmtree(packages)
        shutil.rmtree(fresh / "apt", ignore_errors=True)
        try:
            fresh.rename(target)
        except OSError:
            if _newest(target / "usr") is None:
                raise  # otherwise another run was faster
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _download(folder: Path, state: Path) -> None:
    """Download the server's packages that this machine lacks.

    The machine's package lists are used; if they are missing or old, they are fetched into
    ``state``.
    """
    try:
        _run(["apt-get", "download", *_lacking([], folder)], folder)
    except PostgresMissing:
        (state / "lists" / "partial").mkdir(parents=True)
        (state / "cache" / "archives" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={state / 'lists'}", "-o", f"Dir::Cache={state / 'cache'}"]
        own += ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        _run(["apt-get", *own, "update"], folder)
        _run(["apt-get", *own, "download", *_lacking(own, folder)], folder)


def _lacking(options: Sequence[str], folder: Path) -> list[str]:
    """Return the packages that an installation of PostgreSQL would add, without needless ones."""
    words = ["--simulate", "--no-install-recommends", "install", "postgresql"]
    plan = _run(["apt-get", *options, *words], folder)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    return [
        name
        for name in names
        if (name.startswith("lib") and not name.startswith(_NOT_NEEDED))
        or (name.startswith("postgresql-") and name.removeprefix("postgresql-").isdigit())
    ]


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_FETCHING_S, check=False
    )
    if done.returncode != 0:
        raise PostgresMissing(f"{' '.join(command[:3])} ...: {done.stderr.strip()[-1000:]}")
    return done.stdout
