"""Estimate of message sizes from a sample: a broker reports offsets, not bytes.

Each micro-batch estimates from the first messages that it would take, in the longest ranges, so the
sample is part of the batch. The size of a batch is off by as much as its other messages differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cometmq.spark.brokers import reach

if TYPE_CHECKING:
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.planning import Range

QUEUES: Final = 16
ROWS: Final = 32
"""Number of queues to sample, and messages requested of each. A response holds at most 32."""


def rows_within(bytes_max: int, todo: Sequence[Range], access: Access) -> int | None:
    """Return how many messages of the ranges have about ``bytes_max`` together, or None if all
    sampled messages are gone.

    Raises NotConnected, RequestTimedOut, RouteNotFound, BrokerRefused.
    """
    fullest = sorted(todo, key=len, reverse=True)[:QUEUES]
    looks = reach.looks({part.queue: part.start for part in fullest}, access, rows=ROWS)
    weighed = [
        (len(part), looks[part.queue].size_bytes)
        for part in fullest
        if looks[part.queue].size_bytes > 0
    ]
    if not weighed:
        return None
    mean_bytes = sum(rows * size for rows, size in weighed) / sum(rows for rows, _ in weighed)
    return max(1, int(bytes_max / mean_bytes))
