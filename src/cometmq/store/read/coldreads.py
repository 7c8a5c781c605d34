"""Cold reads: access to bytes of the log that may not be in memory.

Bytes in memory are returned at once (:class:`ColdReads` says which). A thread reads all others: on
the event loop, a read or a page fault would stop all work until the device answers. A block that
differs from its seal is not served; the scrub finds such blocks (maintenance/checksumming.py). Each
request compares the block again, because its file may have been restored in the meantime.

The module also limits the time that such reads take from the event loop (:class:`FarTurns`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from cometmq.core.errors import StoreCorrupt
from cometmq.speedups.plain.records import GAP_BYTES, SPAN_BYTES
from cometmq.store.log.checksums import BLOCK_BYTES, BLOCK_SHIFT, block_count

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from cometmq.core.clock import Clock
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.log.segments import LogFile

logger = logging.getLogger(__name__)

#: Bytes before the log's end that are certainly in memory if this run wrote them.
RECENT_BYTES: Final = 64 << 20
#: Size of a window: a whole number of blocks.
WINDOW_BYTES: Final = 1 << 20
#: Number of windows that are kept.
_KEPT: Final = 32
#: Ranges within this many bytes are read through windows.
_CLOSE_BYTES: Final = WINDOW_BYTES // 2

#: A physical offset and a size.
Range: TypeAlias = tuple[int, int]
#: Bytes; or the error that reports their damage; or None if the log no longer has them.
Found: TypeAlias = memoryview | StoreCorrupt | None


class Piece(NamedTuple):
    """A range of the log that was read.

    ``start`` and ``damage`` are physical offsets; ``damage`` is that of the first damaged block, -1
    if there is none. ``path`` is the file's.
    """

    view: memoryview
    start: int
    damage: int
    path: str

    def sound(self) -> memoryview:
        """Return the bytes. Raises StoreCorrupt if some are damaged."""
        if self.damage >= 0:
            raise self.error()
        return self.view

    def error(self) -> StoreCorrupt:
        """Return the error that reports the damage of this piece."""
        return StoreCorrupt(
            self.path,
            self.damage,
            f"the {BLOCK_BYTES} bytes there changed after the file was full: restore the file "
            "from a snapshot or copy (cometmq store verify lists all damage), or skip them",
        )


class ColdReads:
    """Reads the bytes of one log.

    Only these bytes are returned at once:

    - the last bytes that this run of the broker wrote, which are certainly in memory, as views of
      the memory maps;
    - other bytes near the end, in the same way, if the system reports that they are resident: after
      a restart, or when memory is short, they may not be (docs/decisions/0014-bytes-in-memory.md);
    - bytes of a window. Far from the end only windows are used, because the system may evict a page
      right after it reported it as resident (docs/decisions/0020-cold-reads.md).

    A *window* is a cached part of a log file (:class:`Windows`). Bytes more than ``hot_bytes``
    before the log's end count as far. No damage was found from ``sound_from`` on.
    """

    __slots__ = ("hot_bytes", "log", "sound_from", "windows")

    def __init__(self, log: CommitLog, hot_bytes: int) -> None:
        self.log = log
        self.hot_bytes = hot_bytes
        self.windows = Windows(lambda: log.written)
        #: End of the last damage that was found.
        self.sound_from = 0

    @property
    def recent_from(self) -> int:
        """Physical offset from which this run wrote all bytes, and all are still in memory."""
        log = self.log
        near = log.written - min(RECENT_BYTES, self.hot_bytes)
        return max(log.opened_at, near, self.sound_from)

    def is_far(self, offset: int) -> bool:
        """Return whether ``offset`` is so far from the log's end that it may not be in memory."""
        return self.log.written - offset > self.hot_bytes

    # --- at once -----------------------------------------------------------------------------

    def mapped(self, file: LogFile, start: int, stop: int) -> memoryview | None:
        """Return the bytes between two physical offsets from the file's map if they are in memory.

        Returns None if reading them might wait for the device.
        """
        if start >= self.recent_from:
            return file.view[start - file.base : stop - file.base]
        if self.is_far(start) or file.find_damage(start, stop) >= 0:
            return None
        return file.resident(start, stop)

    def at_once(self, file: LogFile, start: int, stop: int) -> memoryview | None:
        """Return bytes of a file from its map or a window; None if reading them might wait."""
        found = self.mapped(file, start, stop)
        if found is None and file.find_damage(start, stop) < 0:
            found = self.windows.find(file, start, stop)
        return found

    def ranges_at_once(self, ranges: Sequence[Range]) -> list[memoryview] | None:
        """Return the bytes of ascending ranges; None if reading one of them might wait.

        The result is shorter than ``ranges`` if the files of the last ones are gone.
        """
        found: list[memoryview] = []
        for file, span in self._spans(ranges):
            start = span[0][0]
            whole = self.at_once(file, start, sum(span[-1]))
            if whole is None:
                return None
            found += [whole[at - start : at - start + size] for at, size in span]
        return found

    def part_at_once(self, start: int, stop: int, end: int) -> tuple[memoryview, int, int] | None:
        """Return window bytes from ``start`` on, at least up to ``stop`` and at most up to ``end``.

        Returns the bytes, their physical offset, which may be before ``start``, and the end of the
        usable part; None if the windows do not have them.
        """
        file = self.log.segments.find(start)
        if file is None or stop > file.end:
            return None
        end = max(stop, min(end, file.end))
        if (damage := file.find_damage(start, end)) >= 0:
            end = damage
            if end < stop:
                return None
        part = self.windows.reach(file, start, end)
        if part is None or part[2] >= stop:
            return part
        found = self.windows.find(file, start, stop)
        return None if found is None else (found, start, stop)

    def _spans(self, ranges: Sequence[Range]) -> list[tuple[LogFile, list[Range]]]:
        """Group neighbouring ranges of one file, to be read together.

        The list ends before the first range that no file has.
        """
        spans: list[tuple[LogFile, list[Range]]] = []
        for start, size in ranges:
            file = self.log.segments.find(start)
            if file is None or start + size > file.end:
                break
            if spans and spans[-1][0] is file:
                near = spans[-1][1]
                gap = start - sum(near[-1])
                if 0 <= gap <= GAP_BYTES and start + size - near[0][0] <= SPAN_BYTES:
                    near.append((start, size))
                    continue
            spans.append((file, [(start, size)]))
        return spans

    # --- with a wait -------------------------------------------------------------------------

    async def load(self, ranges: Sequence[Range], *, ahead: bool = False) -> list[Piece]:
        """Read the bytes of ranges in a thread.

        The list ends before the first range that is gone. With ``ahead``, ranges close together are
        read through windows, which stay in memory for readers that continue there. Raises OSError.
        """
        spans = self._spans(ranges)
        pieces: list[Piece] = []
        for file, _ in spans:
            file.pin()
        try:
            damage = [
                await self._damage(file, at, at + size) for file, span in spans for at, size in span
            ]
            if ahead and sum(ranges[-1]) - ranges[0][0] <= _CLOSE_BYTES:
                wholes = [
                    await self.windows.fetch(file, span[0][0], sum(span[-1]))
                    for file, span in spans
                ]
            else:
                wholes = await in_thread([file for file, _ in spans], _read_spans, spans)
        finally:
            for file, _ in spans:
                file.unpin()
        for (file, span), whole in zip(spans, wholes, strict=True):
            start = span[0][0]
            for at, size in span:
                view = whole[at - start : at - start + size]
                pieces.append(Piece(view, at, damage[len(pieces)], file.path))
        return pieces

    async def bytes_at(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return bytes of the log; None if no file holds them.

        Raises StoreCorrupt if they are damaged.
        """
        file = self.log.segments.find(offset)
        if file is None or offset + size_bytes > file.end:
            return None
        found = self.at_once(file, offset, offset + size_bytes)
        if found is not None:
            return found
        pieces = await self.load([(offset, size_bytes)])
        return pieces[0].sound() if pieces else None

    async def gather(self, ranges: Sequence[Range]) -> list[Found]:
        """Return the bytes of ranges from all over the log, in order.

        One thread call reads all ranges that are not in memory.
        """
        found: list[Found] = [None] * len(ranges)
        cold: list[tuple[int, int, int]] = []
        for number, (start, size) in enumerate(ranges):
            file = self.log.segments.find(start)
            if file is None or start + size > file.end:
                continue
            view = found[number] = self.at_once(file, start, start + size)
            if view is None:
                cold.append((start, size, number))
        # In log order, so that neighbours are read together.
        cold.sort()
        while cold:
            pieces = await self.load([(start, size) for start, size, _ in cold])
            for (_, _, number), piece in zip(cold, pieces, strict=False):
                found[number] = piece.view if piece.damage < 0 else piece.error()
            # If there are fewer pieces, the file of the next range is gone by now: skip that one.
            cold = cold[len(pieces) + 1 :]
        return found

    # --- damage ------------------------------------------------------------------------------

    def note_damage(self, file: LogFile, offsets: Iterable[int]) -> None:
        """Mark blocks at physical offsets as different from their seal: they are not served."""
        for offset in sorted(offsets):
            if offset not in file.damaged:
                size = min(BLOCK_BYTES, file.end - offset)
                logger.error("log_block_damaged path=%s offset=%d size=%d", file.path, offset, size)
                file.damaged.add(offset)
            self.sound_from = max(self.sound_from, offset + BLOCK_BYTES)

    async def is_damaged(self, file: LogFile, offset: int) -> bool:
        """Return whether the block at a physical offset differs from its seal or cannot be read."""
        if await in_thread([file], file.differs, offset):
            return True
        if offset in file.damaged:
            logger.warning("log_block_restored path=%s offset=%d", file.path, offset)
            file.damaged.discard(offset)
            # Windows may still hold the damaged bytes.
            self.windows.forget()
        return False

    async def _damage(self, file: LogFile, start: int, stop: int) -> int:
        while (offset := file.find_damage(start, stop)) >= 0:
            if await self.is_damaged(file, offset):
                return offset
        return -1


class Pinned(Protocol):
    """A file whose handle stays open while a thread uses it."""

    def pin(self) -> None:
        """Keep the handle open, until :meth:`unpin`."""
        ...

    def unpin(self) -> None:
        """Undo one :meth:`pin`."""
        ...


def in_thread(
    files: Sequence[Pinned], call: Callable[..., Any], *values: object
) -> asyncio.Future[Any]:
    """Run a call on files in a thread; the files stay open for it even if they are dropped."""
    for file in files:
        file.pin()

    def unpin(_: object) -> None:
        for file in files:
            file.unpin()

    done = asyncio.get_running_loop().run_in_executor(None, call, *values)
    # A callback, not a finally block: the thread goes on when the caller is cancelled.
    done.add_done_callback(unpin)
    return asyncio.shield(done)


def _read_spans(spans: list[tuple[LogFile, list[Range]]]) -> list[memoryview]:
    found: list[memoryview] = []
    for file, span in spans:
        found.append(memoryview(bytearray(sum(span[-1]) - span[0][0])))
        file.read_into(found[-1], span[0][0])
    return found


class _Window:
    """The bytes of one log file between two physical offsets, in blocks that are read as needed.

    ``coming`` is done when the read in progress ends; None if there is none. ``is_followed`` says
    that read-ahead of the next window was requested.
    """

    __slots__ = ("_buffer", "_has", "coming", "file", "is_followed", "start", "stop")

    def __init__(self, file: LogFile, start: int, stop: int) -> None:
        self.file = file
        self.start, self.stop = start, stop
        self.is_followed = False
        self.coming: asyncio.Future[None] | None = None
        size = min(WINDOW_BYTES, file.end - start)
        self._buffer = memoryview(bytearray(size))
        self._has = bytearray(block_count(size))

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes between two physical offsets."""
        return self._buffer[start - self.start : stop - self.start]

    def extend(self, stop: int) -> None:
        """Extend the window up to ``stop`` after more of the file was written."""
        stop = min(stop, self.start + len(self._buffer))
        if stop > self.stop:
            self._has[(self.stop - self.start - 1) >> BLOCK_SHIFT] = False
            self.stop = stop

    def reach(self, start: int, stop: int) -> int:
        """Return the end of the bytes from ``start`` on that the window has, at most ``stop``.

        Missing blocks are copied into the window if the page cache has them.
        """
        for block in self._blocks(start, stop):
            if not self._has[block]:
                low, high = self._bounds(block)
                if self.file.read_cached(self.view(low, high), low) < high - low:
                    return max(start, low)
                self._has[block] = True
        return stop

    def missing(self, start: int, stop: int) -> tuple[int, int]:
        """Return the bounds of the missing blocks between two offsets.

        At least one block must be missing.
        """
        absent = [block for block in self._blocks(start, stop) if not self._has[block]]
        return self._bounds(absent[0])[0], self._bounds(absent[-1])[1]

    def took(self, start: int, stop: int) -> None:
        """Mark blocks as read."""
        for block in self._blocks(start, stop):
            self._has[block] = True

    def _blocks(self, start: int, stop: int) -> range:
        first = (start - self.start) >> BLOCK_SHIFT
        return range(first, ((stop - 1 - self.start) >> BLOCK_SHIFT) + 1)

    def _bounds(self, block: int) -> tuple[int, int]:
        start = self.start + block * BLOCK_BYTES
        return start, min(start + BLOCK_BYTES, self.stop)


class Windows:
    """Windows: parts of the log that were read recently, kept for later readers.

    A consumer that replays a queue continues where it stopped, and the records of other queues lie
    in between. So a window serves the readers of all queues. The first read from a window makes the
    system read the next window ahead into the page cache. The event loop copies blocks from the
    page cache without waiting; a thread reads only the missing ones. Threads are avoided because
    they delay all others when they reacquire the interpreter lock. ``written`` returns the log's
    end.
    """

    __slots__ = ("_kept", "_written")

    def __init__(self, written: Callable[[], int]) -> None:
        self._kept: OrderedDict[int, _Window] = OrderedDict()
        self._written = written

    def forget(self) -> None:
        """Drop all windows."""
        self._kept.clear()

    def reach(self, file: LogFile, start: int, stop: int) -> tuple[memoryview, int, int] | None:
        """Return the bytes of a window that are in memory, from ``start`` up to at most ``stop``.

        Returns the window's bytes, their physical offset, and the end of the usable part; None if
        there are none.
        """
        window = self._window(file, start)
        if window is None:
            return None
        if stop > window.stop:
            window.extend(self._written())
        stop = window.reach(start, min(stop, window.stop))
        if stop <= start:
            return None
        self._kept.move_to_end(window.start)
        if not window.is_followed:
            self._follow(window)
        return window.view(window.start, stop), window.start, stop

    def find(self, file: LogFile, start: int, stop: int) -> memoryview | None:
        """Return the bytes of a file between two physical offsets if windows have all of them."""
        part = self.reach(file, start, stop)
        if part is None:
            return None
        whole, base, end = part
        head = whole[start - base :]
        if end == stop:
            return head
        rest = self.find(file, end, stop) if end == base + WINDOW_BYTES else None
        return None if rest is None else memoryview(b"".join((head, rest)))

    async def fetch(self, file: LogFile, start: int, stop: int) -> memoryview:
        """Return the bytes of a file between two physical offsets; read the missing ones.

        Raises OSError.
        """
        views: list[memoryview] = []
        while start < stop:
            at = start - (start - file.base) % WINDOW_BYTES
            window = self._window(file, start) or self._open(file, at)
            end = min(stop, at + WINDOW_BYTES)
            window.extend(max(self._written(), end))
            while (reached := window.reach(start, end)) < end:
                await asyncio.shield(window.coming or self._read(window, reached, end))
            views.append(window.view(start, end))
            start = end
        return views[0] if len(views) == 1 else memoryview(b"".join(views))

    def _window(self, file: LogFile, start: int) -> _Window | None:
        window = self._kept.get(start - (start - file.base) % WINDOW_BYTES)
        return window if window is not None and window.file is file else None

    def _open(self, file: LogFile, at: int) -> _Window:
        stop = min(at + WINDOW_BYTES, file.end, self._written())
        window = self._kept[at] = _Window(file, at, stop)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return window

    def _follow(self, window: _Window) -> None:
        window.is_followed = True
        file, at = window.file, window.start + WINDOW_BYTES
        if at < min(file.end, self._written()) and at not in self._kept:
            file.will_need(at, self._open(file, at).stop)

    def _read(self, window: _Window, start: int, stop: int) -> asyncio.Future[None]:
        file = window.file
        start, stop = window.missing(start, stop)
        file.will_need(start, window.stop)
        # A separate future: when it is done, the window is already updated for every reader.
        coming = window.coming = asyncio.get_running_loop().create_future()
        reading = in_thread([file], file.read_into, window.view(start, stop), start)
        reading.add_done_callback(partial(_arrived, window, start, stop))
        return coming


def _arrived(window: _Window, start: int, stop: int, reading: asyncio.Future[int]) -> None:
    coming, window.coming = window.coming, None
    assert coming is not None
    error = reading.exception()
    if error is not None:
        coming.set_exception(error)
        # Retrieve the error, so that asyncio does not report it if no reader waits any more.
        coming.exception()
        return
    window.took(start, stop)
    coming.set_result(None)


#: While the log grows, pulls far from its end get 1/PARTS of the event loop's time.
PARTS: Final = 6
#: The log counts as growing for this long after it grew.
_GROWS_NS: Final = 20_000_000
#: Unused time that counts for the next pull.
_SAVED_NS: Final = 1_000_000
#: Interval at which waiting pulls are tried.
_TICK_MS: Final = 1
#: Maximum number of waiting pulls; further ones are served at once.
MAX_WAITING: Final = 10_000


class Share:
    """The share of far pulls: while the log grows, none may begin before ``free_ns``.

    The class has no clock; times are monotonic and in ns.
    """

    __slots__ = ("_grew_ns", "_written", "free_ns")

    def __init__(self) -> None:
        self.free_ns = 0
        self._grew_ns = -(1 << 62)
        self._written = -1

    def rests(self, now_ns: int, written: int) -> bool:
        """Return whether the next pull must wait; ``written`` is the end of the log."""
        if written != self._written:
            self._written = written
            self._grew_ns = now_ns
        return now_ns < self.free_ns and now_ns - self._grew_ns < _GROWS_NS

    def spent(self, now_ns: int, took_ns: int) -> None:
        """Charge the duration of a pull."""
        self.free_ns = max(self.free_ns, now_ns - _SAVED_NS) + PARTS * took_ns


class Spawner(Protocol):
    """The owner of background tasks."""

    def spawn(self, coro: Coroutine[Any, Any, None], *, name: str) -> object:
        """Start a task and supervise it."""
        ...


class FarTurns:
    """Limits pulls far from the log's end to a share of the event loop's time while others send.

    A consumer that replays pulls again as soon as it is answered, and its data is copied out of the
    page cache. Without a limit, such pulls would take all of the loop's time, and every send would
    wait. So while the log grows, a pull that took long is followed by a pause about five times as
    long; other far pulls wait for the end of the pause, in order. Without senders there is no
    pause. ``written`` returns the log's end.
    """

    def __init__(self, clock: Clock, tasks: Spawner, written: Callable[[], int]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._written = written
        self._share = Share()
        self._waiting: deque[Callable[[], None]] = deque()
        self._serving = False

    @property
    def waiting(self) -> int:
        """Number of waiting pulls."""
        return len(self._waiting)

    def must_wait(self, now_ns: int) -> bool:
        """Return whether a far pull must wait; fast for a broker that has no such pulls."""
        if self._serving or now_ns >= self._share.free_ns:
            return False
        return len(self._waiting) < MAX_WAITING and self._share.rests(now_ns, self._written())

    def wait(self, serve: Callable[[], None]) -> None:
        """Call ``serve`` after the pulls that wait already; it must call :meth:`spent`."""
        self._waiting.append(serve)
        if len(self._waiting) == 1:
            self._tasks.spawn(self._serve(), name="far pulls")

    def spent(self, begun_ns: int) -> None:
        """Charge a far pull that began at ``begun_ns`` and has been answered."""
        now_ns = self._clock.monotonic_ns()
        share = self._share
        if not share.free_ns:
            # The first call records the log's end, so that later ones see whether the log grows.
            share.rests(now_ns, self._written())
        share.spent(now_ns, now_ns - begun_ns)

    async def _serve(self) -> None:
        clock, waiting = self._clock, self._waiting
        while waiting:
            await clock.sleep_ms(_TICK_MS)
            while waiting and not self._share.rests(clock.monotonic_ns(), self._written()):
                self._serving = True
                try:
                    waiting[0]()
                finally:
                    self._serving = False
                    waiting.popleft()
