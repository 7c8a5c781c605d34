"""A real MariaDB for tests: Debian's, in a temporary directory, on a socket in it, without root and
without an installation."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.debian import PackageMissing, libraries, unpacked

DATABASE: Final = "shop"
STARTING_S: Final = 120
STOPPING_S: Final = 30

#: For data that a test creates and throws away.
SETTINGS: Final = (
    "--skip-networking",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=8M",
    "--key-buffer-size=1M",
    "--performance-schema=OFF",
    "--default-time-zone=+03:00",
)


class MariaDbMissing(Exception):
    """MariaDB is not on this machine and could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder with ``sbin``, ``bin`` and ``share``, and the libraries fetched for them."""

    prefix: Path
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment that their processes need."""
        words = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        if self.libraries:
            words["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, self.libraries))
        return words


def programs() -> Programs:
    """MariaDB's programs; they are fetched the first time. Raises MariaDbMissing."""
    if Path("/usr/sbin/mariadbd").exists():
        return Programs(Path("/usr"))
    try:
        folder = unpacked("mariadb", ["mariadb-server-core"])
    except PackageMissing as error:
        raise MariaDbMissing(str(error)) from None
    return Programs(folder / "usr", libraries(folder))


@contextmanager
def running_mariadb() -> Iterator[str]:
    """A server with an empty database during the block; gives its URL. Raises MariaDbMissing."""
    found = programs()
    root = Path(tempfile.mkdtemp(prefix="cometmq-my-"))
    try:
        process = _start(found, root)
        try:
            yield f"mysql://root@localhost/{DATABASE}?unix_socket={socket_of(root)}"
        finally:
            _stop(process)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def socket_of(root: Path) -> Path:
    """The socket of the server in a folder."""
    return root / "socket"


def _start(found: Programs, root: Path) -> subprocess.Popen[bytes]:
    data, environment = root / "data", found.environment()
    command = [str(found.prefix / "sbin" / "mariadbd"), "--no-defaults"]
    command += [f"--basedir={found.prefix}", f"--datadir={data}", *SETTINGS]
    command += ["--user=root"] if os.geteuid() == 0 else []
    data.mkdir()
    with (root / "log").open("ab") as log:
        made = subprocess.run(
            [*command, "--bootstrap"], input=_system_tables(found), env=environment, cwd=root,
            stdout=log, stderr=log, timeout=STARTING_S, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise MariaDbMissing(f"mariadbd made no system tables: {_tail(root)}")
        process = subprocess.Popen(
            [*command, f"--socket={socket_of(root)}", f"--pid-file={root / 'pid'}"],
            env=environment, cwd=root, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _await_ready(process, root)
    except BaseException:
        _stop(process)
        raise
    return process


def _system_tables(found: Programs) -> bytes:
    """The statements that mariadb-install-db gives to the server; that program needs others."""
    files = ("system_tables", "performance_tables", "system_tables_data")
    parts = [b"SET @auth_root_socket=NULL, @skip_auth_anonymous=1;"]
    parts += [b"CREATE DATABASE mysql;", b"USE mysql;"]
    folder = found.prefix / "share" / "mysql"
    parts += [(folder / f"mysql_{name}.sql").read_bytes() for name in files]
    return b"\n".join([*parts, f"CREATE DATABASE {DATABASE};".encode(), b""])


def _await_ready(process: subprocess.Popen[bytes], root: Path) -> None:
    """Wait until the server listens."""
    for _ in range(STARTING_S * 20):
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise MariaDbMissing(f"mariadbd ended with {process.returncode}: {_tail(root)}")
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(socket_of(root)))
                return
        except OSError:
            continue
    raise MariaDbMissing(f"mariadbd did not listen within {STARTING_S} s: {_tail(root)}")


def _tail(root: Path) -> str:
    return (root / "log").read_text(errors="replace")[-2000:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOPPING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOPPING_S)
