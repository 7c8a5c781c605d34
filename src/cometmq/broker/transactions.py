"""The end of transactions: a prepared message is delivered or dropped (upstream:
EndTransactionProcessor.java, TransactionalMessageBridge.java).

    prepare     broker/send.py stores it as a half message and tells the index here
    commit      a copy goes to its real topic, or waits for its time (timers/rules.py), then an op
                message that names the half message
    rollback    the op message alone
    unknown     nothing: broker/checkback.py asks again

A transaction ends once: whoever ends it again is told that nothing is open at this offset. Copy and
op message are appended in one turn, so a failing disk takes both or none.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.durability import OutgoingRecord
from cometmq.broker.halfmessages import Half, HalfIndex, OpTrail, immunity_ms, real_place
from cometmq.broker.lookup import find_record
from cometmq.broker.timers.rules import TimerRules, wants_timer
from cometmq.core.errors import BadRequest, CometError
from cometmq.message import properties as props
from cometmq.message.flags import TransactionType, with_transaction_type
from cometmq.message.names import HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC
from cometmq.message.record import BadRecord, Record, decode_one
from cometmq.net.router import Reply
from cometmq.protocol.bodies import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.route import PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.durability import Appender, PutResult
    from cometmq.broker.topics import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import EndTransaction
    from cometmq.store.engine import MessageStore

log = logging.getLogger(__name__)

#: The tag of op messages: the half message they name is done with.
_DONE_TAG: Final = "d"


class Transactions:
    """The open transactions of a broker; serves END_TRANSACTION."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        appender: Appender,
        topics: TopicTable,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._config = config
        self._store = store
        self._appender = appender
        self._topics = topics
        self._clock = clock
        self._tasks = tasks
        self._timers = TimerRules(config)
        self.index = HalfIndex()
        self.trail = OpTrail(0, 0)

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.END_TRANSACTION: self.end}

    # ------------------------------------------------------------------------------------- prepare

    def ensure_topic(self, topic: str) -> None:
        """Create a topic for what waits when it is missing: one queue."""
        if self._topics.get(topic) is None:
            self._topics.put(TopicConfig(topic, 1, 1, PERM_READ | PERM_WRITE))

    def prepared(
        self, half_offset: int, physical_offset: int, properties: Mapping[str, str]
    ) -> None:
        """A half message was appended in this turn."""
        immunity = immunity_ms(properties, self._config.transaction_time_out)
        half = Half(
            physical_offset,
            properties.get(props.PRODUCER_GROUP, ""),
            self._clock.wall_ms(),
            immunity,
        )
        self.index.add(half_offset, half, self._clock.monotonic_ms() + immunity)

    # ----------------------------------------------------------------------------------------- end

    def end(self, peer: Peer, request: Request[EndTransaction]) -> Reply | None:
        """Commit or roll back; answered once that is stored. Unknown changes nothing."""
        header = request.header
        kind = header.commit_or_rollback
        if kind == TransactionType.NONE:
            log.info(
                "transaction unknown half_offset=%d group=%s",
                header.tran_state_table_offset, header.producer_group,
            )  # fmt: skip
            return Reply()
        if kind not in (TransactionType.COMMIT, TransactionType.ROLLBACK):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {kind}: it is 8 to commit, 12 to roll back, 0 for unknown",
            )
        half = self._open(header)
        view = self._store.message_at(half.physical_offset)
        if view is None:
            half.ending = True
            self._tasks.spawn(self._end_cold(peer, request, half), name="end transaction")
            return None
        self._end(peer, request, half, _decoded(view))
        return None

    def _open(self, header: EndTransaction) -> Half:
        half = self.index.get(header.tran_state_table_offset)
        if half is None or half.ending:
            state = "has ended, or never was" if half is None else "is ending"
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
        """End a transaction whose half message has to be read from the disk."""
        try:
            record = await find_record(self._store, half.physical_offset)
            self._end(peer, request, half, record)
        except CometError as error:
            half.ending = False
            peer.reply(request, Reply(error.code, remark=error.remark))

    def _end(
        self, peer: Peer, request: Request[EndTransaction], half: Half, record: Record | None
    ) -> None:
        half_offset = request.header.tran_state_table_offset
        if record is None or not is_half(record, half_offset):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed: it is lost"
            )
        copy = None
        if request.header.commit_or_rollback == TransactionType.COMMIT:
            copy = committed(record)
            if copy is None:
                raise BadRequest(
                    ResponseCode.SYSTEM_ERROR, "the half message names no topic to deliver it to"
                )
            copy = self._timed(copy)
        self.conclude(half_offset, half, copy).add_done_callback(partial(_answer, peer, request))

    def _timed(self, copy: OutgoingRecord) -> OutgoingRecord:
        """The copy, to wait for its time first if it asks for that."""
        if not wants_timer(copy.properties):
            return copy
        now_ms = self._clock.wall_ms()
        parked = self._timers.park(copy.topic, copy.queue_id, copy.properties, now_ms)
        if parked is None:
            return copy
        self.ensure_topic(TIMER_TOPIC)
        topic, queue_id, properties = parked
        return replace(copy, topic=topic, queue_id=queue_id, properties=properties)

    def conclude(
        self, half_offset: int, half: Half, copy: OutgoingRecord | None
    ) -> asyncio.Future[PutResult]:
        """Store ``copy``, if any, and the op message; the transaction is over when both are.

        Raises StoreError and MessageIllegal when nothing could be appended.
        """
        half.ending = True
        try:
            if copy is not None and not half.copied:
                self._appender.place(copy).add_done_callback(partial(_copied, half))
            self.ensure_topic(OP_HALF_TOPIC)
            done = self._appender.place(
                OutgoingRecord(
                    OP_HALF_TOPIC,
                    0,
                    b"%d" % half_offset,
                    {props.TAGS: _DONE_TAG},
                    self._clock.wall_ms(),
                    self._store.store_host,
                )
            )
        except CometError:
            half.ending = False
            raise
        done.add_done_callback(partial(self._ended, half_offset, half))
        return done

    def _ended(self, half_offset: int, half: Half, done: asyncio.Future[PutResult]) -> None:
        if done.cancelled() or done.exception() is not None:
            half.ending = False
            return
        self.index.remove(half_offset)
        self.trail.stored(done.result().queue_offset, half_offset)


def is_half(record: Record, half_offset: int) -> bool:
    """Whether a record is the half message at this offset."""
    return record.topic == HALF_TOPIC and record.queue_offset == half_offset


def committed(record: Record) -> OutgoingRecord | None:
    """A half message as consumers get it; None when it names no place for that.

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
    )


def _decoded(view: memoryview) -> Record | None:
    try:
        return decode_one(view)
    except BadRecord as error:
        log.error("half message cannot be read reason=%s", error)
        return None


def _copied(half: Half, done: asyncio.Future[PutResult]) -> None:
    half.copied = not done.cancelled() and done.exception() is None


def _answer(peer: Peer, request: Request[EndTransaction], done: asyncio.Future[PutResult]) -> None:
    if done.cancelled() or peer.closed:
        return
    error = done.exception()
    if error is None:
        peer.reply(request, Reply())
    else:
        code = error.code if isinstance(error, CometError) else ResponseCode.SYSTEM_ERROR
        log.error("transaction not ended peer=%s error=%s", peer.address, error)
        peer.reply(request, Reply(code, remark=str(error)))
