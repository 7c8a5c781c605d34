"""Messages that an administrator has a consumer process at once, outside its queues, to see the
result (upstream: ConsumeMessageService.consumeMessageDirectly).

Such a message is delivered like any other, to an iteration or to the handler, and counts against
the consumer's concurrency. It needs no lock. Settling it commits no offset and sends nothing back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cometmq.client.consumer.inflight import InFlight
from cometmq.core.errors import BadRequest
from cometmq.message.model import MessageList
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.consumerbodies import DirectResult

if TYPE_CHECKING:
    from cometmq.client.consumer.dispatch import Dispatch
    from cometmq.client.consumer.messageview import MessageView, Outcome
    from cometmq.client.consumer.received import Settler
    from cometmq.client.hooks import ConsumeAttempt
    from cometmq.core.clock import Clock
    from cometmq.message.model import StoredMessage

#: Time for which brokers wait for the result.
TIMEOUT_MS: Final = 10_000

SUCCESS: Final = "CR_SUCCESS"
LATER: Final = "CR_LATER"
RAISED: Final = "CR_THROW_EXCEPTION"
NOTHING: Final = "CR_RETURN_NULL"


class DirectConsumption:
    """Messages that one consumer was asked to process directly and has not finished.

    ``settler`` is the consumer's own; its hooks run for these messages too.
    """

    def __init__(
        self, clock: Clock, dispatch: Dispatch, settler: Settler, *, ordered: bool
    ) -> None:
        self._clock = clock
        self._dispatch = dispatch
        self._settler = settler
        self._ordered = ordered
        self._open: dict[InFlight, _DirectSettler] = {}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._open)

    def __contains__(self, inflight: InFlight) -> bool:
        return inflight in self._open

    def settler_of(self, inflight: InFlight) -> Settler:
        """Return the settler of a delivered message."""
        return self._open.get(inflight, self._settler) if self._open else self._settler

    async def consume(self, message: StoredMessage) -> DirectResult:
        """Have a message processed and return the result.

        Raises BadRequest (CONSUME_MSG_TIMEOUT) if the consumer did not take it, or not finish it,
        in time.
        """
        inflight = InFlight(message.queue, message.queue_offset)
        inflight.add(MessageList((message,)), message.queue_offset + 1)
        settler = _DirectSettler(self._settler, self._dispatch)
        self._open[inflight] = settler
        begun_ms = self._clock.monotonic_ms()
        self._dispatch.offer(inflight)
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                verdict, remark = await settler.done
        except TimeoutError:
            what = "is not done with it" if inflight.taken_count else "took it from the consumer"
            who = "its consumer" if inflight.taken_count else "nobody"
            raise BadRequest(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"message {message.message_id}: {who} {what} within {TIMEOUT_MS} ms",
            ) from None
        finally:
            inflight.dropped = True
            del self._open[inflight]
        took_ms = self._clock.monotonic_ms() - begun_ms
        return DirectResult(self._ordered, True, verdict, remark, took_ms)


class _DirectSettler:
    """Settler of one direct message: sets ``done`` to the result; see received.Settler."""

    def __init__(self, settler: Settler, dispatch: Dispatch) -> None:
        self.done: asyncio.Future[tuple[str, str | None]] = (
            asyncio.get_running_loop().create_future()
        )
        self._settler = settler
        self._dispatch = dispatch
        self._is_in_work = False
        self._verdict = NOTHING

    def begin(self, message: MessageView) -> ConsumeAttempt | None:
        self._is_in_work = True
        return self._settler.begin(message)

    def end(
        self, attempt: ConsumeAttempt | None, outcome: Outcome | None, error: BaseException | None
    ) -> None:
        self._settler.end(attempt, outcome, error)
        if isinstance(error, Exception):
            self._finish(RAISED, f"{type(error).__name__}: {error}")
        else:
            self._finish(self._verdict, None)

    def succeeded(self, inflight: InFlight, message: StoredMessage) -> None:
        self._settle(inflight, message, SUCCESS)

    async def failed(
        self, inflight: InFlight, message: StoredMessage, delay_level: int, pause_ms: int = 0
    ) -> None:
        self._settle(inflight, message, LATER)

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        self._settle(inflight, message, NOTHING)

    def _settle(self, inflight: InFlight, message: StoredMessage, verdict: str) -> None:
        inflight.settle(message)
        self._dispatch.release(inflight)
        self._verdict = verdict
        if not self._is_in_work:  # otherwise end() decides: it sees the block's error
            self._finish(verdict, None)

    def _finish(self, verdict: str, remark: str | None) -> None:
        if not self.done.done():
            self.done.set_result((verdict, remark))
