"""Which prepared messages wait for their transaction's end, and when to ask for it. No I/O; the
time comes as an argument, monotonic, in ms.

    half message    a prepared message, in RMQ_SYS_TRANS_HALF_TOPIC; known by its offset there
    op message      says in RMQ_SYS_TRANS_OP_HALF_TOPIC which half messages have ended
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

#: Op messages that are remembered; those beyond are read from their queue again when it is time.
MAX_TRAIL: Final = 1 << 18
_SPARE_TIMERS: Final = 1_024


class HalfIndex(OpenTransactions):
    """All open transactions by half offset. Offsets are added in ascending order. ``checks`` counts
    those that were made since the start; ``get`` gives the one of a half offset, if it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.checks = 0
        self.get = self.halves.get
        #: Those below ``planned_end`` that have a time without a timer.
        self._fresh: dict[int, None] = {}
        self._timers: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.halves)

    def add(self, half_offset: int, half: Half, due_ms: int) -> None:
        """A half message was stored; it may be checked from ``due_ms`` on."""
        half.due_ms = due_ms
        self.halves[half_offset] = half
        if half_offset < self.planned_end:
            self._fresh[half_offset] = None

    def remove(self, half_offset: int) -> None:
        """A transaction has ended."""
        self.halves.pop(half_offset, None)

    def low(self, end: int) -> int:
        """The first half offset that is open; ``end``, where the half topic ends, when none is."""
        return min(next(iter(self.halves), end), end)

    def due(self, now_ms: int, limit: int) -> list[tuple[int, Half]]:
        """At most ``limit`` open transactions whose check is due; each is to be put off."""
        self._plan()
        found: list[tuple[int, Half]] = []
        timers = self._timers
        while timers and timers[0][0] <= now_ms and len(found) < limit:
            due_ms, half_offset = heappop(timers)
            half = self.halves.get(half_offset)
            if half is not None and half.due_ms == due_ms:
                found.append((half_offset, half))
        return found

    def put_off(self, half_offset: int, half: Half, due_ms: int) -> None:
        """Look at an open transaction again at ``due_ms``."""
        half.due_ms = due_ms
        self._fresh[half_offset] = None

    def oldest_ms(self) -> int:
        """When the oldest open half message was stored (wall clock); 0 when there is none."""
        return next(iter(self.halves.values())).stored_ms if self.halves else 0

    def below(self, end: int) -> list[tuple[int, Half]]:
        """The open transactions with half offsets under ``end``."""
        return [(at, half) for at, half in self.halves.items() if at < end]

    def _plan(self) -> None:
        """Give timers to those that came or got a time since this was done last, and are open
        still. Most transactions end before that, and never have one."""
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
        if len(timers) > 2 * len(halves) + _SPARE_TIMERS:
            self._timers = [(half.due_ms, at) for at, half in halves.items()]
            heapify(self._timers)


class OpTrail:
    """Which half messages the op messages name, from op offset ``start`` on.

    ``start`` stays before the first op message that names a half message the group of the checks
    has not passed: whoever takes the store over reads them from there. ``applied`` is the first op
    offset whose op message the index has not heard of.
    """

    def __init__(self, start: int, applied: int) -> None:
        self.start = start
        self.applied = applied
        self._halves: deque[int] = deque()
        self._early: set[int] = set()

    @property
    def known_end(self) -> int:
        """The first op offset whose half messages are not remembered."""
        return self.start + len(self._halves)

    def stored(self, op_offset: int, half_offset: int) -> None:
        """An op message was stored, and the index knows."""
        self._follow(op_offset, half_offset)
        if op_offset == self.applied and not self._early:
            self.applied += 1
            return
        self._early.add(op_offset)
        while self.applied in self._early:
            self._early.discard(self.applied)
            self.applied += 1

    def stored_run(self, op_offset: int, half_offsets: list[int]) -> None:
        """:meth:`stored` for op messages that follow each other."""
        count = len(half_offsets)
        is_next = op_offset == self.applied and not self._early
        if is_next and op_offset == self.known_end and len(self._halves) + count <= MAX_TRAIL:
            self._halves.extend(half_offsets)
            self.applied += count
            return
        for number, half_offset in enumerate(half_offsets):
            self.stored(op_offset + number, half_offset)

    def remember(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """What an op message names; left out unless it follows the last one and there is room."""
        self._follow(op_offset, max(half_offsets, default=-1))

    def _follow(self, op_offset: int, last_half_offset: int) -> None:
        if op_offset == self.known_end and len(self._halves) < MAX_TRAIL:
            self._halves.append(last_half_offset)

    def advance(self, low: int) -> int:
        """Move ``start`` past op messages that name only half offsets under ``low``; gives it."""
        halves = self._halves
        while halves and halves[0] < low:
            halves.popleft()
            self.start += 1
        return self.start


def prepared(text: str, topic: str, queue_id: int) -> str:
    """The property text with which a prepared message for a queue of ``topic`` waits.

    A delay is taken out, as clients do: the commit decides when the message is there.
    """
    if props.DELAY in text or props.REAL_TOPIC in text or props.REAL_QID in text:
        text = props.without(text, props.DELAY, props.REAL_TOPIC, props.REAL_QID)
    place = f"{props.REAL_TOPIC}\x01{topic}\x02{props.REAL_QID}\x01{queue_id}"
    return f"{text}\x02{place}" if text else place


def real_place(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Topic and queue id that a half message is for; None when it names none that may get it."""
    topic = properties.get(props.REAL_TOPIC, "")
    text = properties.get(props.REAL_QID, "0")
    is_queue = text.isascii() and text.isdigit() and len(text) < 10
    if not topic or topic == HALF_TOPIC or not is_queue:
        return None
    return topic, int(text)


def immunity_ms(properties: Mapping[str, str], default_ms: int) -> int:
    """How long a half message is left alone before its first check."""
    text = properties.get(props.CHECK_IMMUNITY_TIME_IN_SECONDS, "")
    return int(text[:9]) * 1_000 if text.isascii() and text.isdigit() else default_ms


def checks_so_far(properties: Mapping[str, str]) -> int:
    """How often a Java broker, which counts in the message, has checked it."""
    text = properties.get(props.TRANSACTION_CHECK_TIMES, "")
    return int(text[:9]) if text.isascii() and text.isdigit() else 0


def half_offsets_of(op_body: bytes) -> list[int]:
    """What an op message names: one decimal offset, or several parted by commas (5.x)."""
    parts = [part.strip() for part in op_body.split(b",")]
    return [int(part) for part in parts if part.isdigit() and len(part) < 20]
