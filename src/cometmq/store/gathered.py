"""Records ahead of consumers that filter, as the looker (broker/looker.py) gathered them.

The looker has every record before it that matches. So that the broker need not go for each of them
again, it lays copies of them side by side, and a pull gives a piece of that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.looking import TRAY_BYTES

if TYPE_CHECKING:
    from cometmq.store.consumequeue import ConsumeQueue

#: Held for all consumers together, and for one.
MAX_HELD_BYTES: Final = 32 << 20
MAX_HELD_BYTES_EACH: Final = 4 << 20
#: Who did not read while so many requests were thought of, for whomever, has no share.
_ABSENT_REQUESTS: Final = 128


class Piece(NamedTuple):
    """``messages`` records of a run: up to ``next_offset`` of the queue no other one matches."""

    records: memoryview
    messages: int
    next_offset: int


class Run(NamedTuple):
    """The records that match of a queue from ``offset`` up to ``stop``, as it is since
    ``restarts``. ``numbers`` counts them from ``offset`` on; in ``records`` one begins at each of
    ``bounds``, and ends at the next."""

    restarts: int
    offset: int
    stop: int
    numbers: list[int]
    bounds: list[int]
    records: bytes

    def piece(self, at: int, max_count: int, max_bytes: int) -> Piece:
        """Records from a queue offset within the run on."""
        numbers, bounds = self.numbers, self.bounds
        first = bisect_left(numbers, at - self.offset)
        last = min(first + max_count, len(numbers))
        begin = bounds[first]
        if bounds[last] - begin > max_bytes:
            last = bisect_right(bounds, begin + max_bytes, first, last) - 1
        onward = self.offset + numbers[last] if last < len(numbers) else self.stop
        return Piece(memoryview(self.records)[begin : bounds[last]], last - first, onward)


@dataclass(slots=True)
class _Held:
    """The runs before a consumer, the next one first. It was there when ``seen`` requests had been
    thought of."""

    seen: int
    size_bytes: int = 0
    runs: deque[Run] = field(default_factory=deque)


class Gathered:
    """Of all consumers: what each one has before it, and what it passed no more."""

    __slots__ = ("_held", "_requests")

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[ConsumeQueue, object], _Held] = OrderedDict()
        self._requests = 0

    @property
    def held_bytes(self) -> int:
        """Records of all consumers."""
        return sum(held.size_bytes for held in self._held.values())

    def has_room(self, queue: ConsumeQueue, wanted: object) -> bool:
        """Whether a request should gather more for a consumer: its share, so that no one's records
        go before it comes to them."""
        self._requests += 1
        since = self._requests - _ABSENT_REQUESTS
        present = sum(held.seen >= since for held in self._held.values())
        share = MAX_HELD_BYTES // (present + 1) - TRAY_BYTES
        held = self._held.get((queue, wanted))
        return (0 if held is None else held.size_bytes) < min(MAX_HELD_BYTES_EACH, share)

    def put(self, queue: ConsumeQueue, wanted: object, run: Run) -> None:
        """Hold a run that lies behind those that are held for the consumer. If that is too much,
        nothing is held any more for whom nothing was gathered for the longest time."""
        key = queue, wanted
        held = self._held.setdefault(key, _Held(self._requests))
        held.runs.append(run)
        held.size_bytes += len(run.records)
        self._held.move_to_end(key)
        while self.held_bytes > MAX_HELD_BYTES:
            self._held.popitem(last=False)

    def find(self, queue: ConsumeQueue, wanted: object, at: int) -> Run | None:
        """The run that a queue offset is in, for a consumer that is there. What is before it
        goes."""
        held = self._held.get((queue, wanted))
        if held is None:
            return None
        held.seen = self._requests
        runs = held.runs
        while runs:
            run = runs[0]
            if run.restarts == queue.restarts and at < run.stop:
                return run if at >= run.offset else None
            runs.popleft()
            held.size_bytes -= len(run.records)
        self.drop(queue, wanted)
        return None

    def drop(self, queue: ConsumeQueue, wanted: object) -> None:
        """A consumer reads on somewhere else."""
        self._held.pop((queue, wanted), None)

    def clear(self) -> None:
        """Nobody reads any more."""
        self._held.clear()
