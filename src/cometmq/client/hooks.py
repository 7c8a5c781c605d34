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

    ``results``, one a message, or ``error`` is set before the after-hooks run; neither for one-way
    sends that left. ``is_half`` marks the half message of a transaction. Times are milliseconds
    since the epoch.
    """

    messages: tuple[Message, ...]
    unique_keys: tuple[str, ...]
    group: str
    queue: MessageQueue
    address: str
    number: int
    oneway: bool
    started_ms: int
    is_half: bool = False
    ended_ms: int = 0
    results: Sequence[SendResult] = ()
    error: BaseException | None = None

    @property
    def result(self) -> SendResult | None:
        """Where the first message is stored, or None."""
        return self.results[0] if self.results else None


@dataclass(slots=True)
class ConsumeAttempt:
    """One block of work on a message: ``message.processing()``, or a handler.

    ``outcome`` says what became of the message and ``error`` what the block raised; both are set
    before the after-hooks run. ``trace_id`` joins what is traced of its beginning and its end.
    Times are milliseconds since the epoch.
    """

    message: MessageView
    group: str
    started_ms: int
    ended_ms: int = 0
    outcome: Outcome | None = None
    error: BaseException | None = None
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """What a producer told a broker about a transaction: True for committed, False for rolled back,
    None for not known; ``checked`` when the broker had asked. ``at_ms`` is since the epoch."""

    message_id: str
    topic: str
    tag: str
    keys: tuple[str, ...]
    group: str
    address: str
    transaction_id: str
    committed: bool | None
    checked: bool
    at_ms: int


SendHook = Hook[SendAttempt]
ConsumeHook = Hook[ConsumeAttempt]

#: Hears of every end of a transaction that left for its broker.
TransactionHook = Callable[[TransactionEnd], None]

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


def tell(hooks: Sequence[TransactionHook], end: TransactionEnd) -> None:
    """Tell all hooks of the end of a transaction."""
    for hook in list(hooks):
        try:
            hook(end)
        except Exception:
            log.exception("hook_failed hook=%r moment=transaction end", hook)
