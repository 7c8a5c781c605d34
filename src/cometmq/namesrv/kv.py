"""Key-value tables by namespace, kept in kvConfig.json (upstream: KVConfigManager.java).

    {"configTable":{"ORDER_TOPIC_CONFIG":{"topic":"broker-a:4"}}}

The file is replaced as a whole: the old content is kept as ".bak", and the new one is written to
".tmp", synced and renamed. So a crash leaves either the old file or the new one. If the file is
damaged, for example because an upstream name server died while writing it, ".bak" is read.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from cometmq.core.errors import BadRequest, CometError, ProtocolError, StoreCorrupt
from cometmq.protocol.bodies import KvTable
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.store.files import Files, PosixFiles, read_file, write_file_atomically

log = logging.getLogger(__name__)

#: Namespace with the order configurations of topics (upstream: NamesrvUtil.java).
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

#: Maximum length, in characters, of a namespace or key, and of a value. Order configurations, which
#: list brokers, may be long.
NAME_LENGTH_MAX: Final = 512
VALUE_LENGTH_MAX: Final = 64 * 1024
NAMESPACES_MAX: Final = 256
#: Maximum total length of all keys and values, because each change writes all of them.
TOTAL_LENGTH_MAX: Final = 4 * 1024 * 1024
#: Characters counted for an entry besides its key and value.
_ENTRY_LENGTH: Final = 16


class _KvFile(Struct, rename="camel"):
    """The content of kvConfig.json."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvTables:
    """Values by namespace and key; each change is written to ``path``."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._files: Files = files or PosixFiles()
        self._tables: dict[str, dict[str, str]] = {}
        self._length = 0
        self._encoded: dict[str, bytes] = {}
        self._writing = asyncio.Lock()
        self._changes = 0
        self._written = 0
        #: Last readable content of the file. Only this content may become the backup.
        self._content: bytes | None = None

    def load(self) -> None:
        """Read the file, or its backup if the file is damaged or missing.

        Without both the tables are empty. Raise StoreCorrupt if one exists and none can be read.
        """
        problem = None
        for path in (self._path, self._backup):
            data = read_file(self._files, str(path))
            if data is None:
                continue
            try:
                self._tables = parse_json(data, _KvFile).config_table
            except ProtocolError as error:
                log.warning("kv file unreadable path=%s reason=%s", path, error)
                problem = problem or StoreCorrupt(
                    str(path),
                    -1,
                    f"{error}; repair the file, or move it away to start without its keys",
                )
            else:
                self._content = data
                self._length = sum(
                    _length_of(key, value)
                    for table in self._tables.values()
                    for key, value in table.items()
                )
                return
        if problem is not None:
            raise problem

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value; None if it is not set."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return all keys of a namespace; None if it was never used."""
        return self._tables.get(namespace)

    def encoded(self, namespace: str) -> bytes:
        """Return :meth:`table` as JSON for brokers and administrators; b"" if it is empty.

        The JSON is cached until the next change.
        """
        found = self._encoded.get(namespace)
        if found is None:
            table = self._tables.get(namespace)
            if not table:
                return b""
            found = self._encoded[namespace] = encode_json(KvTable(table))
        return found

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and wait until it is on disk.

        Raise CometError if the file cannot be written; the value then holds until a restart. Raise
        BadRequest (SYSTEM_ERROR) if a limit is exceeded; nothing has changed then.
        """
        self._length += self._growth(namespace, key, value)
        self._tables.setdefault(namespace, {})[key] = value
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key and wait until the change is on disk.

        Raise CometError if the file cannot be written; the key then returns with a restart.
        """
        value = self._tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._length -= _length_of(key, value)
            await self._save()

    def _growth(self, namespace: str, key: str, value: str) -> int:
        """Return the characters that a value adds to the total length.

        Raise BadRequest if a limit is exceeded.
        """
        for what, text, most in (
            ("namespace", namespace, NAME_LENGTH_MAX),
            ("key", key, NAME_LENGTH_MAX),
            ("value", value, VALUE_LENGTH_MAX),
        ):
            if len(text) > most:
                raise _refused(f"the {what} has {len(text)} characters", most)
        table = self._tables.get(namespace)
        if table is None and len(self._tables) >= NAMESPACES_MAX:
            raise _refused(f"there are {len(self._tables)} namespaces", NAMESPACES_MAX)
        old = None if table is None else table.get(key)
        growth = _length_of(key, value) - (0 if old is None else _length_of(key, old))
        if growth > 0 and self._length + growth > TOTAL_LENGTH_MAX:
            raise _refused(
                f"all keys and values would have {self._length + growth} characters",
                TOTAL_LENGTH_MAX,
            )
        return growth

    async def _save(self) -> None:
        self._changes += 1
        self._encoded.clear()
        mine = self._changes
        async with self._writing:
            # One write includes all changes that were made during the previous write.
            if self._written >= mine:
                return
            covers = self._changes
            data = encode_json(_KvFile(self._tables))
            try:
                await asyncio.to_thread(self._replace, data)
            except OSError as error:
                raise CometError(
                    f"{self._path} cannot be written ({error.strerror or error}): the change holds "
                    "until this name server stops; free space or fix its permissions, then repeat"
                ) from error
            self._written = covers

    def _replace(self, data: bytes) -> None:
        files = self._files
        files.make_directory(str(self._path.parent))
        if self._content is not None:
            write_file_atomically(files, str(self._backup), self._content, durable=False)
        write_file_atomically(files, str(self._path), data, durable=True)
        self._content = data


def _length_of(key: str, value: str) -> int:
    return len(key) + len(value) + _ENTRY_LENGTH


def _refused(what: str, most: int) -> BadRequest:
    return BadRequest(
        ResponseCode.SYSTEM_ERROR,
        f"key not set: {what}; this name server takes at most {most}",
    )
