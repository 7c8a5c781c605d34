"""Pure functions that turn results of the admin operations into values for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.protocol.bodies import ConsumeOffset

#: Parts of names of settings whose values are secrets.
_SECRET_PARTS: Final = ("secret", "password", "passwd", "token", "credential", "accesskey")
_PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
REMOVED: Final = "(removed)"


def without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Return settings with the values of secrets replaced, sorted by name."""
    return {
        key: REMOVED if value and _is_secret(key, value) else value
        for key, value in sorted(values.items())
    }


def _is_secret(key: str, value: str) -> bool:
    name, text = key.lower(), value.lower()
    if any(part in name for part in _SECRET_PARTS):
        return not name.endswith("path")
    # RocketMQ 5 has users in settings: initAuthenticationUser={"username": ..., "password": ...}
    is_json = text.lstrip().startswith(("{", "["))
    is_user = is_json and any(part in text for part in _SECRET_PARTS)
    return is_user or _PASSWORD_IN_URL.search(value) is not None


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
