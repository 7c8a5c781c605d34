"""Contexts: named addresses of clusters, with credentials and TLS, in a file of the user.

The file is ``$XDG_CONFIG_HOME/cometmq/contexts.json`` (``~/.config`` by default), of mode 0600:

    {"current": "prod", "contexts": {"prod": {"namesrv": "10.0.0.1:9876", "access_key": "ops"}}}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from cometmq.core.errors import SettingsError

SECRETS: Final = ("secret_key", "security_token", "tls_key_password")
CREDENTIALS: Final = ("access_key", "secret_key", "security_token", "credentials")
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

        Credentials are one unit: keys of two levels are never joined.
        """
        own = {key: value for key, value in asdict(self).items() if value}
        if any(key in own for key in CREDENTIALS):
            own = dict.fromkeys(CREDENTIALS, "") | own
        return replace(lower, **own)


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
    """Read the file; there are no contexts without one. Raises SettingsError if it is malformed."""
    try:
        text = path().read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts("", {})
    try:
        found = json.loads(text)
        named = {name: _connection(each) for name, each in found.get("contexts", {}).items()}
        return Contexts(str(found.get("current", "")), named)
    except (ValueError, AttributeError, TypeError) as error:
        raise SettingsError(
            str(path()), f"is not a file of contexts ({error}): mend or delete it"
        ) from None


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
    # The file has mode 0600 from the start, so no secret is readable by others at any time.
    new = target.with_name(f".{target.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600, exist_ok=False)
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def check_name(name: str) -> None:
    """Raise SettingsError for a name that a context cannot have."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            "context", f"{name!r} is not a name: use letters, digits, '.', '_' and '-'"
        )


def is_readable_by_others() -> bool:
    """Return whether others may read the file."""
    try:
        return bool(path().stat().st_mode & 0o077)
    except FileNotFoundError:
        return False
