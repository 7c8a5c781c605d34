"""The broker's tables as files of its ``config`` directory (upstream: ConfigManager.java).

    X.json        the table, in the text that fastjson prints: tabs, no blank after a colon,
                  integer keys without quotes ({0:12,1:3})
    X.json.bak    the state before
    X.json.tmp    a draft; a crash may leave it behind, and nothing reads it

A write goes draft, sync, old to .bak, draft to its name, sync of the directory. So one of the two
names always holds a whole table; if neither can be read the broker does not start, for an empty
table would silently take all topics or offsets away.

Changes of 100 ms share one write. Whoever waits for one has it written at once, or behind the write
that is under way, together with all that came meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import BadRequest, StoreCorrupt, StoreError, StoreFull
from cometmq.core.slices import join_in_slices
from cometmq.protocol.fastjson import parse_json
from cometmq.store.files import Files, PosixFiles, make_durable_directory, read_file

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

#: Changes of this long share one write, unless somebody waits for them.
WINDOW_MS: Final = 100


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

    def read(self, *, required_key: str) -> dict[str, Any] | None:
        """The table as it was written last; None when there is none.

        ``required_key`` must stand in it. Falls back to the .bak file. Raises StoreCorrupt when
        there are files and none can be read.
        """
        problems: list[str] = []
        for path in (self.path, self.path + ".bak"):
            data = read_file(self._files, path)
            if data is None:
                continue
            try:
                value = parse_json(data)
            except BadRequest as error:
                problems.append(f"{os.path.basename(path)}: {error}")
                continue
            if isinstance(value, dict) and required_key in value:
                if problems or path != self.path:
                    log.warning("table read from backup path=%s problems=%s", path, problems)
                return value
            problems.append(f"{os.path.basename(path)}: it has no {required_key!r}")
        if problems:
            raise StoreCorrupt(
                self.path,
                -1,
                f"{'; '.join(problems)}. Restore the file, or move it and its .bak away to start "
                "with an empty table",
            )
        return None

    @property
    def unsaved(self) -> bool:
        """Whether something is still to be written: a change, or a write that failed."""
        return self._dirty

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
                    raise self._failure

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
                    waiter.set_exception(failure)
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
        """Write what is not written yet."""
        if self._dirty or self._waiters:
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


def _explain(path: str, error: OSError) -> StoreError:
    text = f"{path} was not written: {error.strerror or error}"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return StoreFull(f"{text}; free some room, then repeat the change")
    return StoreError(text)
