"""Rows: records that were appended to the log, as queues, index and listeners get them.

    (queue, queue offset or -1, physical offset, size, tag code, store time ms, index keys)

-1 means that the record takes no place in its queue (half messages and rollback records).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from cometmq.speedups import WriteBatch
from cometmq.store.queue.consumequeue import ConsumeQueue

Dispatched: TypeAlias = tuple[ConsumeQueue, int, int, int, int, int, tuple[str, ...]]
#: Consecutive records of the log: rows of single messages, or a write batch.
Segment: TypeAlias = Sequence[Dispatched] | WriteBatch
