"""Reads a range of one queue over the network: stored bytes, and what of the range is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.protocol.codes import ResponseCode
from cometmq.spark.read.asking import Asker, onward

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range

PULL_ROWS: Final = 1024
"""Messages asked for at once; brokers give fewer (32 of them unless configured otherwise)."""

BLOCK_BYTES: Final = 2 << 20
BLOCK_ROWS: Final = 20_000
"""A block is handed on at either size: larger ones decode no faster, and Spark waits for them."""

WINDOW_MIN: Final = 2
WINDOW_MAX: Final = 16
"""Pulls in flight, once a broker shows how many messages an answer holds: doubled while all answers
follow on one another, since those that do not are thrown away."""

_LOOKED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY})
"""With a filter, the second says that nothing matched so far."""


@dataclass(frozen=True, slots=True)
class Span:
    """What the broker said of ``start <= offset < stop``: its records, or that it is ``gone``.

    What ``data`` misses was ``filtered`` out by the broker, or else is lost. Where the broker
    filters, it may hold records from ``stop`` on, and some of them twice.
    """

    start: int
    stop: int
    data: bytes = b""
    gone: bool = False
    filtered: bool = False


class QueuePuller:
    """Pulls from one queue."""

    def __init__(self, queue: MessageQueue, options: ReadOptions) -> None:
        self._asker = Asker(queue, options.access, options.row_filter)
        self._stride = 0
        self._window = 1

    def spans(self, part: Range) -> Iterator[Span]:
        """The whole range in order, in spans of a good size to decode.

        Raises NotConnected or RequestTimedOut when no broker answers, BrokerRefused.
        """
        start = part.start
        bodies: list[bytes] = []
        size_bytes = 0
        filtered = False
        for span in self._walk(part):
            if not span.gone:
                bodies.append(span.data)
                size_bytes += len(span.data)
                filtered |= span.filtered
                is_long = span.stop - start >= BLOCK_ROWS and not filtered
                if size_bytes < BLOCK_BYTES and not is_long and span.stop < part.stop:
                    continue
            if bodies:
                stop = span.start if span.gone else span.stop
                yield Span(start, stop, b"".join(bodies), filtered=filtered)
                bodies, size_bytes, filtered = [], 0, False
            if span.gone:
                yield span
            start = span.stop

    def _walk(self, part: Range) -> Iterator[Span]:
        """The range in order, one span an answer."""
        at = part.start
        while at < part.stop:
            for span in self._ahead(at, part.stop) or [self._next(at, part.stop)]:
                yield span
                at = span.stop

    def _ahead(self, at: int, stop: int) -> list[Span]:
        """Several pulls in flight, each from where the one before should end; what of their
        answers follows on one another. Empty when nothing is known to expect."""
        if not self._asker.knows_whom or self._window < WINDOW_MIN:
            return []
        if self._asker.filters:
            return self._ahead_filtered(at, stop)
        starts = range(at, stop, self._stride)[: self._window]
        # The last one may give more than expected, and shows when answers hold more again.
        rows = [min(self._stride, stop - start) for start in starts[:-1]]
        rows.append(min(stop - starts[-1], PULL_ROWS))
        self._window = min(self._window * 2, WINDOW_MAX)
        answers = self._asker.ask_ahead([*zip(starts, rows, strict=True)])
        found: list[Span] = []
        for start, wanted, answer in zip(starts, rows, answers, strict=False):
            if answer.code != ResponseCode.SUCCESS:
                break
            given = onward(answer) - start
            if not 0 < given <= wanted:
                break
            found.append(Span(start, start + given, answer.body))
            self._stride = given
            if given < wanted:
                break
        if len(found) < len(starts):
            # The careful way of _next finds out what is wrong.
            self._window = WINDOW_MIN if found else 1
        return found

    def _ahead_filtered(self, at: int, stop: int) -> list[Span]:
        """As above, where the broker says how far it looked: each pull begins a bit before the one
        in front of it should end, and what both give is given twice."""
        starts = range(at, stop, self._stride)[: self._window]
        self._window = min(self._window * 2, WINDOW_MAX)
        answers = self._asker.ask_ahead([(start, PULL_ROWS) for start in starts])
        found: list[Span] = []
        looked: list[int] = []
        for start, answer in zip(starts, answers, strict=False):
            moves = onward(answer) - start if answer.code in _LOOKED else 0
            if moves <= 0:
                break
            end = min(start + moves, start + self._stride, stop)
            found.append(Span(start, end, answer.body, filtered=True))
            looked.append(moves)
            if moves < self._stride:
                break
        if len(found) < len(starts):
            self._window = WINDOW_MIN if found else 1
        if looked:
            self._stride = _sure_of(min(looked))
        return found

    def _next(self, at: int, stop: int) -> Span:
        answer = self._asker.ask(at, min(stop - at, PULL_ROWS))
        filtered = self._asker.filters
        beyond = onward(answer)
        if answer.code in _LOOKED and beyond > at:
            if filtered:
                self._stride, self._window = _sure_of(beyond - at), WINDOW_MIN
            elif answer.code == ResponseCode.SUCCESS:
                self._stride, self._window = beyond - at, WINDOW_MIN
            return Span(at, min(beyond, stop), answer.body, filtered=filtered)
        # Moved: the oldest message is younger, or the newest one older, than the offset.
        return Span(at, min(beyond, stop) if beyond > at else stop, gone=True)


def _sure_of(moves: int) -> int:
    """How far the next answers will look at least, most likely."""
    return max(moves * 3 // 4, 1)
