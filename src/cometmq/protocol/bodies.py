"""The JSON bodies of requests and responses as structs (upstream: protocol/body/*.java,
protocol/heartbeat/*.java). Encode with fastjson.encode_json, read with fastjson.parse_json.

Maps keyed by a message queue are written with fastjson.object_map and declared as Raw; when read,
their keys are strings that hold a :class:`QueueKey` as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Final

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field, json

#: Java's int and long. A longer number is refused where a body is read, with the field's name.
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

#: Values of a table that are encoded, or decoded, in one piece.
PIECE_VALUES: Final = 256


class Body(Struct, rename="camel", frozen=True):
    """Root of all bodies: camel-case names on the wire; unknown names are ignored."""


class QueueKey(Body, frozen=True, order=True):
    """A message queue where it keys a map or stands in a set."""

    topic: str
    broker_name: str
    queue_id: Int32


class DataVersion(Body, frozen=True):
    """A table's version; equal only when all parts are. Only 5.x peers send a state version."""

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
    """The JSON of a table with its version, ``{"dataVersion":{...},"<name>":{...}}``, in pieces
    that take under a millisecond each. ``deleted`` goes behind it as ``cometmqDeleted``."""
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
    """One topic on one broker; also the answer to 351."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False


class TopicConfigTable(Body, frozen=True):
    """Answer to 21. A broker of ours tells slaves that ask for it where in its log the former life
    of deleted topics ended."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    cometmq_deleted: dict[str, int] | UnsetType = UNSET


class TopicList(Body, frozen=True):
    """Answer to 206, 216, 224, 304 and 305."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class Promote(Body, frozen=True):
    """Body of 31001, ours alone. ``check`` asks only what speaks against it, ``force`` goes on all
    the same."""

    role: str = "ASYNC_MASTER"
    force: bool = False
    check: bool = False


class Finding(Body, frozen=True):
    """What was looked at before a promotion or a move: ``weight`` is ok, warning or refused."""

    weight: str
    text: str

    @property
    def refuses(self) -> bool:
        """Whether it stands against what is wanted."""
        return self.weight == "refused"


class Promotion(Body, frozen=True):
    """Answer to 31001: whether the broker begins anew as the master of its name."""

    begins: bool
    broker_name: str
    findings: list[Finding]


class TakeAddress(Body, frozen=True):
    """Body of 31002, ours alone: the "host:port" of a former master, which a master is to listen on
    and register by. ``check`` asks only whether it could."""

    address: str
    check: bool = False


class AddressState(Body, frozen=True):
    """Answer to 31002: ``state`` is taken, free, in_use (somebody listens there) or not_here (it is
    another machine's); ``text`` says why it is not taken."""

    state: str
    text: str = ""


class ClusterInfo(Body, frozen=True):
    """Answer to 106."""

    broker_addr_table: dict[str, ClusterBroker] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class ClusterBroker(Body, frozen=True):
    """A broker name and its addresses by id."""

    broker_name: str
    broker_addrs: dict[str, str]
    cluster: str


class KvTable(Body, frozen=True):
    """Answer to 28, 103 (order topics) and 219."""

    table: dict[str, str] = field(default_factory=dict)


# ----------------------------------------------------------------------------------------- groups


class SubscriptionGroupConfig(Body, frozen=True):
    """What a consumer group may do."""

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
    """Answer to 201."""

    data_version: DataVersion = field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


class Subscription(Body, frozen=True):
    """What one consumer wants of one topic."""

    topic: str
    sub_string: str = "*"
    sub_version: Int64 = 0
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int32, ...] = ()
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ClientConfigCheck(Body, frozen=True):
    """Request body of 46: what a client is about to subscribe to."""

    subscription_data: Subscription
    client_id: str = ""
    group: str = ""


class ConsumerData(Body, frozen=True):
    """One consumer group of one client."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: tuple[Subscription, ...] = ()
    unit_mode: bool = False


class ProducerData(Body, frozen=True):
    """One producer group of one client."""

    group_name: str


class Heartbeat(Body, frozen=True):
    """Body of 34."""

    client_id: str = field(name="clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()


class ConsumerIds(Body, frozen=True):
    """Answer to 38."""

    consumer_id_list: list[str] = field(default_factory=list)


class QueueLockRequest(Body, frozen=True):
    """Body of 41 and 42."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueKey] = field(default_factory=list)


class QueueLockResponse(Body, frozen=True):
    """Answer to 41."""

    lock_ok_mq_set: list[QueueKey] = field(default_factory=list, name="lockOKMQSet")


class ClientConnection(Body, frozen=True):
    """One connected client."""

    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnections(Body, frozen=True):
    """Answer to 203. ``conflicting_subscriptions`` is an addition: expressions by topic of each
    client, when they differ."""

    connection_set: list[ClientConnection]
    subscription_table: dict[str, Subscription]
    consume_type: str
    message_model: str
    consume_from_where: str
    conflicting_subscriptions: dict[str, dict[str, str]] | None = None


class GroupList(Body, frozen=True):
    """Answer to 300."""

    group_list: list[str] = field(default_factory=list)


# ------------------------------------------------------------------------------------- statistics


class TopicOffset(Body, frozen=True):
    """One queue's range in the answer to 202."""

    min_offset: Int64
    max_offset: Int64
    last_update_timestamp: Int64


class TopicStats(Body, frozen=True):
    """Answer to 202: QueueKey to TopicOffset."""

    offset_table: Raw


class ConsumeOffset(Body, frozen=True):
    """One queue's progress in the answer to 208."""

    broker_offset: Int64
    consumer_offset: Int64
    last_timestamp: Int64


class ConsumeStats(Body, frozen=True):
    """Answer to 208: QueueKey to ConsumeOffset."""

    consume_tps: float
    offset_table: Raw


class TopicStatsRead(Body, frozen=True):
    """:class:`TopicStats` as a client reads it; keys hold a QueueKey as JSON."""

    offset_table: dict[str, TopicOffset] = field(default_factory=dict)


class ConsumeStatsRead(Body, frozen=True):
    """:class:`ConsumeStats` as a client reads it; keys hold a QueueKey as JSON."""

    offset_table: dict[str, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0
