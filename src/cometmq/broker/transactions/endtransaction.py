"""Commit and rollback of transactions (upstream: EndTransactionProcessor.java,
TransactionalMessageBridge.java).

    prepare     broker/send/handler.py stores a half message and registers it in the index here
    commit      a copy is stored in its real topic, or waits for its time (timers/rules.py), then
                an op message that names the half message
    rollback    the op message alone is stored
    unknown     nothing changes; broker/transactions/checkback.py asks again

A transaction ends once: a second request to end it is answered with an error. Copy and op message
are appended in one turn, so a disk failure loses both or none.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.broker.lookup import find_record
from cometmq.broker.scheduled.timers.rules import TimerRules, wants_timer
from cometmq.broker.transactions.halfindex import HalfIndex, OpTrail, immunity_ms, real_place
from cometmq.core.errors import BadRequest, CometError
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TIMER_TOPIC,
)
from cometmq.message.record import (
    BadRecord,
    Record,
    TransactionType,
    decode_one,
    with_transaction_type,
)
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.bodies import PERM_READ, PERM_WRITE, TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply
from cometmq.speedups import Half

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.acknowledgement import WaitingRows, WaitingTransaction
    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import EndTransaction, SendMessage
    from cometmq.store.queue.consumequeue import ConsumeQueue

log = logging.getLogger(__name__)

#: Maximum number of half messages that are cached in the form in which they will be delivered, and
#: the largest body cached. Most commits come soon, and then need not read the half message.
MAX_REMEMBERED: Final = 2_048
_MAX_REMEMBERED_BYTES: Final = 8_192
#: Properties of op messages; the tag means that the named half message has ended.
_DONE: Final = props.encode({props.TAGS: "d"})
_DONE_CODE: Final = tag_code("d")
_NONE, _COMMIT, _ROLLBACK = map(
    int, (TransactionType.NONE, TransactionType.COMMIT, TransactionType.ROLLBACK)
)


class Transactions:
    """The open transactions of a broker; serves END_TRANSACTION."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = config = context.config
        self._store = store = context.store
        self._appender = appender = context.appender
        self._topics = topics = context.tables.topics
        self._clock = context.clock
        self._tasks = context.tasks
        self._timers = TimerRules(config)
        self._recent_copies: dict[int, OutgoingRecord] = {}
        self._failures = 0
        self.index = HalfIndex()
        self.trail = OpTrail(0, 0)
        appender.on_transactions_ended.append(self._ended)
        topics.on_change.append(self._forget_lost_topics)
        store.queues.on_gone.append(self._forget_queue)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.END_TRANSACTION: self.end}

    # ------------------------------------------------------------------------------------- prepare

    def ensure_topic(self, topic: str) -> None:
        """Create a topic of one queue if it is missing."""
        if self._topics.get(topic) is None:
            self._topics.put(TopicConfig(topic, 1, 1, PERM_READ | PERM_WRITE))

    def _forget_lost_topics(self) -> None:
        # The next half message, or end, takes the slow path, which creates the topic again.
        if HALF_TOPIC not in self._topics:
            self.index.half_queue = None
        if OP_HALF_TOPIC not in self._topics:
            self.index.op_queue = None

    def _forget_queue(self, queue: ConsumeQueue) -> None:
        if queue is self.index.half_queue:
            self.index.half_queue = None
        if queue is self.index.op_queue:
            self.index.op_queue = None

    def prepared(
        self,
        half_offset: int,
        physical_offset: int,
        properties: Mapping[str, str],
        copy: OutgoingRecord | None = None,
    ) -> None:
        """Register a half message that was appended in this turn.

        Afterwards sends may append half messages in batches. ``copy`` is the result of
        :func:`committed_send`.
        """
        immunity = immunity_ms(properties, self._config.transaction_time_out)
        group = properties.get(props.PRODUCER_GROUP, "")
        half = Half(physical_offset, group, self._store.state.last_ms, immunity)
        self.index.add(half_offset, half, self._clock.monotonic_ms() + immunity)
        if self.index.half_queue is None:
            self.index.half_queue = self._store.queue(HALF_TOPIC, 0)
        if copy is not None and len(copy.body) <= _MAX_REMEMBERED_BYTES:
            copies = self._recent_copies
            if len(copies) >= MAX_REMEMBERED:
                del copies[next(iter(copies))]
            copies[half_offset] = copy

    def _remembered(self, half_offset: int, half: Half) -> OutgoingRecord | None:
        """Return the cached copy of a recent half message, as consumers will get it, or None."""
        if self._failures != self._store.state.put_failures:
            # After a failed write, records appended before it may not be stored.
            self._failures = self._store.state.put_failures
            self._recent_copies.clear()
        copy = self._recent_copies.pop(half_offset, None)
        return copy if copy and copy.prepared_offset == half.physical_offset else None

    # ----------------------------------------------------------------------------------------- end

    def end(self, peer: Peer, request: Request[EndTransaction]) -> Reply | None:
        """Commit or roll back; answer once that is stored. "Unknown" changes nothing."""
        header = request.header
        kind = header.commit_or_rollback
        if kind == _NONE:
            log.info(
                "transaction unknown half_offset=%d group=%s",
                header.tran_state_table_offset, header.producer_group,
            )  # fmt: skip
            return Reply()
        if kind != _COMMIT and kind != _ROLLBACK:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {kind}: it must be 8 (commit), 12 (roll back) or 0 (unknown)",
            )
        half = self._open(header)
        half_offset = header.tran_state_table_offset
        copy = self._remembered(half_offset, half)
        if copy is not None:
            self.conclude(half_offset, half, copy if kind == _COMMIT else None, peer, request)
            return None
        view = self._store.message_at(half.physical_offset)
        if view is None:
            begin_task(peer, urgent=True)
            half.ending = True
            self._tasks.spawn(self._end_cold(peer, request, half), name="end transaction")
            return None
        self._end(peer, request, half, _decoded(view))
        return None

    def _open(self, header: EndTransaction) -> Half:
        """Return the open transaction that a request names. Raises BadRequest if there is none."""
        half = self.index.get(header.tran_state_table_offset)
        if half is None or half.ending:
            state = "has ended or never existed" if half is None else "is ending"
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed: the transaction at half offset "
                f"{header.tran_state_table_offset} {state}",
            )
        if header.producer_group != half.group:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if header.commit_log_offset != half.physical_offset:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        return half

    async def _end_cold(self, peer: Peer, request: Request[EndTransaction], half: Half) -> None:
        """End a transaction whose half message must first be written, or be read from the disk."""
        try:
            await self._appender.written(half.physical_offset)
            record = await find_record(self._store, half.physical_offset)
            self._end(peer, request, half, record)
        except CometError as error:
            half.ending = False
            peer.reply(request, Reply(error.code, remark=error.remark))
        except Exception as error:
            # Such as an error of the disk. The transaction stays open: its producer is asked again.
            half.ending = False
            log.exception("transaction not ended half_physical=%d", half.physical_offset)
            peer.reply(request, Reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        finally:
            end_task(peer)

    def _end(
        self, peer: Peer, request: Request[EndTransaction], half: Half, record: Record | None
    ) -> None:
        if record is None or not is_half(record, request.header.tran_state_table_offset):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed: the half message is lost",
            )
        copy = None
        if request.header.commit_or_rollback == _COMMIT:
            copy = committed(record)
            if copy is None:
                raise BadRequest(
                    ResponseCode.SYSTEM_ERROR,
                    "the half message has no property with its real topic",
                )
            copy = self._timed(copy)
        self.conclude(request.header.tran_state_table_offset, half, copy, peer, request)

    def _timed(self, copy: OutgoingRecord) -> OutgoingRecord:
        """Return the copy; if it has a delivery time, return it in its form for the timer topic."""
        if not wants_timer(copy.properties):
            return copy
        now_ms = self._clock.wall_ms()
        parked = self._timers.place_for(copy.topic, copy.queue_id, copy.properties, now_ms)
        if parked is None:
            return copy
        self.ensure_topic(TIMER_TOPIC)
        topic, queue_id, properties = parked
        return msgspec.structs.replace(
            copy, topic=topic, queue_id=queue_id, properties=properties, raw_properties=None
        )

    def conclude(
        self,
        half_offset: int,
        half: Half,
        copy: OutgoingRecord | None,
        peer: Peer | None = None,
        request: Request[EndTransaction] | None = None,
    ) -> None:
        """Append ``copy``, if any, and the op message; the transaction ends once both are stored.

        ``request``, if any, is answered then. Raise StoreError or MessageIllegal if nothing could
        be appended.
        """
        half.ending = True
        store = self._store
        try:
            self.ensure_topic(OP_HALF_TOPIC)
            # Before the copy is appended: without an op message the copy would be delivered again.
            ops = self.index.op_queue = store.queue(OP_HALF_TOPIC, 0)
            if copy is not None:
                self._appender.append_record(copy)
            _, op_offset = store.append(
                ops, b"%d" % half_offset, _DONE, flag=0, sys_flag=0, tag_code=_DONE_CODE,
                born_ms=self._clock.wall_ms(), born_host=store.store_host,
            )  # fmt: skip
        except Exception:
            half.ending = False
            raise
        self._appender.add_transaction((half_offset, half, op_offset, peer, request))

    def _ended(
        self,
        waiting: list[WaitingTransaction],
        rows: list[WaitingRows],
        error: CometError | None,
    ) -> None:
        """Finish the transactions that ended in the turn that was just stored, or failed with
        ``error``.

        Requests in ``waiting`` are answered here; those in ``rows`` are answered with their batch.
        """
        # Settle all of them first: a failing answer must not leave another transaction open.
        runs = [batch.settle(at, stop, stored=error is None) for _, batch, at, stop in rows]
        runs += [(op_offset, [half_offset]) for half_offset, _, op_offset, _, _ in waiting]
        if error is not None:
            for _, half, _, _, _ in waiting:
                half.ending = False
            for _, half_offsets in runs:
                for half_offset in half_offsets:
                    log.error("transaction not ended half_offset=%d error=%s", half_offset, error)
        else:
            for half_offset, _, _, _, _ in waiting:
                self.index.remove(half_offset)
            if waiting:
                runs.sort()  # batched and single ends may alternate in the op queue
            for op_offset, half_offsets in runs:
                self.trail.stored_run(op_offset, half_offsets)
        for half_offset, _, _, peer, request in waiting:
            if peer is not None and request is not None:
                _answer(half_offset, peer, request, error)


def _answer(
    half_offset: int, peer: Peer, request: Request[EndTransaction], error: CometError | None
) -> None:
    try:
        if error is None:
            peer.router.acknowledge(peer, request)
        else:
            peer.reply(request, Reply(error.code, remark=error.remark))
    except Exception:
        log.exception("transaction not answered half_offset=%d peer=%s", half_offset, peer.address)


def is_half(record: Record, half_offset: int) -> bool:
    """Decide whether a record is the half message at this half offset."""
    return record.topic == HALF_TOPIC and record.queue_offset == half_offset


def committed(record: Record) -> OutgoingRecord | None:
    """Return a half message as consumers get it; None if it names no valid topic and queue.

    The stored properties stay as they are, as upstream leaves them.
    """
    properties = props.decode(record.properties)
    place = real_place(properties)
    if place is None:
        return None
    return OutgoingRecord(
        *place,
        record.body,
        properties,
        record.born_ms,
        record.born_host,
        flag=record.flag,
        sys_flag=with_transaction_type(record.sys_flag, TransactionType.COMMIT),
        reconsume_times=record.reconsume_times,
        prepared_offset=record.physical_offset,
        raw_properties=record.properties,
    )


def committed_send(
    peer: Peer,
    request: Request[SendMessage],
    queue_id: int,
    physical_offset: int,
    properties: Mapping[str, str],
    raw_properties: bytes,
    keys: tuple[str, ...],
) -> OutgoingRecord | None:
    """Return what :func:`committed` will return for a half message that was appended in this turn.

    Return None if it has a delivery time: then the commit reads the half message.
    """
    header = request.header
    if wants_timer(properties):
        return None
    return OutgoingRecord(
        header.topic,
        queue_id,
        request.body,
        properties,
        header.born_timestamp,
        peer.host_bytes,
        flag=header.flag,
        sys_flag=with_transaction_type(header.sys_flag, TransactionType.COMMIT),
        reconsume_times=header.reconsume_times or 0,
        prepared_offset=physical_offset,
        tag_code=tag_code(properties.get(props.TAGS)),
        raw_properties=raw_properties,
        keys=keys,
    )


def _decoded(view: memoryview) -> Record | None:
    try:
        return decode_one(view)
    except BadRecord as error:
        log.error("half message cannot be read reason=%s", error)
        return None
