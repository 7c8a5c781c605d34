"""Removal of queues: their files are moved aside in one step and deleted from the disk later.

    consumequeue/.deleted/pending-<n>   the removal is not durably recorded yet
    consumequeue/.deleted/gone-<n>      may be deleted from the disk

No topic can have this name, and Java brokers ignore it. A start that finds pending files does not
know whether their queues should exist, so it dispatches the whole log again.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from cometmq.store.files import Files

logger = logging.getLogger(__name__)

FOLDER: Final = ".deleted"
_PENDING: Final = "pending-"
_GONE: Final = "gone-"


class Removals:
    """The files that were moved aside; ``directory`` is the directory of all queues."""

    __slots__ = ("_files", "_numbers", "_something", "directory")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.directory = os.path.join(directory, FOLDER)
        taken = [name.rpartition("-")[2] for name in files.names(self.directory)]
        self._numbers = count(max((int(text) for text in taken if text.isdecimal()), default=0) + 1)
        self._something = asyncio.Event()
        self._something.set()

    @property
    def unfinished(self) -> bool:
        """True if files are pending."""
        return any(name.startswith(_PENDING) for name in self._files.names(self.directory))

    def set_aside(self, topic_path: str) -> str:
        """Move the directory of a topic aside, as pending, and return its new path.

        The directory need not exist. Raises OSError; then it stays in its place.
        """
        files = self._files
        if not files.exists(self.directory):
            files.make_directory(self.directory)
        aside = os.path.join(self.directory, f"{_PENDING}{next(self._numbers)}")
        if files.exists(topic_path):
            files.rename(topic_path, aside)
        else:
            files.make_directory(aside)
        return aside

    def discard(self, queue_paths: Iterable[str]) -> None:
        """Move directories of queues aside, for deletion. Raises OSError."""
        gone = os.path.join(self.directory, f"{_GONE}{next(self._numbers)}")
        self._files.make_directory(gone)
        for path in queue_paths:
            self._files.rename(path, os.path.join(gone, os.path.basename(path)))
        self._something.set()

    def settle(self, aside: str) -> None:
        """Release pending files for deletion. Raises OSError."""
        name = os.path.basename(aside).replace(_PENDING, _GONE)
        self._files.rename(aside, os.path.join(self.directory, name))
        self._something.set()

    def settle_all(self) -> None:
        """Release all pending files for deletion. Raises OSError."""
        for name in self._files.names(self.directory):
            if name.startswith(_PENDING):
                self.settle(os.path.join(self.directory, name))

    async def run(self, executor: Executor) -> None:
        """Delete what may be deleted, also leftovers of earlier runs, until cancelled."""
        while True:
            await self._something.wait()
            self._something.clear()
            try:
                await self._remove_gone(executor)
            except OSError as error:
                logger.error("deleted_queues_not_removed path=%s error=%r", self.directory, error)

    async def _remove_gone(self, executor: Executor) -> None:
        async def in_thread(call: Callable[..., Any], *values: object) -> Any:
            return await asyncio.get_running_loop().run_in_executor(executor, call, *values)

        files = self._files
        for name in await in_thread(files.names, self.directory):
            if name.startswith(_GONE):
                gone = os.path.join(self.directory, name)
                # One file per call: each call is short, and other work of the executor can run in
                # between.
                for below in await in_thread(files.names, gone):
                    folder = os.path.join(gone, below)
                    for file in await in_thread(files.names, folder):
                        await in_thread(files.unlink, os.path.join(folder, file))
                await in_thread(files.remove_tree, gone)
