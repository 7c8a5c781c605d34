"""Selects the broker to pull from among the copies of a queue, and decides when a response counts.

Messages may come from any copy, because a stored record is the same on all of them. Only the master
can report that there is nothing at an offset. A slave that has less than was planned lags its
master, which is no loss, and the master is asked instead. A broker that is away or busy is asked
again after a pause: a restart takes seconds, and on a local Spark a failed task ends the whole
query.

A pull (code 11) commits nothing. It uses a group that brokers create on their own and omit from
their lists of consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from threading import Event
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Response
from cometmq.protocol.headers import PullMessage
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.access import ReadFrom
from cometmq.spark.brokers.reach import of_broker
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
        raise of_broker(self._queue.broker_name, failure or self._late(header))

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
