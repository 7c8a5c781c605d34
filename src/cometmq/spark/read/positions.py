"""Turns a point that a user named (earliest, offsets, a time) into an offset of every queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cometmq.spark.brokers import cluster
from cometmq.spark.options import BadOption
from cometmq.spark.read.offsets import key_of
from cometmq.spark.read.planning import first_at_or_after
from cometmq.spark.read.points import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Kind,
    Point,
)
from cometmq.spark.read.pull import QueuePuller

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions

Vector = dict["MessageQueue", int]


def resolve(
    point: Point, option: str, queues: Sequence[MessageQueue], options: ReadOptions
) -> Vector:
    """The offset of each queue at ``point``.

    Raises BadOption naming ``option`` when the point names a queue that does not exist.
    """
    if point.kind is Kind.TIME:
        return _at_time(point.moment_ms, queues, options)
    if point.kind is not Kind.OFFSETS:
        return _edge(point.kind, queues, options)
    named = dict(point.offsets or {})
    unknown = sorted(set(named) - set(queues))
    if unknown:
        raise BadOption(option, f"no queue {key_of(unknown[0])} (broker|topic|queue)")
    return _named(named, point.otherwise, queues, options)


def _edge(kind: Kind, queues: Sequence[MessageQueue], options: ReadOptions) -> Vector:
    ask = cluster.earliest if kind is Kind.EARLIEST else cluster.latest
    return ask(queues, options.access)


def _named(
    named: Vector, otherwise: Kind, queues: Sequence[MessageQueue], options: ReadOptions
) -> Vector:
    edges = {EARLIEST_OFFSET: Kind.EARLIEST, LATEST_OFFSET: Kind.LATEST}
    wanted = {queue: edges.get(named[queue]) if queue in named else otherwise for queue in queues}
    found = {queue: named[queue] for queue in queues if wanted[queue] is None}
    for kind in (Kind.EARLIEST, Kind.LATEST):
        group = [queue for queue in queues if wanted[queue] is kind]
        found |= _edge(kind, group, options)
    return found


def _at_time(moment_ms: int, queues: Sequence[MessageQueue], options: ReadOptions) -> Vector:
    """Brokers of 4.x only come near (see cluster.near_time), so each guess is made exact."""
    oldest = cluster.earliest(queues, options.access)
    newest = cluster.latest(queues, options.access)
    near = cluster.near_time(queues, moment_ms, options.access)
    found: Vector = {}
    for queue in queues:
        low, high = oldest[queue], newest[queue]
        if low < high:
            look = QueuePuller(queue, options).store_ms
            low = first_at_or_after(look, low, high, near[queue], moment_ms)
        found[queue] = low
    return found
