"""A task's ranges to Arrow batches: exactly the messages of each range, or a report of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.spark.decode.records import Block
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.pull import QueuePuller

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.filter.tags import TagFilter
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range
    from cometmq.spark.read.pull import Span

BATCH_ROWS: Final = 20_000


def batches(
    parts: Sequence[Range], options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges, in the order of each queue.

    Raises DataLoss, BadRecord, and what the wire raises.
    """
    for part in parts:
        for span in QueuePuller(part.queue, options).spans(part):
            yield from _rows(part, span, options, names)


def _rows(
    part: Range, span: Span, options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    if span.gone:
        # A queue met on the way starts at 0, though its oldest message may be younger.
        if not (part.is_new and span.start == 0):
            report_loss(part.queue, span.start, span.stop, options)
        return
    block = Block(span.data, part.queue.broker_name)
    offsets = block.queue_offsets
    block.choose((offsets >= span.start) & (offsets < span.stop))
    if options.tag_filter.matches_all:
        _report_holes(part, span, block, options)
    else:
        block.choose(accepted(block.tags(), options.tag_filter))
    yield from block.batches(names, BATCH_ROWS)


def _report_holes(part: Range, span: Span, block: Block, options: ReadOptions) -> None:
    """Queue offsets are dense, so without a filter each one missing is a message lost."""
    if len(block) == span.stop - span.start:
        return
    edges = np.concatenate(([span.start - 1], np.sort(block.queue_offsets), [span.stop]))
    for at in np.flatnonzero(np.diff(edges) > 1).tolist():
        report_loss(part.queue, int(edges[at]) + 1, int(edges[at + 1]), options)


def accepted(tags: pa.Array, tag_filter: TagFilter) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows a filter takes: brokers compare the hashes of tags, so others slip through."""
    encoded = tags.dictionary_encode()
    known = [tag_filter.accepts(tag) for tag in encoded.dictionary.to_pylist()]
    verdicts = np.array([*known, False])
    index = encoded.indices.fill_null(len(known)).to_numpy()
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = verdicts[index]
    return found
