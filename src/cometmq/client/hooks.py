"""What is told to code that watches sends: traces, metrics, tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cometmq.client.producer import SendResult
    from cometmq.message.model import Message, MessageQueue


@dataclass(slots=True)
class SendAttempt:
    """One attempt to send: a message or a batch of one topic to one queue.

    ``result`` or ``error`` is set before the after-hooks run; neither for one-way sends that left.
    """

    messages: tuple[Message, ...]
    unique_keys: tuple[str, ...]
    group: str
    queue: MessageQueue
    address: str
    number: int
    oneway: bool
    started_ms: int
    ended_ms: int = 0
    result: SendResult | None = None
    error: Exception | None = None


class SendHook(Protocol):
    """Called round every attempt, in the order of the producer's list."""

    def before(self, attempt: SendAttempt) -> None:
        """May raise a CometError, which ends the send."""
        ...

    def after(self, attempt: SendAttempt) -> None:
        """The attempt ended, also when it failed; must not raise."""
        ...
