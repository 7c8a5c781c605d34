"""Background work of a store: flushes, creation of the next log file, retention, and the stop.

Each round writes buffered entries and then records how much of the files is valid (checkpoint.py).
Nothing blocks the loop: threads sync and create files, and long rounds yield to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from cometmq.store.checkpoint import (
    Checkpoint,
    Positions,
    abort_path,
    read_checkpoint,
    write_checkpoint,
    write_positions,
)
from cometmq.store.config import FlushDiskType
from cometmq.store.log.directories import NO_ROOM
from cometmq.store.maintenance.checksumming import Reader, Scrub, Sealer, sums_by_child
from cometmq.store.maintenance.retention import Expiry
from cometmq.store.queue.table import CHECKED_QUEUES

if TYPE_CHECKING:
    from cometmq.store.files import Files
    from cometmq.store.index import IndexFile
    from cometmq.store.parts import StoreParts
    from cometmq.store.queue.consumequeue import Mark
    from cometmq.store.read.coldreads import Spawner
    from cometmq.store.transientpool import TransientPool

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4096
_DISK_INTERVAL_MS = 10_000
_SEAL_INTERVAL_MS = 5_000
_SCRUB_INTERVAL_MS = 60_000
#: A slice takes up to 6 ms, if each of its queues needs a new file.
_QUEUES_A_SLICE = 16
_QUEUES_A_ROUND = 1_024
_ROUNDS_TO_WAIT = 60
_LOG_SYNC_LIMIT_MS = 5_000
_LOG_SYNC_STEP_MS = 5


class MaintenanceTasks:
    """The background work of one store.

    All queue and index entries for records before the log offset ``synced`` are on the device.
    ``shrunk`` makes the next start bring consumer offsets into the bounds of their queues.
    ``read_sums`` reads full log files to be sealed. A round writes at least ``queues_a_round``
    queues, unless fewer are dirty.
    """

    __slots__ = (
        "_ahead_failed",
        "_checkpoint",
        "_last_note",
        "_log_synced_ms",
        "_number",
        "_parts",
        "_previous",
        "_thorough_ms",
        "_transient",
        "_unsure",
        "_waits_for_sync",
        "expiry",
        "queues_a_round",
        "read_sums",
        "scrub",
        "shrunk",
        "synced",
    )

    def __init__(self, parts: StoreParts, transient: TransientPool | None) -> None:
        self._parts = parts
        self._transient = transient
        self.expiry = Expiry(parts, lambda: self.synced)
        self.read_sums: Reader = sums_by_child
        self.scrub = Scrub(parts)
        self._checkpoint = read_checkpoint(parts.files, parts.config.store_path_root_dir)
        self._previous = self._checkpoint
        self._last_note = (-1, -1)
        self._number = 0
        self._ahead_failed = False
        self._unsure = False
        self._waits_for_sync = parts.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.queues_a_round = _QUEUES_A_ROUND
        self.synced = parts.log.segments.start
        self.shrunk = False
        self._thorough_ms = self._log_synced_ms = parts.clock.monotonic_ms()

    def mark_running(self) -> None:
        """Create the abort file. A start that finds it knows that this run did not stop cleanly.

        If there is no room for it, the store serves reads and refuses writes until there is room:
        the positions of the last clean stop stay valid only while nothing changes. Raises any other
        OSError.
        """
        files, root = self._parts.files, self._parts.config.store_path_root_dir
        try:
            files.close(files.open(abort_path(root), create=True))
            files.sync_directory(root)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if self._parts.state.mark_problem is None:
                logger.warning(
                    "abort_file_not_created path=%s error=%r", abort_path(root), str(error)
                )
            self._parts.state.mark_problem = error
        else:
            self._parts.state.mark_problem = None

    def resume(self, synced: int, number: int) -> None:
        """Set the log offset below which queue and index files are on the device.

        ``number`` is the number of the last saved positions.
        """
        self.synced = synced
        self._number = number

    def start(self, tasks: Spawner) -> None:
        """Start the periodic rounds as tasks."""
        config = self._parts.config
        self._parts.backlog.start(asyncio.get_running_loop().call_soon)
        seal_full_files = Sealer(self._parts, self.read_sums).seal_full_files
        rounds: list[tuple[str, Callable[[], int], Callable[[], Coroutine[Any, Any, None]]]] = [
            ("store-flush-log", lambda: config.flush_interval_commit_log, self.flush_log),
            ("store-flush-queues", lambda: config.flush_interval_consume_queue, self.flush_entries),
            ("store-disk", lambda: _DISK_INTERVAL_MS, self.expiry.make_room),
            ("store-seal", lambda: _SEAL_INTERVAL_MS, seal_full_files),
            ("store-scrub", lambda: _SCRUB_INTERVAL_MS, self.scrub.compare_files),
        ]
        if (pool := self._transient) is not None:
            rounds.append(
                ("store-commit-log", lambda: config.commit_interval_commit_log, pool.write_late)
            )
        for name, interval_ms, work in rounds:
            tasks.spawn(self._repeat(interval_ms, work), name=name)

    async def _repeat(
        self, interval_ms: Callable[[], int], work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        while True:
            try:
                await work()
            except OSError as error:
                logger.error("store_maintenance_failed work=%s error=%r", work.__name__, str(error))
            except Exception:
                # Without later rounds nothing would be synced, recorded or dropped any more.
                logger.exception("store_maintenance_failed work=%s", work.__name__)
            await self._parts.clock.sleep_ms(interval_ms())

    async def flush_log(self) -> None:
        """Sync the log if enough of it is unsynced, and create the next file in advance."""
        parts = self._parts
        log, config = parts.log, parts.config
        unsynced = log.written - log.durable
        least = config.flush_commit_log_least_pages * _PAGE_BYTES
        now_ms = parts.clock.monotonic_ms()
        late = now_ms - self._log_synced_ms >= config.flush_commit_log_thorough_interval
        if unsynced >= least or (unsynced and (late or self._waits_for_sync)):
            self._log_synced_ms = now_ms
            parts.flusher.sync_in_thread()
        if log.wants_next_file():
            await self._make_next_file()

    def _is_due(self, interval_ms: int) -> bool:
        return self._parts.clock.monotonic_ms() - self._thorough_ms >= interval_ms

    async def _make_next_file(self) -> None:
        log = self._parts.log
        try:
            # Shielded: cancelling the round must not lose the file that a thread is creating.
            making = asyncio.wrap_future(log.make_next_file(self._parts.executor))
            await asyncio.shield(making)
        except OSError as error:
            # Not an error yet: the write that needs the file tries again and reports a failure.
            if not self._ahead_failed:
                logger.warning("next_log_file_failed error=%r", str(error))
            log.forget_next_file()
            self._ahead_failed = True
        else:
            self._ahead_failed = False

    async def _in_thread(self, call: Callable[..., Any], *values: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._parts.executor, call, *values)

    async def flush_entries(self) -> None:
        """Write queue and index entries and record the positions; at longer intervals, sync them.

        A round writes all queues if there are few. If there are many, it writes those that have
        waited longest: writing one entry to the file of each queue would cost more than all other
        work of a send.
        """
        parts = self._parts
        if self._parts.state.mark_problem is not None:
            self.mark_running()
        dispatcher = parts.dispatcher
        started, now_ms = dispatcher.position, parts.clock.wall_ms()
        left = max(self.queues_a_round, dispatcher.dirty_count // _ROUNDS_TO_WAIT)
        while left > 0 and not dispatcher.write(now_ms, min(left, _QUEUES_A_SLICE), started):
            if dispatcher.problem is not None:
                parts.state.update()
                return
            left -= _QUEUES_A_SLICE
            await parts.clock.sleep_ms(0)
        parts.state.update()
        await self._finish_index_files()
        if self._is_due(parts.config.flush_consume_queue_thorough_interval):
            await self._sync_all(dispatcher.complete)
        elif (dispatcher.position, dispatcher.complete[0]) != self._last_note:
            self._note()

    async def _sync_all(self, reached: Mark) -> None:
        parts = self._parts
        self._distrust()
        await self._sync_entries()
        self._unsure = False
        self._thorough_ms = parts.clock.monotonic_ms()
        if await self._log_durable(reached[0]):
            await self._note_durably(reached)
        self._note()

    async def _sync_entries(self) -> None:
        parts = self._parts
        paths, directories = parts.pool.take_unsynced()
        try:
            await self._in_steps(parts.pool.rewrite_failed(paths))
            await self._in_thread(parts.pool.sync_paths, paths, directories)
        except BaseException:
            parts.pool.give_back(paths, directories)
            raise
        # Write slots first: the next start would take a full file for complete without them.
        await self._finish_index_files()
        index_files = parts.index.take_unsynced()
        for file in index_files:
            file.pin()
        try:
            for file in index_files:
                await self._in_steps(file.rewrite_failed())
            await self._with_index_files(index_files, parts.index.sync_files, index_files)
        except BaseException:
            parts.index.give_back(index_files)
            raise
        finally:
            for file in index_files:
                file.unpin()

    async def _finish_index_files(self) -> None:
        """Write the slots of all full index files."""
        parts = self._parts
        while full := parts.index.full_files():
            file = full[0]
            file.pin()
            try:
                await self._in_steps(file.slot_writes())
            finally:
                file.unpin()
            file.release_slots()

    async def _in_steps(self, steps: Iterator[None]) -> None:
        for _ in steps:
            await self._parts.clock.sleep_ms(0)

    async def _with_index_files(
        self, files: list[IndexFile], call: Callable[..., None], *values: object
    ) -> None:
        """Run a call on index files in a thread; files dropped in the meantime stay open for it."""
        for file in files:
            file.pin()

        def unpin(_: object) -> None:
            for file in files:
                file.unpin()

        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._parts.executor, call, *values)
        # A callback, not a finally block: the thread goes on when a round is cancelled.
        done.add_done_callback(unpin)
        await asyncio.shield(done)

    async def _log_durable(self, offset: int) -> bool:
        """Sync the log up to ``offset``; return False if that fails or takes too long."""
        parts = self._parts
        deadline_ms = parts.clock.monotonic_ms() + _LOG_SYNC_LIMIT_MS
        while parts.log.durable < offset:
            parts.flusher.sync_in_thread()
            if parts.log.failure is not None or parts.clock.monotonic_ms() > deadline_ms:
                return False
            await parts.clock.sleep_ms(_LOG_SYNC_STEP_MS)
        return True

    def note_now(self) -> bool:
        """Write all entries and record the positions at a start; return whether it succeeded."""
        parts = self._parts
        if not parts.dispatcher.write(parts.clock.wall_ms()):
            return False
        for file in parts.index.full_files():
            file.write_slots()
            file.release_slots()
        return self._note()

    async def note_soon(self) -> None:
        """Record the positions after a change that a restart must not undo.

        Entries are written first, as far as the journal does not have them. After a failure, the
        next round tries again.
        """
        parts = self._parts
        dispatcher = parts.dispatcher
        self._last_note = (-1, -1)
        started, now_ms = dispatcher.position, parts.clock.wall_ms()
        while not dispatcher.journal.covers(dispatcher.complete[0]):
            if dispatcher.write(now_ms, _QUEUES_A_SLICE, started):
                break
            if dispatcher.problem is not None:
                return
            await parts.clock.sleep_ms(0)
        self._note()

    def _note(self) -> bool:
        """Record the log positions up to which queue files, journal and index are complete.

        Returns False if that is not possible yet; the previous positions then stay valid.
        """
        if self._unsure:
            return False
        parts = self._parts
        dispatcher, journal = parts.dispatcher, parts.dispatcher.journal
        if not dispatcher.write_gathered(parts.clock.wall_ms()) or parts.index.full_files():
            # A start assumes that a full index file is complete: its slots must be written first.
            return False
        position, complete = dispatcher.position, dispatcher.complete[0]
        if complete == position:
            self._write_positions(position, entries=self._entries())
            if journal.start >= 0:
                journal.remove()
        elif journal.covers(complete):
            self._write_positions(position, complete)
            journal.drop_before(complete)
        else:
            self._write_positions(complete)
            if journal.start < 0:
                journal.begin(position)
        self._last_note = (position, complete)
        return True

    def _distrust(self) -> None:
        """Record, before a sync of entries, that only entries synced earlier may be trusted.

        If the sync fails, the kernel may drop entries, and the process may end before it can record
        the failure. So these positions stay until a sync succeeds. A start that finds them rebuilds
        all later entries from the log. Raises OSError.
        """
        self._write_positions(self.synced)
        self._unsure = True

    async def _note_durably(self, reached: Mark) -> None:
        """Record, durably, the position up to which all files are on the device.

        A start after a machine crash uses it.
        """
        parts = self._parts
        self.synced = reached[0]
        sure_ms = max(reached[1], self._checkpoint.log_ms)
        self._previous = self._checkpoint
        self._checkpoint = Checkpoint(sure_ms, sure_ms, self._checkpoint.index_ms)
        root = parts.config.store_path_root_dir
        await self._in_thread(self._write_durably, self._positions(reached[0]))
        await self._in_thread(_write_checkpoint, parts.files, root, self._checkpoint)

    def _write_durably(self, positions: Positions) -> None:
        parts = self._parts
        write_positions(parts.files, parts.config.store_path_root_dir, positions, durable=True)

    def _entries(self) -> int:
        """Return the sum of the queues' end offsets, or -1 if there are many queues."""
        parts = self._parts
        if len(parts.queues) > CHECKED_QUEUES:
            return -1
        return parts.queues.entry_total()

    def _write_positions(self, written: int, complete: int = -1, entries: int = -1) -> None:
        parts = self._parts
        positions = self._positions(written, complete, entries=entries)
        write_positions(parts.files, parts.config.store_path_root_dir, positions, durable=False)

    def _positions(
        self, written: int, complete: int = -1, *, clean: bool = False, entries: int = -1
    ) -> Positions:
        parts = self._parts
        paths = [*self.expiry.leaving, *(file.path for file in parts.index.files)]
        index = tuple(map(os.path.basename, paths))
        self._number += 1
        return Positions(
            parts.files.boot_id(),
            clean,
            written,
            self.synced,
            parts.pool.queue_count,
            self._checkpoint,
            parts.log.durable,
            index,
            parts.queues.entry_total() if clean else entries,
            parts.log.segments.file_bytes,
            shrunk=self.shrunk,
            complete=complete,
            last_ms=parts.state.last_ms,
            previous=self._previous,
            number=self._number,
            begins=parts.queues.begins,
            rebuild=parts.log.segments.start if parts.pool.lost else -1,
        )

    def stop(self) -> None:
        """Sync everything to the device and record a clean stop.

        If something cannot be written, the next start recovers as after a crash. Raises OSError.
        """
        parts = self._parts
        parts.flusher.sync_now()
        if parts.log.failure is not None or parts.log.durable < parts.log.written:
            logger.error("store_stopped_unclean reason=%r", str(parts.log.failure))
            return
        now_ms = parts.clock.wall_ms()
        if not parts.dispatcher.write(now_ms):
            logger.error("store_stopped_unclean reason=%r", str(parts.dispatcher.problem))
            return
        for file in [*parts.index.full_files(), *parts.index.files[-1:]]:
            file.write_slots()
        self._distrust()
        parts.index.sync_files(parts.index.take_unsynced())
        parts.pool.sync_paths(*parts.pool.take_unsynced())
        reached = parts.dispatcher.position
        root = parts.config.store_path_root_dir
        last_ms = parts.state.last_ms
        self._previous = self._checkpoint
        self._checkpoint = Checkpoint(last_ms, last_ms, parts.index.end_ms)
        self.synced = reached
        self._write_durably(self._positions(reached, clean=True))
        _write_checkpoint(parts.files, root, self._checkpoint)
        parts.dispatcher.journal.remove()
        parts.files.unlink(abort_path(root))
        parts.files.sync_directory(root)


def _write_checkpoint(files: Files, root: str, checkpoint: Checkpoint) -> None:
    write_checkpoint(files, root, checkpoint, durable=True)
