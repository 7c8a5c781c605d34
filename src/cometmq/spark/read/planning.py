"""Plans a batch as ranges of queue offsets: limits its size and shares its messages among tasks.

The functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.checkpoint import Offsets

TASK_ROWS_MIN: Final = 50_000
"""In a micro-batch, ranges are joined into one task up to this many messages. One more task costs
60 to 90 ms, the time to write 8 000 messages into a Parquet file."""

TASK_ROWS_MAX: Final = 250_000
"""Longer ranges are split, so that several cores read a single full queue. In a batch read, ranges
are joined up to this many messages, about as many as a task reads from a store directory or from
files."""

TASK_RANGES_MAX: Final = 256
"""Maximum number of ranges of a task. It sends at least one request for each, so a thousand almost
empty queues are shared among a few tasks."""

TASK_BYTES_MAX: Final = 256 << 20
"""Approximate maximum size of the records of a task, estimated from a sample of the queues: with
large messages, TASK_ROWS_MAX of them would be far too many for one task."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The messages ``start <= offset < stop`` of a queue."""

    queue: MessageQueue
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """Return the messages from ``start`` to ``end`` as one range per queue, without empty ranges.

    A queue missing in ``start`` starts at 0.
    """
    found = (Range(queue, start.get(queue, 0), stop) for queue, stop in end.items())
    return sorted(part for part in found if part.stop > part.start)


def backward(start: Offsets, end: Offsets) -> list[MessageQueue]:
    """Return the queues whose end is before their start: their newest messages are gone."""
    return sorted(queue for queue, offset in start.items() if end.get(queue, offset) < offset)


def advance(start: Offsets, newer: Offsets) -> dict[MessageQueue, int]:
    """Return ``start`` advanced to ``newer``. A queue missing in ``newer`` keeps its offset."""
    return {**start, **newer}


def cap(start: Offsets, end: Offsets, rows_max: int) -> dict[MessageQueue, int]:
    """Return ``end`` reduced so that about ``rows_max`` messages remain.

    Every queue with messages keeps at least one, so that none starves, even if there are more
    queues than ``rows_max``. The rest of ``rows_max`` is shared in proportion to the sizes of the
    ranges.
    """
    todo = ranges(start, end)
    total = sum(map(len, todo))
    if total <= rows_max:
        return dict(end)
    # One message of each queue is taken already.
    spare = max(rows_max - len(todo), 0)
    waiting = total - len(todo)
    # Each range's share of ``spare``, as quotient and remainder.
    shares = [divmod((len(part) - 1) * spare, waiting) if waiting else (0, 0) for part in todo]
    # The shares with the largest remainders get one more, so that the sum is exactly ``spare``.
    left = spare - sum(quotient for quotient, _ in shares)
    order = sorted(range(len(todo)), key=lambda at: (-shares[at][1], at))
    rounded_up = set(order[:left])
    capped = dict(end)
    for at, part in enumerate(todo):
        capped[part.queue] = part.start + 1 + shares[at][0] + (at in rounded_up)
    return capped


def tasks(
    todo: Iterable[Range],
    *,
    tasks_min: int = 1,
    rows_max: int = TASK_ROWS_MAX,
    rows_min: int = TASK_ROWS_MIN,
    racks: Mapping[str, str] | None = None,
) -> list[tuple[Range, ...]]:
    """Share ranges among tasks: split long ones, join short ones.

    A range with more than ``rows_max`` messages is split. Ranges with at most ``rows_min`` messages
    in all are joined. ``tasks_min`` is the minimum number of tasks, if there are that many
    messages. Spark starts tasks in the order returned, so brokers alternate in it, and so do the
    ``racks`` of brokers.
    """
    parts = list(todo)
    total = sum(map(len, parts))
    if total == 0:
        return []
    piece_max = min(rows_max, max(1, -(-total // tasks_min)))
    pieces = [piece for part in parts for piece in split(part, piece_max)]
    return interleave(join(pieces, min(rows_min, piece_max)), racks or {})


def interleave(
    planned: Iterable[tuple[Range, ...]], racks: Mapping[str, str]
) -> list[tuple[Range, ...]]:
    """Return the tasks ordered so that the brokers of their first ranges alternate.

    Each broker's tasks are spread evenly over the whole order, so that no broker is idle at the
    end. Among brokers at the same place in the order, racks alternate; brokers without a rack count
    as one rack. The tasks of one broker keep their order.
    """
    by_broker: dict[str, list[tuple[Range, ...]]] = {}
    for task in planned:
        by_broker.setdefault(task[0].queue.broker_name, []).append(task)
    by_rack: dict[str, list[str]] = {}
    for broker in by_broker:
        by_rack.setdefault(racks.get(broker, ""), []).append(broker)
    found = [
        ((at + 0.5) / len(by_broker[broker]), task)
        for broker in _in_turns(by_rack.values())
        for at, task in enumerate(by_broker[broker])
    ]
    found.sort(key=itemgetter(0))
    return [task for _, task in found]


def _in_turns(groups: Iterable[list[str]]) -> list[str]:
    """Return the first of each group, then the second of each, and so on."""
    rounds = chain.from_iterable(zip_longest(*groups))
    return [each for each in rounds if each is not None]


def split(part: Range, rows_max: int) -> list[Range]:
    """Split a range into even pieces of at most ``rows_max`` messages."""
    count = -(-len(part) // rows_max)
    borders = [part.start + len(part) * at // count for at in range(count + 1)]
    return [Range(part.queue, borders[at], borders[at + 1]) for at in range(count)]


def join(pieces: Sequence[Range], rows_max: int) -> list[tuple[Range, ...]]:
    """Join neighbouring ranges into tasks.

    A task has at most TASK_RANGES_MAX ranges, and at most ``rows_max`` messages unless a single
    range has more.
    """
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
