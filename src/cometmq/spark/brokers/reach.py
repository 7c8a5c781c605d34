"""Bounds of queues, offsets by time, and samples of single messages.

One exchange asks a broker about all its queues, so that a thousand queues cost about as much as
one. The master is asked; if it is away, another broker of the same name.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut
from cometmq.message.record import iter_decode
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.wire import GROUP, Call, call_many, checked, refusal

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.frame import Response
    from cometmq.spark.brokers.access import Access

log = logging.getLogger(__name__)

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_SUBSCRIPTION_IN_HEADER: Final = 4

Header = Callable[["MessageQueue"], h.Header]


@dataclass(frozen=True, slots=True)
class Ends:
    """The end of each queue, that is the offset of its next message. Ends of ``copies`` come from a
    slave, which may lag its master."""

    by_queue: Mapping[MessageQueue, int]
    copies: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's response about a queue."""

    queue: MessageQueue
    broker_id: int
    address: str
    response: Response


@dataclass(frozen=True, slots=True)
class Look:
    """The first message at an offset, or after it if ``is_gone``. ``size_bytes`` is the mean size
    of all messages in the response."""

    store_ms: int
    size_bytes: float
    is_gone: bool = False


def ends(asked: Iterable[MessageQueue], access: Access) -> Ends:
    """Return the ends of queues. Raises NotConnected, RequestTimedOut, RouteNotFound,
    BrokerRefused."""
    answers = list(ask(asked, RequestCode.GET_MAX_OFFSET, _topic_queue, access))
    copies = (answer.queue for answer in answers if answer.broker_id != cluster.MASTER_ID)
    return Ends(_offsets(answers, RequestCode.GET_MAX_OFFSET), frozenset(copies))


def latest(asked: Iterable[MessageQueue], access: Access) -> dict[MessageQueue, int]:
    """Return the end of each queue. Raises the errors of :func:`ends`."""
    return dict(ends(asked, access).by_queue)


def earliest(asked: Iterable[MessageQueue], access: Access) -> dict[MessageQueue, int]:
    """Return the oldest offset of each queue that the broker still has. Raises the errors of
    :func:`ends`."""
    code = RequestCode.GET_MIN_OFFSET
    return _offsets(ask(asked, code, _topic_queue, access), code)


def near_times(moments: Mapping[MessageQueue, int], access: Access) -> dict[MessageQueue, int]:
    """Return an offset near the first message stored at each queue's moment (ms) or later.

    It is approximate: a 4.x broker returns the nearest message on either side, and any one of
    several with the same millisecond. Raises the errors of :func:`ends`.
    """

    def header(queue: MessageQueue) -> h.Header:
        moment_ms = moments[queue]
        return h.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=moment_ms)

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    return _offsets(ask(moments, code, header, access), code)


def looks(
    places: Mapping[MessageQueue, int], access: Access, *, rows: int = 1
) -> dict[MessageQueue, Look]:
    """Return a sample of each queue at one offset: its message and up to ``rows`` messages in all.

    Raises the errors of :func:`ends`, and NotConnected if only a slave answers that does not have
    the message or may not be read.
    """

    def header(queue: MessageQueue) -> h.Header:
        return h.PullMessage(
            consumer_group=GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=places[queue],
            max_msg_nums=rows,
            sys_flag=_SUBSCRIPTION_IN_HEADER,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )

    answers = ask(places, RequestCode.PULL_MESSAGE, header, access)
    return {answer.queue: _look(answer, places[answer.queue]) for answer in answers}


def ask(
    asked: Iterable[MessageQueue], code: RequestCode, header: Header, access: Access
) -> Iterator[Answer]:
    """Ask the brokers of queues, in one exchange for all queues of a broker.

    Raises RouteNotFound; NotConnected or RequestTimedOut if no broker of a name answers.
    """
    queues = list(asked)
    cluster.routes((queue.topic for queue in queues), access)
    groups: dict[tuple[tuple[int, str], ...], list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        groups[tuple(cluster.brokers(queue, access))].append(queue)
    for known, group in groups.items():
        calls: list[Call] = [(int(code), header(queue)) for queue in group]
        try:
            (broker_id, address), answers = _ask_one(known, calls, access)
        except (NotConnected, RequestTimedOut) as error:
            raise of_broker(group[0].broker_name, error) from None
        for queue, answer in zip(group, answers, strict=True):
            yield Answer(queue, broker_id, address, answer)


def of_broker(name: str, error: ClientError) -> ClientError:
    """Return the error with the broker's name added to its address."""
    match error:
        case NotConnected() if name not in error.address:
            return NotConnected(f"broker {name!r} at {error.address}", error.problem)
        case RequestTimedOut() if name not in error.address:
            return RequestTimedOut(
                f"broker {name!r} at {error.address}", error.request_code, error.timeout_ms
            )
    return error


def _ask_one(
    known: Iterable[tuple[int, str]], calls: list[Call], access: Access
) -> tuple[tuple[int, str], list[Response]]:
    """Ask the brokers of one broker name in order, the master first, until one answers."""
    failure: ClientError | None = None
    for broker_id, address in known:
        try:
            return (broker_id, address), call_many(address, calls, access)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("broker_unreachable address=%s error=%r", address, str(error))
            failure = error
    assert failure is not None
    raise failure


def _offsets(answers: Iterable[Answer], code: RequestCode) -> dict[MessageQueue, int]:
    return {
        answer.queue: int(checked(answer.address, code, answer.response).ext["offset"])
        for answer in answers
    }


def _look(answer: Answer, asked_for: int) -> Look:
    response = answer.response
    if response.code == ResponseCode.SUCCESS:
        records = list(iter_decode(response.body, check_crc=False))
        size_bytes = len(response.body) / len(records)
        return Look(records[0].store_ms, size_bytes, records[0].queue_offset > asked_for)
    moved = response.code == ResponseCode.PULL_OFFSET_MOVED
    waits = response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    if moved or (waits and int(response.ext["nextBeginOffset"]) > asked_for):
        return Look(0, 0.0, is_gone=True)
    if waits or response.code == ResponseCode.PULL_NOT_FOUND:
        raise NotConnected(answer.address, f"did not report what is at offset {asked_for}")
    raise refusal(answer.address, _PULL, response)


def _topic_queue(queue: MessageQueue) -> h.Header:
    return h.TopicQueue(topic=queue.topic, queue_id=queue.queue_id)
