"""Plans pipelined pulls of one queue: where each starts, and which part of its response counts.

Several pulls are in flight. Each starts where the previous one is expected to end. The module does
no I/O: fetcher.py sends the pulls.

Without a filter, queue offsets are dense, and responses usually hold the same number of messages.
If one is shorter than planned, the responses after it are discarded, and fewer pulls are in flight
until responses arrive as planned again.

If the broker filters, a pull can request a number of matches, but not an end offset.
:class:`MatchRate` estimates how many offsets a number of matches covers. A response that ends
before the start of the next one leaves a gap, which a separate pull fills. A response that ends
later overlaps the next one. Both are small, since a pull requests few more matches than its offsets
are expected to hold.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.message.record import head_part, iter_sizes
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.protocol.frame import Response

PULL_ROWS: Final = 1024
"""Messages requested by one pull. Java brokers return 32 unless configured otherwise, CometMQ as
many as fit in 256 KiB."""

WINDOW_MIN: Final = 2
WINDOW_MAX: Final = 128
"""Bounds of the number of pulls in flight, once the size of a response is known. The number grows
by only one for each response that arrives as planned, because after one that does not, all later
responses may be discarded."""

IN_FLIGHT_BYTES: Final = 2 << 20
"""Approximate limit of the responses in flight: as much as a task decodes at once, and less than a
broker buffers for one connection before it stops reading from it."""

LARGE_BYTES: Final = 128 << 10
"""After a larger response the next ones may hold fewer messages: brokers limit bytes as well."""

ADVANCING_CODES: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY})
"""Codes of responses with a later offset at which to continue. The second one means that the filter
matched no message up to there."""

_PROBE_EVERY: Final = 8
_FEW: Final = 32
"""While responses hold fewer messages than _FEW, one of _PROBE_EVERY pulls requests more, to detect
when they grow again: a broker returns few messages if they are large or read from disk."""

_KEEP: Final = 7 / 8
"""Factor by which a statistic decays with each response."""

_queue_offset: Final = head_part("queue_offset").unpack_from


@dataclass(frozen=True, slots=True)
class Span:
    """The broker's response about ``start <= offset < stop``: the records, or that they are
    ``gone``.

    If ``filtered``, the broker filtered: offsets missing in ``data`` did not match, and ``data``
    may hold records from ``stop`` on, and some records twice. Otherwise missing offsets are lost.
    """

    start: int
    stop: int
    data: bytes = b""
    filtered: bool = False
    gone: bool = False


class PlannedPull(NamedTuple):
    """A pull of ``rows`` messages at ``start``, expected to advance by ``expected`` offsets."""

    start: int
    expected: int
    rows: int


class Received(NamedTuple):
    """The result of a response: its span, or None if a single pull must find out what happened.

    Offsets from the end of the span to ``gap_stop`` have to be pulled next. If ``follows`` is
    false, the response did not arrive as planned, and the responses after it are discarded.
    """

    span: Span | None
    gap_stop: int
    follows: bool


@dataclass(slots=True)
class MatchRate:
    """Statistics of the responses of brokers that filter. Older responses count less.

    A response holds at most ``most_matches`` (the broker limits messages or bytes) and advances by
    at most ``most_offsets`` (the broker limits how many it examines).
    """

    most_matches: float = 0
    most_offsets: float = 0
    _matches: float = 0
    _offsets: float = 0

    @property
    def is_known(self) -> bool:
        """True after the first response."""
        return self.most_offsets > 0

    def learn(self, rows: int, matches: int, moves: int) -> None:
        """Record that a pull of ``rows`` got ``matches`` and advanced by ``moves`` offsets."""
        self._matches = self._matches * _KEEP + matches
        self._offsets = self._offsets * _KEEP + moves
        if matches >= rows:  # the pull was the limit, so nothing is known of the broker's limits
            self.most_matches = max(self.most_matches, matches)
            self.most_offsets = max(self.most_offsets, moves)
        else:
            self.most_matches = max(self.most_matches * _KEEP, matches)
            self.most_offsets = max(self.most_offsets * _KEEP, moves)

    def plan(self, start: int, stop: int) -> PlannedPull:
        """Return a pull from ``start`` that is expected to end at ``stop`` or before."""
        left = stop - start
        if self._matches < 1:
            return PlannedPull(start, max(1, min(int(self.most_offsets), left)), PULL_ROWS)
        # Expect less than the maximum: the number of matches varies by about its square root.
        matches = max(1, self.most_matches - sqrt(self.most_matches) / 2)
        offsets = min(matches * self._offsets / self._matches, self.most_offsets, left)
        expected = max(1, int(offsets))
        return PlannedPull(start, expected, self.rows_for(expected))

    def rows_for(self, offsets: int) -> int:
        """Return how many matches to request, so that a pull usually advances by ``offsets``."""
        if self._matches < 1:
            return PULL_ROWS
        matches = offsets * self._matches / self._offsets
        return min(int(matches + sqrt(matches)) + 1, PULL_ROWS)


@dataclass(slots=True)
class FetchStats:
    """Statistics of a task's responses: offsets by which a response advances (``stride``, or
    ``matches`` if the broker filters), pulls that may be in flight (``window``), bytes of a
    response (``answer_bytes``), and addresses of the brokers that answered (``answered``)."""

    stride: int = 0
    window: int = 1
    answer_bytes: int = 0
    answered: set[str] = field(default_factory=set)
    matches: MatchRate = field(default_factory=MatchRate)

    def can_predict(self, *, filtered: bool) -> bool:
        """Return whether the end of the next response can be predicted."""
        known = self.matches.is_known if filtered else self.stride > 0
        return known and self.window >= WINDOW_MIN

    def learn(self, rows: int, moves: int, answer: Response, *, filtered: bool) -> None:
        """Record a response to a pull of ``rows`` messages that advanced by ``moves`` offsets."""
        if filtered:
            self.matches.learn(rows, count_records(answer.body), moves)
        else:
            self.stride = stride_after(moves, answer)

    def rows_for(self, offsets: int, *, filtered: bool) -> int:
        """Return how many messages a single pull requests to advance by ``offsets``."""
        return self.matches.rows_for(offsets) if filtered else min(offsets, PULL_ROWS)


class PullWindow:
    """The planned pulls in flight between the offsets ``at`` and ``stop``. ``found`` is true once a
    response advanced."""

    def __init__(self, stats: FetchStats, at: int, stop: int, *, filtered: bool) -> None:
        self._stats = stats
        self._at = at
        self._stop = stop
        self._filtered = filtered
        self._pending: deque[PlannedPull] = deque()
        self._asked = 0
        self.found = False

    @property
    def in_flight(self) -> int:
        """Number of pulls without a response yet."""
        return len(self._pending)

    def due(self) -> list[PlannedPull]:
        """Return the pulls to send now: none until half of the window is free, then several."""
        room = self._stats.window - len(self._pending)
        places: list[PlannedPull] = []
        if room >= self._stats.window // 2:
            while self._at < self._stop and len(places) < room:
                place = self._place()
                places.append(place)
                self._at = place.start + place.expected
        self._pending += places
        return places

    def _place(self) -> PlannedPull:
        if self._filtered:
            return self._stats.matches.plan(self._at, self._stop)
        stride = self._stats.stride
        expected = min(stride, self._stop - self._at)
        self._asked += 1
        wants_more = stride < _FEW and self._asked % _PROBE_EVERY == 0
        return PlannedPull(self._at, expected, PULL_ROWS if wants_more else expected)

    def received(self, answer: Response) -> Received:
        """Process the response to the oldest pull."""
        stats, place = self._stats, self._pending.popleft()
        codes = ADVANCING_CODES if self._filtered else {ResponseCode.SUCCESS}
        moves = next_offset(answer) - place.start if answer.code in codes else 0
        if moves <= 0:
            stats.window = WINDOW_MIN if self.found else 1
            return Received(None, place.start, follows=False)
        self.found = True
        # Decrease slowly, so that one small response does not widen the window (``_widen``).
        stats.answer_bytes = max(len(answer.body), stats.answer_bytes * 7 // 8)
        read = self._filtered_part if self._filtered else self._dense_part
        return read(place, moves, answer)

    def _dense_part(self, place: PlannedPull, moves: int, answer: Response) -> Received:
        """Return the part of a response without a filter, and adapt stride and window."""
        stats = self._stats
        if moves < place.expected:
            stats.stride = stride_after(moves, answer)
            stats.window = WINDOW_MIN
            stop = place.start + moves
            return Received(Span(place.start, stop, answer.body), stop, follows=False)
        self._widen()
        stop, body = place.start + place.expected, answer.body
        if moves > place.expected:
            stats.stride = max(stats.stride, stride_after(moves, answer))
            body = records_before(body, stop)
        return Received(Span(place.start, stop, body), stop, follows=True)

    def _filtered_part(self, place: PlannedPull, moves: int, answer: Response) -> Received:
        """Return the part of a filtered response, and adapt match rate and window."""
        stats = self._stats
        stats.learn(place.rows, moves, answer, filtered=True)
        if moves * 2 < place.expected:
            stats.window = max(stats.window // 2, WINDOW_MIN)
        else:
            self._widen()
        gap_stop = place.start + place.expected
        stop = min(place.start + moves, gap_stop)
        return Received(Span(place.start, stop, answer.body, filtered=True), gap_stop, follows=True)

    def _widen(self) -> None:
        stats = self._stats
        within = max(WINDOW_MIN, IN_FLIGHT_BYTES // max(1, stats.answer_bytes))
        stats.window = min(stats.window + 1, WINDOW_MAX, within)


def stride_after(moves: int, answer: Response) -> int:
    """Return the minimum number of offsets by which the next responses will probably advance, after
    one that advanced by ``moves``."""
    return max(moves * 3 // 4, 1) if len(answer.body) > LARGE_BYTES else moves


def count_records(records: bytes) -> int:
    """Return the number of records in a response."""
    return sum(1 for _ in iter_sizes(records))


def records_before(records: bytes, stop: int) -> bytes:
    """Return the records before the queue offset ``stop``."""
    for at, _ in iter_sizes(records):
        if _queue_offset(records, at)[0] >= stop:
            return records[:at]
    return records


def next_offset(answer: Response) -> int:
    """Return the offset at which a response says to continue."""
    return int(answer.ext["nextBeginOffset"])
