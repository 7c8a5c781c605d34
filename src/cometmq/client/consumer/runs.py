"""Runs: consecutive messages of one queue that a handler processes without waiting.

Most handlers do not wait: a plain function, or a coroutine that ends in its first step. The
messages of a run are not taken, settled and released one by one: the queue's state changes once, at
the end. No other code runs on the loop meanwhile, so the difference cannot be observed. When a
handler waits, raises, or settles its message itself, the run ends before that message, which is
then taken as usual (:meth:`Run.leave`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any

from cometmq.client.consumer.messageview import Outcome
from cometmq.client.consumer.received import ReceivedMessage, UnreadMessage

if TYPE_CHECKING:
    from cometmq.client.consumer.inflight import Dispatch, InFlight
    from cometmq.client.consumer.messageview import MessageView
    from cometmq.client.consumer.settling import ConsumerSettler
    from cometmq.client.hooks import ConsumeAttempt
    from cometmq.core.clock import Clock
    from cometmq.message.model import StoredMessage

#: The message at which a run ended, and the rest of its processing: an awaitable to wait for, an
#: exception to raise, or None.
Rest = tuple[ReceivedMessage, Awaitable[Any] | BaseException | None]


class Run:
    """A run of messages of one queue. It is the Settler of the message that a handler works on."""

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
        #: Message that the handler works on; None once it is taken, or the run is over.
        self._current: ReceivedMessage | None = None
        #: Indexes in the batch of the first message of the run and of the current one.
        self._begin = self._at = 0

    def work(
        self, handler: Callable[[ReceivedMessage], Awaitable[Any] | None], longest: int
    ) -> tuple[int, Rest | None]:
        """Call ``handler`` with at most ``longest`` messages.

        Returns the number of messages that it got, and the rest of the processing of the last one,
        which is taken then; None if all are settled.
        """
        inflight = self._inflight
        batch, begin = inflight.run()
        self._begin = self._at = begin
        end = min(len(batch), begin + longest)
        #: All messages of the batch, decoded once the handler accessed one: a handler that
        #: accesses one message usually accesses the next ones too.
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
                # Keep the error in no local variable: its traceback refers to this frame.
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

    # ------------------------------------------------------------------ received.Settler

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
    """Run the first step of a handler's awaitable; return what is left to await, or None.

    Raises what that step raises.
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
    """Continue a coroutine whose first step was run and that waits for ``awaited``."""
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
