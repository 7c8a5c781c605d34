"""Key-value tables by namespace, kept in kvConfig.json (upstream: KVConfigManager.java).

    {"configTable":{"ORDER_TOPIC_CONFIG":{"topic":"broker-a:4"}}}

The file is replaced as a whole: written beside it as ".tmp" and synced, the old one kept as ".bak",
then renamed. A crash leaves the old file or the new one; a file that cannot be read (an upstream
name server died while writing it) is read from ".bak".
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from msgspec import Struct, field

from cometmq.core.errors import CometError, ProtocolError, StoreCorrupt
from cometmq.protocol.fastjson import encode_json, parse_json

log = logging.getLogger(__name__)


def replace_file(path: Path, data: bytes) -> None:
    """PLACEHOLDER until store/files.py lands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".tmp").write_bytes(data)
    path.with_name(path.name + ".tmp").replace(path)


class _KvFile(Struct, rename="camel"):
    """The content of kvConfig.json."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvTables:
    """Namespace to key to value, written through to ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: dict[str, dict[str, str]] = {}
        self._writing = asyncio.Lock()
        self._changes = 0
        self._written = 0

    def load(self) -> None:
        """Read the file, or its backup; nothing there means empty tables.

        Raises StoreCorrupt when neither can be read.
        """
        backup = self._path.with_name(self._path.name + ".bak")
        problem = None
        for path in (self._path, backup):
            try:
                self._tables = parse_json(path.read_bytes(), _KvFile).config_table
            except FileNotFoundError:
                continue
            except ProtocolError as error:
                log.warning("kv file unreadable path=%s reason=%s", path, error)
                problem = problem or StoreCorrupt(
                    str(path), -1, f"{error}; repair it, or move it away to start without its keys"
                )
            else:
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
                await asyncio.to_thread(replace_file, self._path, data)
            except OSError as error:
                raise CometError(
                    f"{self._path} cannot be written ({error.strerror or error}): the change holds "
                    "until this name server stops; free space or fix its permissions, then repeat"
                ) from error
            self._written = covers
