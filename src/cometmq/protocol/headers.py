"""The typed header fields of every request and response that CometMQ serves or sends.

A field without a default must be sent. The send family has one set of Python names for its long
(code 10) and short (310, 320) wire names. Sources: upstream's protocol/header/*.java.
"""

from __future__ import annotations

from msgspec import Struct, field

from cometmq.protocol.fields import Flag, Int32, Int64


class Header(Struct, gc=False, rename="camel"):
    """Root of all header structs; fieldless for requests that carry none."""


class NoFields(Header):
    """A request or response whose header carries nothing."""


class AllTopics(Header):
    """Code 21. With ``cometmq_deleted``, ours alone, the answer tells of deleted topics too."""

    cometmq_deleted: Flag = None


# ---------------------------------------------------------------------------------------- sending


class SendMessage(Header):
    """Code 10 (upstream: SendMessageRequestHeader.java)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: Flag = None
    max_reconsume_times: Int32 | None = None
    batch: Flag = None
    broker_name: str | None = field(default=None, name="bname")


class SendMessageV2(
    Header,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    },
):
    """Codes 310 and 320 (upstream: SendMessageRequestHeaderV2.java)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: Flag = None
    max_reconsume_times: Int32 | None = None
    batch: Flag = None
    broker_name: str | None = None


class SendMessageResponse(Header):
    """Answer to every send code (upstream: SendMessageResponseHeader.java).

    ``queue_offsets`` is ours: those of a batch's messages, separated by commas, where they do not
    follow each other because some were stored before.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    region: str | None = field(default=None, name="MSG_REGION")
    trace_on: Flag = field(default=None, name="TRACE_ON")
    recall_handle: str | None = None
    queue_offsets: str | None = None


class RecallMessage(Header):
    """Code 370 (upstream: RecallMessageRequestHeader.java)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponse(Header):
    """Answer to code 370: the unique key of the message."""

    msg_id: str


class PushReply(Header):
    """Code 326 (upstream: ReplyMessageRequestHeader.java). Hosts are "ip:port"."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: Flag = None


class ConsumerSendMsgBack(Header):
    """Code 36."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: Flag = None
    max_reconsume_times: Int32 | None = None


class EndTransaction(Header):
    """Code 37; ``commit_or_rollback`` is 8 to commit, 12 to roll back, 0 for unknown (upstream:
    EndTransactionRequestHeader.java)."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: Flag = None
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Header):
    """Code 39, broker to client (upstream: CheckTransactionStateRequestHeader.java)."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


# ---------------------------------------------------------------------------------------- pulling


class PullMessage(Header):
    """Code 11 (upstream: PullMessageRequestHeader.java)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None


class PullMessageResponse(Header):
    """Answer to code 11, alike for found, not found, retry and moved."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueueOffsetResponse(Header):
    """Answer to 14, 29, 30 and 31."""

    offset: Int64


class QueryConsumerOffset(Header):
    """Code 14; ``set_zero_if_not_found`` comes from 5.x clients."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: Flag = None


class UpdateConsumerOffset(Header):
    """Code 15."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffset(Header):
    """Code 29; ``boundary_type`` LOWER or UPPER comes from 5.x clients."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class TopicQueue(Header):
    """Codes 30, 31 and 32."""

    topic: str
    queue_id: Int32


class EarliestStoreTimeResponse(Header):
    """Answer to 32."""

    timestamp: Int64


class QueryMessage(Header):
    """Code 12. ``unique_key_query`` "true" asks for the client's own message id."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: Flag = field(default=None, name="_UNIQUE_KEY_QUERY")


class QueryMessageResponse(Header):
    """Answer to 12."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessage(Header):
    """Code 33: ``offset`` is a commit-log offset."""

    offset: Int64


# --------------------------------------------------------------------------------- group members


class UnregisterClient(Header):
    """Code 35."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroup(Header):
    """Codes 38, 40 and 203."""

    consumer_group: str


class GroupName(Header):
    """Code 207."""

    group_name: str
    remove_offset: Flag = None


class GetConsumeStats(Header):
    """Code 208."""

    consumer_group: str
    topic: str | None = None


class ResetOffset(Header):
    """Code 222, and 220 from broker to client. ``timestamp`` -1 is the end of each queue.

    5.x administrators may name one queue and an offset in it (upstream:
    ResetOffsetRequestHeader.java).
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: Flag
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatus(Header):
    """Code 223, and 221 from broker to client; ``client_addr`` is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(Header):
    """Code 307."""

    consumer_group: str
    client_id: str
    jstack_enable: Flag = None


class ConsumeMessageDirectly(Header):
    """Code 309; ``msg_id`` is an offset id."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class ProducerGroup(Header):
    """Code 204."""

    producer_group: str


class ConsumeTimeSpan(Header):
    """Code 303."""

    topic: str
    group: str


class QueryCorrectionOffset(Header):
    """Code 308; ``filter_groups`` are groups to leave out, parted by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Header):
    """Code 314; without a topic all of the source group's."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: Flag = None


class BrokerConsumeStats(Header):
    """Code 317."""

    is_order: Flag


# ----------------------------------------------------------------------------------------- topics


class Topic(Header):
    """Codes 105, 202, 215, 300 and 351."""

    topic: str


class CreateTopic(Header):
    """Code 17 (upstream: CreateTopicRequestHeader.java)."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: Flag = None
    attributes: str | None = None


class DeleteTopicInNamesrv(Header):
    """Code 216."""

    topic: str
    cluster_name: str | None = None


class Cluster(Header):
    """Code 224."""

    cluster: str


class GetBrokerConfigResponse(Header):
    """Answer to 26."""

    version: str


# ------------------------------------------------------------------------------------ name server


class RegisterBroker(Header):
    """Code 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: Flag = None
    body_crc32: Int64 | None = field(default=None, name="bodyCrc32")


class RegisterBrokerResponse(Header):
    """Answer to 103; both fields only for a slave whose master is alive."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerIdentity(Header):
    """Codes 104 and 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponse(Header):
    """Answer to 322."""

    changed: Flag


class BrokerName(Header):
    """Codes 205 and 327."""

    broker_name: str


class WipeWritePermResponse(Header):
    """Answer to 205."""

    wipe_topic_count: Int32


class AddWritePermResponse(Header):
    """Answer to 327."""

    add_topic_count: Int32


class PutKvConfig(Header):
    """Code 100."""

    namespace: str
    key: str
    value: str


class KvKey(Header):
    """Codes 101 and 102."""

    namespace: str
    key: str


class KvValueResponse(Header):
    """Answer to 101."""

    value: str | None = None


class KvNamespace(Header):
    """Code 219."""

    namespace: str
