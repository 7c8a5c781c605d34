"""Converts a task's ranges to Arrow batches: exactly the messages of each range, or a report of the
loss. The ranges come in the partition that Spark carries from the plan to the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.message.record import BadRecord
from cometmq.protocol.codes import ResponseCode
from cometmq.spark.read.asking import (
    LOOKED,
    PULL_ROWS,
    WINDOW_MIN,
    Asker,
    Pace,
    Span,
    onward,
    spans_ahead,
    stride_after,
)
from cometmq.spark.read.corrupt import CorruptMessage, clean, file_name, quarantine, read_block
from cometmq.spark.read.losses import report_loss

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.message.model import MessageQueue
    from cometmq.spark.decode import Block
    from cometmq.spark.read.corrupt import Quarantine
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


def batches(
    parts: Sequence[Range], options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges, in the order of each queue.

    Raises DataLoss, CorruptMessage, and the errors of requests to brokers.
    """
    with quarantine(options.corrupt.path, file_name(parts)) as aside:
        pace = Pace()
        for part in parts:
            for span in QueuePuller(part.queue, options, pace).spans(part):
                yield from _rows(part, span, options, names, aside)


def _rows(
    part: Range,
    span: Span,
    options: ReadOptions,
    names: tuple[str, ...],
    aside: Quarantine | None,
) -> Iterator[pa.RecordBatch]:
    if span.gone:
        report_loss(part.queue, span.start, span.stop, options)
        return
    queue, corrupt = part.queue, options.corrupt
    try:
        block, problems = read_block(span.data, queue.broker_name, corrupt, topic=queue.topic)
    except BadRecord as error:
        why = f"the bytes of the answer from here on are not records: {error}"
        place = (queue.topic, queue.broker_name, queue.queue_id, span.start)
        raise CorruptMessage(*place, why) from None
    offsets = block.queue_offsets
    block.choose((offsets >= span.start) & (offsets < span.stop))
    if span.filtered:
        _drop_repeats(block)
    else:
        _report_holes(part, span, block, options)
    options.row_filter.choose(block, beside=problems)
    yield from clean(block, problems, names, corrupt, aside, topic=queue.topic)


def _drop_repeats(block: Block) -> None:
    once = np.zeros(len(block), np.bool_)
    once[np.unique(block.queue_offsets, return_index=True)[1]] = True
    block.choose(once)


def _report_holes(part: Range, span: Span, block: Block, options: ReadOptions) -> None:
    """Report missing offsets as lost. Queue offsets are dense, so without a filter each gap is a
    loss."""
    if len(block) == span.stop - span.start:
        return
    edges = np.concatenate(([span.start - 1], np.sort(block.queue_offsets), [span.stop]))
    for at in np.flatnonzero(np.diff(edges) > 1).tolist():
        report_loss(part.queue, int(edges[at]) + 1, int(edges[at + 1]), options)
