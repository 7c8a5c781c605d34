"""Reads a range of one queue from its broker: stored bytes, and what of the range is gone.

A pull (code 11) commits nothing and belongs to a group that brokers make by themselves and leave
out of their lists of consumers. The master is asked first, then the other brokers of its name; a
broker that is away or busy is asked again after a pause, since a restart of it takes seconds and a
task that fails ends the whole query on a local Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.message.record import decode_one
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Response
from cometmq.protocol.headers import PullMessage
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.wire import GROUP, call, call_many, refusal

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range

log = logging.getLogger(__name__)

PULL_ROWS: Final = 1024
"""Messages asked for at once; brokers give fewer (32 of them unless configured otherwise)."""

BLOCK_BYTES: Final = 8 << 20
BLOCK_ROWS: Final = 20_000
"""A block is handed on at either size: larger ones decode no faster."""

WINDOW_MIN: Final = 2
WINDOW_MAX: Final = 16
"""Pulls in flight, once a broker shows how many messages an answer holds: doubled while all answers
follow on one another, since those that do not are thrown away."""

PAUSES_MS: Final = (0, 200, 1_000, 3_000, 6_000, 10_000, 10_000)
"""Before each round over a queue's brokers."""

TURNS_OF_NOTHING: Final = 3
"""Rounds after which brokers that answer, and have nothing at an offset, are believed."""

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
_pause: Final = Event()


@dataclass(frozen=True, slots=True)
class Span:
    """What the broker said of ``start <= offset < stop``: its records, or that it is ``gone``.

    ``data`` may hold records from ``stop`` on, when a filter let the broker look further.
    """

    start: int
    stop: int
    data: bytes = b""
    gone: bool = False


class QueuePuller:
    """Pulls from one queue, staying with the broker that answered last."""

    def __init__(self, queue: MessageQueue, options: ReadOptions) -> None:
        self._queue = queue
        self._options = options
        self._address: str | None = None
        self._stride = 0
        self._window = 1

    def spans(self, part: Range) -> Iterator[Span]:
        """The whole range in order, in spans of a good size to decode.

        Raises NotConnected or RequestTimedOut when no broker answers, BrokerRefused.
        """
        start = part.start
        bodies: list[bytes] = []
        size_bytes = 0
        for span in self._walk(part):
            if not span.gone:
                bodies.append(span.data)
                size_bytes += len(span.data)
                is_small = size_bytes < BLOCK_BYTES and span.stop - start < BLOCK_ROWS
                if is_small and span.stop < part.stop:
                    continue
            if bodies:
                yield Span(start, span.start if span.gone else span.stop, b"".join(bodies))
                bodies, size_bytes = [], 0
            if span.gone:
                yield span
            start = span.stop

    def store_ms(self, offset: int) -> int:
        """When the message at an offset was stored; 0 when it is gone."""
        header = self._header(offset, 1, everything=True)
        answer = self._ask(header)
        if answer.code != ResponseCode.SUCCESS:
            return 0
        return decode_one(answer.body, check_crc=False).store_ms

    def _walk(self, part: Range) -> Iterator[Span]:
        """The range in order, one span an answer."""
        at = part.start
        while at < part.stop:
            for span in self._ahead(at, part.stop) or [self._next(at, part.stop)]:
                yield span
                at = span.stop

    def _ahead(self, at: int, stop: int) -> list[Span]:
        """Several pulls in flight, each from where the one before should end; what of their
        answers follows on one another. Empty when nothing is known to expect."""
        if self._address is None or self._window < WINDOW_MIN:
            return []
        starts = range(at, stop, self._stride)[: self._window]
        # The last one may give more than expected, and shows when answers hold more again.
        rows = [min(self._stride, stop - start) for start in starts[:-1]]
        rows.append(min(stop - starts[-1], PULL_ROWS))
        headers = [self._header(*each) for each in zip(starts, rows, strict=True)]
        self._window = min(self._window * 2, WINDOW_MAX)
        calls = [(_PULL, header) for header in headers]
        try:
            answers = call_many(self._address, calls, self._options.access)
        except (NotConnected, RequestTimedOut):
            answers = []  # the careful way of _next finds out what is wrong
        found: list[Span] = []
        for start, wanted, answer in zip(starts, rows, answers, strict=False):
            if answer.code != ResponseCode.SUCCESS:
                break
            given = int(answer.ext["nextBeginOffset"]) - start
            if not 0 < given <= wanted:
                break
            found.append(Span(start, start + given, answer.body))
            self._stride = given
            if given < wanted:
                break
        if len(found) < len(starts):
            self._window = WINDOW_MIN if found else 1
        return found

    def _next(self, at: int, stop: int) -> Span:
        answer = self._ask(self._header(at, min(stop - at, PULL_ROWS)))
        onward = int(answer.ext["nextBeginOffset"])
        if answer.code == ResponseCode.SUCCESS and onward > at:
            if self._options.tag_filter.matches_all:
                self._stride, self._window = onward - at, WINDOW_MIN
            return Span(at, min(onward, stop), answer.body)
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and onward > at:
            return Span(at, min(onward, stop))
        # Moved: the oldest message is younger, or the newest one older, than the offset.
        return Span(at, min(onward, stop) if onward > at else stop, gone=True)

    def _header(self, at: int, rows: int, *, everything: bool = False) -> PullMessage:
        expression = "*" if everything else self._options.tag_filter.expression
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
            subscription=expression,
            expression_type="TAG",
        )

    def _ask(self, header: PullMessage) -> Response:
        """A pull answer that says something about the offset, from whichever broker gives one."""
        if self._address is not None:
            answer = self._try(self._address, header)
            if isinstance(answer, Response) and not _knows_nothing(answer, header):
                return answer
        return self._ask_all(header)

    def _ask_all(self, header: PullMessage) -> Response:
        answer: Response | ClientError | None = None
        for turn, pause_ms in enumerate(PAUSES_MS):
            if isinstance(answer, Response) and turn >= TURNS_OF_NOTHING:
                break
            _pause.wait(pause_ms / 1000)
            try:
                known = cluster.addresses(self._queue, self._options.access, fresh=pause_ms > 0)
            except (NotConnected, RouteNotFound) as error:
                # A broker that restarts is out of the route for a while, or its name server is.
                answer = error
                continue
            for address in known:
                answer = self._try(address, header)
                if isinstance(answer, Response) and not _knows_nothing(answer, header):
                    self._address = address
                    return answer
        if isinstance(answer, Response):
            return answer
        assert answer is not None
        raise answer

    def _try(self, address: str, header: PullMessage) -> Response | ClientError:
        """The broker's answer, or the failure that another try may mend; others are raised."""
        try:
            answer = call(address, _PULL, header, self._options.access)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("pull_failed queue=%s error=%r", self._queue, str(error))
            return error
        if answer.code in _WITH_OFFSETS:
            return answer
        refused = refusal(address, _PULL, answer)
        if answer.code == ResponseCode.SYSTEM_BUSY:
            return refused
        raise refused


def _knows_nothing(answer: Response, header: PullMessage) -> bool:
    """True for a copy that has not come this far, or may not be read: another may know more."""
    onward = int(answer.ext["nextBeginOffset"])
    waits = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
    return answer.code in waits and onward <= header.queue_offset
