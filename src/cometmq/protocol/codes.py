"""Numbers of request and response codes, languages and protocol versions (upstream: RequestCode,
ResponseCode, LanguageCode, MQVersion).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class RequestCode(IntEnum):
    """Code of a request: the requested operation."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    CLONE_GROUP_OFFSET = 314
    GET_BROKER_CONSUME_STATS = 317
    SEND_BATCH_MESSAGE = 320
    QUERY_DATA_VERSION = 322
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    GET_TOPIC_CONFIG = 351
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    #: CometMQ only, from 31000 on, which fits the 16 bits that binary headers have for a code.
    PROMOTE_BROKER = 31001
    TAKE_ADDRESS = 31002


class ResponseCode(IntEnum):
    """Code of a response: the result of the request."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    ILLEGAL_OPERATION = 604


EXPLANATIONS: Final[dict[ResponseCode, str]] = {
    ResponseCode.SUCCESS: "done",
    ResponseCode.SYSTEM_ERROR: "the remark says what failed",
    ResponseCode.SYSTEM_BUSY: "the broker is over a limit; send again later",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "this server does not serve the request code",
    ResponseCode.FLUSH_DISK_TIMEOUT: "stored, but not synced to disk in time",
    ResponseCode.SLAVE_NOT_AVAILABLE: "stored on the master; no slave could take a copy",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "stored on the master; no slave confirmed in time",
    ResponseCode.MESSAGE_ILLEGAL: "the message breaks a limit",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker takes no writes now",
    ResponseCode.VERSION_NOT_SUPPORTED: "the client is too old for this request",
    ResponseCode.NO_PERMISSION: "not allowed by a permission or a setting",
    ResponseCode.TOPIC_NOT_EXIST: "no such topic, and it is not created automatically",
    ResponseCode.PULL_NOT_FOUND: "no message yet at this offset",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "nothing matched so far; pull on at the next offset",
    ResponseCode.PULL_OFFSET_MOVED: "the offset is outside the queue; use the next offset",
    ResponseCode.QUERY_NOT_FOUND: "nothing found",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "the filter expression cannot be read",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "the group is not online or not subscribed",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "the broker has not seen this subscription yet",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "no such group, and it is not created",
    ResponseCode.FILTER_DATA_NOT_EXIST: "the broker holds no filter for this group",
    ResponseCode.FILTER_DATA_NOT_LATEST: "the broker's filter for this group is older",
    ResponseCode.NO_BUYER_ID: "the broker lacks the buyer id",
    ResponseCode.NOT_IN_CURRENT_UNIT: "the message belongs to another unit",
    ResponseCode.CONSUMER_NOT_ONLINE: "no consumer of the group is connected",
    ResponseCode.CONSUME_MSG_TIMEOUT: "the consumer did not answer in time",
    ResponseCode.ILLEGAL_OPERATION: "what was asked for cannot be done, or no longer",
}


class Language(IntEnum):
    """Language byte of a binary header; its name is the ``language`` of a JSON header."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


# Upstream numbers every release and snapshot; only versions that affect behaviour are listed.
VERSION_3_1_8: Final = 63
VERSION_3_4_9: Final = 121
VERSION_4_9_4: Final = 401
VERSION_4_9_7: Final = 407
#: Version in every frame that this side sends: features of a 4.9.7 broker and client.
OUR_VERSION: Final = VERSION_4_9_7

_VERSION_NAMES: Final = {
    63: "V3_1_8",
    127: "V3_5_3",
    213: "V4_0_0",
    233: "V4_1_0",
    253: "V4_2_0",
    273: "V4_3_0",
    293: "V4_4_0",
    313: "V4_5_0",
    317: "V4_5_2",
    333: "V4_6_0",
    355: "V4_7_1",
    373: "V4_8_0",
    393: "V4_9_0",
    395: "V4_9_1",
    397: "V4_9_2",
    399: "V4_9_3",
    401: "V4_9_4",
    403: "V4_9_5",
    405: "V4_9_6",
    407: "V4_9_7",
    409: "V4_9_8",
    413: "V5_0_0",
    433: "V5_1_0",
    453: "V5_2_0",
    473: "V5_3_0",
    479: "V5_3_3",
    493: "V5_4_0",
}


def version_name(version: int) -> str:
    """Return the release name of a version number, or the number if it has no name here."""
    return _VERSION_NAMES.get(version, str(version))
