"""Key-value tables by namespace, kept in kvConfig.json (upstream: KVConfigManager.java).

    {"configTable":{"ORDER_TOPIC_CONFIG":{"topic":"broker-a:4"}}}

The file is replaced as a whole: the old one is kept as ".bak", the new one written beside it as
".tmp", synced and renamed. A crash leaves the old file or the new one; when the file cannot be read
(an upstream name server died while writing it), ".bak" is.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from cometmq.core.errors import CometError, ProtocolError, StoreCorrupt
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.store.files import Files, PosixFiles, read_file, write_file_atomically

log = logging.getLogger(__name__)

#: Where the queues of ordered topics are kept (upstream: NamesrvUtil.java).
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class _KvFile(Struct, rename="camel"):
    """The content of kvConfig.json."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvTables:
    """Namespace to key to value, written through to ``path``."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._files: Files = files or PosixFiles()
        self._tables: dict[str, dict[str, str]] = {}
        self._writing = asyncio.Lock()
        self._changes = 0
        self._written = 0
        #: What the file last held that could be read: only that may become the backup.
        self._content: bytes | None = None

    def load(self) -> None:
        """Read the file, or its backup; nothing there means empty tables.

        Raises StoreCorrupt when neither can be read.
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
                    str(path), -1, f"{error}; repair it, or move it away to start without its keys"
                )
            else:
                self._content = data
                return
        if problem is not None:
            raise problem

    def get(self, namespace: str, key: str) -> str | None:
        """One value, None when it is not set."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace, None when it was never used."""
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and wait until it is on disk.

        Raises CometError when the file cannot be written; the value holds until a restart then.
        """
        self._tables.setdefault(namespace, {})[key] = value
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key and wait until the disk knows; errors as in :meth:`put`."""
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            await self._save()

    async def _save(self) -> None:
        self._changes += 1
        mine = self._changes
        async with self._writing:
            # Changes that came while another write was under way leave in one.
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
