"""Typed header fields of every request and response that CometMQ serves or sends.

One struct may serve several codes; protocol/registry.py maps codes to structs. Fields without a
default are required. SendMessage (code 10, long wire names) and SendMessageV2 (codes 310 and 320,
one-letter wire names) have the same attributes. Sources: upstream's protocol/header/*.java.
"""

from __future__ import annotations

from msgspec import Struct, field

from cometmq.protocol.fields import Flag, Int32, Int64


class Header(Struct, gc=False, rename="camel"):
    """Base of all header structs."""


class NoFields(Header):
    """Header without fields."""


class AllTopics(Header):
    """Request header of 21 (GET_ALL_TOPIC_CONFIG).

    ``cometmq_deleted`` (a CometMQ extension) asks for deleted topics as well.
    """

    cometmq_deleted: Flag = None


# ---------------------------------------------------------------------------------------- sending


class SendMessage(Header):
    """Request header of 10 (SEND_MESSAGE) (upstream: SendMessageRequestHeader.java)."""

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
    """Request header of 310 (SEND_MESSAGE_V2) and 320 (SEND_BATCH_MESSAGE) (upstream:
    SendMessageRequestHeaderV2.java).
    """

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
    """Response header of every send code (upstream: SendMessageResponseHeader.java).

    ``queue_offsets`` is a CometMQ extension: the offsets of a batch's messages, separated by
    commas. It is set only if the offsets are not consecutive, which happens when some messages were
    stored by an earlier attempt.
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
    """Request header of 370 (RECALL_MESSAGE) (upstream: RecallMessageRequestHeader.java)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponse(Header):
    """Response header of 370 (RECALL_MESSAGE): the unique key of the message."""

    msg_id: str


class PushReply(Header):
    """Request header of 326 (PUSH_REPLY_MESSAGE_TO_CLIENT) (upstream:
    ReplyMessageRequestHeader.java). Hosts are "ip:port".
    """

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
    """Request header of 36 (CONSUMER_SEND_MSG_BACK)."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: Flag = None
    max_reconsume_times: Int32 | None = None


class EndTransaction(Header):
    """Request header of 37 (END_TRANSACTION) (upstream: EndTransactionRequestHeader.java).

    ``commit_or_rollback`` is 8 to commit, 12 to roll back, 0 for unknown.
    """

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: Flag = None
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Header):
    """Request header of 39 (CHECK_TRANSACTION_STATE), broker to client (upstream:
    CheckTransactionStateRequestHeader.java).
    """

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


# ---------------------------------------------------------------------------------------- pulling


class PullMessage(Header):
    """Request header of 11 (PULL_MESSAGE) (upstream: PullMessageRequestHeader.java)."""

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
    """Response header of 11 (PULL_MESSAGE).

    Every outcome has the same fields: found, not found, retry immediately, and offset moved.
    """

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueueOffsetResponse(Header):
    """Response header of 14 (QUERY_CONSUMER_OFFSET), 29 (SEARCH_OFFSET_BY_TIMESTAMP), 30
    (GET_MAX_OFFSET) and 31 (GET_MIN_OFFSET).
    """

    offset: Int64


class QueryConsumerOffset(Header):
    """Request header of 14 (QUERY_CONSUMER_OFFSET); 5.x clients send ``set_zero_if_not_found``."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: Flag = None


class UpdateConsumerOffset(Header):
    """Request header of 15 (UPDATE_CONSUMER_OFFSET)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffset(Header):
    """Request header of 29 (SEARCH_OFFSET_BY_TIMESTAMP); 5.x clients send ``boundary_type`` LOWER
    or UPPER.
    """

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class TopicQueue(Header):
    """Request header of 30 (GET_MAX_OFFSET), 31 (GET_MIN_OFFSET) and 32
    (GET_EARLIEST_MSG_STORETIME).
    """

    topic: str
    queue_id: Int32


class EarliestStoreTimeResponse(Header):
    """Response header of 32 (GET_EARLIEST_MSG_STORETIME)."""

    timestamp: Int64


class QueryMessage(Header):
    """Request header of 12 (QUERY_MESSAGE).

    With ``unique_key_query`` "true", ``key`` is the unique key that the producer set.
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: Flag = field(default=None, name="_UNIQUE_KEY_QUERY")


class QueryMessageResponse(Header):
    """Response header of 12 (QUERY_MESSAGE)."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessage(Header):
    """Request header of 33 (VIEW_MESSAGE_BY_ID): ``offset`` is a commit log offset."""

    offset: Int64


# --------------------------------------------------------------------------------- group members


class UnregisterClient(Header):
    """Request header of 35 (UNREGISTER_CLIENT)."""

    client_id: str = field(name="clientID", default="")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroup(Header):
    """Request header of 38 (GET_CONSUMER_LIST_BY_GROUP), 40 (NOTIFY_CONSUMER_IDS_CHANGED) and 203
    (GET_CONSUMER_CONNECTION_LIST).
    """

    consumer_group: str


class GroupName(Header):
    """Request header of 207 (DELETE_SUBSCRIPTIONGROUP)."""

    group_name: str
    remove_offset: Flag = None


class GetConsumeStats(Header):
    """Request header of 208 (GET_CONSUME_STATS)."""

    consumer_group: str
    topic: str | None = None


class ResetOffset(Header):
    """Request header of 222 (INVOKE_BROKER_TO_RESET_OFFSET), and of 220
    (RESET_CONSUMER_CLIENT_OFFSET) from broker to client.

    ``timestamp`` -1 is the end of each queue. 5.x admin tools may instead give one queue and an
    offset in it (upstream: ResetOffsetRequestHeader.java).
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: Flag
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatus(Header):
    """Request header of 223 (INVOKE_BROKER_TO_GET_CONSUMER_STATUS), and of 221
    (GET_CONSUMER_STATUS_FROM_CLIENT) from broker to client; ``client_addr`` is a client id.
    """

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(Header):
    """Request header of 307 (GET_CONSUMER_RUNNING_INFO)."""

    consumer_group: str
    client_id: str
    jstack_enable: Flag = None


class ConsumeMessageDirectly(Header):
    """Request header of 309 (CONSUME_MESSAGE_DIRECTLY); ``msg_id`` is an offset id."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class ProducerGroup(Header):
    """Request header of 204 (GET_PRODUCER_CONNECTION_LIST)."""

    producer_group: str


class ConsumeTimeSpan(Header):
    """Request header of 303 (QUERY_CONSUME_TIME_SPAN)."""

    topic: str
    group: str


class QueryCorrectionOffset(Header):
    """Request header of 308 (QUERY_CORRECTION_OFFSET); ``filter_groups`` are groups to leave out,
    separated by commas.
    """

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Header):
    """Request header of 314 (CLONE_GROUP_OFFSET). Without a topic, the offsets of all topics of
    the source group are cloned.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: Flag = None


class ViewBrokerStatsData(Header):
    """Request header of 315 (VIEW_BROKER_STATS_DATA) (upstream:
    ViewBrokerStatsDataRequestHeader.java).

    ``stats_name`` is the name of a statistic, ``stats_key`` a topic, group or other key of it.
    """

    stats_name: str
    stats_key: str


class QueryConsumeQueue(Header):
    """Request header of 321 (QUERY_CONSUME_QUEUE): ``count`` entries of a queue from the offset
    ``index`` on (upstream: QueryConsumeQueueRequestHeader.java).
    """

    topic: str
    queue_id: Int32
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class ResumeCheckHalfMessage(Header):
    """Request header of 323 (RESUME_CHECK_HALF_MESSAGE); ``msg_id`` is an offset id (upstream:
    ResumeCheckHalfMessageRequestHeader.java).
    """

    msg_id: str


class BrokerConsumeStats(Header):
    """Request header of 317 (GET_BROKER_CONSUME_STATS)."""

    is_order: Flag


# ----------------------------------------------------------------------------------------- topics


class Topic(Header):
    """Request header of 105 (GET_ROUTEINFO_BY_TOPIC), 202 (GET_TOPIC_STATS_INFO), 215
    (DELETE_TOPIC_IN_BROKER), 300 (QUERY_TOPIC_CONSUME_BY_WHO) and 351 (GET_TOPIC_CONFIG).
    """

    topic: str


class CreateTopic(Header):
    """Request header of 17 (UPDATE_AND_CREATE_TOPIC) (upstream: CreateTopicRequestHeader.java)."""

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
    """Request header of 216 (DELETE_TOPIC_IN_NAMESRV)."""

    topic: str
    cluster_name: str | None = None


class Cluster(Header):
    """Request header of 224 (GET_TOPICS_BY_CLUSTER)."""

    cluster: str


class GetBrokerConfigResponse(Header):
    """Response header of 26 (GET_BROKER_CONFIG)."""

    version: str


# ------------------------------------------------------------------------------------ name server


class RegisterBroker(Header):
    """Request header of 103 (REGISTER_BROKER)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: Flag = None
    body_crc32: Int64 | None = field(default=None, name="bodyCrc32")


class RegisterBrokerResponse(Header):
    """Response header of 103 (REGISTER_BROKER); both fields are set only for a slave whose master
    is alive.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None


class ChangeAccount(Header):
    """Request header of 50 (UPDATE_AND_CREATE_ACL_CONFIG); permissions are separated by
    commas (upstream: CreateAccessConfigRequestHeader.java)."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: Flag = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class AccountKey(Header):
    """Request header of 51 (DELETE_ACL_CONFIG)."""

    access_key: str


class AclVersionResponse(Header):
    """Response header of 52 (GET_BROKER_CLUSTER_ACL_INFO).

    ``version`` is the version of the default file. ``all_acl_file_version`` maps the path of each
    file to its version. Both are JSON (upstream: GetBrokerAclConfigResponseHeader.java).
    """

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class ChangeWhiteList(Header):
    """Request header of 53 (UPDATE_GLOBAL_WHITE_ADDRS_CONFIG); addresses are separated by
    commas (upstream: UpdateGlobalWhiteAddrsConfigRequestHeader.java)."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class BrokerIdentity(Header):
    """Request header of 104 (UNREGISTER_BROKER) and 322 (QUERY_DATA_VERSION)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponse(Header):
    """Response header of 322 (QUERY_DATA_VERSION)."""

    changed: Flag


class BrokerName(Header):
    """Request header of 205 (WIPE_WRITE_PERM_OF_BROKER) and 327 (ADD_WRITE_PERM_OF_BROKER)."""

    broker_name: str


class WipeWritePermResponse(Header):
    """Response header of 205 (WIPE_WRITE_PERM_OF_BROKER)."""

    wipe_topic_count: Int32


class AddWritePermResponse(Header):
    """Response header of 327 (ADD_WRITE_PERM_OF_BROKER)."""

    add_topic_count: Int32


class PutKvConfig(Header):
    """Request header of 100 (PUT_KV_CONFIG)."""

    namespace: str
    key: str
    value: str


class KvKey(Header):
    """Request header of 101 (GET_KV_CONFIG) and 102 (DELETE_KV_CONFIG)."""

    namespace: str
    key: str


class KvValueResponse(Header):
    """Response header of 101 (GET_KV_CONFIG)."""

    value: str | None = None


class KvNamespace(Header):
    """Request header of 219 (GET_KVLIST_BY_NAMESPACE)."""

    namespace: str
