"""Labels that several metrics have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.message.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_system_topic,
)
from cometmq.protocol.codes import OUR_VERSION, version_name

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext


def is_retry(topic: str) -> str:
    """Return the label ``is_retry`` of a topic."""
    return _truth(topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))


def is_system(topic: str, group: str = "") -> str:
    """Return the label ``is_system`` of a topic, of a group, or of both."""
    is_system_group = group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())
    return _truth(is_system_topic(topic) or is_system_group)


def runtime_labels(context: BrokerContext) -> tuple[str, ...]:
    """Return the labels of the metrics ``rocketmq_brokeruntime_...``.

    The third is the broker's host, which rocketmq-exporter leaves empty, too.
    """
    return (
        context.config.broker_cluster_name, context.store_address, "",
        version_name(OUR_VERSION), str(context.stats.started_ms), str(OUR_VERSION),
    )  # fmt: skip


def _truth(value: bool) -> str:
    return "true" if value else "false"
