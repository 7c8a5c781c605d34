"""Fetches the messages of a task's ranges and converts them to Arrow batches: exactly the messages
of each range, or a report of the loss.

Messages may come from any copy of a queue, because a stored record is the same on all of them. Only
the master can report that there is nothing at an offset. A slave that has less than was planned
lags its master, which is no loss, and the master is asked instead. A broker that is away or busy is
asked again after a pause: a restart takes seconds, and on a local Spark a failed task ends the
whole query.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import BadRecord, head_part, iter_sizes
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Response
from cometmq.protocol.headers import PullMessage
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.access import ReadFrom
from cometmq.spark.brokers.offsets import with_broker_name
from cometmq.spark.brokers.wire import GROUP, call, held, refusal
from cometmq.spark.read.corrupt import CorruptMessage, clean, file_name, quarantine, read_block
from cometmq.spark.read.filters import TAG
from cometmq.spark.read.losses import report_loss

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.brokers.wire import Wire
    from cometmq.spark.decode import Block
    from cometmq.spark.read.corrupt import Quarantine
    from cometmq.spark.read.filters import RowFilter
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range

log = logging.getLogger(__name__)

PAUSES_MS: Final = (0, 200, 1_000, 3_000, 6_000, 10_000, 10_000)
"""Pause before each round over a queue's brokers, unless the user sets how long one may be away."""

EMPTY_ROUNDS: Final = 3
"""Number of rounds after which a master that reports no message at an offset is believed."""

PULL_ROWS: Final = 1024
"""Messages requested by one pull. Java brokers return 32 unless configured otherwise, CometMQ as
many as fit in 256 KiB."""

WINDOW_MIN: Final = 2
WINDOW_MAX: Final = 128
"""Bounds of the number of pulls in flight, once a broker shows how many messages a response holds.
The number grows by one for each response that lines up with the one before, because all later ones
may be discarded when one does not."""

IN_FLIGHT_BYTES: Final = 2 << 20
"""Approximate limit of the responses in flight: what a task decodes at once, and less than what a
broker buffers for one connection before it stops reading from it."""

LARGE_BYTES: Final = 128 << 10
"""After a larger response the next ones may hold fewer messages: brokers limit bytes as well."""

BLOCK_BYTES: Final = 2 << 20
BLOCK_ROWS: Final = 20_000
"""A block is passed on at either size: larger ones decode no faster, and Spark waits for them."""

ADVANCING_CODES: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY})
"""With a filter, the second code means that nothing has matched so far."""

_PROBE_EVERY: Final = 8
_FEW: Final = 32
"""While responses hold fewer messages than _FEW, one of _PROBE_EVERY pulls requests more, to detect
when they grow again: a broker returns few messages if they are large or read from disk."""

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
_queue_offset: Final = head_part("queue_offset").unpack_from
_pause: Final = Event()


@dataclass(frozen=True, slots=True)
class Replica:
    """A broker that has a queue's messages."""

    address: str
    is_master: bool


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


class PlannedPull(NamedTuple):
    """A pull of ``rows`` messages at ``start``, expected to advance by ``expected`` offsets."""

    start: int
    expected: int
    rows: int


@dataclass(slots=True)
class FetchStats:
    """Statistics of a task's responses so far: the offsets by which a response advances
    (``stride``), the number of pulls that may be in flight, the size of responses, and the brokers
    that answered."""

    stride: int = 0
    window: int = 1
    answer_bytes: int = 0
    answered: set[str] = field(default_factory=set)


def batches(
    parts: Sequence[Range], options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges, in the order of each queue.

    Raises DataLoss, CorruptMessage, and the errors of requests to brokers.
    """
    with quarantine(options.corrupt.path, file_name(parts)) as aside:
        stats = FetchStats()
        for part in parts:
            for span in QueueFetcher(part.queue, options, stats).spans(part):
                yield from _rows(part, span, options, names, aside)


def _rows(
    part: Range,
    span: Span,
    options: ReadOptions,
    names: tuple[str, ...],
    aside: Quarantine | None,
) -> Iterator[pa.RecordBatch]:
    if span.gone:
        report_loss(part.queue, span.start, span.stop, options)
        return
    queue, corrupt = part.queue, options.corrupt
    try:
        block, problems = read_block(span.data, queue.broker_name, corrupt, topic=queue.topic)
    except BadRecord as error:
        why = f"the bytes of the answer from here on are not records: {error}"
        place = (queue.topic, queue.broker_name, queue.queue_id, span.start)
        raise CorruptMessage(*place, why) from None
    offsets = block.queue_offsets
    block.choose((offsets >= span.start) & (offsets < span.stop))
    if span.filtered:
        _drop_repeats(block)
    else:
        _report_holes(part, span, block, options)
    options.row_filter.choose(block, beside=problems)
    yield from clean(block, problems, names, corrupt, aside, topic=queue.topic)


def _drop_repeats(block: Block) -> None:
    once = np.zeros(len(block), np.bool_)
    once[np.unique(block.queue_offsets, return_index=True)[1]] = True
    block.choose(once)


def _report_holes(part: Range, span: Span, block: Block, options: ReadOptions) -> None:
    """Report missing offsets as lost. Queue offsets are dense, so without a filter each gap is a
    loss."""
    if len(block) == span.stop - span.start:
        return
    edges = np.concatenate(([span.start - 1], np.sort(block.queue_offsets), [span.stop]))
    for at in np.flatnonzero(np.diff(edges) > 1).tolist():
        report_loss(part.queue, int(edges[at]) + 1, int(edges[at + 1]), options)


class QueueFetcher:
    """Fetches ranges of one queue, starting with the statistics of the task's other queues."""

    def __init__(
        self, queue: MessageQueue, options: ReadOptions, stats: FetchStats | None = None
    ) -> None:
        self._client = ReplicaClient(
            queue, options.access, options.row_filter, options.outage.timeout_ms
        )
        self._stats = FetchStats() if stats is None else stats

    def spans(self, part: Range) -> Iterator[Span]:
        """Yield the whole range in order, in spans of a suitable size for decoding.

        Raises NotConnected or RequestTimedOut if no broker answers, BrokerRefused.
        """
        start = part.start
        bodies: list[bytes] = []
        size_bytes = 0
        filtered = False
        for span in self._walk(part):
            if not span.gone:
                bodies.append(span.data)
                size_bytes += len(span.data)
                filtered |= span.filtered
                is_long = span.stop - start >= BLOCK_ROWS and not filtered
                if size_bytes < BLOCK_BYTES and not is_long and span.stop < part.stop:
                    continue
            if bodies:
                stop = span.start if span.gone else span.stop
                yield Span(start, stop, b"".join(bodies), filtered=filtered)
                bodies, size_bytes, filtered = [], 0, False
            if span.gone:
                yield span
            start = span.stop

    def _walk(self, part: Range) -> Iterator[Span]:
        """Yield the range in order, one span per response."""
        at = part.start
        while at < part.stop:
            begun = at
            for span in pipelined_spans(self._client, self._stats, at, part.stop):
                at = span.stop
                yield span
            if at == begun:
                span = self._next(at, part.stop)
                at = span.stop
                yield span

    def _next(self, at: int, stop: int) -> Span:
        """Send a single pull and return its span, whatever the response is."""
        answer = self._client.pull(at, min(stop - at, PULL_ROWS))
        filtered = self._client.filters
        beyond = next_offset(answer)
        if answer.code in ADVANCING_CODES and beyond > at:
            if filtered or answer.code == ResponseCode.SUCCESS:
                stats = self._stats
                stats.stride = stride_after(beyond - at, answer, filtered=filtered)
                stats.window = WINDOW_MIN
                stats.answered.add(self._client.address)
            return Span(at, min(beyond, stop), answer.body, filtered=filtered)
        # The offset is outside the queue: the oldest message is later, or the newest one earlier.
        return Span(at, min(beyond, stop) if beyond > at else stop, gone=True)


def pipelined_spans(client: ReplicaClient, stats: FetchStats, at: int, stop: int) -> Iterator[Span]:
    """Yield one span for each response, as long as each starts where the one before ended.

    Yield nothing if the size of a response cannot be predicted yet. A timeout or a broken
    connection ends the sequence too.
    """
    if not stats.stride or stats.window < WINDOW_MIN or not client.has_replica(stats.answered):
        return
    window = PullWindow(stats, at, stop, filtered=client.filters)
    try:
        with client.pipeline() as pulls:
            follows = True
            while follows:
                pulls.send([(place.start, place.rows) for place in window.due()])
                if not window.in_flight:
                    return
                span, follows = window.received(pulls.receive())
                if span is not None:
                    yield span
            for _ in range(window.in_flight):
                pulls.receive()
    except (NotConnected, RequestTimedOut):
        stats.window = WINDOW_MIN if window.found else 1


class PullWindow:
    """The pulls in flight between ``at`` and ``stop``, as planned; it does no I/O.

    If the broker filters, each pull begins a little before the expected end of the one before it,
    and the overlap is returned twice. Otherwise each pull requests exactly the messages it is
    expected to return.
    """

    def __init__(self, stats: FetchStats, at: int, stop: int, *, filtered: bool) -> None:
        self._stats = stats
        self._at = at
        self._stop = stop
        self._filtered = filtered
        self._pending: deque[PlannedPull] = deque()
        self._least_moves = 0
        self._asked = 0
        self.found = False

    @property
    def in_flight(self) -> int:
        """Number of pulls without a response yet."""
        return len(self._pending)

    def due(self) -> list[PlannedPull]:
        """Return the pulls to send now: a group at a time, once half of the window is free."""
        stats = self._stats
        room = stats.window - len(self._pending)
        if room < stats.window // 2:
            return []
        if self._least_moves:
            stats.stride, self._least_moves = lower_bound(self._least_moves), 0
        places = [self._place(start) for start in range(self._at, self._stop, stats.stride)[:room]]
        if places:
            self._pending += places
            self._at = places[-1].start + places[-1].expected
        return places

    def _place(self, start: int) -> PlannedPull:
        expected = min(self._stats.stride, self._stop - start)
        self._asked += 1
        wants_more = self._stats.stride < _FEW and self._asked % _PROBE_EVERY == 0
        return PlannedPull(start, expected, PULL_ROWS if self._filtered or wants_more else expected)

    def received(self, answer: Response) -> tuple[Span | None, bool]:
        """Process the response to the oldest pull.

        Return its span, or None if a single pull must determine it; and whether the next pull
        starts where this one ended.
        """
        stats, place = self._stats, self._pending.popleft()
        looked = (
            answer.code in ADVANCING_CODES
            if self._filtered
            else answer.code == ResponseCode.SUCCESS
        )
        moves = next_offset(answer) - place.start if looked else 0
        if moves <= 0:
            # A single pull determines the cause.
            stats.window = WINDOW_MIN if self.found else 1
            return None, False
        self.found = True
        # Decreases slowly, so that one small response does not raise the limit ``within`` below.
        stats.answer_bytes = max(len(answer.body), stats.answer_bytes * 7 // 8)
        if moves < place.expected:
            stats.stride = stride_after(moves, answer, filtered=self._filtered)
            stats.window = WINDOW_MIN
            return Span(place.start, place.start + moves, answer.body, self._filtered), False
        within = max(WINDOW_MIN, IN_FLIGHT_BYTES // max(1, stats.answer_bytes))
        stats.window = min(stats.window + 1, WINDOW_MAX, within)
        stop, body = place.start + place.expected, answer.body
        if self._filtered:
            self._least_moves = min(moves, self._least_moves or moves)
        elif moves > place.expected:
            stats.stride = max(stats.stride, stride_after(moves, answer, filtered=False))
            body = records_before(body, stop)
        return Span(place.start, stop, body, self._filtered), True


def stride_after(moves: int, answer: Response, *, filtered: bool) -> int:
    """Return the number of offsets by which the next responses will probably advance at least,
    after one that advanced by ``moves`` and had room for more."""
    return lower_bound(moves) if filtered or len(answer.body) > LARGE_BYTES else moves


def lower_bound(moves: int) -> int:
    """Return a lower bound for a number of offsets that varies by a quarter."""
    return max(moves * 3 // 4, 1)


def records_before(records: bytes, stop: int) -> bytes:
    """Return the records before the queue offset ``stop``."""
    for at, _ in iter_sizes(records):
        if _queue_offset(records, at)[0] >= stop:
            return records[:at]
    return records


class PullPipeline:
    """Pipelined pulls over one connection. A pull is never repeated."""

    def __init__(
        self, wire: Wire, header: Callable[[int, int], PullMessage], timeout_ms: int
    ) -> None:
        self._wire = wire
        self._header = header
        self._timeout_ms = timeout_ms

    def send(self, places: Iterable[tuple[int, int]]) -> None:
        """Send pulls, each given by an offset and a number of messages. Raises NotConnected,
        RequestTimedOut."""
        calls = [(_PULL, self._header(*place)) for place in places]
        if calls:
            self._wire.ask(calls, self._timeout_ms)

    def receive(self) -> Response:
        """Return the response to the oldest pull. Raises NotConnected, RequestTimedOut."""
        return self._wire.answer(self._timeout_ms)


class ReplicaClient:
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
        self._last: Replica | None = None
        self.filters = not row_filter.matches_all and queue.topic != SCHEDULE_TOPIC

    @property
    def address(self) -> str:
        """Address of the copy that answered last; empty before the first response."""
        return "" if self._last is None else self._last.address

    def has_replica(self, answered: Collection[str]) -> bool:
        """Return whether a copy has answered, or the first one to ask is among those that
        ``answered`` for other queues."""
        if self._last is None and answered:
            try:
                first = replicas(self._queue, self._access)[0]
            except (NotConnected, RouteNotFound):
                return False
            self._last = first if first.address in answered else None
        return self._last is not None

    def pull(self, at: int, rows: int) -> Response:
        """Return a response about the offset ``at``: messages, or the master's report that there
        are none.

        Raises NotConnected or RequestTimedOut if no copy answers, BrokerRefused.
        """
        return self._pull(self._header(at, rows))

    @contextmanager
    def pipeline(self) -> Iterator[PullPipeline]:
        """Provide pipelined pulls from the copy that answered last. The context manager and the
        methods of :class:`PullPipeline` raise NotConnected."""
        assert self._last is not None
        with held(self._last.address, self._access) as wire:
            yield PullPipeline(wire, self._header, self._access.request_timeout_ms)

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

    def _pull(self, header: PullMessage) -> Response:
        if self._last is not None:
            answer = self._try(self._last, header)
            if isinstance(answer, Response) and _settles(answer, header, self._last):
                return answer
        return self._pull_from_all(header)

    def _pull_from_all(self, header: PullMessage) -> Response:
        failure: ClientError | None = None
        of_master: Response | None = None
        empty_rounds = 0
        for pause_ms in pauses_ms(self._outage_ms):
            _pause.wait(pause_ms / 1000)
            of_master = None
            try:
                known = replicas(self._queue, self._access, fresh=pause_ms > 0)
            except (NotConnected, RouteNotFound) as error:
                # A broker that restarts, or its name server, is missing from the route for a while.
                failure = error
                continue
            for replica in known:
                answer = self._try(replica, header)
                if isinstance(answer, ClientError):
                    failure = answer
                    continue
                if _settles(answer, header, replica):
                    self._last = replica
                    return answer
                if replica.is_master:
                    of_master = answer
            if of_master is not None:
                empty_rounds += 1
                if empty_rounds >= EMPTY_ROUNDS:
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

    def _try(self, replica: Replica, header: PullMessage) -> Response | ClientError:
        """Return the copy's response, or the failure if another attempt or another copy may
        succeed. Raise other failures."""
        try:
            answer = call(replica.address, _PULL, header, self._access)
            if header.expression_type != TAG and _is_beyond(answer):
                log.warning(
                    "broker_cannot_filter address=%s remark=%r", replica.address, answer.remark
                )
                self.filters = False
                header.subscription, header.expression_type = "*", TAG
                answer = call(replica.address, _PULL, header, self._access)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("pull_failed queue=%s error=%r", self._queue, str(error))
            return error
        if answer.code in _WITH_OFFSETS:
            return answer
        refused = refusal(replica.address, _PULL, answer)
        if answer.code == ResponseCode.SYSTEM_BUSY or not replica.is_master:
            # A slave that has just started may not know the topics of its master yet.
            log.warning("pull_refused queue=%s error=%r", self._queue, str(refused))
            return refused
        raise refused


def replicas(queue: MessageQueue, access: Access, *, fresh: bool = False) -> list[Replica]:
    """Return the brokers of a queue in the order to ask: the master first, or the slaves first.
    With slaves first, queues start at different slaves to spread the load.

    Raises RouteNotFound, and NotConnected if the broker is not in the route.
    """
    known = cluster.brokers(queue, access, fresh=fresh)
    found = [Replica(address, broker_id == cluster.MASTER_ID) for broker_id, address in known]
    if access.read_from is ReadFrom.MASTER:
        return found
    slaves = [replica for replica in found if not replica.is_master]
    first = queue.queue_id % len(slaves) if slaves else 0
    return [*slaves[first:], *slaves[:first], *(replica for replica in found if replica.is_master)]


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


def next_offset(answer: Response) -> int:
    """Return the offset at which a response says to continue."""
    return int(answer.ext["nextBeginOffset"])


def _settles(answer: Response, header: PullMessage, replica: Replica) -> bool:
    """Return whether the response is final, so that no other copy need be asked."""
    moves = next_offset(answer) > header.queue_offset
    if answer.code == ResponseCode.SUCCESS and moves:
        return True
    if replica.is_master:
        return moves or answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED)
    is_filtered = header.subscription != "*"
    return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and moves and is_filtered


def _is_beyond(answer: Response) -> bool:
    """Return whether a broker rejected an expression that was parsed without error here."""
    if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        return True
    return answer.code == ResponseCode.SYSTEM_ERROR and _CANNOT_FILTER in (answer.remark or "")
