"""Reads a range of one queue over the network: the stored bytes, and which of its offsets are
gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cometmq.protocol.codes import ResponseCode
from cometmq.spark.read.ahead import (
    LOOKED,
    PULL_ROWS,
    WINDOW_MIN,
    Pace,
    Span,
    spans_ahead,
    stride_after,
)
from cometmq.spark.read.asking import Asker, onward

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range

BLOCK_BYTES: Final = 2 << 20
BLOCK_ROWS: Final = 20_000
"""A block is passed on at either size: larger ones decode no faster, and Spark waits for them."""


class QueuePuller:
    """Pulls from one queue, starting with the pace learned from other queues of the task."""

    def __init__(self, queue: MessageQueue, options: ReadOptions, pace: Pace | None = None) -> None:
        self._asker = Asker(queue, options.access, options.row_filter, options.outage.timeout_ms)
        self._pace = Pace() if pace is None else pace

    def spans(self, part: Range) -> Iterator[Span]:
        """Yield the whole range in order, in spans of a suitable size for decoding.

        Raises NotConnected or RequestTimedOut if no broker answers, BrokerRefused.
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
        """Yield the range in order, one span per response."""
        at = part.start
        while at < part.stop:
            begun = at
            for span in spans_ahead(self._asker, self._pace, at, part.stop):
                at = span.stop
                yield span
            if at == begun:
                span = self._next(at, part.stop)
                at = span.stop
                yield span

    def _next(self, at: int, stop: int) -> Span:
        """Send a single pull and return its span, whatever the response is."""
        answer = self._asker.ask(at, min(stop - at, PULL_ROWS))
        filtered = self._asker.filters
        beyond = onward(answer)
        if answer.code in LOOKED and beyond > at:
            if filtered or answer.code == ResponseCode.SUCCESS:
                pace = self._pace
                pace.stride = stride_after(beyond - at, answer, filtered=filtered)
                pace.window = WINDOW_MIN
                pace.answered.add(self._asker.address)
            return Span(at, min(beyond, stop), answer.body, filtered=filtered)
        # The offset is outside the queue: the oldest message is later, or the newest one earlier.
        return Span(at, min(beyond, stop) if beyond > at else stop, gone=True)
