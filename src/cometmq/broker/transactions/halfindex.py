"""Index of open transactions, and the times of their next checks. No I/O; times are monotonic ms
and come as arguments.

    half message    a prepared message in RMQ_SYS_TRANS_HALF_TOPIC, identified by its offset there
    op message      a message in RMQ_SYS_TRANS_OP_HALF_TOPIC that names half messages that ended
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from cometmq.message import properties as props
from cometmq.message.names import HALF_TOPIC
from cometmq.speedups import OpenTransactions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cometmq.speedups import Half

#: Number of op messages remembered; later ones are read from their queue again when needed.
MAX_TRAIL: Final = 1 << 18
_SPARE_TIMERS: Final = 1_024


class HalfIndex(OpenTransactions):
    """All open transactions by half offset; they are added in ascending order.

    ``checks`` counts the checks since the start, ``resets`` the calls of :meth:`forget_checks`.
    ``get`` returns the open transaction of a half offset, or None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checks = 0
        self.resets = 0
        self.get = self.halves.get
        #: Half offsets below ``planned_end`` that have a check time but no timer yet.
        self._fresh: dict[int, None] = {}
        #: Heap of check times and half offsets.
        self._timers: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.halves)

    def add(self, half_offset: int, half: Half, due_ms: int) -> None:
        """Add a stored half message, to be checked from ``due_ms`` on."""
        half.due_ms = due_ms
        self.halves[half_offset] = half
        if half_offset < self.planned_end:
            self._fresh[half_offset] = None

    def remove(self, half_offset: int) -> None:
        """Remove a transaction that has ended."""
        self.halves.pop(half_offset, None)

    def low(self, end: int) -> int:
        """Return the first open half offset; if none is open, ``end``, the end of the half
        topic."""
        return min(next(iter(self.halves), end), end)

    def due(self, now_ms: int, limit: int) -> list[tuple[int, Half]]:
        """Return at most ``limit`` open transactions whose check is due; call put_off for each."""
        self._plan()
        found: list[tuple[int, Half]] = []
        timers = self._timers
        while timers and timers[0][0] <= now_ms and len(found) < limit:
            due_ms, half_offset = heappop(timers)
            half = self.halves.get(half_offset)
            # put_off leaves the older timers of a transaction in the heap; only the latest counts.
            if half is not None and half.due_ms == due_ms:
                found.append((half_offset, half))
        return found

    def put_off(self, half_offset: int, half: Half, due_ms: int) -> None:
        """Set the next check of an open transaction to ``due_ms``."""
        half.due_ms = due_ms
        self._fresh[half_offset] = None

    def forget_checks(self, half: Half) -> None:
        """Count the checks of an open transaction from 0 again."""
        half.checks = 0
        self.resets += 1

    def oldest_ms(self) -> int:
        """Return the store time (wall clock) of the oldest open half message, or 0 if there is
        none."""
        return next(iter(self.halves.values())).stored_ms if self.halves else 0

    def below(self, end: int) -> list[tuple[int, Half]]:
        """Return the open transactions with half offsets below ``end``."""
        return [(at, half) for at, half in self.halves.items() if at < end]

    def _plan(self) -> None:
        """Create timers for the open transactions that were added or put off since the last call.

        Most transactions end before that call, and never need a timer.
        """
        fresh, self._fresh = self._fresh, {}
        halves, timers = self.halves, self._timers
        for half_offset in reversed(halves):
            if half_offset < self.planned_end:
                break
            fresh[half_offset] = None
        if halves:
            self.planned_end = max(next(reversed(halves)) + 1, self.planned_end)
        for half_offset in fresh:
            half = halves.get(half_offset)
            if half is not None:
                heappush(timers, (half.due_ms, half_offset))
        # Timers of ended transactions stay in the heap; rebuild it before they outnumber the open.
        if len(timers) > 2 * len(halves) + _SPARE_TIMERS:
            self._timers = [(half.due_ms, at) for at, half in halves.items()]
            heapify(self._timers)


class OpTrail:
    """Last half offset that each op message names, from op offset ``start`` on.

    ``start`` is never past an op message that names a half message at or after the check group's
    offset in the half topic, because a broker that takes over the store reads op messages from
    there. ``applied`` is the first op offset that the index has not applied.
    """

    def __init__(self, start: int, applied: int) -> None:
        self.start = start
        self.applied = applied
        #: Last half offset that each op message names.
        self._halves: deque[int] = deque()
        #: Op offsets after ``applied`` that are applied before it.
        self._early: set[int] = set()

    @property
    def known_end(self) -> int:
        """First op offset that is not remembered."""
        return self.start + len(self._halves)

    def stored(self, op_offset: int, half_offset: int) -> None:
        """Record an op message that is stored and applied to the index."""
        self._follow(op_offset, half_offset)
        if op_offset == self.applied and not self._early:
            self.applied += 1
            return
        self._early.add(op_offset)
        while self.applied in self._early:
            self._early.discard(self.applied)
            self.applied += 1

    def stored_run(self, op_offset: int, half_offsets: list[int]) -> None:
        """Record consecutive op messages, as :meth:`stored` does for one."""
        count = len(half_offsets)
        is_next = op_offset == self.applied and not self._early
        if is_next and op_offset == self.known_end and len(self._halves) + count <= MAX_TRAIL:
            self._halves.extend(half_offsets)
            self.applied += count
            return
        for number, half_offset in enumerate(half_offsets):
            self.stored(op_offset + number, half_offset)

    def remember(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Remember an op message that names ``half_offsets``, if it follows the last one
        remembered and there is room."""
        self._follow(op_offset, max(half_offsets, default=-1))

    def _follow(self, op_offset: int, last_half_offset: int) -> None:
        if op_offset == self.known_end and len(self._halves) < MAX_TRAIL:
            self._halves.append(last_half_offset)

    def advance(self, low: int) -> int:
        """Move ``start`` past op messages that name only half offsets below ``low``; return it."""
        halves = self._halves
        while halves and halves[0] < low:
            halves.popleft()
            self.start += 1
        return self.start


def prepared(text: str, topic: str, queue_id: int) -> str:
    """Return the property text under which a prepared message for a queue of ``topic`` is stored.

    A delay level is removed, as clients do: the message is delivered at its commit.
    """
    if props.DELAY in text or props.REAL_TOPIC in text or props.REAL_QID in text:
        text = props.without(text, props.DELAY, props.REAL_TOPIC, props.REAL_QID)
    place = f"{props.REAL_TOPIC}\x01{topic}\x02{props.REAL_QID}\x01{queue_id}"
    return f"{text}\x02{place}" if text else place


def real_place(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the topic and queue id that a half message is for; None if it names no valid ones."""
    topic = properties.get(props.REAL_TOPIC, "")
    text = properties.get(props.REAL_QID, "0")
    is_queue = text.isascii() and text.isdigit() and len(text) < 10
    if not topic or topic == HALF_TOPIC or not is_queue:
        return None
    return topic, int(text)


def immunity_ms(properties: Mapping[str, str], default_ms: int) -> int:
    """Return the time, in ms, for which a half message is not checked after it was stored."""
    text = properties.get(props.CHECK_IMMUNITY_TIME_IN_SECONDS, "")
    return int(text[:9]) * 1_000 if text.isascii() and text.isdigit() else default_ms


def checks_so_far(properties: Mapping[str, str]) -> int:
    """Return the number of checks by a Java broker, which counts them in the message."""
    text = properties.get(props.TRANSACTION_CHECK_TIMES, "")
    return int(text[:9]) if text.isascii() and text.isdigit() else 0


def half_offsets_of(op_body: bytes) -> list[int]:
    """Parse an op message's body: one decimal half offset, or several separated by commas (5.x)."""
    parts = [part.strip() for part in op_body.split(b",")]
    return [int(part) for part in parts if part.isdigit() and len(part) < 20]
