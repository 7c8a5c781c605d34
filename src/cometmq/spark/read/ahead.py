"""Pulls of a queue in flight: while a task decodes what came, the broker reads what comes next.

Each pull is asked for from where the one before it should end, as the answers so far let expect. An
answer that ends elsewhere makes those behind it useless: they are thrown away, and fewer pulls are
in flight until answers follow on one another again. What cannot be read this way is left to the
careful way of pull.py, which asks one pull at a time and knows what to do with every answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.core.errors import NotConnected, RequestTimedOut
from cometmq.message.record import head_part, iter_sizes
from cometmq.protocol.codes import ResponseCode
from cometmq.spark.read.asking import onward

if TYPE_CHECKING:
    from cometmq.protocol.frame import Response
    from cometmq.spark.read.asking import Asker

PULL_ROWS: Final = 1024
"""Messages asked for at once. Java's brokers give 32 unless configured otherwise, ours as many as
have 256 KiB."""

WINDOW_MIN: Final = 2
WINDOW_MAX: Final = 128
"""Pulls in flight, once a broker shows how many messages an answer holds: one more for each answer
that follows on the one before, since as many may be thrown away when one does not."""

FLIGHT_BYTES: Final = 2 << 20
"""Answers in flight have about this size at most: what a task decodes in one go, and less than what
a broker holds back of one connection before it stops reading from it."""

LARGE_BYTES: Final = 128 << 10
"""Of larger answers the next ones may hold fewer messages: brokers bound their bytes too."""

_PROBE_EVERY: Final = 8
_FEW: Final = 32
"""While answers hold fewer, one of so many pulls asks for more, to see whether they hold more
again: a broker gives little of what it has to fetch from the disk, and of large messages."""

_queue_offset: Final = head_part("queue_offset").unpack_from

LOOKED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY})
"""With a filter, the second says that nothing matched so far."""


@dataclass(frozen=True, slots=True)
class Span:
    """What the broker said of ``start <= offset < stop``: its records, or that it is ``gone``.

    What ``data`` misses was ``filtered`` out by the broker, or else is lost. Where the broker
    filters, it may hold records from ``stop`` on, and some of them twice.
    """

    start: int
    stop: int
    data: bytes = b""
    filtered: bool = False
    gone: bool = False


class Place(NamedTuple):
    """A pull: ``rows`` are asked for at ``start``, and it should move on by ``expected``."""

    start: int
    expected: int
    rows: int


@dataclass(slots=True)
class Pace:
    """What the answers to a task have shown so far: by how many offsets one moves on, how many may
    be in flight, how large they are, and who gave them."""

    stride: int = 0
    window: int = 1
    answer_bytes: int = 0
    answered: set[str] = field(default_factory=set)


class Flight:
    """The pulls in flight between ``at`` and ``stop``; decides, and neither sends nor waits.

    Of a broker that filters, each pull begins a bit before the one in front of it should end, and
    what both give is given twice. Of others each asks for as much as it should get.
    """

    def __init__(self, pace: Pace, at: int, stop: int, *, filtered: bool) -> None:
        self._pace = pace
        self._at = at
        self._stop = stop
        self._filtered = filtered
        self._pending: deque[Place] = deque()
        self._least_moves = 0
        self._asked = 0
        self.found = False

    @property
    def in_flight(self) -> int:
        """Pulls whose answers have not been seen."""
        return len(self._pending)

    def due(self) -> list[Place]:
        """The pulls to send now: some at a time, once half of the others are answered."""
        pace = self._pace
        room = pace.window - len(self._pending)
        if room < pace.window // 2:
            return []
        if self._least_moves:
            pace.stride, self._least_moves = sure_of(self._least_moves), 0
        places = [self._place(start) for start in range(self._at, self._stop, pace.stride)[:room]]
        if places:
            self._pending += places
            self._at = places[-1].start + places[-1].expected
        return places

    def _place(self, start: int) -> Place:
        expected = min(self._pace.stride, self._stop - start)
        self._asked += 1
        wants_more = self._pace.stride < _FEW and self._asked % _PROBE_EVERY == 0
        return Place(start, expected, PULL_ROWS if self._filtered or wants_more else expected)

    def landed(self, answer: Response) -> tuple[Span | None, bool]:
        """What the answer to the oldest pull gives, None when it is not for this way to understand;
        and whether the next one follows on it."""
        pace, place = self._pace, self._pending.popleft()
        looked = answer.code in LOOKED if self._filtered else answer.code == ResponseCode.SUCCESS
        moves = onward(answer) - place.start if looked else 0
        if moves <= 0:
            # The careful way finds out what is wrong.
            pace.window = WINDOW_MIN if self.found else 1
            return None, False
        self.found = True
        pace.answer_bytes = max(len(answer.body), pace.answer_bytes * 7 // 8)
        if moves < place.expected:
            pace.stride = stride_after(moves, answer, filtered=self._filtered)
            pace.window = WINDOW_MIN
            return Span(place.start, place.start + moves, answer.body, self._filtered), False
        within = max(WINDOW_MIN, FLIGHT_BYTES // max(1, pace.answer_bytes))
        pace.window = min(pace.window + 1, WINDOW_MAX, within)
        stop, body = place.start + place.expected, answer.body
        if self._filtered:
            self._least_moves = min(moves, self._least_moves or moves)
        elif moves > place.expected:
            pace.stride = max(pace.stride, stride_after(moves, answer, filtered=False))
            body = before(body, stop)
        return Span(place.start, stop, body, self._filtered), True


def spans_ahead(asker: Asker, pace: Pace, at: int, stop: int) -> Iterator[Span]:
    """What is between two offsets, one span an answer, as far as answers follow on one another;
    nothing when it is not known what to expect. An answer that comes late, or a connection that
    breaks, ends it too."""
    if not pace.stride or pace.window < WINDOW_MIN or not asker.knows_whom(pace.answered):
        return
    flight = Flight(pace, at, stop, filtered=asker.filters)
    try:
        with asker.ahead() as pulls:
            follows = True
            while follows:
                pulls.ask([(place.start, place.rows) for place in flight.due()])
                if not flight.in_flight:
                    return
                span, follows = flight.landed(pulls.answer())
                if span is not None:
                    yield span
            for _ in range(flight.in_flight):
                pulls.answer()
    except (NotConnected, RequestTimedOut):
        pace.window = WINDOW_MIN if flight.found else 1


def stride_after(moves: int, answer: Response, *, filtered: bool) -> int:
    """By how many offsets the next answers will move on at least, most likely, after one that moved
    on by ``moves`` and could have held more."""
    return sure_of(moves) if filtered or len(answer.body) > LARGE_BYTES else moves


def sure_of(moves: int) -> int:
    """A number of offsets that varies by a quarter, at its least."""
    return max(moves * 3 // 4, 1)


def before(records: bytes, stop: int) -> bytes:
    """The records in front of the queue offset ``stop``."""
    for at, _ in iter_sizes(records):
        if _queue_offset(records, at)[0] >= stop:
            return records[:at]
    return records
