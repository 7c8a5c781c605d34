"""One life of a broker's store: the process, its loop turns, its threads, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from cometmq.broker.acknowledgement import Appender, WaitingRows, WaitingSend
from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers.offsets import ConsumerOffsets
from cometmq.broker.tables import TableDirectory
from cometmq.broker.topics.table import TopicTable
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreError
from cometmq.net.eventloop import Watchdog
from cometmq.store.config import StoreConfig
from cometmq.store.log.checksums import FileSums, sums_of
from cometmq.store.maintenance.checksumming import SumsFailed
from cometmq.store.maintenance.retention import Deletion
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.opening import open_store
from cometmq.store.tools.sums import read_sums
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import MemoryFiles, ProcessEnded
from tests.simulation.faults.threads import JobAbandoned, SteppedThreads
from tests.store.stores import STORE_HOST

ROOT = "/store"
CONFIG = f"{ROOT}/config"
GROUP = "group"
_IDLE_TURNS = 3
_TURNS_LIMIT = 20_000
_IDLE_STEP_MS = 5
T = TypeVar("T")
FilesMaker = Callable[..., MemoryFiles]


class _Answers:
    """Passes answered sends on; there are no rows of plain sends here."""

    def __init__(self, answered: Callable[[list[WaitingSend], int, str | None], None]) -> None:
        self._answered = answered

    def answer(self, sends: list[WaitingSend], code: int, remark: str | None) -> None:
        self._answered(sends, code, remark)

    def answer_rows(self, rows: list[WaitingRows], code: int, remark: str | None) -> None:
        raise AssertionError(f"{len(rows)} rows code={code} remark={remark}")


@dataclass(frozen=True, slots=True)
class Machine:
    """Environment of a process. ``split`` is the share of thread jobs that stop in the middle.

    With ``seals`` full log files get checksums.
    """

    disk: Disk
    clock: VirtualClock
    loop: asyncio.AbstractEventLoop
    chance: Random
    sync_ms: int
    memory_bytes: int
    split: float
    seals: bool
    make_files: FilesMaker = MemoryFiles


class Process:
    """One process, from its open to its end. ``problems`` are failures that no caller received."""

    def __init__(self, machine: Machine, config: StoreConfig) -> None:
        self.machine = machine
        self.config = config
        self.threads = SteppedThreads(machine.chance, split=machine.split)
        self.files = machine.make_files(
            machine.disk,
            machine.clock,
            machine.chance,
            threads=self.threads,
            sync_ms=machine.sync_ms,
            memory_bytes=machine.memory_bytes,
        )
        self.problems: list[BaseException] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_open = False
        self.store: MessageStore

    # --- the loop ----------------------------------------------------------------------------

    def turn(self) -> None:
        """Run one turn of the loop."""
        loop = self.machine.loop
        loop.call_soon(loop.stop)
        loop.run_forever()

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Own a task, as :class:`cometmq.net.tasks.Tasks` does; its failure is a problem."""
        task = self.machine.loop.create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(
        self, make: Callable[[], Coroutine[Any, Any, None]], *, name: str, clock: object
    ) -> None:
        """Start a task that never ends."""
        self.spawn(make(), name=name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.note(error)

    def note(self, error: BaseException) -> None:
        """Record an error that no caller received, unless the end of the process caused it."""
        if not isinstance(error, ProcessEnded | JobAbandoned) and not self.files.ended:
            self.problems.append(error)

    def complete(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, while threads work and time passes.

        Raise its error, or ProcessEnded if the process ended before.
        """
        task = self.machine.loop.create_task(coro)
        idle = 0
        for _ in range(_TURNS_LIMIT):
            self.turn()
            if self.problems:
                raise self.problems[0]
            if task.done() and not (task.cancelled() and self.files.ended):
                return task.result()
            if self.files.ended:
                task.cancel()
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                raise ProcessEnded("while it waited")
            idle = 0 if self.threads.step() else idle + 1
            if idle >= _IDLE_TURNS:
                self.machine.clock.advance(_IDLE_STEP_MS)
                idle = 0
        raise AssertionError(f"{task} never ends")

    # --- beginning and end -------------------------------------------------------------------

    def open(self, answered: Callable[[list[WaitingSend], int, str | None], None]) -> None:
        """Recover the store and serve. Raise OSError, StoreError or ProcessEnded."""
        loop, clock = self.machine.loop, self.machine.clock
        loop.set_default_executor(self.threads.executor(4))
        loop.set_exception_handler(lambda _, context: self._failed(context))
        self.store = open_store(self.config, clock, self.files)
        self.is_open = True
        self.store.store_host = STORE_HOST
        self.complete(self._serve(answered))

    async def _serve(self, answered: Callable[[list[WaitingSend], int, str | None], None]) -> None:
        clock = self.machine.clock
        tasks: Any = self
        directory = TableDirectory(CONFIG, clock, tasks, self.files)
        self.appender = Appender(
            self.store,
            clock=clock,
            store_host=STORE_HOST,
            watchdog=Watchdog(clock),
            answers=_Answers(answered),
        )
        self.topics = TopicTable(directory, BrokerConfig())
        self.offsets = ConsumerOffsets(directory, BrokerConfig())
        self.topics.load()
        self.offsets.load()

    def agree(self) -> None:
        """Make the tables and the store agree, as broker/app.py does."""
        self.topics.adopt(self.store)
        self.offsets.delete_topics(self.topics.deleted())
        self.offsets.clamp(self.store)

    async def serve(self) -> None:
        """Begin the background work."""
        clock = self.machine.clock
        try:
            await self.topics.saved()
        except StoreError:
            if self.topics.must_be_saved:
                raise
        with suppress(StoreError):
            await self.offsets.saved()
        self.store.maintenance.read_sums = self._read_sums
        self.store.maintenance.scrub.read = self._read_block_sums
        await self.store.start(self)
        self.keep(self.appender.expire_forever, name="expire waiting sends", clock=clock)
        self.keep(self.offsets.persist_forever, name="persist consumer offsets", clock=clock)

    async def delete_topic(self, topic: str) -> Deletion:
        """Delete a topic, up to the step that makes this durable (broker/admin/topics.py)."""
        made: list[Deletion] = []
        await self.appender.between_turns(lambda: made.append(self._forget(topic)))
        return made[0]

    def _forget(self, topic: str) -> Deletion:
        store = self.store
        deletion = store.deletions.delete(topic)
        self.topics.delete(topic)
        if deletion.pending:
            log_start = store.log.segments.start
            self.topics.remember_deletion(topic, end=deletion.end, log_start=log_start)
        self.offsets.delete_topic(topic)
        return deletion

    async def settle(self, deletion: Deletion) -> None:
        """Make a deletion durable, and remove the files."""
        await self.topics.saved()
        await self.offsets.saved()
        await self.store.deletions.settle(deletion)

    async def _read_sums(
        self, path: str, base: int, size_bytes: int, moment_ms: int, delay_levels: str
    ) -> FileSums:
        # In place of a child process, which could not see these files.
        if not self.machine.seals:
            raise SumsFailed
        return read_sums(self.files, path, base, size_bytes, moment_ms, delay_levels)

    async def _read_block_sums(self, path: str, size_bytes: int, bytes_per_s: int) -> bytes:
        handle = self.files.open(path)
        try:
            return sums_of(self.files.pread(handle, size_bytes, 0))
        finally:
            self.files.close(handle)

    def _failed(self, context: dict[str, Any]) -> None:
        if "never retrieved" in context["message"]:
            return  # a cancelled wait, reported when the garbage is collected
        error = context.get("exception")
        self.note(error if error is not None else AssertionError(str(context)))

    async def _stop(self) -> None:
        # In the order of broker/app.py.
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        try:
            self.appender.close()
            await self.offsets.close()
            await self.topics.close()
        finally:
            self.store.close()

    def stop(self) -> None:
        """Stop cleanly. Raise OSError or StoreError if that fails."""
        try:
            self.complete(self._stop())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the process: drop everything that still runs in it."""
        self.files.end()
        self.threads.abandon()
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_TURNS_LIMIT):
            if not self._tasks:
                return
            self.turn()
        raise AssertionError(f"tasks that cannot be cancelled: {self._tasks}")
