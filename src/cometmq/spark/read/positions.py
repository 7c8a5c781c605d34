"""Resolves a point that a user named (an edge, offsets, times, a group) to offsets of queues."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.spark.brokers import offsets
from cometmq.spark.options import BadOption
from cometmq.spark.read.losses import report_beyond
from cometmq.spark.read.offsets import key_of
from cometmq.spark.read.points import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    STRATEGY,
    AtGroup,
    AtOffsets,
    AtTimes,
    Edge,
    Named,
)

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.losses import LossRule

K = TypeVar("K")

Search = Generator[int, int, int]
"""Yields offsets to look at, receives their store times (ms), and returns the offset searched
for."""


def first_at_or_after(low: int, high: int, hint: int, moment_ms: int) -> Search:
    """Search the first offset in ``low..high`` whose store time is ``moment_ms`` or later. Return
    ``high`` if all are earlier.

    Store times of ``low <= offset < high`` must not decrease. ``hint`` is a guess: the search
    gallops away from it, so a good one takes three looks.
    """
    before, after = low - 1, high  # before is too early, after is not
    step = 1
    at = min(max(hint, low), high - 1)
    while after - before > 1:
        if (yield at) < moment_ms:
            before = at
            at = at + step
        else:
            after = at
            at = at - step
        step *= 2
        if not before < at < after:
            at = (before + after) // 2
    return after


def together(
    searches: Mapping[K, Search], look: Callable[[Mapping[K, int]], Mapping[K, int]]
) -> dict[K, int]:
    """Run searches side by side and return their results. ``look`` returns the store time of one
    offset per search."""
    found: dict[K, int] = {}
    wanted: dict[K, int] = {}

    def step(key: K, found_ms: int | None) -> None:
        try:
            search = searches[key]
            wanted[key] = next(search) if found_ms is None else search.send(found_ms)
        except StopIteration as end:
            found[key] = end.value

    for key in searches:
        step(key, None)
    while wanted:
        asked, wanted = wanted, {}
        for key, store_ms in look(asked).items():
            step(key, store_ms)
    return found


Vector = dict["MessageQueue", int]

_EDGES: Final = {EARLIEST_OFFSET: Edge.EARLIEST, LATEST_OFFSET: Edge.LATEST}


def resolve(named: Named, queues: Sequence[MessageQueue], access: Access) -> Vector:
    """Return the offset of each queue at a point.

    Raises BadOption if the point names a queue that does not exist, or a moment that must have a
    message and has none; and the errors of :func:`offsets.ends`.
    """
    point = named.point
    match point:
        case Edge():
            return _at_edge(point, queues, access)
        case AtOffsets():
            _check_known(named.option, point.by_queue, queues)
            exact = {q: at for q, at in point.by_queue.items() if at not in _EDGES}
            edge_of = {q: _EDGES[at] for q, at in point.by_queue.items() if at in _EDGES}
            return exact | _rest(exact, queues, access, lambda q: edge_of.get(q, point.otherwise))
        case AtTimes():
            _check_known(named.option, point.by_queue, queues)
            found = _at_times(named.option, point, queues, access)
            return found | _rest(found, queues, access, lambda _: point.otherwise)
        case AtGroup():
            found = offsets.committed(point.group, queues, access)
            return found | _rest(found, queues, access, lambda _: point.otherwise)


def end_of(named: Named, queues: Sequence[MessageQueue], access: Access, rule: LossRule) -> Vector:
    """Return the offset of each queue at the point where a read ends, at most the end of the queue.

    An end reported by a slave does not limit an offset, because the slave may lag. Raises the
    errors of :func:`resolve`, and BadOption for an offset beyond the end unless ``rule`` says to
    continue.
    """
    found = resolve(named, queues, access)
    if isinstance(named.point, AtOffsets):
        known_ends = offsets.ends(
            [queue for queue in named.point.by_queue if queue in found], access
        )
        for queue, end in sorted(known_ends.by_queue.items()):
            if found[queue] > end and queue not in known_ends.copies:
                report_beyond(named.option, queue, end, found[queue], rule)
                found[queue] = end
    return found


def check_order(start: Vector, end: Vector, option: str) -> None:
    """Reject a start after the end. ``option`` is the one that named the start. Raises
    BadOption."""
    for queue in sorted(start):
        if queue in end and start[queue] > end[queue]:
            raise BadOption(
                option,
                f"queue {key_of(queue)} (broker|topic|queue) starts at {start[queue]}, "
                f"after its end {end[queue]}",
            )


def _check_known(
    option: str, named: Iterable[MessageQueue], queues: Iterable[MessageQueue]
) -> None:
    unknown = sorted(set(named) - set(queues))
    if unknown:
        raise BadOption(option, f"no queue {key_of(unknown[0])} (broker|topic|queue)")


def _rest(
    found: Mapping[MessageQueue, int],
    queues: Sequence[MessageQueue],
    access: Access,
    edge_of: Callable[[MessageQueue], Edge],
) -> Vector:
    """Return the offsets of the queues missing in ``found``, each at its edge."""
    rest: Vector = {}
    for edge in Edge:
        rest |= _at_edge(edge, [q for q in queues if q not in found and edge_of(q) is edge], access)
    return rest


def _at_edge(edge: Edge, queues: Sequence[MessageQueue], access: Access) -> Vector:
    ask = offsets.earliest if edge is Edge.EARLIEST else offsets.latest
    return ask(queues, access)


def _at_times(
    option: str, point: AtTimes, queues: Sequence[MessageQueue], access: Access
) -> Vector:
    moments: Vector = {}
    for queue in queues:
        moment_ms = point.by_queue.get(queue, point.everywhere_ms)
        if moment_ms is not None:
            moments[queue] = moment_ms
    newest = offsets.latest(moments, access)
    found = at_moments(moments, newest, access)
    for queue, offset in found.items():
        if point.is_strict and offset >= newest[queue]:
            raise BadOption(
                option,
                f"queue {key_of(queue)} (broker|topic|queue) has no message stored at "
                f"{moments[queue]} ms or later; {STRATEGY} latest starts it at its end",
            )
    return found


def at_moments(
    moments: Mapping[MessageQueue, int], newest: Mapping[MessageQueue, int], access: Access
) -> Vector:
    """Return the offset of the first message stored at each queue's moment (ms) or later.

    If there is none before the end in ``newest``, return that end. Raises the errors of
    :func:`offsets.ends`.
    """
    oldest, near = offsets.earliest(moments, access), offsets.near_moments(moments, access)
    return together(
        {
            queue: first_at_or_after(oldest[queue], newest[queue], near[queue], moment_ms)
            for queue, moment_ms in moments.items()
        },
        lambda places: {
            q: sample.store_ms for q, sample in offsets.samples(places, access).items()
        },
    )
