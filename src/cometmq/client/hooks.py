"""What is told to code that watches sends and consumption: traces, metrics, tests; and who may
forbid a send.

Hooks run in the order of their list. One that raises is logged and changes nothing, except a
ForbiddenHook, which is there to raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from cometmq.client.consumer.received import MessageView, Outcome
    from cometmq.client.results import SendResult
    from cometmq.message.model import Message, MessageQueue

A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)

log = logging.getLogger(__name__)


class Hook(Protocol[A_contra]):
    """Called round every attempt of one kind."""

    def before(self, attempt: A_contra) -> None:
        """The attempt begins."""
        ...

    def after(self, attempt: A_contra) -> None:
        """It ended, also when it failed or was cancelled."""
        ...


@dataclass(slots=True)
class SendAttempt:
    """One attempt to send: a message or a batch of one topic to one queue.

    ``result`` or ``error`` is set before the after-hooks run; neither for one-way sends that left.
    Times are milliseconds since the epoch.
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
    error: BaseException | None = None


@dataclass(slots=True)
class ConsumeAttempt:
    """One block of work on a message: ``message.processing()``, or a handler.

    ``outcome`` says what became of the message and ``error`` what the block raised; both are set
    before the after-hooks run. Times are milliseconds since the epoch.
    """

    message: MessageView
    group: str
    started_ms: int
    ended_ms: int = 0
    outcome: Outcome | None = None
    error: BaseException | None = None


SendHook = Hook[SendAttempt]
ConsumeHook = Hook[ConsumeAttempt]

#: Looks at an attempt before anything else does; a CometError that it raises ends the send.
ForbiddenHook = Callable[[SendAttempt], None]


def run_before(hooks: Sequence[Hook[A]], attempt: A) -> None:
    """Tell all hooks that an attempt begins."""
    for hook in list(hooks):
        try:
            hook.before(attempt)
        except Exception:
            log.exception("hook_failed hook=%r moment=before", hook)


def run_after(hooks: Sequence[Hook[A]], attempt: A) -> None:
    """Tell all hooks that an attempt ended."""
    for hook in list(hooks):
        try:
            hook.after(attempt)
        except Exception:
            log.exception("hook_failed hook=%r moment=after", hook)
