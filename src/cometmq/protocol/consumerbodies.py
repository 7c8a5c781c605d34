"""Bodies about running consumers: offsets, prefetched messages, status reports (upstream:
protocol/body/*.java, ResetOffsetBody to ConsumerRunningInfo).

Tables keyed by a queue are written with fastjson.object_map and declared as Raw. A class that ends
in Read is the same body as it is parsed, its keys a QueueKey as JSON (see :func:`queue_table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec import Raw, ValidationError, convert, field

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    Body,
    ClientConnection,
    ConsumeStats,
    Int32,
    Int64,
    QueueKey,
    SubscriptionData,
)
from cometmq.protocol.fastjson import encode_json, map_entry, parse_json

T = TypeVar("T")

_SYSTEM_ERROR: Final = 1


def queue_table(table: Mapping[str, T]) -> dict[QueueKey, T]:
    """Return a parsed table by queue. Raises BadRequest for a key that is not a queue."""
    return {parse_json(key.encode(), QueueKey): value for key, value in table.items()}


# ---------------------------------------------------------------------------------------- offsets


class OffsetTable(Body, frozen=True):
    """Response body of 222 (INVOKE_BROKER_TO_RESET_OFFSET), request body of 220
    (RESET_CONSUMER_CLIENT_OFFSET): QueueKey to offset.
    """

    offset_table: Raw


class QueueOffset(Body, frozen=True):
    """Queue and an offset in it."""

    topic: str
    broker_name: str
    queue_id: Int32
    offset: Int64


class QueueOffsets(Body, frozen=True):
    """Request body of 220 (RESET_CONSUMER_CLIENT_OFFSET) for the C++ client, which cannot parse
    objects as keys.
    """

    offset_table: tuple[QueueOffset, ...]


def offset_body(offsets: Mapping[QueueKey, int], language: str = "JAVA") -> bytes:
    """Return offsets as a client written in ``language`` reads them."""
    entries = [offset_entry(key, at, language) for key, at in offsets.items()]
    return offset_table(b",".join(entries), language)


def offset_entry(key: QueueKey, at: int, language: str) -> bytes:
    """Return one entry of an :func:`offset_table`."""
    if language != "CPP":
        return map_entry(key, at)
    return encode_json(QueueOffset(key.topic, key.broker_name, key.queue_id, at))


def offset_table(entries: bytes, language: str) -> bytes:
    """Return a body of ``entries``, which have commas between them."""
    begin, end = (b"[", b"]") if language == "CPP" else (b"{", b"}")
    return b'{"offsetTable":' + begin + entries + end + b"}"


class _AnyOffsets(Body, frozen=True):
    offset_table: Any = None


def read_offsets(body: bytes) -> dict[QueueKey, int]:
    """Parse offsets in any form that brokers write. Raises BadRequest.

    The forms are a table, a list of queues with their offset (for C++), and a list of pairs (for
    Go).
    """
    table = parse_json(body, _AnyOffsets).offset_table
    try:
        if isinstance(table, dict):
            return queue_table(convert(table, dict[str, int], strict=False))
        found: dict[QueueKey, int] = {}
        for row in convert(table or (), list[Any]):
            if isinstance(row, dict):
                each = convert(row, QueueOffset, strict=False)
                found[QueueKey(each.topic, each.broker_name, each.queue_id)] = each.offset
            else:
                key, offset = convert(row, tuple[QueueKey, int], strict=False)
                found[key] = offset
    except ValidationError as error:
        raise BadRequest(_SYSTEM_ERROR, f"JSON body: offsetTable: {error}") from None
    return found


def reset_to(wanted: int, committed: int, *, force: bool) -> int:
    """Return the offset to which a reset moves a group with the offset ``committed`` (-1 for none).

    Only ``force`` moves it forward.
    """
    return wanted if force or committed < 0 else min(wanted, committed)


class CorrectionOffsets(Body, frozen=True):
    """Response body of 308 (QUERY_CORRECTION_OFFSET): offsets by queue id."""

    correction_offsets: dict[int, int]


class BrokerConsumeStats(Body, frozen=True):
    """Response body of 317 (GET_BROKER_CONSUME_STATS): by group, the body of 208
    (GET_CONSUME_STATS) for each of its topics.
    """

    broker_addr: str
    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    total_diff: Int64


# ------------------------------------------------------------------------------------ time, status


class QueueTimeSpan(Body, frozen=True):
    """Store times (ms since the epoch) of one queue's messages and of a group's next message.

    ``delay_time`` is the age of the group's next message.
    """

    message_queue: QueueKey
    min_time_stamp: Int64
    max_time_stamp: Int64
    consume_time_stamp: Int64
    delay_time: Int64 = 0


class ConsumeTimeSpans(Body, frozen=True):
    """Response body of 303 (QUERY_CONSUME_TIME_SPAN)."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class ClientStatus(Body, frozen=True):
    """Response body of 221 (GET_CONSUMER_STATUS_FROM_CLIENT): QueueKey to offset."""

    message_queue_table: Raw


class ClientStatusRead(Body, frozen=True):
    """:class:`ClientStatus` as it is parsed."""

    message_queue_table: dict[str, Int64] = field(default_factory=dict)


class ConsumerStatus(Body, frozen=True):
    """Response body of 223 (INVOKE_BROKER_TO_GET_CONSUMER_STATUS): a table as in 221 for each
    client id.
    """

    consumer_table: dict[str, Raw]


class ConsumerStatusRead(Body, frozen=True):
    """:class:`ConsumerStatus` as it is parsed."""

    consumer_table: dict[str, dict[str, Int64]] = field(default_factory=dict)


# ------------------------------------------------------------------------------------ running info


class ProcessQueueInfo(Body, frozen=True):
    """Prefetch state of one queue. Times are ms since the epoch, 0 for never."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mi_b: Int64 = field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    dropped: bool = field(default=False, name="droped")
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class TopicRates(Body, frozen=True):
    """Rates of a consumer for one topic.

    ``_rt`` are milliseconds per pull and per message, ``_tps`` messages a second, all over the last
    minute; ``consume_failed_msgs`` are failures of the last hour.
    """

    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class RunningInfo(Body, frozen=True):
    """Response body of 307 (GET_CONSUMER_RUNNING_INFO): QueueKey to ProcessQueueInfo, rates by
    topic, requested stacks.
    """

    properties: dict[str, str]
    subscription_set: tuple[SubscriptionData, ...]
    mq_table: Raw
    status_table: dict[str, TopicRates]
    jstack: str | None = None


class RunningInfoRead(Body, frozen=True):
    """:class:`RunningInfo` as it is parsed."""

    properties: dict[str, Any] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[str, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, TopicRates] = field(default_factory=dict)
    jstack: str | None = None


class DirectResult(Body, frozen=True):
    """Response body of 309 (CONSUME_MESSAGE_DIRECTLY).

    ``consume_result`` is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or
    CR_RETURN_NULL.
    """

    order: bool = False
    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    remark: str | None = None
    spent_time_mills: Int64 = 0


# --------------------------------------------------------------------------------------- producers


class ProducerConnections(Body, frozen=True):
    """Response body of 204 (GET_PRODUCER_CONNECTION_LIST)."""

    connection_set: list[ClientConnection]


class ProducerInfo(Body, frozen=True):
    """One connected producer; ``last_update_timestamp`` is its last heartbeat (ms since the
    epoch).
    """

    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTable(Body, frozen=True):
    """Response body of 328 (GET_ALL_PRODUCER_INFO): producers by group."""

    data: dict[str, list[ProducerInfo]]
