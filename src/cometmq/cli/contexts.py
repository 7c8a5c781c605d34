"""Contexts: named addresses of clusters, with credentials and TLS, in a file of the user.

The file is ``$XDG_CONFIG_HOME/cometmq/contexts.json`` (``~/.config`` by default), of mode 0600:

    {"current": "prod", "contexts": {"prod": {"namesrv": "10.0.0.1:9876", "access_key": "ops"}}}
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from cometmq.core.errors import SettingsError

SECRETS: Final = ("secret_key", "security_token", "tls_key_password")
CREDENTIALS: Final = ("access_key", "secret_key", "security_token", "credentials")
CLIENT_KEY: Final = ("tls_cert", "tls_key", "tls_key_password")
TLS: Final = ("tls", "tls_ca", *CLIENT_KEY, "tls_verify", "tls_check_host")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a cluster is, and how to connect to it. Empty fields are not set.

    ``credentials`` is a file with the form of RocketMQ's ``conf/tools.yml``; it takes the place of
    the keys. ``tls``, ``tls_verify`` and ``tls_check_host`` are "true", "false" or empty;
    ``tls_ca``, ``tls_cert`` and ``tls_key`` are paths of PEM files.
    """

    namesrv: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    credentials: str = ""
    tls: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_key_password: str = field(default="", repr=False)
    tls_verify: str = ""
    tls_check_host: str = ""

    def over(self, lower: Connection) -> Connection:
        """Return this connection, with the fields that it does not set taken from ``lower``.

        Credentials are one unit, and TLS settings another: a unit comes from one level only. If
        this connection sets the name servers, it takes neither credentials nor client key.
        """
        own = {key: value for key, value in asdict(self).items() if value}
        for unit in (CREDENTIALS, TLS):
            if any(key in own for key in unit):
                own = dict.fromkeys(unit, "") | own
        return replace(lower._without_identity() if self.namesrv else lower, **own)

    def changed(self, changes: Connection) -> Connection:
        """Return this connection with the fields that ``changes`` sets; credentials are a unit."""
        new = {key: value for key, value in asdict(changes).items() if value}
        if any(key in new for key in CREDENTIALS):
            new = dict.fromkeys(CREDENTIALS, "") | new
        return replace(self, **new)

    def has_any(self, keys: Iterable[str]) -> bool:
        """Return whether one of these fields is set."""
        return any(getattr(self, key) for key in keys)

    def without(self, keys: Iterable[str]) -> Connection:
        """Return this connection with these fields not set."""
        return replace(self, **dict.fromkeys(keys, ""))

    def _without_identity(self) -> Connection:
        """Return this connection without credentials and client key."""
        # A client certificate turns TLS on, which must stay on without the certificate.
        tls = self.tls or ("true" if self.has_any(CLIENT_KEY) else "")
        return replace(self.without((*CREDENTIALS, *CLIENT_KEY)), tls=tls)


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and the name of the current one (empty: none)."""

    current: str
    named: Mapping[str, Connection]

    def get(self, name: str) -> Connection:
        """Return a context. Raises SettingsError if there is none of that name."""
        if name not in self.named:
            known = ", ".join(self.named) or "none"
            raise SettingsError("context", f"there is no context {name!r}; contexts: {known}")
        return self.named[name]


def path() -> Path:
    """Return the path of the file."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "cometmq" / "contexts.json"


def load() -> Contexts:
    """Read the file; return no contexts if there is none.

    Raises SettingsError, which shows no secret, if the file is malformed, or if it has secrets and
    every user of the machine may access it.
    """
    try:
        with path().open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except FileNotFoundError:
        return Contexts("", {})
    try:
        found = json.loads(text)
        named = {name: _connection(each) for name, each in found.get("contexts", {}).items()}
        current = str(found.get("current", ""))
    except (ValueError, AttributeError, TypeError) as error:
        raise SettingsError(
            str(path()), f"is not a file of contexts ({error}): mend or delete it"
        ) from None
    if mode & stat.S_IRWXO and any(each.has_any(SECRETS) for each in named.values()):
        raise SettingsError(
            str(path()),
            f"it has secrets, and every user of this machine may access it: chmod 600 {path()}",
        )
    return Contexts(current, named)


def _connection(found: Mapping[str, Any]) -> Connection:
    known = {each.name for each in fields(Connection)}
    return Connection(**{key: str(value) for key, value in found.items() if key in known})


def save(contexts: Contexts) -> None:
    """Write the file, readable only by its owner, in one step."""
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    named = {
        name: {key: value for key, value in asdict(each).items() if value}
        for name, each in contexts.named.items()
    }
    text = json.dumps({"current": contexts.current, "contexts": named}, indent=2) + "\n"
    new = target.with_name(f".{target.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    write_private(new, text.encode())
    try:
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def write_private(target: Path, content: bytes) -> None:
    """Make a file that only its owner can read, from its creation on; nothing is overwritten.

    Raises FileExistsError if there is a file or link of this name, and SettingsError if others may
    write to the directory, because they could put another file in its place. No part of the file
    stays after an error.
    """
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.fstat(folder).st_mode & stat.S_IWOTH:
            raise SettingsError(
                "directory",
                f"every user of this machine may write to {target.parent}: run chmod o-w "
                f"{target.parent}, or choose another",
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(target.name, flags, 0o600, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
        except BaseException:
            os.unlink(target.name, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def check_name(name: str) -> None:
    """Raise SettingsError for a name that a context cannot have."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            "context", f"{name!r} is not a name: use letters, digits, '.', '_' and '-'"
        )
