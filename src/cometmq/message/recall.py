"""Recall handle: identifies a timed message to be recalled (upstream: RecallMessageHandle.java).

URL-safe base64 of "v1 topic brokerName deliverMs uniqueKey".
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

_VERSION = "v1"
_PARTS = 5


class RecallHandle(NamedTuple):
    """Identity of a timed message. ``deliver_ms`` is within the second in which it is due."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the text that a producer receives with the response to its send."""
        words = (_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_key)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def decode_recall(text: str) -> RecallHandle:
    """Decode a handle from untrusted text. Raises ValueError when it is invalid."""
    problem = "recall handle is invalid"
    try:
        raw = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise ValueError(problem) from error
    words = raw.split(" ")
    if len(words) < _PARTS or words[0] != _VERSION:
        raise ValueError(problem)
    _, topic, broker_name, deliver, unique_key = words[:_PARTS]
    is_time = deliver.isascii() and deliver.isdigit() and len(deliver) < 20
    return RecallHandle(topic, broker_name, int(deliver) if is_time else -1, unique_key)
