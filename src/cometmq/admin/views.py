"""Values for people, made from results of the admin operations. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.protocol.bodies import ConsumeOffset


def moment(ms: int) -> str:
    """Format milliseconds since the epoch as ISO 8601 in UTC.

    Returns an empty text for 0 or less, and the number itself if it is out of range: some clients
    send uninitialized memory.
    """
    if ms <= 0:
        return ""
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError):
        return str(ms)
    return when.isoformat(sep=" ", timespec="milliseconds")


def total_lag(progress: Iterable[ConsumeOffset]) -> int:
    """Return the number of messages that a group has not consumed yet."""
    return sum(max(0, each.broker_offset - each.consumer_offset) for each in progress)
