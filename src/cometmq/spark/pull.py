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

from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.message.record import decode_one
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Response
from cometmq.protocol.headers import PullMessage
from cometmq.spark import cluster
from cometmq.spark.wire import call

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.options import ReadOptions
    from cometmq.spark.planning import Range

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_COMETMQ_SPARK"
PULL_ROWS: Final = 1024
"""Messages asked for at once; brokers give fewer (32 of them unless configured otherwise)."""

BLOCK_BYTES: Final = 8 << 20
BLOCK_ROWS: Final = 20_000
"""A block is handed on at either size: larger ones decode no faster."""

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

    def spans(self, part: Range) -> Iterator[Span]:
        """The whole range in order, in spans of a good size to decode.

        Raises NotConnected or RequestTimedOut when no broker answers, BrokerRefused.
        """
        at = start = part.start
        bodies: list[bytes] = []
        size_bytes = 0
        while at < part.stop:
            span = self._next(at, part.stop)
            at = span.stop
            if not span.gone:
                bodies.append(span.data)
                size_bytes += len(span.data)
                if size_bytes < BLOCK_BYTES and at - start < BLOCK_ROWS and at < part.stop:
                    continue
            if bodies:
                yield Span(start, at if not span.gone else span.start, b"".join(bodies))
                bodies, size_bytes = [], 0
            if span.gone:
                yield span
            start = at

    def store_ms(self, offset: int) -> int:
        """When the message at an offset was stored; 0 when it is gone."""
        header = self._header(offset, 1, everything=True)
        answer = self._ask(header)
        if answer.code != ResponseCode.SUCCESS:
            return 0
        return decode_one(answer.body, check_crc=False).store_ms

    def _next(self, at: int, stop: int) -> Span:
        answer = self._ask(self._header(at, min(stop - at, PULL_ROWS)))
        onward = int(answer.ext["nextBeginOffset"])
        if answer.code == ResponseCode.SUCCESS and onward > at:
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
                known = cluster.addresses(self._queue, self._options, fresh=pause_ms > 0)
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
            answer = call(address, _PULL, header, self._options.request_timeout_ms)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("pull_failed queue=%s error=%r", self._queue, str(error))
            return error
        if answer.code in _WITH_OFFSETS:
            return answer
        refused = BrokerRefused(address, _PULL, answer.code, answer.remark or "no remark")
        if answer.code == ResponseCode.SYSTEM_BUSY:
            return refused
        raise refused


def _knows_nothing(answer: Response, header: PullMessage) -> bool:
    """True for a copy that has not come this far, or may not be read: another may know more."""
    onward = int(answer.ext["nextBeginOffset"])
    waits = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
    return answer.code in waits and onward <= header.queue_offset
