"""Registry of request codes: for each, its headers, the side that serves it, and how it runs.

Routing in both servers, encoding in the clients, the fuzz strategies and docs/wire.md use this
table. A server answers a code without a row with REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, Final

import msgspec

from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fields import from_ext
from cometmq.protocol.frame import Request
from cometmq.protocol.framer import MAX_FRAME_BYTES


class Side(Flag):
    """Kinds of processes that serve a code."""

    BROKER = auto()
    NAMESRV = auto()
    CLIENT = auto()


class Lane(Enum):
    """Execution mode of a handler.

    LOOP: a plain function that runs in the event loop's turn that read the request; it never waits
    and takes under a millisecond. TASK: a coroutine in a task of its own; long work runs in a
    thread, by a call that releases the GIL, or in slices with a pause between them.
    """

    LOOP = auto()
    TASK = auto()


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """One request code.

    ``mutates`` marks codes that change a broker or its configuration, or that of a name server:
    they are refused from other machines unless a setting allows it. ``urgent`` codes are served
    even when sends are refused because of load, within their own limits (net/router.py).
    ``max_body_bytes`` is the largest request body that a server accepts; 0 for codes without a
    body.
    """

    code: Code
    header: type[h.Header]
    response: type[h.Header] = h.NoFields
    side: Side = Side.BROKER
    lane: Lane = Lane.LOOP
    mutates: bool = False
    urgent: bool = False
    max_body_bytes: int = 0


#: For bodies that only the frame limits here; the handler of the code applies its own limit.
_ANY: Final = MAX_FRAME_BYTES
#: For heartbeats and queue locks, which are parsed before the client's permissions are checked.
CLIENT_BODY_MAX_BYTES: Final = 512 * 1024

_BROKER: Final = (
    CodeSpec(Code.SEND_MESSAGE, h.SendMessage, h.SendMessageResponse, max_body_bytes=_ANY),
    CodeSpec(Code.SEND_MESSAGE_V2, h.SendMessageV2, h.SendMessageResponse, max_body_bytes=_ANY),
    CodeSpec(Code.SEND_BATCH_MESSAGE, h.SendMessageV2, h.SendMessageResponse, max_body_bytes=_ANY),
    CodeSpec(Code.RECALL_MESSAGE, h.RecallMessage, h.RecallMessageResponse, lane=Lane.TASK),
    CodeSpec(Code.PULL_MESSAGE, h.PullMessage, h.PullMessageResponse),
    CodeSpec(Code.LITE_PULL_MESSAGE, h.PullMessage, h.PullMessageResponse),
    CodeSpec(Code.QUERY_MESSAGE, h.QueryMessage, h.QueryMessageResponse, lane=Lane.TASK),
    CodeSpec(Code.QUERY_CONSUMER_OFFSET, h.QueryConsumerOffset, h.QueueOffsetResponse, urgent=True),
    CodeSpec(Code.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffset, urgent=True),
    CodeSpec(Code.UPDATE_AND_CREATE_TOPIC, h.CreateTopic, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.GET_ALL_TOPIC_CONFIG, h.AllTopics, lane=Lane.TASK),
    CodeSpec(Code.GET_TOPIC_CONFIG, h.Topic),
    CodeSpec(
        Code.UPDATE_BROKER_CONFIG, h.NoFields, lane=Lane.TASK, mutates=True, max_body_bytes=_ANY
    ),
    CodeSpec(Code.GET_BROKER_CONFIG, h.NoFields, h.GetBrokerConfigResponse, lane=Lane.TASK),
    CodeSpec(Code.GET_BROKER_RUNTIME_INFO, h.NoFields, lane=Lane.TASK),
    CodeSpec(
        Code.SEARCH_OFFSET_BY_TIMESTAMP, h.SearchOffset, h.QueueOffsetResponse, lane=Lane.TASK
    ),
    CodeSpec(Code.GET_MAX_OFFSET, h.TopicQueue, h.QueueOffsetResponse),
    CodeSpec(Code.GET_MIN_OFFSET, h.TopicQueue, h.QueueOffsetResponse),
    CodeSpec(
        Code.GET_EARLIEST_MSG_STORETIME, h.TopicQueue, h.EarliestStoreTimeResponse, lane=Lane.TASK
    ),
    CodeSpec(Code.VIEW_MESSAGE_BY_ID, h.ViewMessage, lane=Lane.TASK),
    CodeSpec(Code.HEART_BEAT, h.NoFields, urgent=True, max_body_bytes=CLIENT_BODY_MAX_BYTES),
    CodeSpec(Code.UNREGISTER_CLIENT, h.UnregisterClient, urgent=True),
    CodeSpec(Code.CHECK_CLIENT_CONFIG, h.NoFields, lane=Lane.TASK, max_body_bytes=_ANY),
    CodeSpec(Code.CONSUMER_SEND_MSG_BACK, h.ConsumerSendMsgBack, lane=Lane.TASK, urgent=True),
    CodeSpec(Code.END_TRANSACTION, h.EndTransaction, urgent=True),
    CodeSpec(Code.GET_CONSUMER_LIST_BY_GROUP, h.ConsumerGroup, urgent=True),
    CodeSpec(Code.LOCK_BATCH_MQ, h.NoFields, urgent=True, max_body_bytes=CLIENT_BODY_MAX_BYTES),
    CodeSpec(Code.UNLOCK_BATCH_MQ, h.NoFields, urgent=True, max_body_bytes=CLIENT_BODY_MAX_BYTES),
    CodeSpec(Code.UPDATE_AND_CREATE_ACL_CONFIG, h.ChangeAccount, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.DELETE_ACL_CONFIG, h.AccountKey, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.GET_BROKER_CLUSTER_ACL_INFO, h.NoFields, h.AclVersionResponse),
    CodeSpec(
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, h.ChangeWhiteList, lane=Lane.TASK, mutates=True
    ),
    CodeSpec(Code.GET_BROKER_CLUSTER_ACL_CONFIG, h.NoFields),
    CodeSpec(Code.GET_ALL_CONSUMER_OFFSET, h.NoFields, lane=Lane.TASK),
    CodeSpec(Code.GET_ALL_DELAY_OFFSET, h.NoFields, lane=Lane.TASK),
    CodeSpec(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        h.NoFields,
        lane=Lane.TASK,
        mutates=True,
        max_body_bytes=_ANY,
    ),
    CodeSpec(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, h.NoFields, lane=Lane.TASK),
    CodeSpec(Code.GET_TOPIC_STATS_INFO, h.Topic, lane=Lane.TASK),
    CodeSpec(Code.GET_CONSUMER_CONNECTION_LIST, h.ConsumerGroup),
    CodeSpec(Code.GET_PRODUCER_CONNECTION_LIST, h.ProducerGroup),
    CodeSpec(Code.GET_ALL_PRODUCER_INFO, h.NoFields, lane=Lane.TASK),
    CodeSpec(Code.DELETE_SUBSCRIPTIONGROUP, h.GroupName, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.GET_CONSUME_STATS, h.GetConsumeStats, lane=Lane.TASK),
    CodeSpec(Code.VIEW_BROKER_STATS_DATA, h.ViewBrokerStatsData, lane=Lane.TASK),
    CodeSpec(Code.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStats, lane=Lane.TASK),
    CodeSpec(Code.QUERY_CONSUME_TIME_SPAN, h.ConsumeTimeSpan, lane=Lane.TASK),
    CodeSpec(Code.QUERY_CORRECTION_OFFSET, h.QueryCorrectionOffset, lane=Lane.TASK),
    CodeSpec(Code.CLONE_GROUP_OFFSET, h.CloneGroupOffset, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.INVOKE_BROKER_TO_RESET_OFFSET, h.ResetOffset, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, h.GetConsumerStatus, lane=Lane.TASK),
    CodeSpec(Code.DELETE_TOPIC_IN_BROKER, h.Topic, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.QUERY_TOPIC_CONSUME_BY_WHO, h.Topic, lane=Lane.TASK),
    CodeSpec(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, h.NoFields),
    CodeSpec(Code.CLEAN_EXPIRED_CONSUMEQUEUE, h.NoFields, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.CLEAN_UNUSED_TOPIC, h.NoFields, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.QUERY_CONSUME_QUEUE, h.QueryConsumeQueue, lane=Lane.TASK),
    CodeSpec(
        Code.RESUME_CHECK_HALF_MESSAGE, h.ResumeCheckHalfMessage, lane=Lane.TASK, mutates=True
    ),
    CodeSpec(Code.DELETE_EXPIRED_COMMITLOG, h.NoFields, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.PROMOTE_BROKER, h.NoFields, lane=Lane.TASK, mutates=True, max_body_bytes=_ANY),
    CodeSpec(Code.TAKE_ADDRESS, h.NoFields, lane=Lane.TASK, mutates=True, max_body_bytes=_ANY),
    CodeSpec(
        Code.SEND_REPLY_MESSAGE,
        h.SendMessage,
        h.SendMessageResponse,
        lane=Lane.TASK,
        max_body_bytes=_ANY,
    ),
    CodeSpec(
        Code.SEND_REPLY_MESSAGE_V2,
        h.SendMessageV2,
        h.SendMessageResponse,
        lane=Lane.TASK,
        max_body_bytes=_ANY,
    ),
)

_NS: Final = Side.NAMESRV
_NAMESRV: Final = (
    CodeSpec(Code.PUT_KV_CONFIG, h.PutKvConfig, side=_NS, lane=Lane.TASK, mutates=True),
    CodeSpec(Code.GET_KV_CONFIG, h.KvKey, h.KvValueResponse, side=_NS),
    CodeSpec(Code.DELETE_KV_CONFIG, h.KvKey, side=_NS, lane=Lane.TASK, mutates=True),
    CodeSpec(
        Code.REGISTER_BROKER,
        h.RegisterBroker,
        h.RegisterBrokerResponse,
        side=_NS,
        lane=Lane.TASK,
        max_body_bytes=_ANY,
    ),
    CodeSpec(Code.UNREGISTER_BROKER, h.BrokerIdentity, side=_NS, lane=Lane.TASK),
    CodeSpec(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic, side=_NS),
    CodeSpec(Code.GET_BROKER_CLUSTER_INFO, h.NoFields, side=_NS),
    CodeSpec(
        Code.WIPE_WRITE_PERM_OF_BROKER,
        h.BrokerName,
        h.WipeWritePermResponse,
        side=_NS,
        lane=Lane.TASK,
        mutates=True,
    ),
    CodeSpec(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, h.NoFields, side=_NS, lane=Lane.TASK),
    CodeSpec(
        Code.DELETE_TOPIC_IN_NAMESRV,
        h.DeleteTopicInNamesrv,
        side=_NS,
        lane=Lane.TASK,
        mutates=True,
    ),
    CodeSpec(
        Code.UPDATE_NAMESRV_CONFIG,
        h.NoFields,
        side=_NS,
        lane=Lane.TASK,
        mutates=True,
        max_body_bytes=_ANY,
    ),
    CodeSpec(Code.GET_NAMESRV_CONFIG, h.NoFields, side=_NS),
    CodeSpec(Code.GET_KVLIST_BY_NAMESPACE, h.KvNamespace, side=_NS),
    CodeSpec(Code.GET_TOPICS_BY_CLUSTER, h.Cluster, side=_NS, lane=Lane.TASK),
    CodeSpec(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, h.NoFields, side=_NS),
    CodeSpec(Code.GET_UNIT_TOPIC_LIST, h.NoFields, side=_NS, lane=Lane.TASK),
    CodeSpec(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, h.NoFields, side=_NS, lane=Lane.TASK),
    CodeSpec(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, h.NoFields, side=_NS, lane=Lane.TASK),
    CodeSpec(
        Code.QUERY_DATA_VERSION,
        h.BrokerIdentity,
        h.QueryDataVersionResponse,
        side=_NS,
        max_body_bytes=_ANY,
    ),
    CodeSpec(
        Code.ADD_WRITE_PERM_OF_BROKER,
        h.BrokerName,
        h.AddWritePermResponse,
        side=_NS,
        lane=Lane.TASK,
        mutates=True,
    ),
)

#: For codes of clients that a broker serves by relaying the request to the client that it names.
_RELAYED: Final = Side.BROKER | Side.CLIENT
_CLIENT: Final = (
    CodeSpec(Code.CHECK_TRANSACTION_STATE, h.CheckTransactionState, side=Side.CLIENT),
    CodeSpec(Code.NOTIFY_CONSUMER_IDS_CHANGED, h.ConsumerGroup, side=Side.CLIENT),
    CodeSpec(Code.RESET_CONSUMER_CLIENT_OFFSET, h.ResetOffset, side=Side.CLIENT),
    CodeSpec(Code.GET_CONSUMER_STATUS_FROM_CLIENT, h.GetConsumerStatus, side=Side.CLIENT),
    CodeSpec(
        Code.GET_CONSUMER_RUNNING_INFO, h.GetConsumerRunningInfo, side=_RELAYED, lane=Lane.TASK
    ),
    CodeSpec(
        Code.CONSUME_MESSAGE_DIRECTLY, h.ConsumeMessageDirectly, side=_RELAYED, lane=Lane.TASK
    ),
    CodeSpec(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, h.PushReply, side=Side.CLIENT),
)

REGISTRY: Final[dict[int, CodeSpec]] = {spec.code: spec for spec in (*_BROKER, *_NAMESRV, *_CLIENT)}


def decode_fields(code: int, ext: dict[str, str]) -> h.Header | dict[str, str]:
    """Return text fields as the header struct of their code, or unchanged if the code has no row.

    Raises BadRequest naming the field that is missing or invalid.
    """
    spec = REGISTRY.get(code)
    return ext if spec is None else from_ext(spec.header, ext)


def _decoder(header: type[h.Header]) -> Callable[[bytes], Request[Any]]:
    # Request[header] is a run-time parametrisation, which mypy cannot check.
    return msgspec.json.Decoder(Request[header], strict=False).decode  # type: ignore[valid-type]


#: Fast decoders of JSON headers by the decimal text of the code. Most clients write the code first,
#: so the header can be decoded in one pass to the struct of the code. Only frequent codes have a
#: decoder; the others go through decode_head and decode_fields.
FAST_DECODERS: Final[dict[bytes, Callable[[bytes], Request[Any]]]] = {
    str(int(code)).encode(): _decoder(REGISTRY[code].header)
    for code in (
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
        Code.PULL_MESSAGE,
        Code.UPDATE_CONSUMER_OFFSET,
        Code.QUERY_CONSUMER_OFFSET,
        Code.GET_MAX_OFFSET,
        Code.END_TRANSACTION,
    )
}
