"""A process of its own that looks at messages: a broker's looker (broker/looker.py).

    python -m cometmq.store.tools.look [TRAYS]

takes requests from its input and gives answers to its output (store/looking.py), and lays records
into the file with the descriptor TRAYS. It may wait for the disk, as a broker may not. Its input
ends with the broker, however that ended, and so does it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import SystemClock
from cometmq.filter.sql92 import SqlFilter
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.layout import QUEUE_ENTRY_BYTES
from cometmq.store.looking import NO_TRAY, TRAY_BYTES, Frames, Look, Seen, frame
from cometmq.store.tools.propertytexts import RecordMap

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

_READ_BYTES: Final = 1 << 18
_MAX_MAPS: Final = 4
_MAX_FILTERS: Final = 64
#: A map keeps the room of a file on the disk that the broker removed, so none gets older.
MAP_AGE_MS: Final = 1_000
#: What is looked at together still fits the memory nearest to the processor.
_BLOCK_BYTES: Final = 512 * QUEUE_ENTRY_BYTES
#: Where processors are busy the broker goes before it, whose work it would do otherwise.
_NICENESS: Final = 10
_files: Final = ReadOnlyFiles()


class Eyes:
    """Answers requests: with the log files that it has mapped, and the expressions it has read."""

    __slots__ = ("_clock", "_filters", "_mapped_ms", "_maps", "_trays")

    def __init__(self, clock: Clock, trays: int | None = None) -> None:
        self._clock = clock
        self._trays = trays
        self._maps: OrderedDict[str, RecordMap] = OrderedDict()
        self._filters: OrderedDict[str, SqlFilter] = OrderedDict()
        self._mapped_ms = 0

    def look(self, request: Look) -> Seen:
        """Look at messages."""
        try:
            mapped = self._map(request.path, request.base)
        except (OSError, ValueError):  # the broker dropped the file
            return Seen(None)
        found = request.known
        if found is None:
            found = self._select(request, mapped)
        ends = None if found is None else self._gather(request, mapped, found)
        if found is None or ends is None:
            self.rest()
            return Seen(None)
        return Seen(found, ends)

    def _select(self, request: Look, mapped: RecordMap) -> list[int] | None:
        """The numbers of those that match; None when the file has other records."""
        wanted = self._filter(request.expression)
        found: list[int] = []
        for at in range(0, len(request.entries), _BLOCK_BYTES):
            texts = mapped.texts(request.entries[at : at + _BLOCK_BYTES])
            if texts is None:
                return None
            first = at // QUEUE_ENTRY_BYTES
            found += [first + number for number in wanted.select(texts)]
        return found

    def _gather(self, request: Look, mapped: RecordMap, matching: list[int]) -> list[int] | None:
        """Lay records into a tray; gives where each ends in it, None when the file has others."""
        if request.tray == NO_TRAY or self._trays is None or not matching:
            return []
        found = mapped.gather(request.entries, matching, TRAY_BYTES)
        if found is None:
            return None
        _files.pwrite(self._trays, found.records, request.tray * TRAY_BYTES)
        return found.ends

    def rest(self) -> None:
        """Let go of all files."""
        self._maps.clear()

    def _map(self, path: str, base: int) -> RecordMap:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._mapped_ms > MAP_AGE_MS:
            self._maps.clear()
            self._mapped_ms = now_ms
        found = self._maps.get(path)
        if found is None:
            handle = _files.open(path)
            try:
                view = _files.map(handle, _files.size(handle))
            finally:
                _files.close(handle)
            found = self._maps[path] = RecordMap(view, base)
            if len(self._maps) > _MAX_MAPS:
                self._maps.popitem(last=False)
        return found

    def _filter(self, expression: str) -> SqlFilter:
        found = self._filters.get(expression)
        if found is None:
            found = self._filters[expression] = SqlFilter(expression)
            if len(self._filters) > _MAX_FILTERS:
                self._filters.popitem(last=False)
        return found


def requests(source: int, eyes: Eyes) -> Iterator[Look]:
    """What is asked, until the input ends; who waits long for it lets go of all files."""
    frames = Frames(Look)
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while True:
        if not poll.poll(MAP_AGE_MS):
            eyes.rest()
            continue
        data = os.read(source, _READ_BYTES)
        if not data:
            return
        yield from frames.take(data)


def main() -> int:
    """Answer until the input ends."""
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for the broker
    eyes = Eyes(SystemClock(), int(sys.argv[1]) if sys.argv[1:] else None)
    source, target = sys.stdin.fileno(), sys.stdout.fileno()
    for request in requests(source, eyes):
        answer = memoryview(frame(eyes.look(request)))
        try:
            while answer:
                answer = answer[os.write(target, answer) :]
        except BrokenPipeError:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
