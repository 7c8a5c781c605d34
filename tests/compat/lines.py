"""What RocketMQ's clients can do, line by line, and the mark of the tests that prove it.

docs/conformance.md is written from these marks (scripts/conformance_page.py).
"""

from __future__ import annotations

from typing import Final

import pytest

#: Every line by its room on the page. A test proves one with `@proves("...")`.
LINES: Final[dict[str, tuple[str, ...]]] = {
    "Sending": (
        "sync",
        "async",
        "one-way",
        "batch",
        "large batch",
        "what is refused, and why",
        "retries on another broker",
        "a queue chosen by hash or by hand",
        "zlib bodies",
        "send hooks",
        "namespaces",
        "message trace",
        "unique ids",
    ),
    "Consuming": (
        "push, clustering",
        "push, broadcasting",
        "push, orderly",
        "queue locks through a rebalance",
        "lite pull, subscribed",
        "lite pull, assigned; seek and pause",
        "plain pull",
        "allocation strategies",
        "start positions",
        "send-back and retry topic",
        "dead letters",
        "offsets kept and asked for",
        "consume hooks",
        "reset while running",
        "consumer status",
        "running info",
        "consume directly",
    ),
    "Filtering": ("tags", "SQL92"),
    "Delay": ("delay levels", "arbitrary delays", "recall"),
    "Transactions": ("commit and rollback", "check-back"),
    "Request-reply": ("request and reply",),
}

#: What cannot be, by line and client or broker, and why.
EXCEPTIONS: Final[dict[tuple[str, str], str]] = {
    ("arbitrary delays", "java"): "RocketMQ 4 has the levels only",
    ("recall", "java"): "RocketMQ 4 has no timers",
    ("recall", "4.9.7"): "the client cannot ask for it",
}


def proves(*lines: str) -> pytest.MarkDecorator:
    """Marks a test as the proof of lines, by the client and on the broker that it runs with."""
    known = {line for room in LINES.values() for line in room}
    assert set(lines) <= known, set(lines) - known
    return pytest.mark.proves(*lines)
