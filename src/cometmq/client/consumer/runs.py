"""Messages that a handler is done with at once, one after the other.

Most handlers do not wait: a plain function, or a coroutine that ends in its first step. Such
messages of one queue are a run: none is taken, settled or released by itself, and the queue's state
changes once, at the end. Nobody else works on the loop meanwhile, so nobody sees the difference.
Where a handler waits, raises, or says itself what becomes of its message, that message is taken as
any other is (:meth:`Run.leave`), and the run has ended in front of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any

from cometmq.client.consumer.received import Outcome, ReceivedMessage, UnreadMessage

if TYPE_CHECKING:
    from cometmq.client.consumer.dispatch import Dispatch
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.received import MessageView
    from cometmq.client.consumer.settling import ConsumerSettler
    from cometmq.client.hooks import ConsumeAttempt
    from cometmq.core.clock import Clock
    from cometmq.message.model import StoredMessage

#: What is left to do for the message at which a run ended: wait for something, or raise it.
Rest = tuple[ReceivedMessage, Awaitable[Any] | BaseException | None]


class Run:
    """The next messages of one queue; while a handler works on one, its Settler."""

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
        #: The message that a handler works on; None once it is taken, or the run is over.
        self._current: ReceivedMessage | None = None
        #: Where the run begins in its batch, and where that message is.
        self._begin = self._at = 0

    def work(
        self, handler: Callable[[ReceivedMessage], Awaitable[Any] | None], longest: int
    ) -> tuple[int, Rest | None]:
        """Call ``handler`` with at most ``longest`` messages; gives how many it got, and what is
        left to do for the last one, which is taken then."""
        inflight = self._inflight
        batch, begin = inflight.run()
        self._begin = self._at = begin
        end = min(len(batch), begin + longest)
        #: All messages, once somebody looked at one: who does looks at the next one, too.
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
                # Not through a name that stays: the error holds this frame.
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
        """Those before ``end`` are done."""
        self._current = None
        if end > self._begin:
            self._settler.run_succeeded(self._inflight, end - self._begin, self._begun_ms)

    def leave(self) -> None:
        """End the run in front of the message in work, which is taken."""
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
    """Take the first step of what a handler gave; gives what is left to wait for. Raises what the
    step raises."""
    if type(result) is not CoroutineType:
        return result
    try:
        awaited = result.send(None)
    except StopIteration:
        return None
    return _resumed(result, awaited)


@coroutine
def _resumed(stepped: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that waits for ``awaited`` already."""
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
