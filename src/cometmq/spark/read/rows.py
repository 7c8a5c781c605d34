"""Converts a task's ranges to Arrow batches: exactly the messages of each range, or a report of the
loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cometmq.message.record import BadRecord
from cometmq.spark.read.ahead import Pace
from cometmq.spark.read.dirty import DirtyRow, clean, read_block
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.pull import QueuePuller
from cometmq.spark.read.quarantine import file_name, quarantine

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.decode.records import Block
    from cometmq.spark.read.ahead import Span
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range
    from cometmq.spark.read.quarantine import Quarantine


def batches(
    parts: Sequence[Range], options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges, in the order of each queue.

    Raises DataLoss, DirtyRow, and the errors of requests to brokers.
    """
    with quarantine(options.dirty.path, file_name(parts)) as aside:
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
    queue, dirty = part.queue, options.dirty
    try:
        block, problems = read_block(span.data, queue.broker_name, dirty, topic=queue.topic)
    except BadRecord as error:
        why = f"the answers from here on are no chain of records: {error}"
        place = (queue.topic, queue.broker_name, queue.queue_id, span.start)
        raise DirtyRow(*place, why) from None
    offsets = block.queue_offsets
    block.choose((offsets >= span.start) & (offsets < span.stop))
    if span.filtered:
        _drop_repeats(block)
    else:
        _report_holes(part, span, block, options)
    options.row_filter.choose(block, beside=problems)
    yield from clean(block, problems, names, dirty, aside, topic=queue.topic)


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
