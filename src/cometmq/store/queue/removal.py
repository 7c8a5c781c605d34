"""Queues that are gone: their files move aside in one step and leave the disk by and by.

    consumequeue/.deleted/pending-<n>   whoever wanted them gone has not made that durable yet
    consumequeue/.deleted/gone-<n>      nobody will ask for them again

No topic can have that name, and a Java broker passes it by. A start that finds something pending
knows that queues are missing which should perhaps be there: it dispatches all of the log again.
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
    """What was moved aside under ``directory``, that of all queues."""

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
        """Whether something is pending."""
        return any(name.startswith(_PENDING) for name in self._files.names(self.directory))

    def set_aside(self, topic_path: str) -> str:
        """Move the folder of a topic aside, as pending; gives where it is. There need not be one.

        Raises OSError; then it is where it was.
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
        """Move folders of queues to what is gone. Raises OSError."""
        gone = os.path.join(self.directory, f"{_GONE}{next(self._numbers)}")
        self._files.make_directory(gone)
        for path in queue_paths:
            self._files.rename(path, os.path.join(gone, os.path.basename(path)))
        self._something.set()

    def settle(self, aside: str) -> None:
        """What is pending will not be wanted again. Raises OSError."""
        name = os.path.basename(aside).replace(_PENDING, _GONE)
        self._files.rename(aside, os.path.join(self.directory, name))
        self._something.set()

    def settle_all(self) -> None:
        """The same for all that is pending. Raises OSError."""
        for name in self._files.names(self.directory):
            if name.startswith(_PENDING):
                self.settle(os.path.join(self.directory, name))

    async def run(self, executor: Executor) -> None:
        """Take what is gone from the disk, also what a former run left, until cancelled."""
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
                # A file a call: none of them lasts, and each lets the loop go on.
                for below in await in_thread(files.names, gone):
                    folder = os.path.join(gone, below)
                    for file in await in_thread(files.names, folder):
                        await in_thread(files.unlink, os.path.join(folder, file))
                await in_thread(files.remove_tree, gone)
