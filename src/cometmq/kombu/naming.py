"""Names: kombu's queues as RocketMQ's topics, and back. Pure.

Topics may have ASCII letters, digits, ``-``, ``_``, ``|`` and ``%``. Each other byte of a queue's
name, and each ``|`` and ``%``, becomes ``|`` with two hexadecimal digits.
"""

from __future__ import annotations

import re
from typing import Final

_KEPT: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(rb"\|([0-9a-f]{2})")
#: Follows the topic of a queue, before a priority: never part of an escaped name.
_PRIORITY: Final = "|p"


def topic_of(queue: str, priority: int = 0) -> str:
    """Return the topic of a queue for messages of one priority step."""
    topic = _KEPT.sub(lambda found: f"|{found[0].hex()}".encode(), queue.encode()).decode()
    return f"{topic}{_PRIORITY}{priority}" if priority else topic


def queue_of(topic: str) -> str:
    """Return the queue that a topic belongs to."""
    name, _, _ = topic.partition(_PRIORITY)
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode()).decode()
