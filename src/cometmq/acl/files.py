"""The ACL files of a server: ``conf/plain_acl.yml`` and every YAML file below ``conf/acl``.

    globalWhiteRemoteAddresses:      # patterns of addresses (addresses.py)
      - 10.10.103.*
    accounts:
      - accessKey: rocketmq2         # at least 7 characters, like the secret
        secretKey: 12345678
        whiteRemoteAddress: 192.168.1.*
        admin: false
        defaultTopicPerm: DENY       # DENY, PUB, SUB or PUB|SUB
        defaultGroupPerm: SUB
        topicPerms:
          - orders=PUB|SUB
        groupPerms:
          - payments=SUB
    dataVersion:                     # written by each change over the protocol
      - counter: 2
        timestamp: 1700000000000

Upstream: PlainPermissionManager.java. A changed file is read again; while it is invalid, the
previous rules stay in force. A change over the protocol is written to a temporary file, which is
then renamed, so that a file is never half written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cometmq.acl.rules import AclRules, parse_account, parse_rules
from cometmq.core.errors import AclDenied
from cometmq.protocol.bodies import DataVersion
from cometmq.store.files import PosixFiles, write_file_atomically

#: A file over this size is refused, so that reading it takes a bounded time.
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
DEFAULT_FILE: Final = os.path.join("conf", "plain_acl.yml")
DIRECTORY: Final = os.path.join("conf", "acl")
_SUFFIXES: Final = (".yml", ".yaml")

Document = dict[str, Any]
#: Path, size, time of change and inode of each file.
Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class AclContent:
    """Content of all files at one moment; ``documents`` and ``versions`` are by path."""

    rules: AclRules
    documents: Mapping[str, Document]
    versions: Mapping[str, DataVersion]
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class AccountChange:
    """Values to set in an account; None and empty ones change nothing. ``admin`` is always set."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: Sequence[str] = ()
    group_perms: Sequence[str] = ()

    def apply(self, entry: Document) -> Document:
        """Return the entry of a file with the values set."""
        wanted = {
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "whiteRemoteAddress": self.white_remote_address,
            "admin": self.admin,
            "defaultTopicPerm": self.default_topic_perm,
            "defaultGroupPerm": self.default_group_perm,
            "topicPerms": list(self.topic_perms),
            "groupPerms": list(self.group_perms),
        }
        return entry | {key: value for key, value in wanted.items() if value not in (None, "", [])}


class AclFiles:
    """Reads and changes the ACL files below a directory. Every method blocks on the file system."""

    def __init__(self, home: str, wall_ms: Callable[[], int]) -> None:
        self._home = os.path.abspath(home)
        self._wall_ms = wall_ms

    @property
    def default_path(self) -> str:
        """Path of the file that gets new accounts."""
        return os.path.join(self._home, DEFAULT_FILE)

    def fingerprint(self) -> Fingerprint:
        """Return a value that differs after any of the files was changed, added or removed."""
        found = []
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                found.append((path, status.st_size, status.st_mtime_ns, status.st_ino))
        return tuple(found)

    def read(self) -> AclContent:
        """Read all files. Raise AclDenied, which names the file, if one cannot be read or used."""
        documents: dict[str, Document] = {}
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):
                documents[path] = _read_document(path)
        rules, warnings = parse_rules(documents)
        versions = {path: _version(document) for path, document in documents.items()}
        return AclContent(rules, documents, versions, warnings)

    def put_account(self, change: AccountChange) -> None:
        """Create an account in the default file, or change it in the file that has it.

        Raises AclDenied if the account would be invalid.
        """
        documents = self.read().documents
        path, document, place = self._find(documents, change.access_key)
        accounts = list(document.get("accounts") or [])
        entry = change.apply(accounts[place] if place >= 0 else {})
        parse_account(entry)
        if place >= 0:
            accounts[place] = entry
        else:
            accounts.append(entry)
        self._write(path, document | {"accounts": accounts})

    def delete_account(self, access_key: str) -> bool:
        """Remove an account from all files; return False if none has it."""
        found = False
        # A repeated entry that is left would come into force.
        for path, document in self.read().documents.items():
            accounts = document.get("accounts") or []
            left = [entry for entry in accounts if str(entry.get("accessKey")) != access_key]
            if len(left) < len(accounts):
                found = True
                self._write(path, document | {"accounts": left})
        return found

    def set_white_list(self, patterns: Iterable[str], path: str | None = None) -> None:
        """Replace the global white list of a file, by default of the default file.

        Raises AclDenied for an invalid pattern, and for a path that is none of the ACL files.
        """
        documents = self.read().documents
        path = os.path.abspath(path) if path else self.default_path
        if path != self.default_path and path not in documents:
            raise AclDenied(f"{path} is none of the ACL files below {self._home}")
        document = documents.get(path, {}) | {"globalWhiteRemoteAddresses": list(patterns)}
        parse_rules({path: document})
        self._write(path, document)

    def _paths(self) -> list[str]:
        """Return the paths in the order in which accounts are looked up, as upstream."""
        found = []
        top = os.path.join(self._home, DIRECTORY)
        for directory, below, names in os.walk(top, onerror=_unless_missing):
            below.sort()
            found += [
                os.path.join(directory, name) for name in sorted(names) if name.endswith(_SUFFIXES)
            ]
        return [*found, self.default_path]

    def _find(
        self, documents: Mapping[str, Document], access_key: str
    ) -> tuple[str, Document, int]:
        """Return path and content of the file that has an account, and the account's place there.

        The place is -1, and the file the default one, if no file has it.
        """
        for path, document in documents.items():
            for place, entry in enumerate(document.get("accounts") or ()):
                if str(entry.get("accessKey")) == access_key:
                    return path, document, place
        return self.default_path, documents.get(self.default_path, {}), -1

    def _write(self, path: str, document: Document) -> None:
        counter = _version(document).counter + 1
        version = {"counter": counter, "timestamp": self._wall_ms()}
        # All values are read as text, but Java expects ``admin`` to be a boolean.
        accounts = [
            entry | {"admin": str(entry["admin"]).lower() == "true"} if "admin" in entry else entry
            for entry in document.get("accounts") or ()
        ]
        whole = document | {"accounts": accounts, "dataVersion": [version]}
        text = _yaml().safe_dump(whole, sort_keys=False, allow_unicode=True)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = 0o600  # secrets are in it
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(path).st_mode & 0o777
        write_file_atomically(PosixFiles(), path, text.encode(), durable=True, mode=mode)


def _read_document(path: str) -> Document:
    yaml = _yaml()
    try:
        if os.stat(path).st_size > MAX_FILE_BYTES:
            raise AclDenied(f"{path}: the file has more than {MAX_FILE_BYTES} bytes")
        document = yaml.load(Path(path).read_bytes().decode(), yaml.BaseLoader)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AclDenied(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise AclDenied(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise AclDenied(f"{path}: is not YAML{_place(error)}") from None
    except RecursionError:
        raise AclDenied(f"{path}: is nested too deeply") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise AclDenied(f"{path}: must have keys such as accounts at its top")
    return document


def _place(error: Exception) -> str:
    """Return where YAML is invalid, without the parser's message, which may quote a secret."""
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _version(document: Document) -> DataVersion:
    found = document.get("dataVersion")
    first = found[0] if isinstance(found, list) and found else None
    if not isinstance(first, dict):
        return DataVersion()
    return DataVersion(_number(first.get("counter")), _number(first.get("timestamp")))


def _number(value: object) -> int:
    """Return a number of the version; 0 for any other text."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _yaml() -> Any:
    # Imported late: a server without ACL does not need it.
    import yaml

    return yaml
