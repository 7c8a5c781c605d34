"""The metrics of a broker: names, types, labels and meanings; docs/metrics.md is written from them.

Upstream: BrokerMetricsConstant.java, DefaultStoreMetricsConstant.java of RocketMQ 5.5.0, whose port
appends the units to the names, and RMQMetricsCollector.java of rocketmq-exporter.
"""

from __future__ import annotations

from typing import Final

from cometmq.monitoring.series import Kind, KnownFrom, Metric

_ALL: list[Metric] = []


def _declare(
    known_from: KnownFrom, kind: Kind, name: str, meaning: str, labels: str, difference: str = ""
) -> Metric:
    """Add a metric to METRICS. ``labels`` are separated by spaces; ``difference`` says how the
    value differs from upstream's."""
    metric = Metric(name, kind, meaning, tuple(labels.split()), known_from, difference)
    _ALL.append(metric)
    return metric


# ------------------------------------------------------------------------------------- RocketMQ 5

_IN: Final = "topic message_type is_system"
_OUT: Final = "topic consumer_group is_system"
_LAG: Final = "topic consumer_group is_retry is_system"
_DISK: Final = "storage_type storage_medium"
_TYPES: Final = (
    "`message_type` is `delay` for messages that wait, or waited, for their time; `transaction` "
    "for those of the topic of half messages; `fifo` for single sends with the property "
    "`__SHARDINGKEY`, which proxies of RocketMQ 5 set; `normal` for all others, also for those of "
    "committed transactions, which a broker of RocketMQ does not count in their topics"
)
_ALL_GROUPS: Final = (
    "Groups without online consumers have it too. A queue in which the group has no offset counts "
    "from its first message, as in `consumerProgress`"
)
_FILTERED: Final = "Messages that a filter passes over count, too"
_5: Final = KnownFrom.BROKER_5

MESSAGES_IN: Final = _declare(
    _5, Kind.COUNTER, "rocketmq_messages_in_total", "messages stored in the topic", _IN, _TYPES
)
THROUGHPUT_IN: Final = _declare(
    _5,
    Kind.COUNTER,
    "rocketmq_throughput_in_total",
    "bytes stored in the topic",
    _IN,
    "`message_type` as in `rocketmq_messages_in_total`",
)
MESSAGES_OUT: Final = _declare(
    _5, Kind.COUNTER, "rocketmq_messages_out_total", "messages of the topic that the group read",
    _OUT,
)  # fmt: skip
THROUGHPUT_OUT: Final = _declare(
    _5, Kind.COUNTER, "rocketmq_throughput_out_total", "bytes of the topic that the group read",
    _OUT,
)  # fmt: skip
TO_DLQ: Final = _declare(
    _5, Kind.COUNTER, "rocketmq_send_to_dlq_messages_total",
    "messages that became dead letters of the group", _OUT,
    "`topic` is the dead-letter queue; a message that is sent there directly counts too",
)  # fmt: skip
LAG_MESSAGES: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_lag_messages",
    "messages of the topic that the group has not consumed yet", _LAG, _ALL_GROUPS,
)  # fmt: skip
LAG_LATENCY: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_lag_latency_milliseconds",
    "age of the oldest message of the topic that the group has not consumed yet; 0 if there is "
    "none", _LAG, _ALL_GROUPS,
)  # fmt: skip
LAG_LATENCY_DOCUMENTED: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_lag_latency",
    "the same", _LAG, "This is the name in RocketMQ's documentation; its port appends the unit",
)  # fmt: skip
INFLIGHT_MESSAGES: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_inflight_messages",
    "messages of the topic that consumers of the group pulled and have not consumed yet", _LAG,
    f"{_FILTERED}. 0 without online consumers, and for queues in which the group has no offset",
)  # fmt: skip
READY_MESSAGES: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_ready_messages",
    "messages of the topic that the group has not pulled yet", _LAG,
    f"{_FILTERED}. Without online consumers, those that it has not consumed",
)  # fmt: skip
QUEUEING_LATENCY: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_queueing_latency_milliseconds",
    "age of the oldest message of the topic that the group has not pulled yet; 0 if there is none",
    _LAG, "Without online consumers, of those that it has not consumed",
)  # fmt: skip
QUEUEING_LATENCY_DOCUMENTED: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_queueing_latency",
    "the same", _LAG, "This is the name in RocketMQ's documentation; its port appends the unit",
)  # fmt: skip
PRODUCER_CONNECTIONS: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_producer_connections", "connections of producers, by group",
    "language version protocol_type",
)  # fmt: skip
CONSUMER_CONNECTIONS: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_connections", "connections of consumers of the group",
    "consumer_group language version consume_mode protocol_type is_system",
)  # fmt: skip
PERMISSION: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_broker_permission", "6 reads and writes, 4 only reads", ""
)
TOPICS: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_topic_number", "topics, those of the system included", ""
)
GROUPS: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_consumer_group_number",
    "consumer groups, those of the system included", "",
)  # fmt: skip
STORAGE_SIZE: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_storage_size_bytes", "used bytes of the device that has the store",
    _DISK,
)  # fmt: skip
FLUSH_BEHIND: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_storage_flush_behind_bytes",
    "bytes of the log that are written and not synced", _DISK,
)  # fmt: skip
DISPATCH_BEHIND: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_storage_dispatch_behind_bytes",
    "bytes of the log that are not in the queues yet", _DISK,
)  # fmt: skip
RESERVE_TIME: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_storage_message_reserve_time_milliseconds",
    "age of the oldest message in the log", _DISK,
)  # fmt: skip
TIMER_ENQUEUE_LAG: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_timer_enqueue_lag",
    "messages with a time of their own that were stored and not yet taken in", _DISK,
)  # fmt: skip
TIMER_ENQUEUE_LATENCY: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_timer_enqueue_latency_milliseconds",
    "age of the oldest of them; 0 if there is none", _DISK,
)  # fmt: skip
TIMER_DEQUEUE_LAG: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_timer_dequeue_lag",
    "messages that wait for a time of their own", _DISK,
)  # fmt: skip
TIMER_DEQUEUE_LATENCY: Final = _declare(
    _5, Kind.GAUGE, "rocketmq_timer_dequeue_latency_milliseconds",
    "how far the delivery of such messages is behind the time", _DISK,
    "A broker of RocketMQ shows seconds under this name",
)  # fmt: skip
TIMER_ENQUEUED: Final = _declare(
    _5, Kind.COUNTER, "rocketmq_timer_enqueue_total",
    "messages with a time of their own that were taken in", f"topic {_DISK}",
    "One that is stored again, so that an old log file can go, counts again",
)  # fmt: skip
TIMER_DEQUEUED: Final = _declare(
    _5, Kind.COUNTER, "rocketmq_timer_dequeue_total",
    "messages with a time of their own that were delivered to the topic", f"topic {_DISK}",
)  # fmt: skip
DELAYS: Final = _declare(
    _5, Kind.HISTOGRAM, "rocketmq_delay_message_latency_seconds",
    "how long after their birth messages with a time of their own are due, when they are taken in",
    f"topic {_DISK}",
)  # fmt: skip

# ------------------------------------------------------------------------------ rocketmq-exporter

_BROKER: Final = "cluster brokerIP broker"
_TOPIC: Final = "cluster broker topic"
_READER: Final = "cluster broker topic group"
_DIFF: Final = "group topic countOfOnlineConsumers msgModel"
_EXPORTER: Final = KnownFrom.EXPORTER
_HERE: Final = "Of this broker alone"

BROKER_TPS: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_broker_tps", "messages stored a second, last minute", _BROKER
)
BROKER_QPS: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_broker_qps", "messages read a second, last minute", _BROKER
)
LOG_DIFF: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_broker_commitlog_diff",
    "bytes of the log that a slave does not have yet", _BROKER,
    "`brokerIP` is the address of the slave's connection",
)  # fmt: skip
PRODUCER_TPS: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_producer_tps",
    "messages stored in the topic a second, last minute", _TOPIC,
)  # fmt: skip
PRODUCER_SIZE: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_producer_message_size",
    "bytes stored in the topic a second, last minute", _TOPIC,
)  # fmt: skip
PRODUCER_OFFSET: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_producer_offset",
    "sum of the end offsets of the topic's queues", _TOPIC,
    "Topics have it once all their queues were used since the start",
)  # fmt: skip
RETRY_OFFSET: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_topic_retry_offset", "the same for a retry topic", _TOPIC
)
DLQ_OFFSET: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_topic_dlq_offset",
    "the same for the dead-letter queue of a group", "cluster broker group",
)  # fmt: skip
PRODUCERS: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_producer_count", "connections of producers of the group",
    "cluster broker group",
)  # fmt: skip
CONSUMER_TPS: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_consumer_tps",
    "messages of the topic that the group read a second, last minute", _READER,
)  # fmt: skip
CONSUMER_SIZE: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_consumer_message_size",
    "bytes of the topic that the group read a second, last minute", _READER,
)  # fmt: skip
CONSUMER_OFFSET: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_consumer_offset",
    "sum of the group's offsets in the topic's queues", _READER,
)  # fmt: skip
SEND_BACKS: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_send_back_nums",
    "messages that consumers of the group sent back, last minute", _READER,
)  # fmt: skip
GET_LATENCY: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_group_get_latency_by_storetime",
    "age, in ms, of the oldest message of the topic that the group has not consumed yet", _READER,
)  # fmt: skip
GROUP_DIFF: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_group_diff",
    "messages of the topic that the group has not consumed yet", _DIFF, _HERE,
)  # fmt: skip
RETRY_DIFF: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_group_retrydiff", "the same for the group's retry topic",
    _DIFF, _HERE,
)  # fmt: skip
DLQ_DIFF: Final = _declare(
    _EXPORTER, Kind.GAUGE, "rocketmq_group_dlqdiff",
    "the same for its dead-letter queue, once the group has consumed from it", _DIFF, _HERE,
)  # fmt: skip

_RUNTIME: Final = "cluster brokerIP brokerHost des boottime broker_version"
#: Ranges of the times of puts, as suffixes of metric names.
_PUT_TIMES: Final = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s",
    "1to2s", "2to3s", "3to4s", "4to5s", "5to10s", "10stomore",
)  # fmt: skip
#: By the suffix of a metric's name: its key in the answer to request 28 (GET_BROKER_RUNTIME_INFO),
#: and the index of the number in the value of that key.
_RUNTIME_KEYS: Final = {
    "msg_put_total_today_now": ("msgPutTotalTodayNow", 0),
    "msg_puttotal_todaymorning": ("msgPutTotalTodayMorning", 0),
    "msg_puttotal_yesterdaymorning": ("msgPutTotalYesterdayMorning", 0),
    "msg_gettotal_today_now": ("msgGetTotalTodayNow", 0),
    "msg_gettotal_todaymorning": ("msgGetTotalTodayMorning", 0),
    "msg_gettotal_yesterdaymorning": ("msgGetTotalYesterdayMorning", 0),
    "dispatch_behind_bytes": ("dispatchBehindBytes", 0),
    "put_message_size_total": ("putMessageSizeTotal", 0),
    "put_message_average_size": ("putMessageAverageSize", 0),
    "putmessage_times_total": ("putMessageTimesTotal", 0),
    "putmessage_entire_time_max": ("putMessageEntireTimeMax", 0),
    "put_latency_99": ("putLatency99", 0),
    "put_latency_999": ("putLatency999", 0),
    "earliest_message_timestamp": ("earliestMessageTimeStamp", 0),
    "start_accept_sendrequest_time": ("startAcceptSendRequestTimeStamp", 0),
    "commitlog_disk_ratio": ("commitLogDiskRatio", 0),
    "consumequeue_disk_ratio": ("consumeQueueDiskRatio", 0),
    "commitlog_maxoffset": ("commitLogMaxOffset", 0),
    "commitlog_minoffset": ("commitLogMinOffset", 0),
    "remain_transientstore_buffer_numbs": ("remainTransientStoreBufferNumbs", 0),
    **{f"pmdt_{name}": ("putMessageDistributeTime", at) for at, name in enumerate(_PUT_TIMES)},
    **{
        f"{name}_tps{window_s}": (key, number)
        for name, key in (
            ("put", "putTps"),
            ("getfound", "getFoundTps"),
            ("getmiss", "getMissTps"),
            ("gettotal", "getTotalTps"),
            ("gettransfered", "getTransferedTps"),
        )
        for number, window_s in enumerate((10, 60, 600))
    },
}
#: Keys, by the suffix of a metric's name, for threads and buffers that only Java has: dashboards
#: show these, too.
_CONSTANT_KEYS: Final = {
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
}


def _runtime(name: str, key: str, difference: str = "") -> Metric:
    return _declare(
        _EXPORTER, Kind.GAUGE, f"rocketmq_brokeruntime_{name}", f"`{key}` of `brokerStatus`",
        _RUNTIME, difference,
    )  # fmt: skip


#: Metrics with values of the broker's runtime information: metric, key, index of the number.
RUNTIME: Final = (
    *((_runtime(name, key), key, number) for name, (key, number) in _RUNTIME_KEYS.items()),
    *(
        (_runtime(name, key, "Always the same number: no request waits for a thread"), key, 0)
        for name, key in _CONSTANT_KEYS.items()
    ),
)
_EXACT: Final = "In bytes, not rounded"
TO_FLUSH: Final = _runtime("remain_howmanydata_toflush", "remainHowManyDataToFlush", _EXACT)
LOG_DEVICE_SIZE: Final = _runtime("commitlogdir_capacity_total", "commitLogDirCapacity", _EXACT)
LOG_DEVICE_FREE: Final = _runtime("commitlogdir_capacity_free", "commitLogDirCapacity", _EXACT)

# ---------------------------------------------------------------------------------------- our own

_OURS: Final = KnownFrom.OURS

READY: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_ready", "1 once the broker serves, 0 while it starts or stops", ""
)
RECOVERY_POSITION: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_recovery_position_bytes",
    "offset of the log up to which the last start has read", "",
)  # fmt: skip
RECOVERY_END: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_recovery_end_bytes",
    "expected end of the log that the last start reads", "",
)  # fmt: skip
REGISTERED: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_registered_name_servers", "name servers that have the broker", ""
)
NAME_SERVERS: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_name_servers", "name servers that the broker registers with",
    "",
)  # fmt: skip
PUT_SECONDS: Final = _declare(
    _OURS, Kind.HISTOGRAM, "cometmq_put_seconds",
    "time of a put from its append to its answer, with the wait for the disk and for slaves", "",
)  # fmt: skip
PULL_SECONDS: Final = _declare(
    _OURS, Kind.HISTOGRAM, "cometmq_pull_seconds",
    "time of a pull that found messages, from its arrival to its answer, with the wait for the "
    "disk. A pull that waits for messages begins when they are there; of those that are answered "
    "together, each has the time of all", "",
)  # fmt: skip
DISPATCH_SECONDS: Final = _declare(
    _OURS, Kind.HISTOGRAM, "cometmq_dispatch_seconds",
    "time of a message from the end of its turn, when it is written, to its dispatch, from when on "
    "consumers see it. With `SYNC_FLUSH` the sync lies between. What is dispatched at once "
    "counts as 0", "",
)  # fmt: skip
SYNC_SECONDS: Final = _declare(
    _OURS, Kind.HISTOGRAM, "cometmq_sync_seconds", "time of a sync of the log", ""
)
LONG_TURNS: Final = _declare(
    _OURS, Kind.HISTOGRAM, "cometmq_loop_long_turn_seconds",
    "turns of the event loop over 0.2 ms", "",
)  # fmt: skip
STALLS: Final = _declare(
    _OURS,
    Kind.COUNTER,
    "cometmq_loop_stalls_total",
    "turns of the event loop over 20 ms",
    "handler",
)
PULLS: Final = _declare(
    _OURS, Kind.COUNTER, "cometmq_pulls_total", "pulls that found messages, and that found none",
    "result",
)  # fmt: skip
LIMIT_HITS: Final = _declare(
    _OURS, Kind.COUNTER, "cometmq_limit_hits_total", "times that a client reached a limit", "limit"
)
REFUSALS: Final = _declare(
    _OURS, Kind.COUNTER, "cometmq_refused_requests_total",
    "requests that were refused, by the code of the answer", "cause",
)  # fmt: skip
CONNECTIONS: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_connections", "open connections of clients", ""
)
WRITES_REFUSED: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_writes_refused",
    "1 while the store refuses writes, for example because the disk is full", "",
)  # fmt: skip
PUT_FAILURES: Final = _declare(
    _OURS, Kind.COUNTER, "cometmq_put_failures_total", "messages that could not be stored", ""
)
LOG_START: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_log_start_bytes", "offset at which the log begins", ""
)
LOG_END: Final = _declare(_OURS, Kind.GAUGE, "cometmq_log_end_bytes", "end of the log", "")
DISK_RATIO: Final = _declare(
    _OURS,
    Kind.GAUGE,
    "cometmq_disk_used_ratio",
    "used share of the device; of the least used one, if the log has several",
    "part",
)
DISK_FREE: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_disk_free_bytes", "bytes of that device that are free", "part"
)
SLAVES: Final = _declare(_OURS, Kind.GAUGE, "cometmq_slaves", "connected slaves", "")
REPLICATION_BEHIND: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_replication_behind_bytes",
    "bytes of the log that a slave does not have yet; on a slave, of its master's log", "slave",
)  # fmt: skip
OPEN_TRANSACTIONS: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_open_transactions", "transactions without an outcome", ""
)
OLDEST_TRANSACTION: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_oldest_transaction_seconds", "age of the oldest of them", ""
)
WAITING_TIMERS: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_timers_waiting", "messages that wait for a time of their own", ""
)
WAITING_LEVEL: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_delayed_messages", "messages that wait in a delay level", "level"
)
CONFLICTS: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_conflicting_groups",
    "groups whose online members have different subscriptions", "",
)  # fmt: skip
LEFT_OUT: Final = _declare(
    _OURS, Kind.GAUGE, "cometmq_metrics_left_out_series",
    "series of a metric beyond metricsOtelCardinalityLimit", "metric",
)  # fmt: skip

METRICS: Final = tuple(_ALL)
