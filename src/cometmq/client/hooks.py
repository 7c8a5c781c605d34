"""Hooks around sends and consumption, for traces, metrics and tests, and hooks that forbid a send.

Hooks run in the order of their list. An exception of a hook is logged and has no other effect. Only
an exception of a ForbiddenHook ends the send.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from cometmq.client.sendrequests import SendResult
    from cometmq.message.model import Message, MessageQueue, MessageView

A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)

log = logging.getLogger(__name__)


class Hook(Protocol[A_contra]):
    """Hook that is called before and after every attempt to send or to consume."""

    def before(self, attempt: A_contra) -> None:
        """Handle the start of an attempt."""
        ...

    def after(self, attempt: A_contra) -> None:
        """Handle the end of an attempt, also if it failed or was cancelled."""
        ...


@dataclass(slots=True)
class SendAttempt:
    """One attempt to send a message or a batch of one topic to one queue.

    Either ``results``, one per message, or ``error`` is set before the after-hooks run; a
    successful one-way send sets neither. ``is_half`` is True for the half message of a transaction.
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
    is_half: bool = False
    ended_ms: int = 0
    results: Sequence[SendResult] = ()
    error: BaseException | None = None

    @property
    def result(self) -> SendResult | None:
        """Result of the first message, or None."""
        return self.results[0] if self.results else None


class Outcome(Enum):
    """Result of a message that was delivered."""

    ACKNOWLEDGED = "acknowledged"
    RETRIED = "retried"
    RETURNED = "returned"


@dataclass(slots=True)
class ConsumeAttempt:
    """Processing of one message: a ``message.processing()`` block, or a handler.

    ``outcome`` is the state of the message and ``error`` the exception of the block; both are set
    before the after-hooks run. ``trace_id`` is the same in the trace records of the start and the
    end. Times are milliseconds since the epoch.
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
    """End of a transaction, as a producer reported it to a broker.

    ``committed`` is True for committed, False for rolled back, None for not known. ``checked`` is
    True if the broker asked for the outcome. ``at_ms`` is in milliseconds since the epoch.
    """

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

#: Called with each message before it is packed, once for all attempts. Returns the message to send:
#: the same one, or another one, such as a copy with further properties.
MessageHook = Callable[["Message"], "Message"]

#: Called after each end of a transaction that was sent to its broker.
TransactionHook = Callable[[TransactionEnd], None]

#: Called with an attempt before all other hooks; a CometError that it raises ends the send.
ForbiddenHook = Callable[[SendAttempt], None]


def run_before(hooks: Sequence[Hook[A]], attempt: A) -> None:
    """Notify all hooks that an attempt begins."""
    for hook in list(hooks):
        try:
            hook.before(attempt)
        except Exception:
            log.exception("hook_failed hook=%r moment=before", hook)


def run_after(hooks: Sequence[Hook[A]], attempt: A) -> None:
    """Notify all hooks that an attempt ended."""
    for hook in list(hooks):
        try:
            hook.after(attempt)
        except Exception:
            log.exception("hook_failed hook=%r moment=after", hook)


def prepared(hooks: Sequence[MessageHook], message: Message) -> Message:
    """Return the message to send, which the hooks may have replaced."""
    for hook in list(hooks):
        try:
            message = hook(message)
        except Exception:
            log.exception("hook_failed hook=%r moment=message", hook)
    return message


def tell(hooks: Sequence[TransactionHook], end: TransactionEnd) -> None:
    """Notify all hooks of the end of a transaction."""
    for hook in list(hooks):
        try:
            hook(end)
        except Exception:
            log.exception("hook_failed hook=%r moment=transaction end", hook)
