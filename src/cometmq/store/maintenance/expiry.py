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
    from cometmq.store.parts import StoreParts
    from cometmq.store.queue.consumequeue import ConsumeQueue

_QUEUES_A_SLICE: Final = 64
_PIN_STEP_MS: Final = 5


class Expiry:
    """Removes the expired files of one store.

    ``synced`` returns the log offset below which all queue and index entries are on the device.
    """

    __slots__ = ("_closing", "_parts", "_paths", "_release", "_round", "_shorter", "_synced")

    def __init__(self, parts: StoreParts, synced: Callable[[], int]) -> None:
        self._parts = parts
        self._synced = synced
        #: Dropped log files, and what holds their memory maps.
        self._closing: deque[tuple[LogFile, list[object]]] = deque()
        self._paths: deque[str] = deque()
        self._shorter: list[ConsumeQueue] = []
        self._release: Callable[[int, bool], int] = lambda end, _: end
        self._round = asyncio.Lock()

    def release_with(self, release: Callable[[int, bool], int]) -> None:
        """Call ``release`` before files are dropped.

        Its arguments are the offset up to which the log should be removed and whether a full disk
        forces that. It returns the offset up to which the log may be removed now.
        """
        self._release = release

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
        parts = self._parts
        space = parts.files.disk_space(parts.config.commit_log_directory)
        now_ms = parts.clock.wall_ms()
        hour = datetime.fromtimestamp(now_ms // 1000).hour
        decision = plan(self._ages(), space, now_ms, hour, parts.config, at_once=at_once)
        parts.state.disk_problem = decision.refusal
        parts.state.update()
        if decision.drop_count:
            await self._drop(self._released(decision))

    def _released(self, decision: Retention) -> int:
        """Return how many of the files to drop may be dropped now."""
        files = self._parts.log.segments.files[: decision.drop_count]
        free_to = self._release(files[-1].end, decision.is_forced)
        return sum(1 for file in files if file.end <= free_to)

    def _ages(self) -> list[LogAge]:
        """Return the ages of the droppable log files, by their modification times."""
        parts = self._parts
        # Queue entries may not be on the device yet: recovery makes them from these records.
        sure = min(parts.log.durable, self._synced())
        files = [file for file in parts.log.segments.files if file.end <= sure]
        return [LogAge(file.base, parts.files.changed_ms(file.path)) for file in files]

    async def _drop(self, count: int) -> None:
        parts = self._parts
        for _ in range(count):
            held = parts.log.segments.files[0].take_map()
            file = parts.log.segments.drop_first()
            self._closing.append((file, held))
            parts.seals.forget([file.base], durable=False)
        log_start = parts.log.segments.start
        self._paths += parts.index.drop_before(log_start)
        for number, queue in enumerate(list(parts.queues.values()), 1):
            if queue.move_min(log_start):
                self._shorter.append(queue)
            if not number % _QUEUES_A_SLICE:
                await parts.clock.sleep_ms(0)

    async def _free(self) -> None:
        parts = self._parts
        if self._closing:
            await self._free_log()
        # Queue files go after the log files: if log files outlived them, a start would report them
        # lost.
        shorter, self._shorter = self._shorter, []
        for number, queue in enumerate(shorter, 1):
            if parts.queues.get((queue.topic, queue.queue_id)) is queue:
                queue.drop_expired()
            if not number % _QUEUES_A_SLICE:
                await parts.clock.sleep_ms(0)
        while self._paths:
            await asyncio.get_running_loop().run_in_executor(
                parts.executor, parts.files.unlink, self._paths[0]
            )
            self._paths.popleft()

    async def _free_log(self) -> None:
        parts = self._parts
        loop = asyncio.get_running_loop()
        while self._closing:
            file, held = self._closing[0]
            if file.is_pinned:
                # A thread reads it. The loop must not close the last handle, which would wait for
                # the disk.
                await parts.clock.sleep_ms(_PIN_STEP_MS)
                continue
            await loop.run_in_executor(parts.executor, _free_file, parts.files, file.path, held)
            self._closing.popleft()


def _free_file(files: Files, path: str, held: list[object]) -> None:
    """Release a dropped log file's memory map and delete the file durably. Raises OSError."""
    held.clear()
    remove_file(files, path)
