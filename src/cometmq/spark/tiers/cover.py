"""Assigns each message of a read to one of several places that hold it, such as tiers or files.

The functions do no I/O: their arguments and results are ranges of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from cometmq.spark.read.planning import Range

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue

P = TypeVar("P")

Span = tuple[int, int]
"""The offsets ``start <= offset < stop``."""


@dataclass(frozen=True, slots=True)
class Portion(Generic[P]):
    """The messages ``part``, which are read from ``place``."""

    place: P
    part: Range


@dataclass(frozen=True, slots=True)
class Cover(Generic[P]):
    """The messages to read from each place, and the messages that no place holds. All ranges are
    disjoint."""

    portions: list[Portion[P]]
    missing: list[Range]


def cover(wanted: Iterable[Range], places: Sequence[tuple[P, Iterable[Range]]]) -> Cover[P]:
    """Assign the wanted messages to places.

    ``places`` pairs each place with the ranges that it holds. A message is read from the first
    place that holds it. Every wanted offset is in exactly one portion, or missing. Ranges may
    overlap and be in any order.
    """
    left = merged(wanted)
    portions: list[Portion[P]] = []
    for place, held in places:
        for queue, spans in merged(held).items():
            if not left.get(queue):
                continue
            taken, left[queue] = divided(left[queue], spans)
            portions += [Portion(place, Range(queue, start, stop)) for start, stop in taken]
    missing = [Range(queue, start, stop) for queue, spans in left.items() for start, stop in spans]
    return Cover(portions, sorted(missing))


def merged(parts: Iterable[Range]) -> dict[MessageQueue, list[Span]]:
    """Return the spans of ranges by queue: sorted, with overlapping and adjacent ones joined."""
    found: dict[MessageQueue, list[Span]] = {}
    for part in sorted(parts):
        if part.start >= part.stop:
            continue
        spans = found.setdefault(part.queue, [])
        if spans and part.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], part.stop))
        else:
            spans.append((part.start, part.stop))
    return found


def last_shared(one: Iterable[Range], other: Iterable[Range]) -> dict[MessageQueue, int]:
    """Return for each queue the last offset that is in ranges of both arguments, if there is
    one."""
    others = merged(other)
    found: dict[MessageQueue, int] = {}
    for queue, spans in merged(one).items():
        both, _ = divided(spans, others.get(queue, ()))
        if both:
            found[queue] = both[-1][1] - 1
    return found


def divided(spans: Sequence[Span], held: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """Return the offsets of ``spans`` that are also in ``held``, and the rest. Both arguments are
    disjoint and sorted, and so are both results."""
    taken: list[Span] = []
    rest: list[Span] = []
    at = 0
    for start, stop in spans:
        position = start
        while at < len(held) and held[at][1] <= position:
            at += 1
        following = at
        while following < len(held) and held[following][0] < stop:
            low, high = max(held[following][0], position), min(held[following][1], stop)
            if position < low:
                rest.append((position, low))
            taken.append((low, high))
            position = high
            following += 1
        if position < stop:
            rest.append((position, stop))
        # The last held span may reach into the next wanted one.
        at = max(at, following - 1)
    return taken, rest
