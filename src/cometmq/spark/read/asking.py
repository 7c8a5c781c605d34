"""Selects the broker to pull from among the copies of a queue, and decides when a response counts.

Messages may come from any copy, because a stored record is the same on all of them. Only the master
can report that there is nothing at an offset. A slave that has less than was planned lags its
master, which is no loss, and the master is asked instead. A broker that is away or busy is asked
again after a pause: a restart takes seconds, and on a local Spark a failed task ends the whole
query.

A pull (code 11) commits nothing. It uses a group that brokers create on their own and omit from
their lists of consumers.

Pulls are pipelined: while a task decodes one response, the broker reads the next ones. Each pull
starts where the one before it is expected to end, judging by the responses so far. If a response
ends elsewhere, the later ones are discarded, and fewer pulls are in flight until responses line up
again. Everything that cannot be read this way is pulled one response at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import head_part, iter_sizes
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Response
from cometmq.protocol.headers import PullMessage
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.access import ReadFrom
from cometmq.spark.brokers.offsets import with_broker_name
from cometmq.spark.brokers.wire import GROUP, call, held, refusal
from cometmq.spark.read.filters import TAG

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.brokers.wire import Wire
    from cometmq.spark.read.filters import RowFilter

log = logging.getLogger(__name__)

PAUSES_MS: Final = (0, 200, 1_000, 3_000, 6_000, 10_000, 10_000)
"""Pause before each round over a queue's brokers, unless the user sets how long one may be away."""

TURNS_OF_NOTHING: Final = 3
"""Number of rounds after which a master that reports no message at an offset is believed."""

_SUBSCRIPTION_IN_HEADER: Final = 4
_PULL: Final = int(RequestCode.PULL_MESSAGE)
_WITH_OFFSETS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_CANNOT_FILTER: Final = "does not support consumer to filter message"
_pause: Final = Event()


@dataclass(frozen=True, slots=True)
class Holder:
    """A broker that has a queue's messages."""

    address: str
    is_master: bool


def holders(queue: MessageQueue, access: Access, *, fresh: bool = False) -> list[Holder]:
    """Return the brokers of a queue in the order to ask: the master first, or the slaves first.
    With slaves first, queues start at different slaves to spread the load.

    Raises RouteNotFound, and NotConnected if the broker is not in the route.
    """
    known = cluster.brokers(queue, access, fresh=fresh)
    found = [Holder(address, broker_id == cluster.MASTER_ID) for broker_id, address in known]
    if access.read_from is ReadFrom.MASTER:
        return found
    slaves = [holder for holder in found if not holder.is_master]
    first = queue.queue_id % len(slaves) if slaves else 0
    return [*slaves[first:], *slaves[:first], *(holder for holder in found if holder.is_master)]


class Ahead:
    """Pipelined pulls over one connection. A pull is never repeated."""

    def __init__(
        self, wire: Wire, header: Callable[[int, int], PullMessage], timeout_ms: int
    ) -> None:
        self._wire = wire
        self._header = header
        self._timeout_ms = timeout_ms

    def ask(self, places: Iterable[tuple[int, int]]) -> None:
        """Send pulls, each given by an offset and a number of messages. Raises NotConnected,
        RequestTimedOut."""
        calls = [(_PULL, self._header(*place)) for place in places]
        if calls:
            self._wire.ask(calls, self._timeout_ms)

    def answer(self) -> Response:
        """Return the response to the oldest pull. Raises NotConnected, RequestTimedOut."""
        return self._wire.answer(self._timeout_ms)


class Asker:
    """Requests the messages of one queue, preferring the copy that answered last.

    ``filters`` says whether the broker is asked to filter. It becomes false when the broker cannot
    filter, and then its responses hold all messages. The queue of delayed messages is never
    filtered: its entries hold times in place of tag hashes.
    """

    def __init__(
        self,
        queue: MessageQueue,
        access: Access,
        row_filter: RowFilter,
        outage_ms: int | None = None,
    ) -> None:
        self._outage_ms = outage_ms
        self._queue = queue
        self._access = access
        self._row_filter = row_filter
        self._last: Holder | None = None
        self.filters = not row_filter.matches_all and queue.topic != SCHEDULE_TOPIC

    @property
    def address(self) -> str:
        """Address of the copy that answered last; empty before the first response."""
        return "" if self._last is None else self._last.address

    def knows_whom(self, answered: Collection[str]) -> bool:
        """Return whether a copy has answered, or the first one to ask is among those that
        ``answered`` for other queues."""
        if self._last is None and answered:
            try:
                first = holders(self._queue, self._access)[0]
            except (NotConnected, RouteNotFound):
                return False
            self._last = first if first.address in answered else None
        return self._last is not None

    def ask(self, at: int, rows: int) -> Response:
        """Return a response about the offset ``at``: messages, or the master's report that there
        are none.

        Raises NotConnected or RequestTimedOut if no copy answers, BrokerRefused.
        """
        return self._ask(self._header(at, rows))

    @contextmanager
    def ahead(self) -> Iterator[Ahead]:
        """Provide pipelined pulls from the copy that answered last. The context manager and the
        methods of :class:`Ahead` raise NotConnected."""
        assert self._last is not None
        with held(self._last.address, self._access) as wire:
            yield Ahead(wire, self._header, self._access.request_timeout_ms)

    def _header(self, at: int, rows: int) -> PullMessage:
        wanted = self._row_filter
        return PullMessage(
            consumer_group=GROUP,
            topic=self._queue.topic,
            queue_id=self._queue.queue_id,
            queue_offset=at,
            max_msg_nums=rows,
            sys_flag=_SUBSCRIPTION_IN_HEADER,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=wanted.expression if self.filters else "*",
            expression_type=wanted.expression_type if self.filters else TAG,
        )

    def _ask(self, header: PullMessage) -> Response:
        if self._last is not None:
            answer = self._try(self._last, header)
            if isinstance(answer, Response) and _settles(answer, header, self._last):
                return answer
        return self._ask_all(header)

    def _ask_all(self, header: PullMessage) -> Response:
        failure: ClientError | None = None
        of_master: Response | None = None
        silent_turns = 0
        for pause_ms in pauses_ms(self._outage_ms):
            _pause.wait(pause_ms / 1000)
            of_master = None
            try:
                known = holders(self._queue, self._access, fresh=pause_ms > 0)
            except (NotConnected, RouteNotFound) as error:
                # A broker that restarts, or its name server, is missing from the route for a while.
                failure = error
                continue
            for holder in known:
                answer = self._try(holder, header)
                if isinstance(answer, ClientError):
                    failure = answer
                    continue
                if _settles(answer, header, holder):
                    self._last = holder
                    return answer
                if holder.is_master:
                    of_master = answer
            if of_master is not None:
                silent_turns += 1
                if silent_turns >= TURNS_OF_NOTHING:
                    break
        if of_master is not None:
            return of_master
        raise with_broker_name(self._queue.broker_name, failure or self._late(header))

    def _late(self, header: PullMessage) -> ClientError:
        return NotConnected(
            self._queue.broker_name,
            f"no master answers, and its slaves have not reached offset {header.queue_offset} of "
            f"queue {self._queue.queue_id} of {self._queue.topic}",
        )

    def _try(self, holder: Holder, header: PullMessage) -> Response | ClientError:
        """Return the copy's response, or the failure if another attempt or another copy may
        succeed. Raise other failures."""
        try:
            answer = call(holder.address, _PULL, header, self._access)
            if header.expression_type != TAG and _is_beyond(answer):
                log.warning(
                    "broker_cannot_filter address=%s remark=%r", holder.address, answer.remark
                )
                self.filters = False
                header.subscription, header.expression_type = "*", TAG
                answer = call(holder.address, _PULL, header, self._access)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("pull_failed queue=%s error=%r", self._queue, str(error))
            return error
        if answer.code in _WITH_OFFSETS:
            return answer
        refused = refusal(holder.address, _PULL, answer)
        if answer.code == ResponseCode.SYSTEM_BUSY or not holder.is_master:
            # A slave that has just started may not know the topics of its master yet.
            log.warning("pull_refused queue=%s error=%r", self._queue, str(refused))
            return refused
        raise refused


def pauses_ms(outage_ms: int | None) -> Iterator[int]:
    """Yield the pauses before rounds until they add up to ``outage_ms``; None stands for half a
    minute."""
    if outage_ms is None:
        yield from PAUSES_MS
        return
    left_ms = outage_ms
    for pause_ms in chain(PAUSES_MS, repeat(PAUSES_MS[-1])):
        yield min(pause_ms, left_ms)
        left_ms -= pause_ms
        if left_ms <= 0:
            return


def onward(answer: Response) -> int:
    """Return the offset at which a response says to continue."""
    return int(answer.ext["nextBeginOffset"])


def _settles(answer: Response, header: PullMessage, holder: Holder) -> bool:
    """Return whether the response is final, so that no other copy need be asked."""
    moves = onward(answer) > header.queue_offset
    if answer.code == ResponseCode.SUCCESS and moves:
        return True
    if holder.is_master:
        return moves or answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED)
    is_filtered = header.subscription != "*"
    return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and moves and is_filtered


def _is_beyond(answer: Response) -> bool:
    """Return whether a broker rejected an expression that was parsed without error here."""
    if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        return True
    return answer.code == ResponseCode.SYSTEM_ERROR and _CANNOT_FILTER in (answer.remark or "")


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
