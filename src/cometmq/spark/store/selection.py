"""Selects the records of a log that a read wants: by topic, queue, offset, time and filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.message.flags import TransactionType
from cometmq.spark.store.queues import QueueFiles
from cometmq.spark.store.survey import is_wanted

if TYPE_CHECKING:
    from cometmq.message.walk import Flags, Ints
    from cometmq.spark.decode.records import Block
    from cometmq.spark.store.options import StoreOptions
    from cometmq.spark.store.planning import LogPart

_UNQUEUED: Final = int(TransactionType.PREPARED)
_NOWHERE: Final = (1 << 63) - 1


class Selection:
    """Selects rows in the blocks of one part."""

    def __init__(self, part: LogPart, options: StoreOptions) -> None:
        self._part = part
        self._options = options
        self._wanted: dict[str, bool] = {}
        self._first: dict[tuple[str, int], int] = {}

    def choose(self, block: Block) -> None:
        """Keep only the wanted rows."""
        if self._options.only_queued:
            block.choose(block.number("sys_flag") & _UNQUEUED == 0)
        if not len(block):
            return
        names, codes = block.topic_codes()
        verdicts = np.array([self._wants(name) for name in names])
        if not verdicts.all():
            block.choose(verdicts[codes])
            codes = codes[verdicts[codes]]
        if len(block):
            self._choose_in_queues(block, names, codes)
        if len(block):
            self._options.row_filter.choose(block)

    def _wants(self, topic: str) -> bool:
        if topic not in self._wanted:
            broker_name = self._part.root.broker_name
            self._wanted[topic] = is_wanted(self._options.choice, broker_name, topic)
        return self._wanted[topic]

    def _choose_in_queues(self, block: Block, names: list[str], codes: Ints) -> None:
        keys, index = _kinds(codes << 32 | block.number("queue_id") & 0xFFFF_FFFF)
        queues = [(names[key >> 32], key & 0xFFFF_FFFF) for key in keys]
        windows = [self._part.windows.of(*queue) for queue in queues]
        firsts = np.array([self._first_of(*queue) for queue in queues], np.int64)
        rows = block.number("physical_offset") >= firsts[index]
        offsets, times = block.queue_offsets, block.number("store_ms")
        rows &= _inside(offsets, [(each.start, each.stop) for each in windows], index)
        rows &= _inside(times, [(each.from_ms, each.until_ms) for each in windows], index)
        block.choose(rows)

    def _first_of(self, topic: str, queue_id: int) -> int:
        """Return the physical offset from which records of a queue count."""
        key = (topic, queue_id)
        if key not in self._first:
            self._first[key] = self._look(topic, queue_id)
        return self._first[key]

    def _look(self, topic: str, queue_id: int) -> int:
        root = self._part.root
        if not is_wanted(self._options.choice, root.broker_name, topic, queue_id):
            return _NOWHERE
        if self._part.dispatched < 0:
            return 0
        files = QueueFiles(root.path, topic, queue_id)
        stop = files.stop()
        first = files.start(0, stop)
        if first == stop:
            return self._part.dispatched
        # Records before a queue's first entry belong to a deleted topic of the same name.
        return files.entry(first).physical


def _inside(values: Ints, bounds: list[tuple[int, int]], index: Ints) -> Flags:
    """Return which values lie in the half-open bounds at their ``index``."""
    lows, highs = np.array(bounds, np.int64).T
    found: Flags = (values >= lows[index]) & (values < highs[index])
    return found


def _kinds(values: Ints) -> tuple[list[int], Ints]:
    """Return the distinct values, and the index of each row's value among them."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
