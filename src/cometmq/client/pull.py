"""Pulls from any offset of a queue: single pulls, ranges, and offset queries.

Each response suggests a replica of the broker for the next pull of the queue; :class:`Puller`
follows the suggestion (upstream: PullAPIWrapper.java, MQAdminImpl.java).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.core.errors import BrokerRefused, ClientError, CometError, NotConnected
from cometmq.message.model import MessageQueue, StoredMessage, read_messages
from cometmq.net.client import Pulled
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import MASTER_ID
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fields import from_ext
from cometmq.protocol.frame import Response

if TYPE_CHECKING:
    import asyncio

    from cometmq.client.session import Session
    from cometmq.message.model import MessageList
    from cometmq.net.client import CutHead
    from cometmq.speedups import Records

#: Group that every broker knows, for reading without joining a group.
READER_GROUP: Final = "TOOLS_CONSUMER"

_COMMIT: Final = 1
_SUSPEND: Final = 2
_SUBSCRIPTION: Final = 4
#: Header fields that differ from one pull of a queue to the next.
_NUMBERS: Final = ("queueOffset", "sysFlag", "commitOffset")
#: Maximum number of cached headers.
_HEADS_MAX: Final = 1_024


class PullStatus(Enum):
    """Result of a pull, from the response code."""

    FOUND = ResponseCode.SUCCESS.value
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND.value
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY.value
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED.value


_STATUS: Final = {status.value: status for status in PullStatus}


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages of a pull.

    Their offsets are in ``[requested offset, next_offset)``; the queue holds
    ``[min_offset, max_offset)``.
    """

    status: PullStatus
    #: The messages; each is decoded when it is first accessed.
    found: Records[StoredMessage] | MessageList
    next_offset: int
    min_offset: int
    max_offset: int

    @property
    def messages(self) -> list[StoredMessage]:
        """All messages, decoded."""
        return list(self.found)

    def leads_on_from(self, offset: int) -> bool:
        """Return False if the response only asks to repeat the pull at ``offset``.

        Slaves send such a response if they lack messages of their master, or may not be read.
        """
        return self.status is not PullStatus.NOTHING_MATCHED or self.next_offset > offset


class OffsetsLost(ClientError):
    """Messages of a range are no longer in ``queue``, or not yet stored.

    ``offset`` is that of the pull that failed. The queue holds ``[min_offset, max_offset)``.
    """

    def __init__(self, queue: MessageQueue, offset: int, min_offset: int, max_offset: int) -> None:
        self.queue = queue
        self.offset = offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        super().__init__(
            f"offset {offset} of queue {queue.queue_id} of {queue.topic!r} on "
            f"{queue.broker_name}: the queue holds {min_offset} to {max_offset}"
        )


class _Asked(NamedTuple):
    """Header fields that stay the same from one pull of a queue to the next."""

    queue: MessageQueue
    group: str
    max_messages: int
    suspend_ms: int
    sub_version: int
    subscription: str | None
    expression_type: str | None


class Puller:
    """Reads queues for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._config = session.config
        self._suggested: dict[MessageQueue, int] = {}
        self._heads: dict[_Asked, CutHead] = {}

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        group: str = READER_GROUP,
        max_messages: int = 32,
        subscription: str = "*",
        expression_type: str = "TAG",
        sub_version: int = 0,
        commit_offset: int | None = None,
        suspend_ms: int = 0,
        subscription_known: bool = False,
    ) -> PullResult:
        """Pull at most ``max_messages`` messages from ``offset`` on.

        If there are none, the broker may hold the request for ``suspend_ms``. A master also commits
        ``commit_offset`` for ``group``. With ``subscription_known`` the broker uses the
        subscription from the group's heartbeats, not the one passed here. Raises NotConnected,
        RequestTimedOut, BrokerRefused.
        """
        queue = self._session.namespace.wrap_queue(queue)
        suggested = self._suggested.get(queue, MASTER_ID)
        replica = self._session.replicas.to_pull_from(queue.broker_name, suggested)
        if replica is None:
            replica = MASTER_ID, await self._session.master_of(queue)
        broker_id, address = replica
        commits = commit_offset is not None and broker_id == MASTER_ID
        known = _SUSPEND if suspend_ms else 0
        known |= 0 if subscription_known else _SUBSCRIPTION
        pieces = self._pieces(
            _Asked(
                queue, group, max_messages, suspend_ms, sub_version, subscription, expression_type
            )
        )
        flags = known | _COMMIT if commits else known
        numbers = offset, flags, commit_offset if commits and commit_offset is not None else -1
        try:
            answer = await self._session.remoting.pull(
                address, pieces, numbers, timeout_ms=self._config.pull_timeout_ms
            )
        except NotConnected:
            self._session.replicas.failed(address, queue.topic)
            raise
        if isinstance(answer, Response):
            status = _STATUS.get(answer.code)
            if status is None:
                code = RequestCode.PULL_MESSAGE
                raise BrokerRefused(address, code, answer.code, answer.remark or "")
            fields = from_ext(h.PullMessageResponse, answer.ext)
            answer = Pulled(
                answer.body,
                fields.suggest_which_broker_id,
                fields.next_begin_offset,
                fields.min_offset,
                fields.max_offset,
            )
        else:
            status = PullStatus.FOUND
        self._session.outages.answered(address, RequestCode.PULL_MESSAGE, queue.topic)
        body, suggested_id, *offsets = answer
        if suggested_id:
            self._suggested[queue] = suggested_id
        elif self._suggested:
            self._suggested.pop(queue, None)
        return PullResult(status, read_messages(body, queue.broker_name), *offsets)

    def _pieces(self, asked: _Asked) -> CutHead:
        """Return the pieces of an encoded pull header around the fields of _NUMBERS."""
        pieces = self._heads.get(asked)
        if pieces is None:
            header = h.PullMessage(
                consumer_group=asked.group,
                topic=asked.queue.topic,
                queue_id=asked.queue.queue_id,
                queue_offset=0,
                max_msg_nums=asked.max_messages,
                sys_flag=0,
                commit_offset=0,
                suspend_timeout_millis=asked.suspend_ms,
                sub_version=asked.sub_version,
                subscription=asked.subscription,
                expression_type=asked.expression_type,
            )
            pieces = self._session.remoting.cut_head(RequestCode.PULL_MESSAGE, header, _NUMBERS)
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            self._heads[asked] = pieces
        return pieces

    async def read_range(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        *,
        group: str = READER_GROUP,
        batch_messages: int = 32,
        strict: bool = True,
    ) -> AsyncIterator[list[StoredMessage]]:
        """Yield the messages of ``queue`` with ``start <= offset < end``, in order, pull by pull.

        The next pull runs while the caller processes the messages of the last one. If some offsets
        are not in the queue, raises OffsetsLost, or skips them without ``strict``. Raises the
        errors of :meth:`pull` too.
        """
        if start >= end:
            return
        offset = start
        pending = self._pull_ahead(queue, offset, group, min(batch_messages, end - offset))
        try:
            while True:
                result = await pending
                if isinstance(result, CometError):
                    raise result
                found = [each for each in result.found if each.queue_offset < end]
                _check_progress(queue, offset, end, result, strict=strict)
                offset = result.next_offset
                done = offset >= end or result.status is PullStatus.NOTHING_NEW
                if not done:
                    count = min(batch_messages, end - offset)
                    pending = self._pull_ahead(queue, offset, group, count)
                if found:
                    yield found
                if done:
                    return
        finally:
            pending.cancel()

    def _pull_ahead(
        self, queue: MessageQueue, offset: int, group: str, count: int
    ) -> asyncio.Task[PullResult | CometError]:
        async def pull() -> PullResult | CometError:
            try:
                return await self.pull(queue, offset, group=group, max_messages=count)
            except CometError as error:
                return error  # read_range() raises it, in the caller's task

        name = f"read {queue.topic}-{queue.queue_id}"
        return self._session.tasks.spawn(pull(), name=name)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of ``queue`` will get.

        Raises the errors of :meth:`pull`.
        """
        return await self._offset(RequestCode.GET_MAX_OFFSET, queue, None)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest offset in ``queue``. Raises the errors of :meth:`pull`."""
        return await self._offset(RequestCode.GET_MIN_OFFSET, queue, None)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the approximate offset of the message stored at ``timestamp_ms`` (wall time).

        If no message has that time, brokers of version 4 return the offset of the nearest one.
        Raises the errors of :meth:`pull`.
        """
        queue = self._session.namespace.wrap_queue(queue)
        header = h.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, header)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset whose message was stored at ``timestamp_ms`` or later.

        ``timestamp_ms`` is wall time. Return the end of the queue if there is no such message.
        Raises the errors of :meth:`pull`.
        """
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        at, step = await self.search_offset(queue, timestamp_ms), 1
        is_above = is_below = False
        while low < high:
            at = min(max(at, low), high - 1)
            if await self._is_stored_before(queue, at, timestamp_ms):
                low, is_above = at + 1, True
            else:
                high, is_below = at, True
            if is_above and is_below:
                at = (low + high) // 2
            else:  # the broker's offset is nearly exact, so search outward from it
                at = low + step - 1 if is_above else high - step
                step *= 2
        return low

    async def _is_stored_before(self, queue: MessageQueue, offset: int, moment_ms: int) -> bool:
        result = await self.pull(queue, offset, max_messages=1)
        return not result.found or result.found[0].store_ms < moment_ms

    async def earliest_store_ms(self, queue: MessageQueue) -> int:
        """Return the store time of the oldest message of ``queue`` (wall time); -1 if it is empty.

        Raises the errors of :meth:`pull`.
        """
        response = await self._ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue, None)
        return from_ext(h.EarliestStoreTimeResponse, response.ext).timestamp

    async def _offset(self, code: RequestCode, queue: MessageQueue, header: h.Header | None) -> int:
        response = await self._ask(code, queue, header)
        return from_ext(h.QueueOffsetResponse, response.ext).offset

    async def _ask(
        self, code: RequestCode, queue: MessageQueue, header: h.Header | None
    ) -> Response:
        queue = self._session.namespace.wrap_queue(queue)
        asked = header or h.TopicQueue(topic=queue.topic, queue_id=queue.queue_id)
        return await self._session.replicas.call(queue, code, asked)


def _check_progress(
    queue: MessageQueue, offset: int, end: int, result: PullResult, *, strict: bool
) -> None:
    if result.status is PullStatus.OFFSET_MOVED and result.next_offset < offset:
        # The queue ends before the offset; a pull from its end would read other messages.
        raise OffsetsLost(queue, offset, result.min_offset, result.max_offset)
    if strict and (
        result.status is PullStatus.OFFSET_MOVED
        or (result.status is PullStatus.NOTHING_NEW and result.next_offset < end)
    ):
        raise OffsetsLost(queue, offset, result.min_offset, result.max_offset)
    if not result.leads_on_from(offset):
        raise NotConnected(queue.broker_name, f"pull at offset {offset} makes no progress")
