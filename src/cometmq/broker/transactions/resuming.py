"""Resumption of a transaction's checks: its producers are asked again, from the first check on
(upstream: AdminBrokerProcessor.resumeCheckHalfMessage). The request names a message:

    open half message    its checks are counted from 0 again; it is not stored again, because both
                         copies could be committed
    given up             it is stored as a half message again, once
    any other            the request is refused

A half message that was made of a given-up one has the physical offset of the latter in its field
preparedTransactionOffset, which is 0 in all other half messages. So the log alone says which
messages were resumed: before a half message is made, the half messages stored after the given-up
one are searched for one that was made of it already.
"""

from __future__ import annotations

import asyncio
import logging
from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.broker.lookup import find_record
from cometmq.broker.transactions.endtransaction import is_half
from cometmq.broker.transactions.halfindex import real_place
from cometmq.core.errors import BadRequest
from cometmq.message import properties as props
from cometmq.message.ids import decode_offset_id
from cometmq.message.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from cometmq.message.record import (
    LONGER_HOST_BYTES,
    TransactionType,
    head_of,
    host_flags,
    topic_tail,
    with_transaction_type,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.broker.context import BrokerContext
    from cometmq.broker.transactions.endtransaction import Transactions
    from cometmq.message.record import Record
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import ResumeCheckHalfMessage
    from cometmq.store.queue.consumequeue import ConsumeQueue

log = logging.getLogger(__name__)

#: Longest wait for earlier records to become readable.
DISPATCH_TIMEOUT_MS: Final = 5_000
_POLL_MS: Final = 5
#: Entries of the half queue read between two yields to the event loop.
_ENTRIES_A_READ: Final = 16_384
_SIZE: Final = Struct(">i")
_SIZE_AT: Final = 8


class ResumeHandler:
    """Serves RESUME_CHECK_HALF_MESSAGE."""

    def __init__(self, context: BrokerContext, transactions: Transactions) -> None:
        self._store = context.store
        self._appender = context.appender
        self._clock = context.clock
        self._transactions = transactions
        #: Held from the search for a resumed half message until one is appended.
        self._lock = asyncio.Lock()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}

    async def resume(self, peer: Peer, request: Request[ResumeCheckHalfMessage]) -> Reply:
        """Resume the checks of a message by its offset id; answer once that is stored.

        Raise BadRequest for a message that is no half message or whose transaction has ended, and
        StoreError if the half message was not stored.
        """
        msg_id = request.header.msg_id
        try:
            offset = decode_offset_id(msg_id).physical_offset
        except ValueError as error:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from None
        record = await find_record(self._store, offset)
        if record is None or real_place(props.decode(record.properties)) is None:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, f"{msg_id} is no half message here")
        if record.topic == HALF_TOPIC:
            half_offset = record.queue_offset
            if not self._begin_again(half_offset, offset):
                raise BadRequest(
                    ResponseCode.SYSTEM_ERROR,
                    f"the transaction of {msg_id} has ended; a message that was given up is in "
                    f"topic {CHECK_MAX_TIME_TOPIC}: resume it by its id there",
                )
        elif record.topic == CHECK_MAX_TIME_TOPIC:
            half_offset = await self._resume_given_up(msg_id, record)
        else:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"{msg_id} is in topic {record.topic}: only a half message can be resumed",
            )
        log.info("transaction resumed half_offset=%d by=%s", half_offset, peer.address)
        return Reply()

    def _begin_again(self, half_offset: int, physical_offset: int) -> bool:
        """Forget the checks of a half message; return False if its transaction has ended."""
        half = self._transactions.index.get(half_offset)
        if half is None or half.ending or half.physical_offset != physical_offset:
            return False
        self._transactions.index.forget_checks(half)
        return True

    async def _resume_given_up(self, msg_id: str, record: Record) -> int:
        """Store a given-up message as a half message again, unless that was done before; return the
        half offset."""
        properties = props.decode(record.properties)
        properties[props.TRANSACTION_CHECK_TIMES] = "0"
        half = OutgoingRecord(
            HALF_TOPIC,
            0,
            record.body,
            properties,
            record.born_ms,
            record.born_host,
            flag=record.flag,
            sys_flag=with_transaction_type(record.sys_flag, TransactionType.NONE),
            reconsume_times=record.reconsume_times,
            prepared_offset=record.physical_offset,
            raw_properties=props.encode(properties),
        )
        async with self._lock:
            before = await self._find_resumed(half)
            if before is None:
                self._transactions.ensure_topic(HALF_TOPIC)
                physical, half_offset = self._appender.append_record(half)
                self._transactions.prepared(half_offset, physical, properties)
                outcome = self._appender.turn_outcome()
        if before is None:
            await outcome
            return half_offset
        if not self._begin_again(before.queue_offset, before.physical_offset):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"{msg_id} was resumed before, and that transaction has ended; if it was given up "
                f"again, there is a later message of it in topic {CHECK_MAX_TIME_TOPIC}: resume "
                "that one",
            )
        return before.queue_offset

    async def _find_resumed(self, half: OutgoingRecord) -> Record | None:
        """Return the half message that was made of the same given-up message, or None.

        Raise BadRequest if earlier records do not become readable in time.
        """
        await self._see_all_appended()
        queue = self._store.find_queue(HALF_TOPIC, 0)
        if queue is None:
            return None
        start, sizes = _first_after(queue, half.prepared_offset), _sizes(half)
        while entries := queue.read(start, _ENTRIES_A_READ):
            for number in _of_sizes(entries, sizes):
                physical, _, _ = QUEUE_ENTRY.unpack_from(entries, number * QUEUE_ENTRY_BYTES)
                found = await find_record(self._store, physical)
                if (
                    found is not None
                    and is_half(found, start + number)
                    and found.prepared_offset == half.prepared_offset
                ):
                    return found
            start += len(entries) // QUEUE_ENTRY_BYTES
            await self._clock.sleep_ms(0)
        return None

    async def _see_all_appended(self) -> None:
        """Wait until all records appended so far can be read, or were refused."""
        await self._appender.between_turns(_nothing)
        end = self._store.committed_offset
        deadline_ms = self._clock.monotonic_ms() + DISPATCH_TIMEOUT_MS
        while self._store.dispatched_offset < end:
            if self._clock.monotonic_ms() >= deadline_ms:
                raise BadRequest(
                    ResponseCode.SYSTEM_ERROR,
                    "cannot say whether the message was resumed before: the log could not be read "
                    f"up to its end within {DISPATCH_TIMEOUT_MS} ms; try again",
                )
            await self._clock.sleep_ms(_POLL_MS)


def _nothing() -> None:
    """Do nothing between two turns."""


def _sizes(half: OutgoingRecord) -> tuple[int, int]:
    """Return the sizes that the record of a half message may have: the address of the store may
    have been an IPv4 or an IPv6 one."""
    raw = half.raw_properties or b""
    fixed_bytes = head_of(host_flags(half.born_host, b"")).size
    size = fixed_bytes + len(half.body) + len(topic_tail(half.topic)) + 2 + len(raw)
    return size, size + LONGER_HOST_BYTES


def _first_after(queue: ConsumeQueue, physical_offset: int) -> int:
    """Return the first offset of a queue whose record is after a place in the log."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        physical, size, _ = QUEUE_ENTRY.unpack(queue.read(middle, 1))
        if size == HOLE_SIZE or physical <= physical_offset:
            low = middle + 1
        else:
            high = middle
    return low


def _of_sizes(entries: bytes | bytearray, sizes: tuple[int, ...]) -> Iterator[int]:
    """Yield the numbers of the entries whose records have one of these sizes."""
    for size in sizes:
        packed = _SIZE.pack(size)
        at = entries.find(packed)
        while at >= 0:
            number, position = divmod(at, QUEUE_ENTRY_BYTES)
            if position == _SIZE_AT:
                yield number
            at = entries.find(packed, at + 1)
