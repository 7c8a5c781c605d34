"""Resolves the positions of a read of several tiers to offsets of queues.

The module does no I/O: bounds, lookups by time and committed offsets are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cometmq.spark.options import BadOption
from cometmq.spark.read.checkpoint import key_of
from cometmq.spark.read.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    STRATEGY,
    AtGroup,
    AtOffsets,
    AtTimes,
    Edge,
)

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.checkpoint import Offsets
    from cometmq.spark.read.positions import NamedPosition
    from cometmq.spark.tiers.holdings import FirstAt

Committed = Callable[[str], Mapping["MessageQueue", int]]
"""Function that returns the committed offsets of a group."""

_EDGES = {EARLIEST_OFFSET: Edge.EARLIEST, LATEST_OFFSET: Edge.LATEST}


def resolve(
    named: NamedPosition, start: Offsets, end: Offsets, first_at: FirstAt, committed: Committed
) -> dict[MessageQueue, int]:
    """Return the offset of each queue at a position. ``start`` and ``end`` are the bounds of each
    queue over all tiers.

    Raises BadOption if the position names a queue that no tier has, or if it is strict and a queue
    has no message at its moment or later.
    """
    edges = {Edge.EARLIEST: start, Edge.LATEST: end}
    position = named.position
    match position:
        case Edge():
            return dict(edges[position])
        case AtOffsets():
            _check_known(named.option, position.by_queue, end)
            found = dict(edges[position.otherwise])
            for queue, offset in position.by_queue.items():
                found[queue] = edges[_EDGES[offset]][queue] if offset in _EDGES else offset
            return found
        case AtTimes():
            _check_known(named.option, position.by_queue, end)
            return dict(edges[position.otherwise]) | _at_times(
                named.option, position, end, first_at
            )
        case AtGroup():
            known = committed(position.group)
            return dict(edges[position.otherwise]) | {q: at for q, at in known.items() if q in end}


def _at_times(
    option: str, position: AtTimes, end: Offsets, first_at: FirstAt
) -> dict[MessageQueue, int]:
    moments = {}
    for queue in end:
        at_ms = position.by_queue.get(queue, position.everywhere_ms)
        if at_ms is not None:
            moments[queue] = at_ms
    found = first_at(moments)
    if position.is_strict:
        for queue in sorted(moments.keys() - found.keys()):
            raise BadOption(
                option,
                f"queue {key_of(queue)} (broker|topic|queue) has no message stored at "
                f"{moments[queue]} ms or later; {STRATEGY} latest starts it at its end",
            )
    return {queue: found.get(queue, end[queue]) for queue in moments}


def _check_known(option: str, named: Mapping[MessageQueue, int], known: Offsets) -> None:
    unknown = sorted(named.keys() - known.keys())
    if unknown:
        raise BadOption(option, f"no tier has queue {key_of(unknown[0])} (broker|topic|queue)")
