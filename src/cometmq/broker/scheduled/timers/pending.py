"""Which messages wait: all of them on disk by due time, those of the near future in memory as well.

A row of store/timerfiles.py stands for a message; here it is put where it belongs, and taken out
when it is due:

    put      behind the ticks that are delivered: into the wheel, to go at once
             in a bucket that is loaded: into its file and into the wheel
             later: into its file
    load     a bucket's rows go from its file into the wheel, ahead of time
    done     a row that says so, in the file; a set, while the bucket is loaded

``through`` is the last tick of which all is delivered, ``loaded`` the first bucket that is not in
the wheel, ``position`` the first queue offset in the timer topic that was not put here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.timers.wheel import TICK_MS, Wheel, tick_of
from cometmq.store.timerfiles import ROW, ROW_BYTES, bucket_of

if TYPE_CHECKING:
    from cometmq.core.slices import Slices
    from cometmq.store.timerfiles import TimerFiles

#: A recall counts for so long after the moment that it is due at.
RECALL_MS: Final = 1_000
_ROWS_A_PAUSE: Final = 256


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting message: ``size`` is negative for a recall."""

    due_ms: int
    queue_offset: int
    physical_offset: int
    size: int


class Pending:
    """See the module. ``count`` is how many wait, as far as that is known."""

    def __init__(self, files: TimerFiles) -> None:
        self.files = files
        self.wheel = Wheel()
        self.position = 0
        self.through = 0
        self.loaded = 0
        self.count = 0
        self._loading = -1
        self._late_tick = 0
        #: Physical offsets of records in loaded buckets that are done with before they are due.
        self._gone: set[int] = set()

    def clear(self) -> None:
        """Forget everything, also on disk: nothing waits and nothing was delivered. Raises
        OSError."""
        self.files.clear()
        self.wheel = Wheel()
        self.position = self.through = self.loaded = self.count = 0
        self._loading = -1
        self._gone.clear()

    def begin(self, through: int) -> None:
        """Start with nothing in the wheel, and all delivered up to a tick."""
        self.through = through
        self.loaded = self.first_needed()

    def put(self, waiting: Waiting) -> None:
        """Take a message that waits."""
        row = ROW.pack(waiting.due_ms, waiting.queue_offset, waiting.physical_offset, waiting.size)
        tick, bucket = tick_of(waiting.due_ms), bucket_of(waiting.due_ms)
        self.count += 1
        if tick <= self.through:
            # Not in a file: there, what is due up to ``through`` counts as delivered.
            self._late_tick = self.through + 1
            self.wheel.put(self._late_tick, row)
            return
        self.files.add(bucket, row)
        if bucket < self.loaded or bucket == self._loading:
            self.wheel.put(tick, row)

    def is_noted_by_files(self) -> bool:
        """Whether all that waits is in the files, those of its rows that are due up to ``through``
        left out."""
        return self._late_tick <= self.through

    def first_needed(self) -> int:
        """The first bucket that has something which waits, or a recall that still counts."""
        return first_bucket(self.through)

    def done(self, physical_offset: int, earliest_ms: int, latest_ms: int) -> None:
        """A record is done with that is, or was, due in a span of time: at most a bucket long.

        ``count`` is the caller's.
        """
        if tick_of(latest_ms) <= self.through:
            return
        for bucket in {bucket_of(earliest_ms), bucket_of(latest_ms)}:
            if bucket < self.loaded or bucket == self._loading:
                self._gone.add(physical_offset)
            self.files.add(bucket, ROW.pack(latest_ms, 0, physical_offset, 0))

    def is_gone(self, physical_offset: int) -> bool:
        """Whether a due row's record is done with already; asked once."""
        if physical_offset not in self._gone:
            return False
        self._gone.discard(physical_offset)
        return True

    def next_bucket(self, until_ms: int) -> int | None:
        """The bucket to load next, when one begins before ``until_ms``; else those before it are
        loaded: they have no rows."""
        last = bucket_of(until_ms)
        found = self.files.first_from(self.loaded)
        if found is not None and found <= last:
            return found
        self.loaded = max(self.loaded, last + 1)
        return None

    def begin_load(self, bucket: int) -> tuple[int, int, int]:
        """From now on the bucket's new rows go into the wheel too; gives what the files' ``fetch``
        takes. Raises OSError."""
        read = self.files.begin_read(bucket)
        self._loading = bucket
        return read

    async def end_load(self, bucket: int, rows: bytes, slices: Slices) -> None:
        """Put the rows of a bucket, up to its :meth:`begin_load`, into the wheel."""
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
    """The first bucket that matters once all is delivered up to a tick."""
    return bucket_of(through * TICK_MS - RECALL_MS)


async def done_in(rows: bytes, slices: Slices) -> set[int]:
    """The physical offsets that rows say are done with."""
    done: set[int] = set()
    for number, (_, _, physical, size) in enumerate(ROW.iter_unpack(rows)):
        if not number % _ROWS_A_PAUSE:
            await slices.pause()
        if not size:
            done.add(physical)
    return done
