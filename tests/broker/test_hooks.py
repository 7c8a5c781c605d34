"""Hooks run in order, refuse, and never break what they watch."""

from typing import Any

import pytest

from cometmq.broker.hooks import ConsumeHooks, SendHooks
from cometmq.core.errors import BadRequest
from cometmq.net.peer import Peer
from cometmq.protocol.frame import Request
from tests.broker.world import connect, request


class Watcher:
    def __init__(self, name: str, seen: list[str], *, broken: bool = False) -> None:
        self.name = name
        self.seen = seen
        self.broken = broken

    def before(self, peer: Peer, request: Request[Any]) -> None:
        self.seen.append(f"{self.name} before")
        if self.broken:
            raise BadRequest(16, "no")

    def after(self, peer: Peer, request: Request[Any], code: int, *numbers: int) -> None:
        self.seen.append(f"{self.name} after {code} {numbers}")
        if self.broken:
            raise RuntimeError("broken hook")


def test_send_hooks_run_in_order() -> None:
    seen: list[str] = []
    hooks = SendHooks()
    assert not hooks
    hooks.add(Watcher("a", seen))
    hooks.add(Watcher("b", seen))
    assert hooks
    hooks.before_send(connect(), request(310))
    hooks.after_send(connect(), request(310), 0, 3)
    assert seen == ["a before", "b before", "a after 0 (3,)", "b after 0 (3,)"]


def test_consume_hooks_run_in_order() -> None:
    seen: list[str] = []
    hooks = ConsumeHooks()
    assert not hooks
    hooks.add(Watcher("a", seen))
    assert hooks
    hooks.before_pull(connect(), request(11))
    hooks.after_pull(connect(), request(11), 19, 0, 0)
    assert seen == ["a before", "a after 19 (0, 0)"]


def test_a_hook_refuses_and_cannot_break_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    sends, pulls = SendHooks(), ConsumeHooks()
    for hooks in (sends, pulls):
        hooks.add(Watcher("bad", seen, broken=True))
        hooks.add(Watcher("good", seen))
    with pytest.raises(BadRequest):
        sends.before_send(connect(), request(310))
    with pytest.raises(BadRequest):
        pulls.before_pull(connect(), request(11))
    sends.after_send(connect(), request(310), 16, 0)
    pulls.after_pull(connect(), request(11), 16, 0, 0)
    assert seen[-1] == "good after 16 (0, 0)"
    assert "good before" not in seen
    assert caplog.text.count("hook failed") == 2
