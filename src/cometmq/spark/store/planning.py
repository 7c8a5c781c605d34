"""The parts of store directories that tasks read: parts of the log, or ranges of queues."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from cometmq.spark.store.directory import LogFile
    from cometmq.spark.store.options import StoreRoot
    from cometmq.spark.store.windows import Windows

FEW_PARTS: Final = 4
"""If the wanted queues hold less than 1/FEW_PARTS of the log, they are read by their entries.
Random reads cost more than sequential ones, but much less than reading the whole log."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """The records of a log file that begin at ``start <= physical offset < stop``.

    Records before the first entry of their queue belong to a deleted topic of the same name and are
    left out. If the queue is empty, those before the physical offset ``dispatched`` are left out.
    If ``dispatched`` is -1, the queues are not consulted.
    """

    root: StoreRoot
    file: LogFile
    start: int
    stop: int
    windows: Windows
    dispatched: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the log to read."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class QueuePart:
    """The messages ``start <= offset < stop`` of a queue, of about ``record_bytes`` each."""

    root: StoreRoot
    topic: str
    queue_id: int
    start: int
    stop: int
    record_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the log to read."""
        return (self.stop - self.start) * self.record_bytes


Part = LogPart | QueuePart
P = TypeVar("P", LogPart, QueuePart)


def log_parts(
    root: StoreRoot,
    files: Iterable[LogFile],
    start: int,
    stop: int,
    windows: Windows,
    dispatched: int,
    bytes_max: int,
) -> list[LogPart]:
    """Split the log from ``start`` to ``stop`` into parts of at most ``bytes_max`` within one file.

    Borders may be at any byte: a task begins with the first record at or after its border.
    """
    found: list[LogPart] = []
    for file in files:
        low, high = max(start, file.base), min(stop, file.stop)
        for border in range(low, high, bytes_max):
            end = min(border + bytes_max, high)
            found.append(LogPart(root, file, border, end, windows, dispatched))
    return found


def queue_parts(part: QueuePart, bytes_max: int) -> list[QueuePart]:
    """Split a range of a queue into even pieces of at most ``bytes_max``."""
    rows = part.stop - part.start
    count = min(rows, -(-part.size_bytes // bytes_max))
    borders = [part.start + rows * at // count for at in range(count + 1)] if count else []
    return [
        QueuePart(part.root, part.topic, part.queue_id, low, high, part.record_bytes)
        for low, high in itertools.pairwise(borders)
    ]


def join(parts: Sequence[Part], bytes_max: int) -> list[tuple[Part, ...]]:
    """Join neighbouring parts in one task up to ``bytes_max``."""
    found: list[list[Part]] = []
    size = 0
    for part in parts:
        if found and size + part.size_bytes <= bytes_max:
            found[-1].append(part)
            size += part.size_bytes
        else:
            found.append([part])
            size = part.size_bytes
    return [tuple(each) for each in found]
