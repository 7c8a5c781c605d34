"""Pipelined pulls of a queue: while a task decodes one response, the broker reads the next ones.

Each pull starts where the one before it is expected to end, judging by the responses so far. If a
response ends elsewhere, the later ones are discarded, and fewer pulls are in flight until responses
line up again. Everything that cannot be read this way is left to pull.py, which sends one pull at a
time and handles every response.
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
"""Messages requested by one pull. Java brokers return 32 unless configured otherwise, CometMQ as
many as fit in 256 KiB."""

WINDOW_MIN: Final = 2
WINDOW_MAX: Final = 128
"""Bounds of the number of pulls in flight, once a broker shows how many messages a response holds.
The number grows by one for each response that lines up with the one before, because all later ones
may be discarded when one does not."""

FLIGHT_BYTES: Final = 2 << 20
"""Approximate limit of the responses in flight: what a task decodes at once, and less than what a
broker buffers for one connection before it stops reading from it."""

LARGE_BYTES: Final = 128 << 10
"""After a larger response the next ones may hold fewer messages: brokers limit bytes as well."""

_PROBE_EVERY: Final = 8
_FEW: Final = 32
"""While responses hold fewer messages than _FEW, one of _PROBE_EVERY pulls requests more, to detect
when they grow again: a broker returns few messages if they are large or read from disk."""

_queue_offset: Final = head_part("queue_offset").unpack_from

LOOKED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY})
"""With a filter, the second code means that nothing has matched so far."""


@dataclass(frozen=True, slots=True)
class Span:
    """The broker's response about ``start <= offset < stop``: the records, or that they are
    ``gone``.

    Offsets missing from ``data`` were ``filtered`` out by the broker, otherwise they are lost. If
    the broker filters, ``data`` may hold records from ``stop`` on, and some records twice.
    """

    start: int
    stop: int
    data: bytes = b""
    filtered: bool = False
    gone: bool = False


class Place(NamedTuple):
    """A pull of ``rows`` messages at ``start``, expected to advance by ``expected`` offsets."""

    start: int
    expected: int
    rows: int


@dataclass(slots=True)
class Pace:
    """Statistics of a task's responses so far: the offsets by which a response advances
    (``stride``), the number of pulls that may be in flight, the size of responses, and the brokers
    that answered."""

    stride: int = 0
    window: int = 1
    answer_bytes: int = 0
    answered: set[str] = field(default_factory=set)


class Flight:
    """Plans the pulls in flight between ``at`` and ``stop``; it does no I/O.

    If the broker filters, each pull begins a little before the expected end of the one before it,
    and the overlap is returned twice. Otherwise each pull requests exactly the messages it is
    expected to return.
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
        """Number of pulls without a response yet."""
        return len(self._pending)

    def due(self) -> list[Place]:
        """Return the pulls to send now: a group at a time, once half of the window is free."""
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
        """Process the response to the oldest pull.

        Return its span, or None if the response needs pull.py; and whether the next pull starts
        where this one ended.
        """
        pace, place = self._pace, self._pending.popleft()
        looked = answer.code in LOOKED if self._filtered else answer.code == ResponseCode.SUCCESS
        moves = onward(answer) - place.start if looked else 0
        if moves <= 0:
            # The single pull of pull.py determines the cause.
            pace.window = WINDOW_MIN if self.found else 1
            return None, False
        self.found = True
        # Decreases slowly, so that one small response does not raise the limit ``within`` below.
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
    """Yield one span for each response, as long as each starts where the one before ended.

    Yield nothing if the size of a response cannot be predicted yet. A timeout or a broken
    connection ends the sequence too.
    """
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
    """Return the number of offsets by which the next responses will probably advance at least,
    after one that advanced by ``moves`` and had room for more."""
    return sure_of(moves) if filtered or len(answer.body) > LARGE_BYTES else moves


def sure_of(moves: int) -> int:
    """Return a lower bound for a number of offsets that varies by a quarter."""
    return max(moves * 3 // 4, 1)


def before(records: bytes, stop: int) -> bytes:
    """Return the records before the queue offset ``stop``."""
    for at, _ in iter_sizes(records):
        if _queue_offset(records, at)[0] >= stop:
            return records[:at]
    return records
