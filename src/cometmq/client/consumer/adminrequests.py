"""Requests of administrators to a consumer, which brokers forward.

An administrator may reset the offsets of queues that are being read, have one message consumed
directly, and read a consumer's state (upstream: MQClientInstance.resetOffset,
ClientRemotingProcessor.java).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from cometmq.client.consumer.inflight import InFlight
from cometmq.client.routes import key_of, queue_of
from cometmq.core.errors import BadRequest
from cometmq.message.model import MessageList, from_record
from cometmq.message.record import BadRecord, decode_one
from cometmq.protocol.bodies import ClientStatus, DirectResult, read_offsets
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, object_map
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply

if TYPE_CHECKING:
    from cometmq.client.consumer.fetcher import Fetcher
    from cometmq.client.consumer.inflight import Dispatch
    from cometmq.client.consumer.offsets import OffsetStore
    from cometmq.client.consumer.received import Settler
    from cometmq.client.hooks import ConsumeAttempt, Outcome
    from cometmq.client.session import Session
    from cometmq.core.clock import Clock
    from cometmq.message.model import MessageQueue, MessageView, StoredMessage
    from cometmq.protocol import headers as h
    from cometmq.protocol.bodies import RunningInfo
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

_NOWHERE: Final = -1


class Resets:
    """Offset resets of the queues of one fetcher.

    ``releasing`` is the set of queues that a rebalance must not add now; it includes those that are
    being reset. ``until_idle`` waits until a queue may be read again. ``is_closed`` returns whether
    the consumer is closed. ``moved`` is called when a reset has ended.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        offsets: OffsetStore,
        releasing: set[MessageQueue],
        *,
        until_idle: Callable[[InFlight], Awaitable[None]],
        is_closed: Callable[[], bool],
        moved: Callable[[], None],
    ) -> None:
        self._fetcher = fetcher
        self._offsets = offsets
        self._releasing = releasing
        self._until_idle = until_idle
        self._is_closed = is_closed
        self._moved = moved
        #: Target offset of each queue that is being reset.
        self._moving: dict[MessageQueue, int] = {}

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets; ignore queues of other topics and those that are not read.

        Messages in progress may be finished, but do not change the offsets. A later reset of the
        same queue replaces an earlier one.
        """
        moves = []
        for queue, offset in offsets.items():
            if queue.topic != topic:
                continue
            if queue in self._moving:
                self._moving[queue] = offset
                self._offsets.update(queue, offset)
            elif self._fetcher.find(queue) is not None:
                self._moving[queue] = offset
                self._releasing.add(queue)
                moves.append(self._move(self._fetcher.stop(queue)))
        await asyncio.gather(*moves)

    async def _move(self, inflight: InFlight) -> None:
        queue, offset = inflight.queue, _NOWHERE
        try:
            while offset != self._moving[queue]:
                offset = self._moving[queue]
                # Before the wait: every persist from now on stores the new offset.
                self._offsets.update(queue, offset)
                await self._offsets.persist([queue], unchanged_too=True)
                await self._until_idle(inflight)
            inflight.reset(_NOWHERE)
            if not self._is_closed():
                log.info("offset_reset queue=%s to=%d", queue, offset)
                self._fetcher.start_at(queue, offset)
        finally:
            del self._moving[queue]
            self._releasing.discard(queue)
            self._moved()


#: Time for which brokers wait for the result.
TIMEOUT_MS: Final = 10_000

#: Results of a direct consumption, as in Java (upstream: CMResult.java).
SUCCESS: Final = "CR_SUCCESS"
LATER: Final = "CR_LATER"
RAISED: Final = "CR_THROW_EXCEPTION"
NOTHING: Final = "CR_RETURN_NULL"


class DirectConsumption:
    """Messages that one consumer has to process directly and has not finished.

    ``settler`` is the settler of the consumer; its hooks run for these messages too.
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
        """Return whether any direct messages are not finished."""
        return bool(self._open)

    def __contains__(self, inflight: InFlight) -> bool:
        return inflight in self._open

    def settler_of(self, inflight: InFlight) -> Settler:
        """Return the settler of a delivered message."""
        return self._open.get(inflight, self._settler) if self._open else self._settler

    async def consume(self, message: StoredMessage) -> DirectResult:
        """Have a message processed and return the result.

        Raises BadRequest (CONSUME_MSG_TIMEOUT) if it is not finished within TIMEOUT_MS.
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
            what = "did not finish it" if inflight.taken_count else "took it"
            who = "its consumer" if inflight.taken_count else "no consumer task"
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
        if not self._is_in_work:  # otherwise end() finishes, since it knows the exception
            self._finish(verdict, None)

    def _finish(self, verdict: str, remark: str | None) -> None:
        if not self.done.done():
            self.done.set_result((verdict, remark))


@runtime_checkable
class Inspected(Protocol):
    """Consumer that reports its state. Topics and queues have broker names."""

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the consumer's offset in each queue of a topic that it reads."""
        ...

    def running_info(self, *, with_stacks: bool) -> RunningInfo:
        """Return the queues, settings and statistics of the consumer."""
        ...


@runtime_checkable
class Operated(Protocol):
    """Consumer that carries out requests of administrators."""

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets; ignore queues that the consumer does not read."""
        ...

    async def consume_directly(self, message: StoredMessage) -> DirectResult:
        """Process a message now and return the result. Raises BadRequest on a timeout."""
        ...


class Inquiries:
    """Request handlers for the consumers of one session, registered by the constructor."""

    def __init__(self, session: Session) -> None:
        self._session = session
        session.remoting.on_request.update(
            {
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
                RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
                RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            }
        )

    async def _reset(self, address: str, request: Request[h.ResetOffset]) -> Reply:
        header = request.header
        offsets = {queue_of(key): at for key, at in read_offsets(request.body).items()}
        log.info(
            "offset_reset_requested group=%s topic=%s queues=%d told_by=%s",
            header.group, header.topic, len(offsets), address,
        )  # fmt: skip
        await self._operated(header.group).reset(header.topic, offsets)
        return Reply()

    async def _status(self, _address: str, request: Request[h.GetConsumerStatus]) -> Reply:
        header = request.header
        positions = self._inspected(header.group).positions(header.topic)
        table = object_map((key_of(queue), at) for queue, at in sorted(positions.items()))
        return Reply(body=encode_json(ClientStatus(table)))

    async def _running_info(
        self, _address: str, request: Request[h.GetConsumerRunningInfo]
    ) -> Reply:
        header = request.header
        consumer = self._inspected(header.consumer_group)
        info = consumer.running_info(with_stacks=truth(header.jstack_enable))
        return Reply(body=encode_json(info))

    async def _consume_directly(
        self, _address: str, request: Request[h.ConsumeMessageDirectly]
    ) -> Reply:
        header = request.header
        consumer = self._operated(header.consumer_group)
        try:
            message = from_record(decode_one(request.body), header.broker_name or "")
        except BadRecord as error:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"message cannot be read: {error}"
            ) from None
        return Reply(body=encode_json(await consumer.consume_directly(message)))

    def _inspected(self, group: str) -> Inspected:
        member: object = self._session.members.get(group)
        if not isinstance(member, Inspected):
            raise _nobody(group)
        return member

    def _operated(self, group: str) -> Operated:
        member: object = self._session.members.get(group)
        if not isinstance(member, Operated):
            raise _nobody(group)
        return member


def _nobody(group: str) -> BadRequest:
    return BadRequest(
        ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer"
    )
