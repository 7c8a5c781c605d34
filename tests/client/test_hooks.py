"""An attempt as hooks see it; that producers call them is tested with the producer."""

from __future__ import annotations

from cometmq.client.hooks import SendAttempt
from cometmq.message.model import Message, MessageQueue


def test_an_attempt_begins_without_an_outcome() -> None:
    message = Message("t", b"")
    attempt = SendAttempt(
        (message,), ("k",), "g", MessageQueue("t", "a", 0), "h:1", 1, oneway=False, started_ms=5
    )
    assert (attempt.result, attempt.error, attempt.ended_ms) == (None, None, 0)
