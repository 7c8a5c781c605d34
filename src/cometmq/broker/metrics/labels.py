"""Labels of metrics that several of them have."""

from __future__ import annotations

from cometmq.message.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_system_topic,
)


def is_retry(topic: str) -> str:
    """Return the label ``is_retry`` of a topic."""
    return _truth(topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))


def is_system(topic: str, group: str = "") -> str:
    """Return the label ``is_system`` of a topic, of a group, or of both."""
    is_system_group = group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())
    return _truth(is_system_topic(topic) or is_system_group)


def _truth(value: bool) -> str:
    return "true" if value else "false"
