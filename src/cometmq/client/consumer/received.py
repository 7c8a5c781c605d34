"""A message in a consumer's hands: what it says, and how it is acknowledged or given back."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from cometmq.client.consumer.failures import log_failure, note
from cometmq.message import properties as props

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.client.consumer.inflight import Batch, InFlight
    from cometmq.client.hooks import ConsumeAttempt
    from cometmq.message.model import MessageQueue, StoredMessage


class Outcome(Enum):
    """What became of a message that was given."""

    ACKNOWLEDGED = "acknowledged"
    RETRIED = "retried"
    RETURNED = "returned"


class Settler(Protocol):
    """What happens to a message when its consumer is done with it."""

    def begin(self, message: MessageView) -> ConsumeAttempt | None:
        """The consumer works on a message now; gives what :meth:`end` is to be told."""
        ...

    def end(
        self, attempt: ConsumeAttempt | None, outcome: Outcome | None, error: BaseException | None
    ) -> None:
        """It no longer does, whatever came of it."""
        ...

    def succeeded(self, inflight: InFlight, message: StoredMessage) -> None:
        """Never give it again."""
        ...

    async def failed(
        self, inflight: InFlight, message: StoredMessage, delay_level: int, pause_ms: int = 0
    ) -> None:
        """Give it again later; 0 leaves the delay to the broker, and the pause of a message that
        stays here to the settings. Does not raise ClientError."""
        ...

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        """Nobody worked on it to an end: give it again as if it had not been given."""
        ...


class MessageView:
    """What a received message says."""

    __slots__ = ("stored",)

    def __init__(self, stored: StoredMessage) -> None:
        #: The message as the broker stored it.
        self.stored = stored

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id} of {self.topic!r} tag {self.tag!r}>"

    @property
    def topic(self) -> str:
        """Where it was first sent; a retried message is stored in its group's retry topic."""
        return self.stored.properties.get(props.RETRY_TOPIC) or self.stored.topic

    @property
    def body(self) -> bytes:
        """The body as its sender gave it."""
        return self.stored.body

    @property
    def tag(self) -> str:
        """The tag, or an empty text."""
        return self.stored.tag

    @property
    def keys(self) -> tuple[str, ...]:
        """The index keys that its sender gave."""
        return self.stored.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, reserved ones included."""
        return self.stored.properties

    @property
    def message_id(self) -> str:
        """The sender's unique key: the same in every copy that retries make."""
        return self.stored.message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was read from."""
        return self.stored.queue

    @property
    def queue_offset(self) -> int:
        """Its offset there."""
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was given back before."""
        return self.stored.reconsume_times

    @property
    def born_ms(self) -> int:
        """When it was sent, by its sender's clock, in milliseconds since the epoch."""
        return self.stored.born_ms

    @property
    def store_ms(self) -> int:
        """When it was stored, by its broker's clock, in milliseconds since the epoch."""
        return self.stored.store_ms


class ReceivedMessage(MessageView):
    """One message of a subscription. It stays the subscription's until :meth:`ack`,
    :meth:`retry` or the end of :meth:`processing`, whichever comes first; later calls do
    nothing."""

    __slots__ = ("_at", "_batch", "_inflight", "_outcome", "_settler")

    _at: int
    _batch: Batch | None

    def __init__(self, settler: Settler, inflight: InFlight, stored: StoredMessage) -> None:
        self.stored = stored
        self._inflight = inflight
        self._settler = settler
        self._outcome: Outcome | None = None

    def processing(self, *, reraise: bool = False) -> Processing:
        """``async with message.processing():`` acknowledges the message when the block is left. An
        Exception in it is logged, sends the message to be retried, and goes no further, unless
        ``reraise``. When the block is cancelled the message is given again, here or to another
        member."""
        return Processing(self, reraise=reraise)

    def ack(self) -> None:
        """Done: never give it again."""
        if self._outcome is None:
            self._outcome = Outcome.ACKNOWLEDGED
            self._settler.succeeded(self._inflight, self.stored)

    async def retry(self, delay_level: int = 0, *, pause_ms: int = 0) -> None:
        """Give it again later: after the time of ``delay_level``, or one that grows with its
        attempts when 0. After its last attempt it becomes a dead letter; a negative level makes
        it one at once. A message of an ordered queue keeps its place: the queue rests for
        ``pause_ms``, or ``ordered_retry_pause_ms`` when 0."""
        if self._outcome is None:
            self._outcome = Outcome.RETRIED
            await self._settler.failed(self._inflight, self.stored, delay_level, pause_ms)

    def _give_back(self) -> None:
        if self._outcome is None:
            self._outcome = Outcome.RETURNED
            self._settler.returned(self._inflight, self.stored)


class UnreadMessage(ReceivedMessage):
    """Message ``at`` of a batch, which is made when somebody looks at it. From then on this is a
    ReceivedMessage as any other, and the batch with all its bytes is let go."""

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
        # Looking is cheaper without this method.
        self.__class__ = ReceivedMessage  # type: ignore[assignment]
        return self.stored


class Processing:
    """The block in which a message is worked on; see ReceivedMessage.processing."""

    __slots__ = ("_attempt", "_message", "_reraise")

    def __init__(self, message: ReceivedMessage, *, reraise: bool = False) -> None:
        self._message = message
        self._reraise = reraise
        self._attempt: ConsumeAttempt | None = None

    def begin(self) -> None:
        """The block is entered."""
        self._attempt = self._message._settler.begin(self._message)

    def succeed(self) -> None:
        """The block was left by its end."""
        message = self._message
        try:
            message.ack()
        finally:
            message._settler.end(self._attempt, message._outcome, None)

    async def fail(self, error: BaseException) -> bool:
        """The block raised; gives whether the error goes no further."""
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
