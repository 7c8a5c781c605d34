"""Asking producers how transactions ended that they said nothing about (upstream:
TransactionalMessageServiceImpl.java, AbstractTransactionalMessageCheckListener.java).

A half message is left alone for transactionTimeOut, or for the time it asks for itself; then one
live producer of its group is asked, and again every transactionCheckInterval. After
transactionCheckMax questions, or when the log is about to lose it, it goes to
TRANS_CHECK_MAX_TIME_TOPIC, where it waits for a person.

What is kept where. The index of open transactions is in memory. The group CID_RMQ_SYS_TRANS has an
offset in the half topic that never passes an open half message, and one in the op topic that never
passes an op message for a half message beyond the first: from these a Java broker goes on, and so
does this one. config/transactions.json spares it the reading, and remembers how often each half
message was asked for, which a Java broker keeps by storing the message again each time:

    {"halfOffset":n,"opOffset":n,"logOffset":n,"halves":{halfOffset:[physicalOffset,group,
     storedTimestamp,immunity,checks],...}}

It holds what the index knew from op messages under opOffset, of half messages under halfOffset. A
log that ends before logOffset lost some of that in a crash; then only the counts are believed.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.halfmessages import (
    Half,
    OpTrail,
    checks_so_far,
    half_offsets_of,
    immunity_ms,
    real_place,
)
from cometmq.broker.lookup import bounds, find_entry, find_record
from cometmq.broker.tables import TableFile
from cometmq.broker.transactions import committed, is_half
from cometmq.core.errors import CometError, StoreCorrupt, StoreError
from cometmq.message import properties as props
from cometmq.message.ids import encode_offset_id
from cometmq.message.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from cometmq.message.record import pack
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import CheckTransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.members import Members
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.transactions import Transactions
    from cometmq.core.clock import Clock
    from cometmq.message.record import Record
    from cometmq.net.tasks import Tasks
    from cometmq.store.engine import MessageStore
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
TICK_MS: Final = 500
#: Work of one round: half messages looked at, op messages read.
CHECKS_A_ROUND: Final = 500
OPS_A_ROUND: Final = 1_000
#: Records read at a start before other tasks get a turn.
_SLICE: Final = 200
#: How often the file is written while something changes.
SNAPSHOT_INTERVAL_MS: Final = 5_000
#: After a failure a half message is looked at again this much later.
_REST_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Mark:
    """Offsets of the group that may be committed once the log is durable up to ``log_offset``."""

    half_offset: int
    op_offset: int
    log_offset: int


class _Snapshot(msgspec.Struct, rename="camel"):
    """What the file says."""

    half_offset: int
    op_offset: int
    log_offset: int
    halves: dict[int, tuple[int, str, int, int, int]]


class CheckBack:
    """Recovers the open transactions at a start, and checks them while the broker runs."""

    def __init__(
        self,
        config_directory: str,
        *,
        config: BrokerConfig,
        store: MessageStore,
        transactions: Transactions,
        offsets: ConsumerOffsets,
        members: Members,
        clock: Clock,
        tasks: Tasks,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._transactions = transactions
        self._offsets = offsets
        self._members = members
        self._clock = clock
        self._mark: _Mark | None = None
        self._saved: tuple[int, int, int] = (0, 0, 0)
        self._saved_ms = 0
        self._checks = 0
        self._file = TableFile(
            os.path.join(config_directory, "transactions.json"),
            self._encode,
            clock=clock,
            tasks=tasks,
            files=files,
        )

    # ---------------------------------------------------------------------------------- at a start

    async def recover(self) -> None:
        """Find the open transactions: in the file, and in what was stored after it was written.
        Raises StoreCorrupt."""
        low, end = bounds(self._store, HALF_TOPIC, 0)
        op_low, op_end = bounds(self._store, OP_HALF_TOPIC, 0)
        half_at = min(max(self._offsets.query(GROUP, HALF_TOPIC, 0), low), end)
        op_at = min(max(self._offsets.query(GROUP, OP_HALF_TOPIC, 0), op_low), op_end)
        known = self._read()
        if known is None or known.log_offset > self._store.written_offset:
            counted = {} if known is None else known.halves
            known = _Snapshot(half_at, op_at, 0, {})
        else:
            counted = known.halves
        ended: set[int] = set()
        async for op in self._records(OP_HALF_TOPIC, max(known.op_offset, op_low), op_end):
            ended.update(half_offsets_of(op.body))
        for offset, (physical, group, stored_ms, immune_ms, checks) in known.halves.items():
            if half_at <= offset < end and offset not in ended:
                self._adopt(offset, Half(physical, group, stored_ms, immune_ms, checks))
        async for record in self._records(HALF_TOPIC, max(known.half_offset, half_at), end):
            if record.queue_offset not in ended:
                half = self._half_of(record)
                counts = counted.get(record.queue_offset)
                if counts is not None and counts[0] == half.physical_offset:
                    half.checks = max(half.checks, counts[4])
                self._adopt(record.queue_offset, half)
        self._transactions.trail = OpTrail(op_at, op_end)
        if self._transactions.index:
            log.info("open transactions recovered count=%d", len(self._transactions.index))

    def _read(self) -> _Snapshot | None:
        table = self._file.read(required_key="halves")
        if table is None:
            return None
        try:
            return msgspec.convert(table, _Snapshot, strict=False)
        except msgspec.ValidationError as error:
            raise StoreCorrupt(self._file.path, -1, str(error)) from None

    async def _records(self, topic: str, start: int, end: int) -> AsyncIterator[Record]:
        for offset in range(start, end):
            if offset % _SLICE == 0:
                await self._clock.sleep_ms(0)
            entry = find_entry(self._store, topic, 0, offset)
            record = None if entry is None else await find_record(self._store, entry[0])
            if record is not None:
                yield record

    def _half_of(self, record: Record) -> Half:
        properties = props.decode(record.properties)
        return Half(
            record.physical_offset,
            properties.get(props.PRODUCER_GROUP, ""),
            record.store_ms,
            immunity_ms(properties, self._config.transaction_time_out),
            checks_so_far(properties),
        )

    def _adopt(self, half_offset: int, half: Half) -> None:
        left_ms = half.stored_ms + half.immunity_ms - self._clock.wall_ms()
        left_ms = min(max(left_ms, 0), half.immunity_ms)
        self._transactions.index.add(half_offset, half, self._clock.monotonic_ms() + left_ms)

    # ------------------------------------------------------------------------------------- rounds

    async def run_forever(self) -> None:
        """Check what is due, and keep offsets and file up to date."""
        while True:
            await self._clock.sleep_ms(TICK_MS)
            if self._store.find_queue(HALF_TOPIC, 0) is None:
                continue
            await self.check_due()
            await self.move_offsets()
            await self._save_sometimes()

    async def check_due(self) -> int:
        """Ask about transactions whose check is due, a bounded number; gives how many were."""
        index = self._transactions.index
        now_ms = self._clock.monotonic_ms()
        found = index.due(now_ms, CHECKS_A_ROUND)
        _, end = bounds(self._store, HALF_TOPIC, 0)
        for half_offset, half in found:
            wait_ms = self._config.transaction_check_interval
            if half.ending or half_offset >= end:
                wait_ms = _REST_MS  # on its way out, or not written yet
            else:
                try:
                    await self._check(half_offset, half)
                except CometError as error:
                    log.error(
                        "transaction check failed half_offset=%d error=%s", half_offset, error
                    )
                    wait_ms = _REST_MS
            if index.get(half_offset) is half:
                index.put_off(half_offset, half, now_ms + wait_ms)
        return len(found)

    async def _check(self, half_offset: int, half: Half) -> None:
        record = await find_record(self._store, half.physical_offset)
        if index_changed(self._transactions, half_offset, half):
            return  # it ended while the disk was asked
        if record is None or not is_half(record, half_offset):
            log.error("half message lost half_offset=%d", half_offset)
            self._transactions.index.remove(half_offset)
            return
        age_ms = self._clock.wall_ms() - half.stored_ms
        is_leaving = age_ms > self._store.config.file_reserved_time * 3_600_000
        if half.checks >= self._config.transaction_check_max or is_leaving:
            self._give_up(half_offset, half, record)
            return
        half.checks += 1
        self._checks += 1
        self._ask(half_offset, half, record)

    def _ask(self, half_offset: int, half: Half, record: Record) -> None:
        """Send CHECK_TRANSACTION_STATE to one producer of the group that is connected."""
        properties = props.decode(record.properties)
        place = real_place(properties)
        peers = self._members.producers_of(half.group)
        if place is None or not peers:
            log.info(
                "transaction not checked half_offset=%d group=%s checks=%d reason=%s",
                half_offset, half.group, half.checks,
                "no producer of the group is connected" if place else "it names no topic",
            )  # fmt: skip
            return
        unique = properties.get(props.UNIQ_KEY)
        header = CheckTransactionState(
            tran_state_table_offset=half_offset,
            commit_log_offset=half.physical_offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=encode_offset_id(record.store_host, half.physical_offset),
        )
        topic, queue_id = place
        shown = pack(msgspec.structs.replace(record, topic=topic, queue_id=queue_id))
        random.choice(peers).send_oneway(RequestCode.CHECK_TRANSACTION_STATE, header, shown)

    def _give_up(self, half_offset: int, half: Half, record: Record) -> None:
        """Put a half message where a person finds it; its transaction is over."""
        log.warning(
            "transaction given up half_offset=%d group=%s checks=%d topic=%s",
            half_offset, half.group, half.checks, CHECK_MAX_TIME_TOPIC,
        )  # fmt: skip
        self._transactions.ensure_topic(CHECK_MAX_TIME_TOPIC)
        kept = committed(record)
        if kept is not None:
            kept = replace(
                kept,
                topic=CHECK_MAX_TIME_TOPIC,
                queue_id=0,
                sys_flag=record.sys_flag,
                prepared_offset=0,
            )
        self._transactions.conclude(half_offset, half, kept)

    # ------------------------------------------------------------------------- offsets and the file

    async def move_offsets(self) -> None:
        """Move the group's offsets in both topics as far as they may.

        They are committed a round later, once everything they rest on is durable: a power cut that
        takes an op message back must find its half message behind the offset.
        """
        await self._follow_ops()
        mark = self._mark
        if mark is not None and self._store.durable_offset >= mark.log_offset:
            self._mark = None
            self._offsets.commit(GROUP, HALF_TOPIC, 0, mark.half_offset)
            self._offsets.commit(GROUP, OP_HALF_TOPIC, 0, mark.op_offset)
        if self._mark is None:
            _, end = bounds(self._store, HALF_TOPIC, 0)
            half_offset = self._transactions.index.low(end)
            op_offset = self._transactions.trail.advance(half_offset)
            self._mark = _Mark(half_offset, op_offset, self._store.written_offset)

    async def _follow_ops(self) -> None:
        """Read op messages that the trail has no memory of, a bounded number."""
        trail = self._transactions.trail
        start = trail.known_end
        stop = min(start + OPS_A_ROUND, trail.applied)
        for offset in range(start, stop):
            entry = find_entry(self._store, OP_HALF_TOPIC, 0, offset)
            record = None if entry is None else await find_record(self._store, entry[0])
            trail.remember(offset, () if record is None else half_offsets_of(record.body))

    async def _save_sometimes(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._saved_ms < SNAPSHOT_INTERVAL_MS or self._state() == self._saved:
            return
        self._saved_ms = now_ms
        try:
            await self._file.write()
        except StoreError:
            return  # logged by the writer; a later round tries again

    async def close(self) -> None:
        """Commit the offsets and write the file; nothing is appended any more. Call it before the
        consumer offsets are closed."""
        if self._store.find_queue(HALF_TOPIC, 0) is None:
            return
        await self.move_offsets()
        await self.move_offsets()
        if self._state() != self._saved:
            await self._file.write()

    def _state(self) -> tuple[int, int, int]:
        """Changes whenever the file would."""
        _, end = bounds(self._store, HALF_TOPIC, 0)
        return end, self._transactions.trail.applied, self._checks

    def _encode(self) -> Iterator[bytes]:
        self._saved = end, applied, _ = self._state()
        written = self._store.written_offset
        halves = self._transactions.index.below(end)
        yield b'{"halfOffset":%d,"opOffset":%d,"logOffset":%d,"halves":{' % (end, applied, written)
        for number, (offset, half) in enumerate(halves):
            values = (
                half.physical_offset,
                half.group,
                half.stored_ms,
                half.immunity_ms,
                half.checks,
            )
            comma = b"," if number else b""
            yield comma + b'"%d":' % offset + msgspec.json.encode(values)
        yield b"}}"

    # ------------------------------------------------------------------------- for administrators

    def facts(self) -> Mapping[str, str]:
        """Open transactions for the broker's runtime information: how many, how old, how many
        checks were sent since the start."""
        oldest_ms = self._transactions.index.oldest_ms()
        age_ms = self._clock.wall_ms() - oldest_ms if oldest_ms else 0
        return {
            "transactionHalfMessages": str(len(self._transactions.index)),
            "transactionOldestHalfAgeMs": str(max(age_ms, 0)),
            "transactionChecksTotal": str(self._checks),
        }


def index_changed(transactions: Transactions, half_offset: int, half: Half) -> bool:
    """Whether a transaction is not simply open any more."""
    return half.ending or transactions.index.get(half_offset) is not half
