"""Hooks run in order, all of them, whatever one does; who calls them is tested where it is."""

from __future__ import annotations

import pytest

from cometmq.client.hooks import SendAttempt, run_after, run_before
from cometmq.message.model import Message, MessageQueue


class Watching:
    def __init__(self, name: str, seen: list[str], *, broken: bool = False) -> None:
        self.name = name
        self.seen = seen
        self.broken = broken

    def before(self, attempt: SendAttempt) -> None:
        self.seen.append(f"before {self.name} {attempt.number}")
        if self.broken:
            raise RuntimeError("broken before")

    def after(self, attempt: SendAttempt) -> None:
        self.seen.append(f"after {self.name}")
        if self.broken:
            raise RuntimeError("broken after")


def test_a_broken_hook_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    hooks = [Watching("one", seen, broken=True), Watching("two", seen)]
    queue = MessageQueue("t", "a", 0)
    attempt = SendAttempt((Message("t", b""),), ("k",), "g", queue, "h:1", 3, False, started_ms=5)
    assert (attempt.result, attempt.error, attempt.ended_ms) == (None, None, 0)
    run_before(hooks, attempt)
    run_after(hooks, attempt)
    assert seen == ["before one 3", "before two 3", "after one", "after two"]
    assert "broken before" in caplog.text
    assert "broken after" in caplog.text
