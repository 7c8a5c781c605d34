"""The metrics of a broker: names, types, labels and meanings; docs/metrics.md is written from them.

Upstream: BrokerMetricsConstant.java, DefaultStoreMetricsConstant.java of RocketMQ 5.5.0, and
RMQMetricsCollector.java of rocketmq-exporter.
"""

from __future__ import annotations

from typing import Final

from cometmq.monitoring.series import Kind, KnownFrom, Metric

_GROUP: Final = ("topic", "consumer_group", "is_system")

MESSAGES_IN: Final = Metric(
    "rocketmq_messages_in_total", Kind.COUNTER, "messages stored in the topic",
    ("topic", "message_type", "is_system"), KnownFrom.BROKER_5,
    "`message_type` is always `unspecified`",
)  # fmt: skip
THROUGHPUT_IN: Final = Metric(
    "rocketmq_throughput_in_total", Kind.COUNTER, "bytes stored in the topic",
    ("topic", "message_type", "is_system"), KnownFrom.BROKER_5,
    "`message_type` is always `unspecified`",
)  # fmt: skip
MESSAGES_OUT: Final = Metric(
    "rocketmq_messages_out_total", Kind.COUNTER, "messages of the topic that the group read",
    _GROUP, KnownFrom.BROKER_5,
)  # fmt: skip
THROUGHPUT_OUT: Final = Metric(
    "rocketmq_throughput_out_total", Kind.COUNTER, "bytes of the topic that the group read",
    _GROUP, KnownFrom.BROKER_5,
)  # fmt: skip

READY: Final = Metric(
    "cometmq_ready", Kind.GAUGE, "1 once the server serves, 0 while it starts or stops",
    (), KnownFrom.OURS,
)  # fmt: skip
RECOVERY_POSITION: Final = Metric(
    "cometmq_recovery_position_bytes", Kind.GAUGE,
    "offset of the log up to which the last start has read", (), KnownFrom.OURS,
)  # fmt: skip
RECOVERY_END: Final = Metric(
    "cometmq_recovery_end_bytes", Kind.GAUGE,
    "expected end of the log that the last start reads", (), KnownFrom.OURS,
)  # fmt: skip

METRICS: Final = (
    MESSAGES_IN, THROUGHPUT_IN, MESSAGES_OUT, THROUGHPUT_OUT,
    READY, RECOVERY_POSITION, RECOVERY_END,
)  # fmt: skip
