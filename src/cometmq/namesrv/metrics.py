"""Metrics of a name server. RocketMQ's name server has none of them."""

from __future__ import annotations

from typing import Final

from cometmq.monitoring.series import Kind, KnownFrom, Metric

READY: Final = Metric(
    "cometmq_namesrv_ready", Kind.GAUGE, "1 once the name server serves", (), KnownFrom.OURS
)
BROKERS: Final = Metric(
    "cometmq_namesrv_brokers", Kind.GAUGE, "registered addresses of brokers", (), KnownFrom.OURS
)
CONNECTIONS: Final = Metric(
    "cometmq_namesrv_connections", Kind.GAUGE, "open connections", (), KnownFrom.OURS
)
LIMIT_HITS: Final = Metric(
    "cometmq_namesrv_limit_hits_total", Kind.COUNTER,
    "times that a client reached a limit", ("limit",), KnownFrom.OURS,
)  # fmt: skip

METRICS: Final = (READY, BROKERS, CONNECTIONS, LIMIT_HITS)
