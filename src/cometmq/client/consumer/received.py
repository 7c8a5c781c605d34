"""Received messages: their content, and the methods that acknowledge or retry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from cometmq.client.consumer.failures import log_failure, note
from cometmq.client.consumer.messageview import MessageView, Outcome

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.client.consumer.inflight import Batch, InFlight
    from cometmq.client.hooks import ConsumeAttempt
    from cometmq.message.model import StoredMessage


class Settler(Protocol):
    """Interface through which a received message is settled."""

    def begin(self, message: MessageView) -> ConsumeAttempt | None:
        """Note that processing of a message begins; return the attempt to pass to :meth:`end`."""
        ...

    def end(
        self, attempt: ConsumeAttempt | None, outcome: Outcome | None, error: BaseException | None
    ) -> None:
        """Note that processing ended, with any outcome."""
        ...

    def succeeded(self, inflight: InFlight, message: StoredMessage) -> None:
        """Settle the message; it is not delivered again."""
        ...

    async def failed(
        self, inflight: InFlight, message: StoredMessage, delay_level: int, pause_ms: int = 0
    ) -> None:
        """Have the message delivered again later. Does not raise ClientError.

        A ``delay_level`` of 0 leaves the delay to the broker. A ``pause_ms`` of 0 leaves the pause
        of a message that stays with this consumer to the settings.
        """
        ...

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        """Return an unfinished message: it is delivered again as if it had not been delivered."""
        ...


class ReceivedMessage(MessageView):
    """One message of a subscription.

    The subscription holds it until :meth:`ack`, :meth:`retry` or the end of :meth:`processing`,
    whichever comes first; later calls have no effect.
    """

    __slots__ = ("_at", "_batch", "_inflight", "_outcome", "_settler")

    _at: int
    _batch: Batch | None

    def __init__(self, settler: Settler, inflight: InFlight, stored: StoredMessage) -> None:
        self.stored = stored
        self._inflight = inflight
        self._settler = settler
        self._outcome: Outcome | None = None

    def processing(self, *, reraise: bool = False) -> Processing:
        """Return a block that settles the message when it ends: ``async with
        message.processing():``.

        A block that ends normally acknowledges the message. An Exception in the block is logged and
        the message is retried; the exception is raised again only with ``reraise``. If the block is
        cancelled the message is delivered again, here or to another member.
        """
        return Processing(self, reraise=reraise)

    def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        if self._outcome is None:
            self._outcome = Outcome.ACKNOWLEDGED
            self._settler.succeeded(self._inflight, self.stored)

    async def retry(self, delay_level: int = 0, *, pause_ms: int = 0) -> None:
        """Have the message delivered again later.

        The delay is that of ``delay_level``; with 0 it grows with the number of attempts. After its
        last attempt the message becomes a dead letter; a negative level makes it one at once. A
        message of an ordered queue keeps its place: the queue pauses for ``pause_ms``, or for
        ``ordered_retry_pause_ms`` if that is 0.
        """
        if self._outcome is None:
            self._outcome = Outcome.RETRIED
            await self._settler.failed(self._inflight, self.stored, delay_level, pause_ms)

    def _give_back(self) -> None:
        if self._outcome is None:
            self._outcome = Outcome.RETURNED
            self._settler.returned(self._inflight, self.stored)


class UnreadMessage(ReceivedMessage):
    """Message ``at`` of a batch, decoded when it is first accessed.

    From then on it is a ReceivedMessage and keeps no reference to the batch with all its bytes.
    """

    __slots__ = ()

    def __init__(self, settler: Settler, inflight: InFlight, batch: Batch, at: int) -> None:
        self._batch = batch
        self._at = at
        self._inflight = inflight
        self._settler = settler
        self._outcome = None

    def __getattr__(self, name: str) -> Any:
        if name != "stored" or self._batch is None:
            raise AttributeError(name=name, obj=self)
        self.stored = self._batch[self._at]
        self._batch = None
        # Attribute access is faster in a class without __getattr__.
        self.__class__ = ReceivedMessage  # type: ignore[assignment]
        return self.stored


class Processing:
    """Block in which a message is processed; see ReceivedMessage.processing."""

    __slots__ = ("_attempt", "_message", "_reraise")

    def __init__(self, message: ReceivedMessage, *, reraise: bool = False) -> None:
        self._message = message
        self._reraise = reraise
        self._attempt: ConsumeAttempt | None = None

    def begin(self) -> None:
        """Enter the block."""
        self._attempt = self._message._settler.begin(self._message)

    def succeed(self) -> None:
        """End the block normally: acknowledge the message."""
        message = self._message
        try:
            message.ack()
        finally:
            message._settler.end(self._attempt, message._outcome, None)

    async def fail(self, error: BaseException) -> bool:
        """End the block with an exception; return whether the exception is suppressed."""
        message = self._message
        try:
            if not isinstance(error, Exception):
                message._give_back()
                return False
            log_failure(message, error)
            if not self._reraise:
                note(error)
            await message.retry()
            return not self._reraise
        finally:
            message._settler.end(self._attempt, message._outcome, error)

    async def __aenter__(self) -> ReceivedMessage:
        self.begin()
        return self._message

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is not None:
            return await self.fail(error)
        self.succeed()
        return False
