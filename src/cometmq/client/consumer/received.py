"""Received messages: their content, and the methods that acknowledge or retry them, one by one or
in runs.

A run is a sequence of messages of one queue that a handler processes without waiting. Most handlers
do not wait: they are plain functions, or coroutines that end in their first step. The messages of a
run are not taken, settled and released one by one. The queue's state changes once, at the end of
the run. No other code runs on the loop before that, so the difference cannot be observed. If a
handler waits, raises, or settles its message itself, the run ends before that message, which is
then taken as usual (:meth:`Run.leave`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, Protocol

from cometmq.client.consumer.callbackerrors import log_failure, note
from cometmq.client.hooks import Outcome
from cometmq.message.model import MessageView

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.client.consumer.acknowledgements import ConsumerSettler
    from cometmq.client.consumer.inflight import Batch, Dispatch, InFlight
    from cometmq.client.hooks import ConsumeAttempt
    from cometmq.core.clock import Clock
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

        With a ``delay_level`` of 0 the broker chooses the delay. ``pause_ms`` is the pause of a
        message that stays with this consumer; 0 means the pause of the settings.
        """
        ...

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        """Return an unfinished message: it is delivered again, as if never delivered."""
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

    def processing(self, *, reraise: bool = False, settle: bool = True) -> Processing:
        """Return a block that settles the message when it ends: ``async with
        message.processing():``.

        A block that ends normally acknowledges the message. An Exception in the block is logged and
        the message is retried; the exception is raised again only with ``reraise``. If the block is
        cancelled the message is delivered again, here or to another member.

        Without ``settle`` the block only calls hooks at its start and end. Call :meth:`ack` or
        :meth:`retry` in the block or later; exceptions are not handled.
        """
        return Processing(self, reraise=reraise) if settle else Watching(self)

    def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        if self._outcome is None:
            self._outcome = Outcome.ACKNOWLEDGED
            self._settler.succeeded(self._inflight, self.stored)

    async def retry(self, delay_level: int = 0, *, pause_ms: int = 0) -> None:
        """Have the message delivered again later.

        The delay is that of ``delay_level``; with 0 it grows with the number of attempts. After the
        last attempt, or at once with a negative level, the message becomes a dead letter. A message
        of an ordered queue keeps its place: the queue pauses for ``pause_ms``, or for the setting
        ``ordered_retry_pause_ms`` if that is 0.
        """
        if self._outcome is None:
            self._outcome = Outcome.RETRIED
            await self._settler.failed(self._inflight, self.stored, delay_level, pause_ms)

    @property
    def is_given_up(self) -> bool:
        """True once the message's queue was released or reset. The message is then delivered again,
        here or to another member, and settling it has no effect.
        """
        return self._inflight.dropped

    def give_back(self) -> None:
        """Return the unfinished message: it is delivered again, as if never delivered."""
        if self._outcome is None:
            self._outcome = Outcome.RETURNED
            self._settler.returned(self._inflight, self.stored)


class UnreadMessage(ReceivedMessage):
    """Message ``at`` of a batch, decoded when it is first accessed.

    From then on it is a ReceivedMessage, and keeps no reference to the batch with all its bytes.
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
                message.give_back()
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


class Watching(Processing):
    """Block that settles nothing; see ReceivedMessage.processing."""

    __slots__ = ()

    def succeed(self) -> None:
        """End the block normally."""
        self._message._settler.end(self._attempt, self._message._outcome, None)

    async def fail(self, error: BaseException) -> bool:
        """End the block with an exception, which passes."""
        self._message._settler.end(self._attempt, self._message._outcome, error)
        return False


#: Message at which a run ended, and the rest of its processing: an awaitable, an exception to
#: raise, or None.
Rest = tuple[ReceivedMessage, Awaitable[Any] | BaseException | None]


class Run:
    """A run of messages of one queue. It is the Settler of the message that is being processed."""

    __slots__ = (
        "_at",
        "_begin",
        "_begun_ms",
        "_clock",
        "_current",
        "_dispatch",
        "_inflight",
        "_settler",
    )

    def __init__(
        self, clock: Clock, dispatch: Dispatch, settler: ConsumerSettler, inflight: InFlight
    ) -> None:
        self._clock = clock
        self._dispatch = dispatch
        self._settler = settler
        self._inflight = inflight
        self._begun_ms = clock.monotonic_ms()
        #: Message that the handler is called with; None once it was taken, or after the run.
        self._current: ReceivedMessage | None = None
        #: Indexes in the batch of the first message of the run and of the current one.
        self._begin = self._at = 0

    def work(
        self, handler: Callable[[ReceivedMessage], Awaitable[Any] | None], longest: int
    ) -> tuple[int, Rest | None]:
        """Call ``handler`` with at most ``longest`` messages.

        Returns the number of these messages, and the rest of the processing of the last one, which
        was taken from the queue; None if all are settled.
        """
        inflight = self._inflight
        batch, begin = inflight.run()
        self._begin = self._at = begin
        end = min(len(batch), begin + longest)
        # Decode all messages of the batch once the handler has accessed one, because it usually
        # accesses the next ones too.
        made: list[StoredMessage] | None = None
        message: ReceivedMessage
        for at in range(begin, end):
            if made is not None:
                message = ReceivedMessage(self, inflight, made[at])
            else:
                message = UnreadMessage(self, inflight, batch, at)
            self._current = message
            self._at = at
            try:
                result = handler(message)
                rest = None if result is None else _step(result)
            except BaseException as error:
                self.leave()
                # Do not store the error in a variable: its traceback refers to this frame.
                return at + 1 - begin, (message, error)
            if rest is not None or self._current is None:
                self.leave()
                return at + 1 - begin, (message, rest)
            message._outcome = Outcome.ACKNOWLEDGED
            if made is None and type(message) is ReceivedMessage:
                made = list(batch)
        self._settle(end)
        self._dispatch.end_run(inflight)
        return end - begin, None

    def _settle(self, end: int) -> None:
        """Settle the messages of the run before index ``end``."""
        self._current = None
        if end > self._begin:
            self._settler.run_succeeded(self._inflight, end - self._begin, self._begun_ms)

    def leave(self) -> None:
        """End the run before the current message and take that message from the queue."""
        message = self._current
        if message is not None:
            self._settle(self._at)
            message._settler = self._settler
            taken = self._dispatch.break_run(self._inflight)
            assert taken is message.stored

    # ------------------------------------------------------------------ Settler

    def begin(self, message: MessageView) -> ConsumeAttempt | None:
        self.leave()
        return self._settler.begin(message)

    def end(
        self, attempt: ConsumeAttempt | None, outcome: Outcome | None, error: BaseException | None
    ) -> None:
        self._settler.end(attempt, outcome, error)

    def succeeded(self, inflight: InFlight, message: StoredMessage) -> None:
        self.leave()
        self._settler.succeeded(inflight, message)

    async def failed(
        self, inflight: InFlight, message: StoredMessage, delay_level: int, pause_ms: int = 0
    ) -> None:
        self.leave()
        await self._settler.failed(inflight, message, delay_level, pause_ms)

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        self.leave()
        self._settler.returned(inflight, message)


def _step(result: Awaitable[Any]) -> Awaitable[Any] | None:
    """Run the first step of a handler's coroutine; return an awaitable for the rest, or None.

    Raises what the step raises. Other awaitables are returned unchanged.
    """
    if type(result) is not CoroutineType:
        return result
    try:
        awaited = result.send(None)
    except StopIteration:
        return None
    return _resumed(result, awaited)


@coroutine
def _resumed(stepped: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """Continue a coroutine after its first step, in which it began to wait for ``awaited``."""
    step: Callable[[Any], Any]
    while True:
        try:
            value = yield awaited
        except GeneratorExit:
            stepped.close()
            raise
        except BaseException as error:
            step, given = stepped.throw, error
        else:
            step, given = stepped.send, value
        try:
            awaited = step(given)
        except StopIteration as stop:
            return stop.value
