"""Windows: bytes of the log far behind its end, kept for whoever goes on from there.

A consumer that replays goes on where it stopped, and the other queues of its topic lie between. So
what is read serves all who come by, and with the first byte that is given from a window the system
is told to fetch the next one. What it has by then is copied by the loop, a block at a time and
without a wait; only what it does not have yet is waited for in a thread. Threads make all others
wait when they come back for the interpreter (docs/decisions/0020-cold-reads.md).

Blocks of a sealed file are compared with their seal when they are first given.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.store.seals import BLOCK_BYTES, BLOCK_SHIFT, block_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.mapped import LogFile
    from cometmq.store.seals import Seal, Seals

logger = logging.getLogger(__name__)

#: Whole blocks, so that each can be compared with a seal.
WINDOW_BYTES: Final = 1 << 20
_KEPT: Final = 32

_ABSENT, _NEW, _RIGHT, _BAD = range(4)


class Window:
    """Bytes of one log file from a physical offset up to another, as far as they were read.

    ``seal`` is what they are compared with, None where there is none. ``coming`` is a read that is
    under way. With ``is_followed`` the system knows what will be read next.
    """

    __slots__ = ("_buffer", "_states", "coming", "file", "is_followed", "seal", "start", "stop")

    def __init__(self, file: LogFile, start: int, stop: int, seal: Seal | None) -> None:
        self.file = file
        self.start, self.stop = start, stop
        self.seal = seal
        self.is_followed = False
        self.coming: asyncio.Future[None] | None = None
        size = min(WINDOW_BYTES, file.end - start)
        self._buffer = memoryview(bytearray(size))
        self._states = bytearray(block_count(size))

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes between two physical offsets."""
        return self._buffer[start - self.start : stop - self.start]

    def extend(self, stop: int) -> None:
        """More of the file was written: the window may reach up to ``stop``."""
        stop = min(stop, self.start + len(self._buffer))
        if stop > self.stop:
            self._states[(self.stop - self.start - 1) >> BLOCK_SHIFT] = _ABSENT
            self.stop = stop

    def blocks(self, start: int, stop: int) -> range:
        """The blocks that hold bytes between two physical offsets."""
        return range(
            (start - self.start) >> BLOCK_SHIFT, ((stop - 1 - self.start) >> BLOCK_SHIFT) + 1
        )

    def bounds(self, block: int) -> tuple[int, int]:
        """Where a block begins and where it ends, in the log."""
        start = self.start + block * BLOCK_BYTES
        return start, min(start + BLOCK_BYTES, self.stop)

    def lacks(self, start: int, stop: int) -> bool:
        """Whether bytes between two physical offsets are neither here nor at hand in memory, or
        cannot be compared yet."""
        if self.seal is None and self.file.seals is not None:
            return True
        for block in self.blocks(start, stop):
            if self._states[block] == _ABSENT:
                low, high = self.bounds(block)
                if self.file.read_cached(self.view(low, high), low) < high - low:
                    return True
                self._states[block] = _NEW
        return False

    def missing(self, start: int, stop: int) -> tuple[int, int]:
        """From where up to where something is to be read, for the bytes between two offsets."""
        blocks = self.blocks(start, stop)
        absent = [block for block in blocks if self._states[block] == _ABSENT] or blocks
        return self.bounds(absent[0])[0], self.bounds(absent[-1])[1]

    def took(self, start: int, stop: int) -> None:
        """These bytes were read."""
        for block in self.blocks(start, stop):
            self._states[block] = _NEW

    def damage(self, start: int, stop: int) -> int:
        """Where the first block begins that is not what it was when the file was full, of those
        that hold bytes between two physical offsets; -1 when all of them are."""
        for block in self.blocks(start, stop):
            state = self._states[block]
            if state == _NEW:
                state = self._states[block] = self._compared(block)
            if state == _BAD:
                return self.start + block * BLOCK_BYTES
        return -1

    def _compared(self, block: int) -> int:
        if self.seal is None:
            return _RIGHT
        start, stop = self.bounds(block)
        number = (start - self.file.base) >> BLOCK_SHIFT
        bad = [] if self.seal.holds(number, self.view(start, stop)) else [start]
        note_compared(self.file, self.file.seals, start, stop, bad)
        return _BAD if bad else _RIGHT


class Windows:
    """The windows of one log that were used last. ``written`` gives the log's end."""

    __slots__ = ("_kept", "_written")

    def __init__(self, written: Callable[[], int]) -> None:
        self._kept: OrderedDict[int, Window] = OrderedDict()
        self._written = written

    def forget(self) -> None:
        """Forget all of them."""
        self._kept.clear()

    def find(self, file: LogFile, start: int, stop: int) -> memoryview | None:
        """The bytes of a file between two physical offsets, when they are at hand and right."""
        window = self._kept.get(start - (start - file.base) % WINDOW_BYTES)
        if window is None or window.file is not file:
            return None
        if stop > window.stop:
            return self._find_across(window, start, stop)
        if window.lacks(start, stop) or window.damage(start, stop) >= 0:
            return None
        self._kept.move_to_end(window.start)
        if not window.is_followed:
            self._follow(window)
        return window.view(start, stop)

    def _find_across(self, window: Window, start: int, stop: int) -> memoryview | None:
        end = window.start + WINDOW_BYTES
        window.extend(self._written())
        if stop <= window.stop:
            return self.find(window.file, start, stop)
        head = self.find(window.file, start, end) if window.stop == end else None
        rest = None if head is None else self.find(window.file, end, stop)
        return None if head is None or rest is None else memoryview(b"".join((head, rest)))

    async def fetch(self, file: LogFile, start: int, stop: int) -> tuple[memoryview, int]:
        """The bytes of a file between two physical offsets, read where they are not here; and where
        the first bad block that holds some of them begins, -1 with none. Raises OSError."""
        views: list[memoryview] = []
        damage = -1
        while start < stop:
            at = start - (start - file.base) % WINDOW_BYTES
            window = self._kept.get(at)
            if window is None or window.file is not file:
                window = self._open(file, at, None)
            end = min(stop, at + WINDOW_BYTES)
            window.extend(max(self._written(), end))
            while window.lacks(start, end):
                await asyncio.shield(window.coming or self._read(window, start, end))
            if damage < 0:
                damage = window.damage(start, end)
            views.append(window.view(start, end))
            start = end
        return (views[0] if len(views) == 1 else memoryview(b"".join(views))), damage

    def _open(self, file: LogFile, at: int, seal: Seal | None) -> Window:
        stop = min(at + WINDOW_BYTES, file.end, self._written())
        window = self._kept[at] = Window(file, at, stop, seal)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return window

    def _follow(self, window: Window) -> None:
        window.is_followed = True
        file, at = window.file, window.start + WINDOW_BYTES
        if at < min(file.end, self._written()) and at not in self._kept:
            following = self._open(file, at, window.seal)
            file.will_need(at, following.stop)

    def _read(self, window: Window, start: int, stop: int) -> asyncio.Future[None]:
        file, seals = window.file, window.file.seals
        start, stop = window.missing(start, stop)
        file.will_need(start, window.stop)
        file.pin()
        loop = asyncio.get_running_loop()
        # A future of our own: once it is done the window knows it, whoever looks first.
        coming = window.coming = loop.create_future()
        reading = loop.run_in_executor(
            None, _read, file, window.view(start, stop), start, None if window.seal else seals
        )
        reading.add_done_callback(partial(_arrived, window, start, stop, seals))
        return coming


def _read(file: LogFile, buffer: memoryview, start: int, seals: Seals | None) -> Seal | None:
    file.read_into(buffer, start)
    return None if seals is None else seals.of(file.base)


def _arrived(
    window: Window, start: int, stop: int, seals: Seals | None, reading: asyncio.Future[Seal | None]
) -> None:
    coming, window.coming = window.coming, None
    assert coming is not None
    window.file.unpin()
    error = reading.exception()
    if error is not None:
        coming.set_exception(error)
        # Whoever waits raises it; nobody may be left.
        coming.exception()
        return
    window.took(start, stop)
    window.seal = window.seal or reading.result()
    if window.seal is None and seals is not None:
        # It cannot be read: there is nothing to compare with until the file has another.
        window.file.unseal()
    coming.set_result(None)


def note_compared(
    file: LogFile, seals: Seals | None, start: int, stop: int, bad: list[int]
) -> None:
    """Take note of whole blocks that were compared with their seal; ``bad`` are those that differ.

    A block that nobody knew to be bad is told in the log.
    """
    file.note_proven(start, stop, bad)
    for offset in bad:
        if seals is not None and seals.is_news(offset):
            logger.error(
                "log_block_damaged path=%s offset=%d size=%d", file.path, offset, BLOCK_BYTES
            )
