"""Which messages a batch takes and how its tasks share them. Pure: offsets in, ranges out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.offsets import Offsets

TASK_ROWS_MIN: Final = 50_000
"""Ranges of a micro-batch are put together in one task up to this many messages. One more costs
60 to 90 ms, which is what 8 000 messages take on their way into a Parquet file."""

TASK_ROWS_MAX: Final = 250_000
"""Longer ranges are cut, so that one full queue does not keep one core busy alone. Those of a batch
read are put together up to this many, about as much as a task reads of a store or of files."""


TASK_RANGES_MAX: Final = 256
"""A task asks at least once for each range: a thousand almost empty queues are a few tasks."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The messages ``start <= offset < stop`` of a queue."""

    queue: MessageQueue
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """What lies between two points, queue by queue; a queue that ``start`` has not starts at 0."""
    found = (Range(queue, start.get(queue, 0), stop) for queue, stop in end.items())
    return sorted(part for part in found if part.stop > part.start)


def backward(start: Offsets, end: Offsets) -> list[MessageQueue]:
    """Queues that end before they start: their newest messages are gone."""
    return sorted(queue for queue, offset in start.items() if end.get(queue, offset) < offset)


def advance(start: Offsets, newer: Offsets) -> dict[MessageQueue, int]:
    """The furthest point after ``start``; a queue that cannot be asked now keeps its offset."""
    return {**start, **newer}


def cap(start: Offsets, end: Offsets, rows_max: int) -> dict[MessageQueue, int]:
    """``end`` drawn in, so that about ``rows_max`` messages lie between.

    Every queue with messages gives at least one, so that none starves: with more such queues than
    ``rows_max`` that many are taken. The rest is shared in proportion to what each has.
    """
    todo = ranges(start, end)
    total = sum(map(len, todo))
    if total <= rows_max:
        return dict(end)
    spare = max(rows_max - len(todo), 0)
    waiting = total - len(todo)
    parts = [divmod((len(part) - 1) * spare, waiting) if waiting else (0, 0) for part in todo]
    left = spare - sum(whole for whole, _ in parts)
    order = sorted(range(len(todo)), key=lambda at: (-parts[at][1], at))
    extra = set(order[:left])
    capped = dict(end)
    for at, part in enumerate(todo):
        capped[part.queue] = part.start + 1 + parts[at][0] + (at in extra)
    return capped


def tasks(
    todo: Iterable[Range],
    *,
    tasks_min: int = 1,
    rows_max: int = TASK_ROWS_MAX,
    rows_min: int = TASK_ROWS_MIN,
) -> list[tuple[Range, ...]]:
    """Share ranges among tasks: long ones are cut, short ones put together.

    ``tasks_min`` is how many tasks are wanted at least, where there are that many messages.
    """
    whole = list(todo)
    total = sum(map(len, whole))
    if total == 0:
        return []
    most = min(rows_max, max(1, -(-total // tasks_min)))
    pieces = [piece for part in whole for piece in split(part, most)]
    return join(pieces, min(rows_min, most))


def split(part: Range, rows_max: int) -> list[Range]:
    """Even pieces of at most ``rows_max`` messages."""
    count = -(-len(part) // rows_max)
    borders = [part.start + len(part) * at // count for at in range(count + 1)]
    return [Range(part.queue, borders[at], borders[at + 1]) for at in range(count)]


def join(pieces: Sequence[Range], rows_max: int) -> list[tuple[Range, ...]]:
    """Neighbours put together while they have at most ``rows_max`` messages, and are few."""
    found: list[list[Range]] = []
    rows = 0
    for piece in pieces:
        if found and rows + len(piece) <= rows_max and len(found[-1]) < TASK_RANGES_MAX:
            found[-1].append(piece)
            rows += len(piece)
        else:
            found.append([piece])
            rows = len(piece)
    return [tuple(task) for task in found]
