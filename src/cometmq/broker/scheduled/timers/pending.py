"""Waiting timed messages: all of them on disk by due time, those of the near future also in memory.

A row of store/timerfiles.py stands for a message:

    put      if its tick was delivered: into the wheel, for the next tick
             if its bucket is loaded: into the bucket's file and into the wheel
             otherwise: into the bucket's file
    load     copies a bucket's rows from its file into the wheel, ahead of time
    done     appends a row to the file that ends a wait; for a loaded bucket also notes it in memory

``through`` is the last tick delivered completely, ``loaded`` the first bucket that is not in the
wheel, ``position`` the first queue offset in the timer topic that was not put here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.timers.wheel import TICK_MS, Wheel, tick_of
from cometmq.store.timerfiles import ROW, ROW_BYTES, bucket_of

if TYPE_CHECKING:
    from cometmq.core.clock import Slices
    from cometmq.store.timerfiles import TimerFiles

#: A recall stays valid for this long after its due time.
RECALL_MS: Final = 1_000
_ROWS_A_PAUSE: Final = 256


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting message; ``size`` is negative for a recall."""

    due_ms: int
    queue_offset: int
    physical_offset: int
    size: int


class Pending:
    """All waiting messages, in files and in the wheel. ``count`` is their number, as far as
    known."""

    def __init__(self, files: TimerFiles) -> None:
        self.files = files
        self.wheel = Wheel()
        self.position = 0
        self.through = 0
        self.loaded = 0
        self.count = 0
        self._loading = -1
        self._late_tick = 0
        #: Physical offsets of records in loaded buckets whose wait ended before they were due.
        self._gone: set[int] = set()

    def clear(self) -> None:
        """Remove all waiting messages, also on disk, and reset the progress. Raise OSError if
        that fails."""
        self.files.clear()
        self.wheel = Wheel()
        self.position = self.through = self.loaded = self.count = 0
        self._loading = -1
        self._gone.clear()

    def begin(self, through: int) -> None:
        """Start with an empty wheel, and with everything delivered up to the tick ``through``."""
        self.through = through
        self.loaded = self.first_needed()

    def put(self, waiting: Waiting) -> None:
        """Add a waiting message."""
        row = ROW.pack(waiting.due_ms, waiting.queue_offset, waiting.physical_offset, waiting.size)
        tick, bucket = tick_of(waiting.due_ms), bucket_of(waiting.due_ms)
        self.count += 1
        if tick <= self.through:
            # Not into a file: rows there count as delivered if they are due up to ``through``.
            self._late_tick = self.through + 1
            self.wheel.put(self._late_tick, row)
            return
        self.files.add(bucket, row)
        if bucket < self.loaded or bucket == self._loading:
            self.wheel.put(tick, row)

    def is_noted_by_files(self) -> bool:
        """Decide whether the files hold all waiting messages, not counting rows due up to
        ``through``."""
        return self._late_tick <= self.through

    def first_needed(self) -> int:
        """Return the first bucket that has waiting messages, or recalls that are still valid."""
        return first_bucket(self.through)

    def done(self, physical_offset: int, earliest_ms: int, latest_ms: int) -> None:
        """End the wait of a record whose due time lies in a span of at most one bucket's length.

        The caller adjusts ``count``.
        """
        if tick_of(latest_ms) <= self.through:
            return
        for bucket in {bucket_of(earliest_ms), bucket_of(latest_ms)}:
            if bucket < self.loaded or bucket == self._loading:
                self._gone.add(physical_offset)
            self.files.add(bucket, ROW.pack(latest_ms, 0, physical_offset, 0))

    def is_gone(self, physical_offset: int) -> bool:
        """Decide whether the wait of a due row's record has ended already. Call this once per
        row: it forgets the mark."""
        if physical_offset not in self._gone:
            return False
        self._gone.discard(physical_offset)
        return True

    def next_bucket(self, until_ms: int) -> int | None:
        """Return the next bucket to load, if one begins before ``until_ms``.

        Otherwise return None and count the buckets before that time as loaded, as they have no
        rows.
        """
        last = bucket_of(until_ms)
        found = self.files.first_from(self.loaded)
        if found is not None and found <= last:
            return found
        self.loaded = max(self.loaded, last + 1)
        return None

    def begin_load(self, bucket: int) -> tuple[int, int, int]:
        """Begin to load a bucket: its new rows go into the wheel too. Return the arguments for
        the files' ``fetch``. Raise OSError if the bucket cannot be read."""
        read = self.files.begin_read(bucket)
        self._loading = bucket
        return read

    async def end_load(self, bucket: int, rows: bytes, slices: Slices) -> None:
        """Put the rows that a bucket had at :meth:`begin_load` into the wheel."""
        done = await done_in(rows, slices)
        through = self.through
        for number, (due_ms, _, physical, size) in enumerate(ROW.iter_unpack(rows)):
            if not number % _ROWS_A_PAUSE:
                await slices.pause()
            tick = tick_of(due_ms)
            is_over = tick <= through and (size > 0 or tick_of(due_ms + RECALL_MS) <= through)
            if size and not is_over and physical not in done:
                at = number * ROW_BYTES
                self.wheel.put(max(tick, through + 1), rows[at : at + ROW_BYTES])
        self.loaded, self._loading = bucket + 1, -1


def first_bucket(through: int) -> int:
    """Return the first bucket still needed once everything up to a tick is delivered."""
    return bucket_of(through * TICK_MS - RECALL_MS)


async def done_in(rows: bytes, slices: Slices) -> set[int]:
    """Return the physical offsets whose wait ended, according to rows of size 0."""
    done: set[int] = set()
    for number, (_, _, physical, size) in enumerate(ROW.iter_unpack(rows)):
        if not number % _ROWS_A_PAUSE:
            await slices.pause()
        if not size:
            done.add(physical)
    return done
