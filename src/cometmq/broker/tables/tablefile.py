"""The broker's tables as files of its ``config`` directory (upstream: ConfigManager.java).

    X.json        the table, in the text that fastjson prints: tabs, no blank after a colon,
                  integer keys without quotes ({0:12,1:3})
    X.json.bak    the state before the last write
    X.json.tmp    a draft; a crash may leave one, and nothing reads it

A write has five steps: write the draft, sync it, rename the old file to .bak, rename the draft,
sync the directory. So X.json or X.json.bak always holds a whole table. If neither can be read, the
broker refuses to start, because an empty table would silently lose all topics or offsets. If there
is no file although the store has messages, the log reports it.

Changes within 100 ms share one write. A caller that waits gets its write at once, or directly after
the write that is under way, together with all changes made meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.core.errors import BadRequest, StoreCorrupt, StoreError, StoreFull, fresh_copy
from cometmq.core.slices import join_in_slices
from cometmq.protocol.fastjson import parse_json
from cometmq.store.files import Files, PosixFiles, make_durable_directory, read_file
from cometmq.store.recovery.quarantine import SetAside

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Changes within this time share one write, unless a caller waits for them.
WINDOW_MS: Final = 100

#: Effect of each missing table on a store with messages.
WITHOUT: Final = {
    "topics.json": "topics are restored from their queues, with permission to read and write",
    "subscriptionGroup.json": "groups get the default settings",
    "consumerOffset.json": (
        "each group starts at the position that its consumers choose for new groups"
    ),
    "delayOffset.json": "delayed messages that are still in the log are delivered again",
}


def warn_of_missing(files: Files, directory: str) -> None:
    """Log which tables are missing on a store with messages, and the effect of that."""
    for name, effect in WITHOUT.items():
        path = os.path.join(directory, name)
        if not (files.exists(path) or files.exists(path + ".bak")):
            log.warning("table_missing path=%s effect=%r", path, effect)


class TableFile:
    """Owns the file of one table. ``encode`` returns the text in pieces; each write calls it
    first."""

    def __init__(
        self,
        path: str,
        encode: Callable[[], Iterator[bytes]],
        *,
        clock: Clock,
        tasks: Tasks,
        files: Files | None = None,
    ) -> None:
        self.path = path
        self._encode = encode
        self._clock = clock
        self._tasks = tasks
        self._files: Files = files if files is not None else PosixFiles()
        self._dirty = False
        self._placed = False
        self._writing = asyncio.Lock()
        self._scheduled = False
        self._hurried = False
        self._failure: StoreError | None = None
        self._thread: asyncio.Future[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._last_write_ms = clock.monotonic_ms() - WINDOW_MS

    def read(self, take: Callable[[dict[str, Any]], T], *, required_key: str) -> T | None:
        """Return the table that ``take`` builds from the parsed file, or None if there is no file.

        The file must have the key ``required_key``. ``take`` raises ValueError or TypeError for
        impossible values. If the file cannot be read, the .bak file is read instead and the bad
        file is set aside, so that no later write renames it to .bak. Raise StoreCorrupt if files
        exist and none can be read.
        """
        problems: list[str] = []
        for path in (self.path, self.path + ".bak"):
            try:
                data = read_file(self._files, path)
                if data is None:
                    continue
                found = _parsed(data, required_key)
                value = take(found)
            except (BadRequest, ValueError, TypeError, OSError) as error:
                problems.append(f"{os.path.basename(path)}: {error}")
                continue
            if path != self.path:
                log.warning("table_read_from_backup path=%s problems=%s", path, problems)
                self._set_aside(problems)
            return value
        if problems:
            raise StoreCorrupt(
                self.path,
                -1,
                "; ".join(problems),
                ways_out=(
                    "restore the file from a copy",
                    f"move {self.path} and its .bak file away to start with an empty table",
                ),
            )
        return None

    def _set_aside(self, problems: list[str]) -> None:
        if problems:
            directory, name = os.path.split(self.path)
            aside = SetAside(self._files, os.path.dirname(directory), self._clock)
            aside.move(self.path, f"config-{name}", "; ".join(problems))

    @property
    def is_missing(self) -> bool:
        """True if neither the file nor its backup exists."""
        return not any(self._files.exists(path) for path in (self.path, self.path + ".bak"))

    @property
    def unsaved(self) -> bool:
        """True if a change is still to be written, or the last write failed."""
        return self._dirty

    @property
    def is_saved(self) -> bool:
        """True if every change made so far is on the device."""
        return not self._dirty and not self._writing.locked()

    def touch(self) -> None:
        """Note that the table changed, and schedule a write within the window."""
        self._dirty = True
        if not self._scheduled:
            self._scheduled = True
            self._tasks.spawn(self._write_in_window(), name=f"write {os.path.basename(self.path)}")

    async def saved(self) -> None:
        """Wait until all changes made so far are on the device.

        Raise StoreError if they could not be written.
        """
        if not self._dirty and not self._writing.locked():
            return
        if self._dirty:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(done)
            if not self._hurried:
                self._hurried = True
                self._tasks.spawn(self._write_soon(), name=f"write {os.path.basename(self.path)}")
            await done
        else:
            async with self._writing:  # the write under way includes the change
                if self._failure is not None:
                    raise fresh_copy(self._failure)

    async def write(self) -> None:
        """Write the table at once. Raise StoreError if that fails."""
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        # Taken before the text is encoded: a change made during the write needs another one.
        waiters, self._waiters = self._waiters, []
        self._dirty = False
        try:
            await self._write_in_thread(await join_in_slices(self._encode(), self._clock))
        except OSError as error:
            self._dirty = True
            failure = self._failure = _explain(self.path, error)
            log.error("table not written path=%s error=%s", self.path, error)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(fresh_copy(failure))
            raise failure from error
        except BaseException:
            self._dirty = True
            for waiter in waiters:
                waiter.cancel()
            raise
        self._last_write_ms = self._clock.monotonic_ms()
        self._failure = None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _write_in_thread(self, data: bytes) -> None:
        if self._thread is not None and not self._thread.done():
            # The task that began it was cancelled, which does not stop its thread. Two threads
            # would share the draft.
            await asyncio.wait([self._thread])
        loop = asyncio.get_running_loop()
        self._thread = loop.run_in_executor(None, self._replace, data)
        await asyncio.shield(self._thread)

    async def close(self) -> None:
        """Write pending changes, and create the file if there is none, so that a later start can
        detect that it was removed."""
        if self._dirty or self._waiters or self.is_missing:
            await self.write()

    async def _write_in_window(self) -> None:
        while True:
            wait_ms = self._last_write_ms + WINDOW_MS - self._clock.monotonic_ms()
            await self._clock.sleep_ms(max(wait_ms, 0))
            async with self._writing:
                if self._last_write_ms + WINDOW_MS > self._clock.monotonic_ms() and self._dirty:
                    continue  # a waiting caller had it written meanwhile, and more changed
                self._scheduled = False
                if self._dirty:
                    await self._try_to_write()
                return

    async def _write_soon(self) -> None:
        async with self._writing:
            self._hurried = False
            if self._waiters:
                await self._try_to_write()

    async def _try_to_write(self) -> None:
        try:
            await self._write()
        except StoreError:
            return  # logged and passed to the waiters; the next change tries again

    def _replace(self, data: bytes) -> None:
        files = self._files
        directory = os.path.dirname(self.path)
        draft = self.path + ".tmp"
        if not self._placed:
            make_durable_directory(files, directory)
            self._placed = True
        handle = files.open(draft, create=True)
        try:
            files.resize(handle, 0)
            files.pwrite(handle, data, 0)
            files.datasync(handle)
        finally:
            files.close(handle)
        if files.exists(self.path):
            files.rename(self.path, self.path + ".bak")
        files.rename(draft, self.path)
        files.sync_directory(directory)


def _parsed(data: bytes, required_key: str) -> dict[str, Any]:
    """Return a table file's content. Raise BadRequest or ValueError if it is malformed."""
    value = parse_json(data)
    if not isinstance(value, dict) or required_key not in value:
        raise ValueError(f"it has no {required_key!r}")
    return value


def _explain(path: str, error: OSError) -> StoreError:
    text = f"cannot write {path}: {error.strerror or error}"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return StoreFull(f"{text}; free some disk space, then repeat the change")
    return StoreError(text)
