"""The broker's tables as files of its ``config`` directory (upstream: ConfigManager.java).

    X.json        the table, in the text that fastjson prints: tabs, no blank after a colon,
                  integer keys without quotes ({0:12,1:3})
    X.json.bak    the state before
    X.json.tmp    a draft; a crash may leave it behind, and nothing reads it

A write goes draft, sync, old to .bak, draft to its name, sync of the directory. So one of the two
names always holds a whole table; if neither can be read the broker does not start, for an empty
table would silently take all topics or offsets away. That there is no file on a store with messages
is said in the log.

Changes of 100 ms share one write. Whoever waits for one has it written at once, or behind the write
that is under way, together with all that came meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.core.errors import BadRequest, StoreCorrupt, StoreError, StoreFull, anew
from cometmq.core.slices import join_in_slices
from cometmq.protocol.fastjson import parse_json
from cometmq.store.files import Files, PosixFiles, make_durable_directory, read_file
from cometmq.store.recovery.quarantine import SetAside

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Changes of this long share one write, unless somebody waits for them.
WINDOW_MS: Final = 100

#: What a start does on a store with messages when there is no such table.
WITHOUT: Final = {
    "topics.json": "topics are found again by their queues, with permission to read and write",
    "subscriptionGroup.json": "groups begin with the settings of new ones",
    "consumerOffset.json": "each group begins where its own policy for new groups says",
    "delayOffset.json": "delayed messages that the log still has are delivered again",
}


def warn_of_missing(files: Files, directory: str) -> None:
    """Say which tables of a store with messages are not there, and what that means."""
    for name, effect in WITHOUT.items():
        path = os.path.join(directory, name)
        if not (files.exists(path) or files.exists(path + ".bak")):
            log.warning("table_missing path=%s effect=%r", path, effect)


class TableFile:
    """One table's file. ``encode`` gives the text in pieces; it is asked when a write begins."""

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
        """The table as it was written last, as ``take`` makes it of the file; None when there is
        none.

        ``required_key`` must stand in it; ``take`` raises ValueError or TypeError for values that
        cannot be. A file that cannot be read gives way to the .bak file, and is set aside, so that
        it never takes that one's place. Raises StoreCorrupt when there are files and none can be
        read.
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
                    "put the file back from a copy",
                    f"move {self.path} and its .bak away to start with an empty table",
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
        """Whether there is neither the file nor its backup."""
        return not any(self._files.exists(path) for path in (self.path, self.path + ".bak"))

    @property
    def unsaved(self) -> bool:
        """Whether something is still to be written: a change, or a write that failed."""
        return self._dirty

    @property
    def is_saved(self) -> bool:
        """Whether every change made so far is on the device."""
        return not self._dirty and not self._writing.locked()

    def touch(self) -> None:
        """The table changed: write it within the window."""
        self._dirty = True
        if not self._scheduled:
            self._scheduled = True
            self._tasks.spawn(self._write_in_window(), name=f"write {os.path.basename(self.path)}")

    async def saved(self) -> None:
        """Wait until all changes made so far are on the device.

        Raises StoreError when they could not be written.
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
            async with self._writing:  # the write that is under way has the change
                if self._failure is not None:
                    raise anew(self._failure)

    async def write(self) -> None:
        """Write the table now. Raises StoreError."""
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
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
                    waiter.set_exception(anew(failure))
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
            # Whoever began it was cancelled, which stops no thread; two would share the draft.
            await asyncio.wait([self._thread])
        loop = asyncio.get_running_loop()
        self._thread = loop.run_in_executor(None, self._replace, data)
        await asyncio.shield(self._thread)

    async def close(self) -> None:
        """Write what is not written yet, and the file if there is none: a later start that misses
        it can tell that it was taken away."""
        if self._dirty or self._waiters or self.is_missing:
            await self.write()

    async def _write_in_window(self) -> None:
        while True:
            wait_ms = self._last_write_ms + WINDOW_MS - self._clock.monotonic_ms()
            await self._clock.sleep_ms(max(wait_ms, 0))
            async with self._writing:
                if self._last_write_ms + WINDOW_MS > self._clock.monotonic_ms() and self._dirty:
                    continue  # somebody who waited had it written meanwhile, and more changed
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
            return  # logged, and told to whoever waited; the next change tries again

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
    """A table file's content. Raises BadRequest, ValueError."""
    value = parse_json(data)
    if not isinstance(value, dict) or required_key not in value:
        raise ValueError(f"it has no {required_key!r}")
    return value


def _explain(path: str, error: OSError) -> StoreError:
    text = f"{path} was not written: {error.strerror or error}"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return StoreFull(f"{text}; free some room, then repeat the change")
    return StoreError(text)
