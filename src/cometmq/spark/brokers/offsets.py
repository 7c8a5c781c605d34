"""Offsets of queues on brokers: their bounds, offsets by time, samples of single messages, and the
committed offsets of consumer groups.

One exchange asks a broker about all its queues, so that a thousand queues cost about as much as
one. The master is asked; if it is away, a slave of the same broker name.

Offsets are committed so that tools show the lag of a query. ``mqadmin consumerProgress`` also needs
the group in the broker's table and the group's retry topic, which the first heartbeat of a consumer
creates. This module creates both if they are missing. It sends no heartbeat, because that would
make the group's real consumers rebalance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from cometmq.message.record import iter_decode
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.wire import GROUP, Call, call_many, checked, refusal

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.frame import Response
    from cometmq.spark.brokers.access import Access

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_QUERY: Final = int(RequestCode.QUERY_CONSUMER_OFFSET)
_COMMIT: Final = int(RequestCode.UPDATE_CONSUMER_OFFSET)
_TABLE: Final = int(RequestCode.GET_ALL_CONSUMER_OFFSET)
_GROUPS: Final = int(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
_CREATE_GROUP: Final = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
_CREATE_TOPIC: Final = int(RequestCode.UPDATE_AND_CREATE_TOPIC)
_SUBSCRIPTION_IN_HEADER: Final = 4
_Header = Callable[["MessageQueue"], h.Header]


@dataclass(frozen=True, slots=True)
class EndOffsets:
    """The end of each queue: the offset of its next message. The ends of the queues ``copies`` come
    from a slave, which may lag its master."""

    by_queue: Mapping[MessageQueue, int]
    copies: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class Sample:
    """The store time of the message at an offset, and the mean size of the messages from there on.

    With ``is_gone``, that message was deleted: both values are of later messages, or 0.
    """

    store_ms: int
    size_bytes: float
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    """A broker's response about a queue."""

    queue: MessageQueue
    broker_id: int
    address: str
    response: Response


def ends(asked: Iterable[MessageQueue], access: Access) -> EndOffsets:
    """Return the ends of queues. Raises NotConnected, RequestTimedOut, RouteNotFound,
    BrokerRefused."""
    answers = list(_ask(asked, RequestCode.GET_MAX_OFFSET, _topic_queue, access))
    copies = (answer.queue for answer in answers if answer.broker_id != cluster.MASTER_ID)
    return EndOffsets(_offsets(answers, RequestCode.GET_MAX_OFFSET), frozenset(copies))


def latest(asked: Iterable[MessageQueue], access: Access) -> dict[MessageQueue, int]:
    """Return the end of each queue, from a slave if the master is away. Raises the errors of
    :func:`ends`."""
    return dict(ends(asked, access).by_queue)


def earliest(asked: Iterable[MessageQueue], access: Access) -> dict[MessageQueue, int]:
    """Return the oldest offset of each queue that the broker still has. Raises the errors of
    :func:`ends`."""
    code = RequestCode.GET_MIN_OFFSET
    return _offsets(_ask(asked, code, _topic_queue, access), code)


def near_moments(moments: Mapping[MessageQueue, int], access: Access) -> dict[MessageQueue, int]:
    """Return an offset near the first message stored at each queue's moment (ms) or later.

    It is approximate: a 4.x broker returns the nearest message, which may be an earlier one, and
    any one of several with the same millisecond. Raises the errors of :func:`ends`.
    """

    def header(queue: MessageQueue) -> h.Header:
        moment_ms = moments[queue]
        return h.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=moment_ms)

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    return _offsets(_ask(moments, code, header, access), code)


def samples(
    places: Mapping[MessageQueue, int], access: Access, *, rows: int = 1
) -> dict[MessageQueue, Sample]:
    """Return a sample of each queue at its offset in ``places``, from up to ``rows`` messages.

    Raises the errors of :func:`ends`, and NotConnected if only a slave answers, and it lacks the
    message or allows no reads.
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

    answers = _ask(places, RequestCode.PULL_MESSAGE, header, access)
    return {answer.queue: _sample(answer, places[answer.queue]) for answer in answers}


def committed(
    group: str, queues: Iterable[MessageQueue], access: Access
) -> dict[MessageQueue, int]:
    """Return the committed offset of ``group`` for each queue that has one.

    Raises NotConnected, RequestTimedOut, RouteNotFound, BrokerRefused.
    """

    def header(queue: MessageQueue) -> h.Header:
        return h.QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found="false",
        )

    found: dict[MessageQueue, int] = {}
    doubtful: dict[str, list[MessageQueue]] = {}
    for answer in _ask(queues, RequestCode.QUERY_CONSUMER_OFFSET, header, access):
        if answer.response.code == ResponseCode.QUERY_NOT_FOUND:
            continue
        offset = int(checked(answer.address, _QUERY, answer.response).ext["offset"])
        found[answer.queue] = offset
        if offset == 0:
            doubtful.setdefault(answer.address, []).append(answer.queue)
    for address, zeros in doubtful.items():
        # A 4.x broker returns 0 for a young queue without a committed offset; its offset table
        # omits it.
        table = _table(address, access)
        for queue in zeros:
            if str(queue.queue_id) not in table.get(f"{queue.topic}@{group}", {}):
                del found[queue]
    return found


def commit(group: str, offsets: Mapping[MessageQueue, int], access: Access) -> None:
    """Commit offsets of ``group`` on the masters of the queues.

    One offset of each topic is sent before the others: of two concurrent first commits of a group
    in a topic, a Java broker may lose one. Raises NotConnected (also if a master is away),
    RequestTimedOut, RouteNotFound, BrokerRefused.
    """
    for address, queues in _masters(offsets, access).items():
        firsts = {queue.topic: queue for queue in reversed(queues)}
        rest = [queue for queue in queues if firsts[queue.topic] != queue]
        for part in filter(None, (list(firsts.values()), rest)):
            calls: list[Call] = [(_COMMIT, _header(group, queue, offsets[queue])) for queue in part]
            for answer in call_many(address, calls, access):
                checked(address, _COMMIT, answer)


def ensure_group(group: str, queues: Iterable[MessageQueue], access: Access) -> None:
    """Create the group and its retry topic on those masters of the queues that lack them.

    Raises the errors of :func:`commit`.
    """
    topic = RETRY_PREFIX + group
    route = cluster.routes([topic], access, age_max_ms=0).get(topic)
    names = set() if route is None else {data.broker_name for data in route.queue_datas}
    missing = [queue for queue in queues if queue.broker_name not in names]
    for address in _masters(missing, access):
        (answer,) = call_many(address, [(_GROUPS, None)], access)
        known = parse_json(checked(address, _GROUPS, answer).body, SubscriptionGroupTable)
        if group not in known.subscription_group_table:
            _do(address, (_CREATE_GROUP, None, encode_json(SubscriptionGroupConfig(group))), access)
        _do(address, (_CREATE_TOPIC, _retry_topic(topic)), access)


def with_broker_name(name: str, error: ClientError) -> ClientError:
    """Return the error with the broker's name added to its address."""
    match error:
        case NotConnected() if name not in error.address:
            return NotConnected(f"broker {name!r} at {error.address}", error.problem)
        case RequestTimedOut() if name not in error.address:
            return RequestTimedOut(
                f"broker {name!r} at {error.address}", error.request_code, error.timeout_ms
            )
    return error


def _ask(
    asked: Iterable[MessageQueue], code: RequestCode, header: _Header, access: Access
) -> Iterator[_Answer]:
    """Send one request per queue, built by ``header``, in one exchange per broker.

    Raises RouteNotFound, and NotConnected or RequestTimedOut if no broker of a broker name answers.
    """
    queues = list(asked)
    cluster.prefetch((queue.topic for queue in queues), access)
    groups: dict[tuple[tuple[int, str], ...], list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        groups[tuple(cluster.brokers(queue, access))].append(queue)
    for known, group in groups.items():
        calls: list[Call] = [(int(code), header(queue)) for queue in group]
        try:
            (broker_id, address), answers = _ask_one(known, calls, access)
        except (NotConnected, RequestTimedOut) as error:
            raise with_broker_name(group[0].broker_name, error) from None
        for queue, answer in zip(group, answers, strict=True):
            yield _Answer(queue, broker_id, address, answer)


def _ask_one(
    known: Iterable[tuple[int, str]], calls: list[Call], access: Access
) -> tuple[tuple[int, str], list[Response]]:
    """Ask the brokers of one broker name in order, the master first, until one answers."""
    failure: ClientError | None = None
    for broker_id, address in known:
        try:
            return (broker_id, address), call_many(address, calls, access)
        except (NotConnected, RequestTimedOut) as error:
            failure = error
    assert failure is not None
    raise failure


def _offsets(answers: Iterable[_Answer], code: RequestCode) -> dict[MessageQueue, int]:
    return {
        answer.queue: int(checked(answer.address, code, answer.response).ext["offset"])
        for answer in answers
    }


def _sample(answer: _Answer, asked_for: int) -> Sample:
    """Return the sample in a response to a pull at ``asked_for``. Raises NotConnected,
    BrokerRefused."""
    response = answer.response
    if response.code == ResponseCode.SUCCESS:
        records = list(iter_decode(response.body, check_crc=False))
        size_bytes = len(response.body) / len(records)
        return Sample(records[0].store_ms, size_bytes, records[0].queue_offset > asked_for)
    moved = response.code == ResponseCode.PULL_OFFSET_MOVED
    waits = response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    if moved or (waits and int(response.ext["nextBeginOffset"]) > asked_for):
        return Sample(0, 0.0, is_gone=True)
    if waits or response.code == ResponseCode.PULL_NOT_FOUND:
        raise NotConnected(answer.address, f"did not report what is at offset {asked_for}")
    raise refusal(answer.address, _PULL, response)


def _topic_queue(queue: MessageQueue) -> h.Header:
    return h.TopicQueue(topic=queue.topic, queue_id=queue.queue_id)


def _masters(queues: Iterable[MessageQueue], access: Access) -> dict[str, list[MessageQueue]]:
    """Return the queues by the address of their master. Raises NotConnected if a master is away."""
    wanted = list(queues)
    cluster.prefetch((queue.topic for queue in wanted), access)
    found: dict[str, list[MessageQueue]] = {}
    for queue in wanted:
        broker_id, address = cluster.brokers(queue, access)[0]
        if broker_id != cluster.MASTER_ID:
            raise NotConnected(queue.broker_name, "its master is unavailable")
        found.setdefault(address, []).append(queue)
    return found


def _header(group: str, queue: MessageQueue, offset: int) -> h.Header:
    return h.UpdateConsumerOffset(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )


def _retry_topic(topic: str) -> h.Header:
    return h.CreateTopic(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=1,
        write_queue_nums=1,
        perm=PERM_READ | PERM_WRITE,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order="false",
    )


def _do(address: str, call: Call, access: Access) -> None:
    (answer,) = call_many(address, [call], access)
    checked(address, call[0], answer)


def _table(address: str, access: Access) -> Mapping[str, Mapping[str, int]]:
    """Return a broker's committed offsets by ``topic@group`` and queue id."""
    (answer,) = call_many(address, [(_TABLE, None)], access)
    found: Any = parse_json(checked(address, _TABLE, answer).body)
    table: Mapping[str, Mapping[str, int]] = found.get("offsetTable") or {}
    return table
