"""JSON bodies of requests and responses as structs, and the permission bits of topics (upstream:
protocol/body/*.java, protocol/heartbeat/*.java, TopicRouteData.java, PermName.java).

Encode them with fastjson.encode_json, parse them with fastjson.parse_json. A map keyed by a message
queue has one struct for each direction:

    written, as TopicStats       field of type Raw, made by fastjson.object_map
    parsed, as TopicStatsRead    dict; its keys are texts with a :class:`QueueKey` as JSON, which
                                 :func:`queue_table` parses

:func:`parse_client_body` parses heartbeats, lock requests and results of direct consumption in any
form that clients send, as a Java broker does:

    Java     needs no conversion
    C++      enumerations by number
    Go       enumerations of results by number
    .NET     capitalized names
    others   null or empty text for a missing value
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

from msgspec import (
    UNSET,
    Meta,
    MsgspecError,
    Raw,
    Struct,
    UnsetType,
    ValidationError,
    convert,
    field,
    json,
    structs,
)

from cometmq.core.errors import BadRequest
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import (
    REQUEST_DIALECT_MAX_BYTES,
    encode_json,
    map_entry,
    parse_json,
)

#: Java's int and long. Parsing a body rejects larger numbers and names the field.
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

T = TypeVar("T")
B = TypeVar("B", bound="Body")

#: Number of table values encoded or decoded in one piece.
PIECE_VALUES: Final = 256


class Body(Struct, rename="camel", frozen=True):
    """Base of all bodies: camel-case names on the wire; unknown names are ignored."""


class QueueKey(Body, frozen=True, order=True):
    """Message queue as a key of a map or a member of a set."""

    topic: str
    broker_name: str
    queue_id: Int32


class DataVersion(Body, frozen=True):
    """Version of a table; two versions are equal if all their fields are.

    Only 5.x peers send a state version.
    """

    counter: Int64 = 0
    timestamp: Int64 = 0
    state_version: Int64 | UnsetType = UNSET


def table_pieces(
    version: DataVersion,
    name: str,
    values: Mapping[str, Body],
    *,
    deleted: Mapping[str, int] | None = None,
) -> Iterator[bytes]:
    """Yield the JSON of a table with its version, in pieces that take under a millisecond each.

    The text is ``{"dataVersion":{...},"<name>":{...}}``; ``deleted`` is appended as
    ``cometmqDeleted``.
    """
    yield b'{"dataVersion":' + json.encode(version, order="sorted") + b',"' + name.encode() + b'":'
    entries = iter(values.items())
    opening = b"{"
    while some := dict(islice(entries, PIECE_VALUES)):
        yield opening + json.encode(some, order="sorted")[1:-1]
        opening = b","
    more = b',"cometmqDeleted":' + json.encode(deleted) if deleted is not None else b""
    yield (b"}" if opening == b"," else b"{}") + more + b"}"


# ----------------------------------------------------------------------------------------- topics


class TopicConfig(Body, frozen=True):
    """Configuration of one topic on one broker; also the response body of 351
    (GET_TOPIC_CONFIG).
    """

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False


class TopicConfigTable(Body, frozen=True):
    """Response body of 21 (GET_ALL_TOPIC_CONFIG).

    CometMQ brokers add ``cometmq_deleted`` for slaves that request it: for each deleted topic, the
    log offset at which it was deleted.
    """

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    cometmq_deleted: dict[str, int] | UnsetType = UNSET


class TopicList(Body, frozen=True):
    """Response body of 206 (GET_ALL_TOPIC_LIST_FROM_NAMESERVER), 216 (DELETE_TOPIC_IN_NAMESRV), 224
    (GET_TOPICS_BY_CLUSTER), 304 (GET_SYSTEM_TOPIC_LIST_FROM_NS), 305
    (GET_SYSTEM_TOPIC_LIST_FROM_BROKER), 311 (GET_UNIT_TOPIC_LIST), 312
    (GET_HAS_UNIT_SUB_TOPIC_LIST) and 313 (GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST).
    """

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class Promote(Body, frozen=True):
    """Request body of 31001 (PROMOTE_BROKER), CometMQ only.

    ``check`` only requests the findings; ``force`` promotes despite refusing ones.
    """

    role: str = "ASYNC_MASTER"
    force: bool = False
    check: bool = False


class Finding(Body, frozen=True):
    """Result of one check before a promotion or a move: ``weight`` is ok, warning or refused."""

    weight: str
    text: str

    @property
    def refuses(self) -> bool:
        """True if the finding forbids the operation."""
        return self.weight == "refused"


class Promotion(Body, frozen=True):
    """Response body of 31001 (PROMOTE_BROKER).

    ``begins`` is True if the broker restarts as the master of its name.
    """

    begins: bool
    broker_name: str
    findings: list[Finding]


class TakeAddress(Body, frozen=True):
    """Request body of 31002 (TAKE_ADDRESS), CometMQ only.

    ``address`` is the "host:port" of a former master; the broker should listen on it and register
    with it. ``check`` only requests whether it could.
    """

    address: str
    check: bool = False


class AddressState(Body, frozen=True):
    """Response body of 31002 (TAKE_ADDRESS).

    ``state`` is taken, free, in_use (another process listens there) or not_here (the address
    belongs to another machine); ``text`` is the reason if it was not taken.
    """

    state: str
    text: str = ""


class ClusterInfo(Body, frozen=True):
    """Response body of 106 (GET_BROKER_CLUSTER_INFO)."""

    broker_addr_table: dict[str, ClusterBroker] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class ClusterBroker(Body, frozen=True):
    """Broker name and its addresses by broker id."""

    broker_name: str
    broker_addrs: dict[str, str]
    cluster: str


class KvTable(Body, frozen=True):
    """Response body of requests for key-value tables.

    These are 28 (GET_BROKER_RUNTIME_INFO) and 219 (GET_KVLIST_BY_NAMESPACE), and 103
    (REGISTER_BROKER), which returns order topics.
    """

    table: dict[str, str] = field(default_factory=dict)


# ----------------------------------------------------------------------------------------- groups


class SubscriptionGroupConfig(Body, frozen=True):
    """Settings of a consumer group on one broker."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int32 = 1
    notify_consumer_ids_changed_enable: bool = True


class SubscriptionGroupTable(Body, frozen=True):
    """Response body of 201 (GET_ALL_SUBSCRIPTIONGROUP_CONFIG)."""

    data_version: DataVersion = field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


#: Version of a subscription whose sender gave none.
NO_VERSION: Final = -(2**63)


class SubscriptionData(Body, frozen=True):
    """Subscription of one consumer group to one topic; ``sub_string`` is its filter expression."""

    topic: str
    sub_string: str = "*"
    sub_version: Int64 = NO_VERSION
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int32, ...] = ()
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ClientConfigCheck(Body, frozen=True):
    """Request body of 46 (CHECK_CLIENT_CONFIG): a subscription that a client will start with."""

    subscription_data: SubscriptionData
    client_id: str = ""
    group: str = ""


class ConsumerData(Body, frozen=True):
    """One consumer group of one client."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


class ProducerData(Body, frozen=True):
    """One producer group of one client."""

    group_name: str


class Heartbeat(Body, frozen=True):
    """Request body of 34 (HEART_BEAT)."""

    client_id: str = field(name="clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()


class AccountEntry(Body, frozen=True):
    """One account of access control (upstream: PlainAccessConfig.java)."""

    access_key: str
    secret_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AclConfig(Body, frozen=True):
    """Response body of 54 (GET_BROKER_CLUSTER_ACL_CONFIG)."""

    global_white_addrs: list[str]
    plain_access_configs: list[AccountEntry]


class QueueEntry(Body, frozen=True):
    """One entry of a consume queue: place and size of a record in the log, and the hash of its tag
    (upstream: ConsumeQueueData.java).
    """

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool = False


class QueueEntries(Body, frozen=True):
    """Response body of 321 (QUERY_CONSUME_QUEUE).

    ``subscription_data`` and ``filter_data`` (text with JSON) are those of the group that the
    request names, if it names one.
    """

    max_queue_index: Int64
    min_queue_index: Int64
    queue_data: list[QueueEntry]
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class ConsumerIds(Body, frozen=True):
    """Response body of 38 (GET_CONSUMER_LIST_BY_GROUP)."""

    consumer_id_list: list[str] = field(default_factory=list)


class QueueLockRequest(Body, frozen=True):
    """Request body of 41 (LOCK_BATCH_MQ) and 42 (UNLOCK_BATCH_MQ)."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueKey] = field(default_factory=list)


class QueueLockResponse(Body, frozen=True):
    """Response body of 41 (LOCK_BATCH_MQ)."""

    lock_ok_mq_set: list[QueueKey] = field(default_factory=list, name="lockOKMQSet")


class ClientConnection(Body, frozen=True):
    """One connected client."""

    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnections(Body, frozen=True):
    """Response body of 203 (GET_CONSUMER_CONNECTION_LIST).

    ``conflicting_subscriptions`` is a CometMQ extension: the filter expressions by topic of each
    client, if they differ.
    """

    connection_set: list[ClientConnection]
    subscription_table: dict[str, SubscriptionData]
    consume_type: str
    message_model: str
    consume_from_where: str
    conflicting_subscriptions: dict[str, dict[str, str]] | None = None


class GroupList(Body, frozen=True):
    """Response body of 300 (QUERY_TOPIC_CONSUME_BY_WHO)."""

    group_list: list[str] = field(default_factory=list)


# ------------------------------------------------------------------------------------- statistics


class TopicOffset(Body, frozen=True):
    """Offset range of one queue in the response to 202 (GET_TOPIC_STATS_INFO)."""

    min_offset: Int64
    max_offset: Int64
    last_update_timestamp: Int64


class TopicStats(Body, frozen=True):
    """Response body of 202 (GET_TOPIC_STATS_INFO): QueueKey to TopicOffset."""

    offset_table: Raw


class ConsumeOffset(Body, frozen=True):
    """Progress of one queue in the response to 208 (GET_CONSUME_STATS)."""

    broker_offset: Int64
    consumer_offset: Int64
    last_timestamp: Int64


class ConsumeStats(Body, frozen=True):
    """Response body of 208 (GET_CONSUME_STATS): QueueKey to ConsumeOffset."""

    consume_tps: float
    offset_table: Raw


class BrokerStatsItem(Body, frozen=True):
    """A statistic in one time window: sum, sum per second (``tps``), average per send or pull."""

    avgpt: float
    sum: Int64
    tps: float


class BrokerStatsData(Body, frozen=True):
    """Response body of 315 (VIEW_BROKER_STATS_DATA)."""

    stats_day: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_minute: BrokerStatsItem


class TopicStatsRead(Body, frozen=True):
    """:class:`TopicStats` as a client parses it; keys hold a QueueKey as JSON."""

    offset_table: dict[str, TopicOffset] = field(default_factory=dict)


class ConsumeStatsRead(Body, frozen=True):
    """:class:`ConsumeStats` as a client parses it; keys hold a QueueKey as JSON."""

    offset_table: dict[str, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0


class BrokerConsumeStatsRead(Body, frozen=True):
    """:class:`BrokerConsumeStats` as a client parses it."""

    consume_stats_list: list[dict[str, list[ConsumeStatsRead]]] = field(default_factory=list)
    total_diff: Int64 = 0


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
    """Encode offsets by queue in the form that a client written in ``language`` can parse."""
    entries = [offset_entry(key, at, language) for key, at in offsets.items()]
    return offset_table(b",".join(entries), language)


def offset_entry(key: QueueKey, at: int, language: str) -> bytes:
    """Encode one entry of an :func:`offset_table`: the queue and the offset ``at``."""
    if language != "CPP":
        return map_entry(key, at)
    return encode_json(QueueOffset(key.topic, key.broker_name, key.queue_id, at))


def offset_table(entries: bytes, language: str) -> bytes:
    """Return a body with ``entries``, which are joined by commas."""
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
        raise BadRequest(ResponseCode.SYSTEM_ERROR, f"JSON body: offsetTable: {error}") from None
    return found


def reset_to(wanted: int, committed: int, *, force: bool) -> int:
    """Return the offset to which a reset moves a group.

    ``committed`` is the present offset, -1 for none. Without ``force`` it is never moved forward.
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


PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

MASTER_ID: Final = 0


class QueueData(Struct, rename="camel", frozen=True):
    """Queues of a topic on one broker. Peers before 4.9 send topicSynFlag, which is ignored."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_sys_flag: Int32 = 0


class BrokerData(Struct, rename="camel", frozen=True):
    """Broker name with its addresses by broker id, as text ("0" is the master)."""

    broker_name: str
    broker_addrs: dict[str, str]
    cluster: str = ""

    def master(self) -> str | None:
        """Return the master's address, or None if there is no master."""
        return self.broker_addrs.get("0")


class TopicRoute(Struct, rename="camel", frozen=True):
    """Response body of 105 (GET_ROUTEINFO_BY_TOPIC)."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    queue_datas: list[QueueData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None


def readable(perm: int) -> bool:
    """Return whether consumers may read."""
    return perm & PERM_READ != 0


def writable(perm: int) -> bool:
    """Return whether producers may write."""
    return perm & PERM_WRITE != 0


#: Levels of a client's body that are converted; no valid body nests deeper.
_MAX_DEPTH: Final = 16

#: Names of enumerations, in the order in which Java, C++ and Go declare them.
ENUMERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
    "consumeResult": (
        "CR_SUCCESS",
        "CR_LATER",
        "CR_ROLLBACK",
        "CR_COMMIT",
        "CR_THROW_EXCEPTION",
        "CR_RETURN_NULL",
    ),
}
#: The structs of which each body consists, itself included.
_PARTS: Final[dict[type[Body], tuple[type[Body], ...]]] = {
    Heartbeat: (Heartbeat, ConsumerData, ProducerData, SubscriptionData),
    QueueLockRequest: (QueueLockRequest, QueueKey),
    DirectResult: (DirectResult,),
}
#: Fields in which an empty text is a value; in all others it stands for a missing one.
_TEXTS: Final = {
    "clientID",
    "clientId",
    "groupName",
    "consumerGroup",
    "topic",
    "subString",
    "remark",
}


def parse_client_body(data: bytes, cls: type[B]) -> B:
    """Parse a body in any of the clients' forms. Raises BadRequest (code 1).

    A heartbeat without a client id has an empty one.
    """
    try:
        return json.decode(data, type=cls, strict=False)
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        plain = parse_json(data, dict[str, Any], dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)
    tidy = _tidied(plain, _NAMES[cls], _MAX_DEPTH)
    if cls is Heartbeat:
        # A default in the struct would be wrong: the strict attempt above would then accept a body
        # with other spellings of its names, as an empty heartbeat.
        tidy = {"clientID": "", **tidy}
    try:
        return convert(tidy, cls, strict=False)
    except ValidationError as error:
        raise BadRequest(ResponseCode.SYSTEM_ERROR, f"JSON body: {error}") from None


def _tidied(value: Any, names: dict[str, str], depth: int) -> Any:
    """Return ``value`` with standard field names, without null values and empty texts.

    Parts that nest deeper than ``depth`` levels are dropped.
    """
    if depth == 0 and isinstance(value, (list, dict)):
        return None
    if isinstance(value, list):
        return [_tidied(item, names, depth - 1) for item in value if item is not None]
    if not isinstance(value, dict):
        return value
    tidy: dict[str, Any] = {}
    written: str
    for written, item in value.items():
        name = names.get(_folded(written), written)
        if item is not None and (item != "" or name in _TEXTS):
            known = name in ENUMERATIONS
            tidy[name] = _enumerated(name, item) if known else _tidied(item, names, depth - 1)
    return tidy


def _enumerated(name: str, value: Any) -> Any:
    """Return the name for a number of an enumeration; another value is returned as it is."""
    values = ENUMERATIONS[name]
    return values[value] if type(value) is int and 0 <= value < len(values) else value


def _folded(name: str) -> str:
    """Return a field name in the form by which different spellings are compared."""
    return name.replace("_", "").replace("-", "").lower()


_NAMES: Final[dict[type[Body], dict[str, str]]] = {
    body: {
        _folded(info.encode_name): info.encode_name
        for part in parts
        for info in structs.fields(part)
    }
    for body, parts in _PARTS.items()
}
