"""Bodies about consumers while they run: where they stand, what they hold, what they answer
(upstream: protocol/body/*.java, ResetOffsetBody to ConsumerRunningInfo).

Tables keyed by a queue are written with fastjson.object_map and declared as Raw; a class that ends
in Read is the same body as it is read, its keys a QueueKey as JSON (see :func:`queue_table`).
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
    Subscription,
)
from cometmq.protocol.fastjson import encode_json, map_entry, parse_json

T = TypeVar("T")

_SYSTEM_ERROR: Final = 1


def queue_table(table: Mapping[str, T]) -> dict[QueueKey, T]:
    """A table as it is read, by queue. Raises BadRequest for a key that is no queue."""
    return {parse_json(key.encode(), QueueKey): value for key, value in table.items()}


# ---------------------------------------------------------------------------------------- offsets


class OffsetTable(Body, frozen=True):
    """Answer to 222, and the body of 220: QueueKey to offset."""

    offset_table: Raw


class QueueOffset(Body, frozen=True):
    """A queue and an offset in it."""

    topic: str
    broker_name: str
    queue_id: Int32
    offset: Int64


class QueueOffsets(Body, frozen=True):
    """The body of 220 for the C++ client, which reads no objects as keys."""

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
    """The offsets in any form that brokers write: a table, a list of queues with their offset (for
    C++), a list of pairs (for Go). Raises BadRequest."""
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
    """Where a reset puts a group that stands at ``committed`` (-1 for nowhere): only ``force``
    skips messages."""
    return wanted if force or committed < 0 else min(wanted, committed)


class CorrectionOffsets(Body, frozen=True):
    """Answer to 308: offsets by queue id."""

    correction_offsets: dict[int, int]


class BrokerConsumeStats(Body, frozen=True):
    """Answer to 317: for each group what 208 says of each of its topics."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    total_diff: Int64


# ------------------------------------------------------------------------------------ time, status


class QueueTimeSpan(Body, frozen=True):
    """What one queue holds and how far a group is in it, in store times (ms since the epoch);
    ``delay_time`` is the age of the next message to consume."""

    message_queue: QueueKey
    min_time_stamp: Int64
    max_time_stamp: Int64
    consume_time_stamp: Int64
    delay_time: Int64 = 0


class ConsumeTimeSpans(Body, frozen=True):
    """Answer to 303."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class ClientStatus(Body, frozen=True):
    """Answer to 221: QueueKey to offset."""

    message_queue_table: Raw


class ClientStatusRead(Body, frozen=True):
    """:class:`ClientStatus` as it is read."""

    message_queue_table: dict[str, Int64] = field(default_factory=dict)


class ConsumerStatus(Body, frozen=True):
    """Answer to 223: a table as in 221 for each client id."""

    consumer_table: dict[str, Raw]


class ConsumerStatusRead(Body, frozen=True):
    """:class:`ConsumerStatus` as it is read."""

    consumer_table: dict[str, dict[str, Int64]] = field(default_factory=dict)


# ------------------------------------------------------------------------------------ running info


class ProcessQueueInfo(Body, frozen=True):
    """What a consumer holds of one queue. Times are ms since the epoch, 0 for never."""

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
    """How a consumer does with one topic: milliseconds a pull and a message take, messages a
    second over the last minute; failures of the last hour."""

    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class RunningInfo(Body, frozen=True):
    """Answer to 307: QueueKey to ProcessQueueInfo, rates by topic, stacks when asked for."""

    properties: dict[str, str]
    subscription_set: tuple[Subscription, ...]
    mq_table: Raw
    status_table: dict[str, TopicRates]
    jstack: str | None = None


class RunningInfoRead(Body, frozen=True):
    """:class:`RunningInfo` as it is read."""

    properties: dict[str, Any] = field(default_factory=dict)
    subscription_set: tuple[Subscription, ...] = ()
    mq_table: dict[str, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, TopicRates] = field(default_factory=dict)
    jstack: str | None = None


class DirectResult(Body, frozen=True):
    """Answer to 309. ``consume_result`` is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT,
    CR_THROW_EXCEPTION or CR_RETURN_NULL."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    remark: str | None = None
    spent_time_mills: Int64 = 0


# --------------------------------------------------------------------------------------- producers


class ProducerConnections(Body, frozen=True):
    """Answer to 204."""

    connection_set: list[ClientConnection]


class ProducerInfo(Body, frozen=True):
    """One connected producer; ``last_update_timestamp`` is its last heartbeat, ms since the
    epoch."""

    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTable(Body, frozen=True):
    """Answer to 328: producers by group."""

    data: dict[str, list[ProducerInfo]]
