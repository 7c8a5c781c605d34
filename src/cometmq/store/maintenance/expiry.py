"""Making room: log and index files that are too old, or too many for the disk, go.

They are gone for readers at once. Their room is given back by a thread, oldest first, because a
file system takes 300 ms to free 1 GiB, and who holds the last handle waits for it. A crash before
that brings files back that go again; no gap can come of it.
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

    from cometmq.store.log.logfile import LogFile
    from cometmq.store.maintenance.retention import Retention
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import ConsumeQueue

_QUEUES_A_SLICE: Final = 64
_PIN_STEP_MS: Final = 5


class Expiry:
    """Keeps one store within its disk.

    ``release`` is asked before files are dropped: it gets the offset up to which the log is to go,
    and whether a full disk forces that, and gives the one up to which it may go now.
    """

    __slots__ = ("_closing", "_paths", "_round", "_shorter", "_store", "release")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._closing: deque[LogFile] = deque()
        self._paths: deque[str] = deque()
        self._shorter: list[ConsumeQueue] = []
        self.release: Callable[[int, bool], int] = lambda end, _: end
        self._round = asyncio.Lock()

    @property
    def leaving(self) -> tuple[str, ...]:
        """Index files that are still on the disk, like the log files that they are of."""
        return tuple(self._paths)

    async def make_room(self, *, at_once: bool = False) -> None:
        """One round; ``at_once`` drops what is too old whatever the hour is.

        Raises OSError when files cannot be removed: then no more of them go.
        """
        async with self._round:
            await self._free()
            await self.check(at_once=at_once)
            await self._free()

    async def check(self, *, at_once: bool = False) -> None:
        """Drop what has to go, and refuse or allow writes by the room that is left; the room of
        what was dropped is there after the next :meth:`make_room`."""
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
        """How many of the files that have to go may go."""
        files = self._store.log.segments.files[: decision.drop_count]
        free_to = self.release(files[-1].end, decision.is_forced)
        return sum(1 for file in files if file.end <= free_to)

    def _ages(self) -> list[LogAge]:
        """Ages of the log files before the one being written, by the file's change time."""
        store = self._store
        # Without its records no start could make again what queues lose in a power cut.
        sure = min(store.log.durable, store.upkeep.synced)
        files = [file for file in store.log.segments.files if file.end <= sure]
        return [LogAge(file.base, store.files.changed_ms(file.path)) for file in files]

    async def _drop(self, count: int) -> None:
        store = self._store
        for _ in range(count):
            file = store.log.segments.drop_first()
            self._closing.append(file)
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
        # Last: with the log files there and these gone, a start would take them for lost.
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
            file = self._closing[0]
            if file.is_pinned:
                # A thread reads it; its handle, closed by the loop, must not be the last hold.
                await store.clock.sleep_ms(_PIN_STEP_MS)
                continue
            await loop.run_in_executor(store.executor, remove_file, store.files, file.path)
            self._closing.popleft()
