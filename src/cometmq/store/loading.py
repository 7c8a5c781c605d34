"""Bytes of the log from the device, in a thread, checked against the seal of their file.

A page fault would hold the whole process, so what may not be in memory is never read through a map.
Of a sealed file whole blocks are read and compared with what they were when the file was full
(seals.py). A block that differs is never served; what it holds in part or whole is left out of an
answer, and asked for first it raises StoreCorrupt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cometmq.core.errors import StoreCorrupt
from cometmq.store.seals import BLOCK_BYTES
from cometmq.store.windows import WINDOW_BYTES, note_compared

if TYPE_CHECKING:
    from cometmq.store.commitlog import CommitLog
    from cometmq.store.mapped import LogFile
    from cometmq.store.seals import Seals

#: Ranges within so many bytes are read by the window.
_CLOSE_BYTES = WINDOW_BYTES // 2


class Piece(NamedTuple):
    """A range of the log. ``damage`` is where its first bad block begins, -1 with none.

    Physical offsets; ``path`` is the file.
    """

    view: memoryview
    start: int
    damage: int
    path: str

    def sound(self) -> memoryview:
        """The bytes. Raises StoreCorrupt when some are not what they were."""
        if self.damage >= 0:
            raise damaged(self)
        return self.view


@dataclass(slots=True)
class _Span:
    """Neighbouring bytes of one file that are read together: whole blocks of a sealed one."""

    file: LogFile
    start: int
    stop: int
    seals: Seals | None
    buffer: bytearray = field(default_factory=bytearray)
    bad: list[int] = field(default_factory=list)
    compared: bool = True


async def load_ranges(
    log: CommitLog, ranges: Sequence[tuple[int, int]], *, ahead: bool = False
) -> list[Piece]:
    """The bytes of ranges of the log, read in a thread; a range that is gone by now ends them.

    With ``ahead`` ranges that lie close together are taken from windows, which are kept for whoever
    goes on from there (windows.py).
    """
    if ahead and sum(ranges[-1]) - ranges[0][0] <= _CLOSE_BYTES:
        return await _load_windows(log, ranges)
    spans: list[_Span] = []
    places: list[tuple[_Span, int, int]] = []
    for start, size in ranges:
        file = log.segments.find(start)
        if file is None or start + size > file.end:
            break
        places.append((_span_for(spans, file, start, start + size), start, size))
    for span in spans:
        span.file.pin()
    done = asyncio.get_running_loop().run_in_executor(None, _fill, spans)
    # Not in a finally: a cancelled caller does not stop the thread.
    done.add_done_callback(lambda _: _unpin(spans))
    await asyncio.shield(done)
    for span in spans:
        _note(span)
    return [_piece(*place) for place in places]


async def _load_windows(log: CommitLog, ranges: Sequence[tuple[int, int]]) -> list[Piece]:
    pieces: list[Piece] = []
    for start, size in ranges:
        file = log.segments.find(start)
        if file is None or start + size > file.end:
            break
        view, damage = await log.windows.fetch(file, start, start + size)
        pieces.append(Piece(view, start, damage, file.path))
    return pieces


def _span_for(spans: list[_Span], file: LogFile, start: int, stop: int) -> _Span:
    if file.seals is not None:
        start -= (start - file.base) % BLOCK_BYTES
        stop = min(file.end, stop + (file.base - stop) % BLOCK_BYTES)
    last = spans[-1] if spans else None
    if last is None or last.file is not file or not last.start <= start <= last.stop:
        spans.append(_Span(file, start, stop, file.seals))
    else:
        last.stop = max(last.stop, stop)
    return spans[-1]


def _fill(spans: list[_Span]) -> None:
    for span in spans:
        span.buffer = bytearray(span.stop - span.start)
        span.file.read_into(span.buffer, span.start)
        _check(span)


def _check(span: _Span) -> None:
    file = span.file
    seal = None if span.seals is None else span.seals.of(file.base)
    if seal is None:
        span.compared = False
        return
    view = memoryview(span.buffer)
    first = (span.start - file.base) // BLOCK_BYTES
    for at in range(0, len(view), BLOCK_BYTES):
        if not seal.holds(first + at // BLOCK_BYTES, view[at : at + BLOCK_BYTES]):
            span.bad.append(span.start + at)


def _note(span: _Span) -> None:
    file = span.file
    if span.seals is None:
        return
    if not span.compared:
        # Its seal cannot be read: there is nothing to compare with until it has another.
        file.unseal()
        return
    note_compared(file, span.seals, span.start, span.stop, span.bad)


def _piece(span: _Span, start: int, size: int) -> Piece:
    at = start - span.start
    first = start - (start - span.file.base) % BLOCK_BYTES
    bad = [offset for offset in span.bad if first <= offset < start + size]
    view = memoryview(span.buffer)[at : at + size]
    return Piece(view, start, bad[0] if bad else -1, span.file.path)


def _unpin(spans: list[_Span]) -> None:
    for span in spans:
        span.file.unpin()


def damaged(piece: Piece) -> StoreCorrupt:
    """The error for whoever asked for a piece that cannot be given."""
    return StoreCorrupt(
        piece.path,
        piece.damage,
        f"the {BLOCK_BYTES} bytes there are not what they were when the file was full: bring the "
        "file back from a snapshot or copy (cometmq store verify lists all damage), or skip them",
    )
