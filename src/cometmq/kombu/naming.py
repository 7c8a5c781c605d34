"""Conversion of kombu's queue names to RocketMQ's topic names, and back. Pure.

A topic name may have ASCII letters, digits, ``-``, ``_``, ``|`` and ``%``. Each other byte of a
queue's name (in UTF-8), and each ``|`` and ``%``, becomes ``|`` with two hexadecimal digits.
"""

from __future__ import annotations

import re
from typing import Final

_KEPT: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(rb"\|([0-9a-f]{2})")
#: Separates the escaped name from a priority; an escaped name never contains it.
_PRIORITY: Final = "|p"


def topic_of(queue: str, priority: int = 0) -> str:
    """Return the topic of a queue for messages of one priority step."""
    topic = _KEPT.sub(lambda found: f"|{found[0].hex()}".encode(), queue.encode()).decode()
    return f"{topic}{_PRIORITY}{priority}" if priority else topic


def queue_of(topic: str) -> str:
    """Return the queue that a topic belongs to."""
    name, _, _ = topic.partition(_PRIORITY)
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode()).decode()
