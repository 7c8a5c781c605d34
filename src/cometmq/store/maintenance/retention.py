"""Retention: removes expired log and index files, and the queues of deleted topics.

``plan`` decides without I/O, from ages and disk space, how many log files to drop and whether to
refuse writes (upstream: DefaultMessageStore.CleanCommitLogService). :class:`Expiry` drops the
files. :class:`Deletions` drops the queues of topics that were deleted or whose records are all
gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cometmq.store.config import StoreConfig
    from cometmq.store.files import DiskSpace
    from cometmq.store.log.directories import LogDirectories
    from cometmq.store.log.segments import LogFile
    from cometmq.store.parts import StoreParts
    from cometmq.store.queue.consumequeue import ConsumeQueue

_HOUR_MS: Final = 3_600_000
#: Maximum number of log files that a round drops.
_MAX_DROPS: Final = 10
_QUEUES_A_SLICE: Final = 64
_PIN_STEP_MS: Final = 5


@dataclass(frozen=True, slots=True)
class LogAge:
    """A log file's base offset and the time of its last write, ms."""

    base: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The number of oldest files to drop, and the reason to refuse writes (empty to allow them).

    ``is_forced`` says that the disk is so full that files are dropped at any age.
    """

    drop_count: int
    refusal: str
    is_forced: bool = False


def plan(
    ages: Sequence[LogAge],
    space: DiskSpace,
    now_ms: int,
    hour: int,
    config: StoreConfig,
    *,
    at_once: bool = False,
) -> Retention:
    """Decide how many files to drop and whether to refuse writes.

    ``ages`` has the oldest droppable log files, oldest first, without the one being written.
    ``hour`` is the local hour. Files older than the reserved time are dropped in the hours of
    ``deleteWhen``, when the disk is fuller than the configured maximum, or with ``at_once``. Beyond
    the forced ratio the oldest files are dropped at any age, unless ``cleanFileForciblyEnable`` is
    off.
    """
    used = space.used_ratio * 100
    limit_ms = now_ms - config.file_reserved_time * _HOUR_MS
    expired = sum(1 for age in ages if age.last_ms < limit_ms)
    full = used >= config.disk_space_clean_forcibly_ratio
    forced = full and config.clean_file_forcibly_enable
    due = at_once or hour in _hours(config.delete_when) or used >= config.disk_max_used_space_ratio
    drop_count = min(len(ages), _MAX_DROPS) if forced else expired if due else 0
    return Retention(min(drop_count, _MAX_DROPS), _refusal(space, config), forced)


def _refusal(space: DiskSpace, config: StoreConfig) -> str:
    used = space.used_ratio * 100
    if used < config.disk_space_warning_level_ratio:
        return ""
    *others, last = config.writable_log_directories
    place = f"{', '.join(others)} and {last}" if others else last
    disk = f"the least used of the disks under {place}" if others else f"the disk under {place}"
    return (
        f"{disk} is {used:.1f} % full "
        f"({space.free_bytes >> 20} MiB free), writes are refused at "
        f"{config.disk_space_warning_level_ratio} % and above (diskSpaceWarningLevelRatio): free "
        "space there, writes resume by themselves"
    )


def _hours(text: str) -> set[int]:
    return {int(word) for word in text.split(";") if word.strip().isdigit()}


class Expiry:
    """Removes the expired files of one store.

    Readers lose access to dropped files at once. A thread releases their memory maps and frees
    their disk space, oldest file first: a file system takes 300 ms for 1 GiB, and the call that
    closes the last handle waits for that. If a crash comes earlier, the next start loads the
    remaining files, and retention drops them again; the order of removal leaves no gap.

    ``synced`` returns the log offset below which all queue and index entries are on the device.
    """

    __slots__ = ("_closing", "_parts", "_paths", "_release", "_round", "_shorter", "_synced")

    def __init__(self, parts: StoreParts, synced: Callable[[], int]) -> None:
        self._parts = parts
        self._synced = synced
        #: Dropped log files, with the objects that hold their memory maps.
        self._closing: deque[tuple[LogFile, list[object]]] = deque()
        #: Paths of dropped index files.
        self._paths: deque[str] = deque()
        #: Queues that may have files to drop.
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
        space = parts.log.segments.places.space()
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
        """Return the ages of the oldest droppable log files, by their modification times.

        There may be tens of thousands of files, so only as many are examined as one round drops.
        Files with a modification time in the future (the clock was ahead) come in addition.
        """
        parts = self._parts
        # Later records are kept: recovery may need them for entries that are not on the device yet.
        sure, now_ms = min(parts.log.durable, self._synced()), parts.clock.wall_ms()
        ages: list[LogAge] = []
        past, places = 0, parts.log.segments.places
        for file in parts.log.segments.files:
            if file.end > sure or past == _MAX_DROPS:
                break
            if places.is_spread and not parts.files.exists(file.path):
                # The device may be unmounted. A missing file would count as very old, and newer
                # files would be dropped with it.
                break
            ages.append(LogAge(file.base, parts.files.modified_ms(file.path)))
            past += ages[-1].last_ms <= now_ms
        return ages

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
                # A thread reads the file. If it were deleted now, the loop would close its last
                # handle and wait for the disk.
                await parts.clock.sleep_ms(_PIN_STEP_MS)
                continue
            places = parts.log.segments.places
            await loop.run_in_executor(parts.executor, _free_file, places, file.path, held)
            self._closing.popleft()


def _free_file(places: LogDirectories, path: str, held: list[object]) -> None:
    """Release a dropped log file's memory map and delete the file durably. Raises OSError."""
    held.clear()
    places.remove(path)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deleted topic.

    ``pending`` is the directory with its queues, empty if it had none. Records of this name before
    the physical offset ``end`` belong to the deleted topic.
    """

    end: int
    pending: str


class Deletions:
    """Deletes topics; a crash at any moment leaves a topic complete or gone.

    One turn of the loop forgets the queues and moves their files aside; a topic of the same name
    that is created right after starts empty. Then the topic table records the deletion durably,
    with the end of the log at that moment: earlier records of the topic belong to the deleted one.
    Only then is the deletion settled, and the files are removed from the disk
    (queue/queuefiles.py).

        crash before the record    the start finds pending files, dispatches the whole log again,
                                   and the topic is complete again
        crash after the record     the start may dispatch the topic's records again; then the store
                                   drops the queues again, as the topic table says

    Messages of a topic that was created again are never touched: their records follow the recorded
    end.

    ``write_out`` ends the turn and writes the whole log. ``note_soon`` records the positions after
    a change that a restart must not undo.
    """

    __slots__ = ("_note_soon", "_parts", "_write_out")

    def __init__(
        self,
        parts: StoreParts,
        *,
        write_out: Callable[[], None],
        note_soon: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._write_out = write_out
        self._note_soon = note_soon

    def delete(self, topic: str) -> Deletion:
        """Forget the queues of a topic; its records stay in the log until their files expire.

        Raises StoreError; then the topic is unchanged.
        """
        parts = self._parts
        self._write_out()
        pending = ""
        if topic in parts.queues.known:
            try:
                pending = parts.pool.set_aside(topic)
            except OSError as error:
                raise StoreError(
                    f"the queues of topic {topic} cannot be moved aside: {error.strerror}; the "
                    "topic is unchanged, repeat the deletion"
                ) from error
            self._forget(topic, list(parts.queues.known[topic]))
        # A failed write may have left whole records, which the next start would keep as stored.
        return Deletion(max(parts.log.written, parts.log.left_end), pending)

    async def settle(self, deletion: Deletion) -> None:
        """Settle a durably recorded deletion: the topic cannot come back. Raises StoreError."""
        if not deletion.pending:
            return
        parts = self._parts
        try:
            parts.pool.removals.settle(deletion.pending)
            await self._note_soon()
        except OSError as error:
            raise StoreError(f"deleted queues are still at {deletion.pending}: {error}") from error

    def drop_former(self, topic: str, end: int) -> None:
        """Forget the queues of a topic that hold only records before ``end``.

        Call it at a start, for every recorded deletion. Raises OSError.
        """
        parts = self._parts
        former = [
            queue_id
            for queue_id in parts.queues.known.get(topic, ())
            if (queue := parts.queues.queue(topic, queue_id)).min_offset < queue.max_offset
            and queue.is_older_than(end)
        ]
        if former:
            parts.pool.discard(topic, former)
            self._forget(topic, former)

    def drop_expired(self, topic: str) -> list[int]:
        """Forget the queues of a topic whose records are all gone from the log; return their ids.

        The next message of each gets offset 0. Raises StoreError, OSError.
        """
        parts = self._parts
        self._write_out()
        expired = [
            queue_id
            for queue_id in parts.queues.known.get(topic, ())
            if self._is_expired(topic, queue_id)
        ]
        if expired:
            parts.pool.discard(topic, expired)
            self._forget(topic, expired)
        return expired

    def _is_expired(self, topic: str, queue_id: int) -> bool:
        queue = self._parts.queues.queue(topic, queue_id)
        queue.correct_min(self._parts.log.segments.start)
        return 0 < queue.min_offset == queue.max_offset == queue.next_offset

    def _forget(self, topic: str, queue_ids: list[int]) -> None:
        parts = self._parts
        places = [(topic, queue_id) for queue_id in queue_ids]
        found = map(parts.queues.pop, places)
        gone = {queue for queue in found if queue is not None}
        parts.queues.forget(topic, queue_ids)
        parts.backlog.forget(gone)
        parts.dispatcher.forget(gone)
