"""Fetches the messages of a task's ranges and converts them to Arrow batches. A message that no
broker has any more is a loss (losses.py).

Messages may come from any copy of a queue, because a stored record is the same on all of them. But
only the master can report that there is no message at an offset: a slave that lacks messages may
just lag, and then the master is asked. A broker that is away or busy is asked again after a pause:
a restart takes seconds, and on a local Spark a failed task ends the whole query.

A pull (code 11) commits nothing. Its consumer group is a system group, which brokers omit from
their lists of consumers.

Pulls are pipelined: while a task decodes one response, the broker prepares the next ones
(pullwindow.py plans them). Offsets that cannot be read this way are pulled one response at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from threading import Event
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import BadRecord
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
from cometmq.spark.read.pullwindow import (
    ADVANCING_CODES,
    WINDOW_MIN,
    FetchStats,
    PullWindow,
    Span,
    next_offset,
)

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
"""Pause before each round over a queue's brokers. With option outageTimeout, the last one is
repeated until the pauses add up to that time."""

EMPTY_ROUNDS: Final = 3
"""Number of rounds in which a master must report that there is no message at an offset."""

BLOCK_BYTES: Final = 2 << 20
BLOCK_ROWS: Final = 20_000
"""Sizes at which a block is complete. Larger blocks decode no faster, and delay Spark."""

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
class Replica:
    """A broker that has a queue's messages."""

    address: str
    is_master: bool


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
    """Yield the rows of one span that match the filter, and report lost messages."""
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
    """Keep the first record of each offset: filtered pulls may overlap."""
    once = np.zeros(len(block), np.bool_)
    once[np.unique(block.queue_offsets, return_index=True)[1]] = True
    block.choose(once)


def _report_holes(part: Range, span: Span, block: Block, options: ReadOptions) -> None:
    """Report missing offsets as lost. Queue offsets are dense, so each gap is a loss unless the
    broker filters."""
    if len(block) == span.stop - span.start:
        return
    edges = np.concatenate(([span.start - 1], np.sort(block.queue_offsets), [span.stop]))
    for at in np.flatnonzero(np.diff(edges) > 1).tolist():
        report_loss(part.queue, int(edges[at]) + 1, int(edges[at + 1]), options)


class QueueFetcher:
    """Fetches ranges of one queue. ``stats`` are shared by the queues of a task."""

    def __init__(
        self, queue: MessageQueue, options: ReadOptions, stats: FetchStats | None = None
    ) -> None:
        self._client = ReplicaClient(
            queue, options.access, options.row_filter, options.outage.timeout_ms
        )
        self._stats = FetchStats() if stats is None else stats

    def spans(self, part: Range) -> Iterator[Span]:
        """Yield the whole range in order, with several responses joined into one span: a block.

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
        """Yield the range in order, one span per response.

        Where pipelined pulls make no progress, a single pull does.
        """
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
        stats = self._stats
        rows = stats.rows_for(stop - at, filtered=self._client.filters)
        answer = self._client.pull(at, rows)
        # A broker that rejects the filter is asked again without it.
        filtered = self._client.filters
        beyond = next_offset(answer)
        if answer.code in ADVANCING_CODES and beyond > at:
            if filtered or answer.code == ResponseCode.SUCCESS:
                stats.learn(rows, beyond - at, answer, filtered=filtered)
                stats.window = WINDOW_MIN
                stats.answered.add(self._client.address)
            return Span(at, min(beyond, stop), answer.body, filtered=filtered)
        # The offset is outside the queue: the oldest message is later, or the newest one earlier.
        return Span(at, min(beyond, stop) if beyond > at else stop, gone=True)


def pipelined_spans(client: ReplicaClient, stats: FetchStats, at: int, stop: int) -> Iterator[Span]:
    """Yield the spans of pipelined pulls in order, as long as responses arrive as planned.

    Yield nothing if the size of a response cannot be predicted yet. End at a timeout or a broken
    connection. The caller continues after the last span.
    """
    filtered = client.filters
    if not stats.can_predict(filtered=filtered) or not client.has_replica(stats.answered):
        return
    window = PullWindow(stats, at, stop, filtered=filtered)
    try:
        with client.pipeline() as pulls:
            # Later responses, received early to reach that of a pull that fills a gap.
            ahead: deque[Response] = deque()
            follows = True
            while follows:
                pulls.send([(place.start, place.rows) for place in window.due()])
                if not window.in_flight:
                    return
                answer = ahead.popleft() if ahead else pulls.receive()
                span, gap_stop, follows = window.received(answer)
                if span is None:
                    break
                yield span
                at = span.stop
                while follows and at < gap_stop:
                    ahead += [pulls.receive() for _ in range(window.in_flight - len(ahead))]
                    filling = _fill(pulls, stats, at, gap_stop)
                    follows = filling is not None
                    if filling is not None:
                        yield filling
                        at = filling.stop
            for _ in range(window.in_flight - len(ahead)):
                pulls.receive()
    except (NotConnected, RequestTimedOut):
        stats.window = WINDOW_MIN if window.found else 1


def _fill(pulls: PullPipeline, stats: FetchStats, at: int, stop: int) -> Span | None:
    """Pull the gap from ``at`` to ``stop``, which a response of a broker that filters left.

    No other response may be outstanding. Return None if the response does not advance.
    """
    rows = stats.rows_for(stop - at, filtered=True)
    pulls.send([(at, rows)])
    answer = pulls.receive()
    moves = next_offset(answer) - at if answer.code in ADVANCING_CODES else 0
    if moves <= 0:
        return None
    stats.learn(rows, moves, answer, filtered=True)
    return Span(at, min(at + moves, stop), answer.body, filtered=True)


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
    """Pulls the messages of one queue, from the replica that answered last if possible.

    ``filters`` says whether the broker is asked to filter. It becomes false if a broker cannot
    filter; responses then hold all messages. The topic of delayed messages is never filtered: its
    queue entries hold delivery times in place of tag hashes.
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
        """Address of the replica that answered last; empty before the first response."""
        return "" if self._last is None else self._last.address

    def has_replica(self, answered: Collection[str]) -> bool:
        """Return whether there is a replica to pipeline pulls to: the one that answered last, or
        the first one to ask if its address ``answered`` for another queue."""
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

        Raises NotConnected or RequestTimedOut if no replica answers, BrokerRefused.
        """
        return self._pull(self._header(at, rows))

    @contextmanager
    def pipeline(self) -> Iterator[PullPipeline]:
        """Provide pipelined pulls from the replica that answered last. Raises NotConnected."""
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
        """Ask all replicas, in rounds with pauses, until one returns a final response.

        A master's report that there is no message counts after EMPTY_ROUNDS rounds.
        """
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
        """Return the replica's response, or the failure if another attempt or another replica may
        succeed. Raise other failures.

        If the broker rejects the filter, the pull is repeated without it.
        """
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
    """Yield the pauses before rounds, in all ``outage_ms``; None stands for PAUSES_MS."""
    if outage_ms is None:
        yield from PAUSES_MS
        return
    left_ms = outage_ms
    for pause_ms in chain(PAUSES_MS, repeat(PAUSES_MS[-1])):
        yield min(pause_ms, left_ms)
        left_ms -= pause_ms
        if left_ms <= 0:
            return


def _settles(answer: Response, header: PullMessage, replica: Replica) -> bool:
    """Return whether the response is final, so that no other replica need be asked.

    A response with messages is final from any replica. One without messages is final from the
    master if it names another offset, and from a slave if its filter advanced without a match.
    """
    moves = next_offset(answer) > header.queue_offset
    if answer.code == ResponseCode.SUCCESS and moves:
        return True
    if replica.is_master:
        return moves or answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED)
    is_filtered = header.subscription != "*"
    return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and moves and is_filtered


def _is_beyond(answer: Response) -> bool:
    """Return whether a broker rejected a filter expression, which is valid here."""
    if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        return True
    return answer.code == ResponseCode.SYSTEM_ERROR and _CANNOT_FILTER in (answer.remark or "")
