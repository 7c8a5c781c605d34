"""Retention: removes log and index files that are too old or for which a full disk has no room.

Readers lose access to them at once. A thread releases their memory maps and frees their disk space,
oldest file first: for 1 GiB a file system takes 300 ms, and the call that closes the last handle
waits for it. If a crash comes before that, the next start loads the remaining files and retention
removes them again; the order of removal leaves no gap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cometmq.store.log.segments import remove_file
from cometmq.store.maintenance.retention import LogAge, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.files import Files
    from cometmq.store.log.logfile import LogFile
    from cometmq.store.maintenance.retention import Retention
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import ConsumeQueue

_QUEUES_A_SLICE: Final = 64
_PIN_STEP_MS: Final = 5


class Expiry:
    """Removes the expired files of one store.

    ``release`` is called before files are dropped. Its arguments are the offset up to which the log
    should be removed and whether a full disk forces that. It returns the offset up to which the log
    may be removed now.
    """

    __slots__ = ("_closing", "_paths", "_round", "_shorter", "_store", "release")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        #: Dropped log files, and what holds their memory maps.
        self._closing: deque[tuple[LogFile, list[object]]] = deque()
        self._paths: deque[str] = deque()
        self._shorter: list[ConsumeQueue] = []
        self.release: Callable[[int, bool], int] = lambda end, _: end
        self._round = asyncio.Lock()

    @property
    def leaving(self) -> tuple[str, ...]:
        """Paths of dropped index files that are still on the disk."""
        return tuple(self._paths)

    async def make_room(self, *, at_once: bool = False) -> None:
        """Run one round of retention; ``at_once`` ignores the hours of ``deleteWhen``.

        Raises OSError if a file cannot be removed; the rest of the round is then skipped.
        """
        async with self._round:
            await self._free()
            await self.check(at_once=at_once)
            await self._free()

    async def check(self, *, at_once: bool = False) -> None:
        """Drop expired files, and refuse or allow writes depending on the free disk space.

        The space of dropped files is freed by the next :meth:`make_room`.
        """
        store = self._store
        space = store.files.disk_space(store.config.commit_log_directory)
        now_ms = store.clock.wall_ms()
        hour = datetime.fromtimestamp(now_ms // 1000).hour
        decision = plan(self._ages(), space, now_ms, hour, store.config, at_once=at_once)
        store.disk_problem = decision.refusal
        store.update_refusal()
        if decision.drop_count:
            await self._drop(self._released(decision))

    def _released(self, decision: Retention) -> int:
        """Return how many of the files to drop may be dropped now."""
        files = self._store.log.segments.files[: decision.drop_count]
        free_to = self.release(files[-1].end, decision.is_forced)
        return sum(1 for file in files if file.end <= free_to)

    def _ages(self) -> list[LogAge]:
        """Return the ages of the droppable log files, by their modification times."""
        store = self._store
        # Queue entries may not be on the device yet: recovery makes them from these records.
        sure = min(store.log.durable, store.upkeep.synced)
        files = [file for file in store.log.segments.files if file.end <= sure]
        return [LogAge(file.base, store.files.changed_ms(file.path)) for file in files]

    async def _drop(self, count: int) -> None:
        store = self._store
        for _ in range(count):
            held = store.log.segments.files[0].take_map()
            file = store.log.segments.drop_first()
            self._closing.append((file, held))
            store.seals.forget([file.base], durable=False)
        log_start = store.log.segments.start
        self._paths += store.index.drop_before(log_start)
        for number, queue in enumerate(list(store.queues.values()), 1):
            if queue.move_min(log_start):
                self._shorter.append(queue)
            if not number % _QUEUES_A_SLICE:
                await store.clock.sleep_ms(0)

    async def _free(self) -> None:
        store = self._store
        if self._closing:
            await self._free_log()
        # Queue files go after the log files: if log files outlived them, a start would report them
        # lost.
        shorter, self._shorter = self._shorter, []
        for number, queue in enumerate(shorter, 1):
            if store.queues.get((queue.topic, queue.queue_id)) is queue:
                queue.drop_expired()
            if not number % _QUEUES_A_SLICE:
                await store.clock.sleep_ms(0)
        while self._paths:
            await asyncio.get_running_loop().run_in_executor(
                store.executor, store.files.unlink, self._paths[0]
            )
            self._paths.popleft()

    async def _free_log(self) -> None:
        store = self._store
        loop = asyncio.get_running_loop()
        while self._closing:
            file, held = self._closing[0]
            if file.is_pinned:
                # A thread reads it. The loop must not close the last handle, which would wait for
                # the disk.
                await store.clock.sleep_ms(_PIN_STEP_MS)
                continue
            await loop.run_in_executor(store.executor, _free_file, store.files, file.path, held)
            self._closing.popleft()


def _free_file(files: Files, path: str, held: list[object]) -> None:
    """Release a dropped log file's memory map and delete the file durably. Raises OSError."""
    held.clear()
    remove_file(files, path)
