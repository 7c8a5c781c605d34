"""Checks of open transactions with their producers, and the state of these transactions across
restarts (upstream: TransactionalMessageServiceImpl.java,
AbstractTransactionalMessageCheckListener.java).

A half message is first left alone for transactionTimeOut, or for the immunity time in its
properties. Then the broker asks one connected producer of its group for the outcome, and repeats
that every transactionCheckInterval. After transactionCheckMax checks, or when the log is about to
delete the half message, it moves to TRANS_CHECK_MAX_TIME_TOPIC for an operator to look at.

The index of open transactions is in memory. The group CID_RMQ_SYS_TRANS has two offsets: one in the
half topic, which never passes an open half message, and one in the op topic, which never passes an
op message for a half message at or after the first offset. A broker of either kind, Java or
CometMQ, can resume by reading both topics from these offsets. With config/transactions.json,
CometMQ need not read them. The file also keeps the number of checks; a Java broker stores the half
message again at each check to keep that number:

    {"halfOffset":n,"opOffset":n,"logOffset":n,"halves":{halfOffset:[physicalOffset,group,
     storedTimestamp,immunity,checks],...}}

The file covers op messages below opOffset and half messages below halfOffset. If the log ends
before logOffset, a crash lost part of these; then only the numbers of checks are used.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.lookup import bounds, find_record, record_of_queue
from cometmq.broker.tables import TableFile
from cometmq.broker.transactions.endtransaction import committed, is_half
from cometmq.broker.transactions.halfindex import (
    OpTrail,
    checks_so_far,
    half_offsets_of,
    immunity_ms,
    real_place,
)
from cometmq.core.errors import CometError, StoreError
from cometmq.message import properties as props
from cometmq.message.ids import encode_offset_id
from cometmq.message.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from cometmq.message.record import pack
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import CheckTransactionState
from cometmq.speedups import Half

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.context import BrokerContext
    from cometmq.broker.transactions.endtransaction import Transactions
    from cometmq.message.record import Record

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
TICK_MS: Final = 500
#: Maximum number of half messages checked in one round.
CHECKS_A_ROUND: Final = 500
#: Maximum number of op messages read in one round.
OPS_A_ROUND: Final = 1_000
#: Shortest interval between two writes of the file.
SNAPSHOT_INTERVAL_MS: Final = 5_000
#: Delay before a half message is checked again after a failure.
_REST_MS: Final = 1_000
#: Records read at a start between two yields to the event loop.
_SLICE: Final = 200

#: Physical offset, group, store time, immunity and checks of an open half message.
_Saved = tuple[int, str, int, int, int]


@dataclass(frozen=True, slots=True)
class _Mark:
    """Offsets of the group that may be committed once the log is durable up to ``log_offset``."""

    half_offset: int
    op_offset: int
    log_offset: int


class _Snapshot(msgspec.Struct, rename="camel"):
    """Content of the file."""

    half_offset: int
    op_offset: int
    log_offset: int
    halves: dict[int, _Saved]


class TransactionState:
    """Recovers the open transactions at a start, and keeps their offsets and file up to date."""

    def __init__(self, context: BrokerContext, transactions: Transactions) -> None:
        self._config = context.config
        self._store = context.store
        self._transactions = transactions
        self._offsets = context.tables.offsets
        self._clock = context.clock
        self._mark: _Mark | None = None
        self._saved: tuple[int, int, int] = (0, 0, 0)
        self._saved_ms = 0
        self._file = TableFile(context.directory, "transactions.json", self._encode)

    # ---------------------------------------------------------------------------------- at a start

    async def recover(self) -> None:
        """Find the open transactions, in the file and in the records stored after it was written.

        Raise StoreCorrupt if the file or a record cannot be read.
        """
        low, end = bounds(self._store, HALF_TOPIC, 0)
        op_low, op_end = bounds(self._store, OP_HALF_TOPIC, 0)
        half_at = min(max(self._offsets.query(GROUP, HALF_TOPIC, 0), low), end)
        op_at = min(max(self._offsets.query(GROUP, OP_HALF_TOPIC, 0), op_low), op_end)
        known = self._read() or _Snapshot(half_at, op_at, 0, {})
        counted = known.halves
        if known.log_offset > self._store.written_offset:
            known = _Snapshot(half_at, op_at, 0, {})
        ended: set[int] = set()
        async for op in self._records(OP_HALF_TOPIC, max(known.op_offset, op_low), op_end):
            ended.update(half_offsets_of(op.body))
        for offset, (physical, group, stored_ms, immune_ms, checks) in known.halves.items():
            if half_at <= offset < end and offset not in ended:
                self._adopt(offset, Half(physical, group, stored_ms, immune_ms, checks))
        await self._read_halves(max(known.half_offset, half_at), end, ended, counted)
        self._transactions.trail = OpTrail(op_at, op_end)
        if self._transactions.index:
            log.info("open transactions recovered count=%d", len(self._transactions.index))

    async def _read_halves(
        self, start: int, end: int, ended: Set[int], counted: Mapping[int, _Saved]
    ) -> None:
        """Add the half messages from ``start`` on; take their numbers of checks from
        ``counted``."""
        copies: dict[tuple[str, str], int] = {}
        async for record in self._records(HALF_TOPIC, start, end):
            properties = props.decode(record.properties)
            if checks_so_far(properties):
                copies[_key(properties)] = record.queue_offset
            if record.queue_offset not in ended:
                half = self._half_of(record, properties)
                counts = counted.get(record.queue_offset)
                if counts is not None and counts[0] == half.physical_offset:
                    half.checks = max(half.checks, counts[4])
                self._adopt(record.queue_offset, half)
        if copies:
            await self._drop_copied(copies, end)

    def _read(self) -> _Snapshot | None:
        return self._file.read(
            lambda found: msgspec.convert(found, _Snapshot, strict=False), required_key="halves"
        )

    async def _records(self, topic: str, start: int, end: int) -> AsyncIterator[Record]:
        for offset in range(start, end):
            if offset % _SLICE == 0:
                await self._clock.sleep_ms(0)
            record = await record_of_queue(self._store, topic, 0, offset)
            if record is not None:
                yield record

    async def _drop_copied(self, copies: Mapping[tuple[str, str], int], end: int) -> None:
        """Drop half messages that a Java broker stored again: if it was killed, its offset may
        not have been written past the earlier copies."""
        for offset, half in self._transactions.index.below(end):
            record = await find_record(self._store, half.physical_offset)
            if record is None or copies.get(_key(props.decode(record.properties)), -1) > offset:
                self._transactions.index.remove(offset)

    def _half_of(self, record: Record, properties: Mapping[str, str]) -> Half:
        return Half(
            record.physical_offset,
            properties.get(props.PRODUCER_GROUP, ""),
            record.store_ms,
            immunity_ms(properties, self._config.transaction_time_out),
            checks_so_far(properties),
        )

    def _adopt(self, half_offset: int, half: Half) -> None:
        """Add an open half message; its first check is due when its immunity ends."""
        left_ms = half.stored_ms + half.immunity_ms - self._clock.wall_ms()
        left_ms = min(max(left_ms, 0), half.immunity_ms)
        self._transactions.index.add(half_offset, half, self._clock.monotonic_ms() + left_ms)

    # ------------------------------------------------------------------------- offsets and the file

    async def move_offsets(self) -> None:
        """Move the group's offsets in both topics as far as possible.

        They are committed one round later, once the log is durable up to the point they depend on.
        If a power cut removes an op message, the offset must not be past its half message.
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
        """Read a bounded number of op messages that the trail does not remember."""
        trail = self._transactions.trail
        start = trail.known_end
        stop = min(start + OPS_A_ROUND, trail.applied)
        for offset in range(start, stop):
            record = await record_of_queue(self._store, OP_HALF_TOPIC, 0, offset)
            trail.remember(offset, () if record is None else half_offsets_of(record.body))

    async def save_sometimes(self) -> None:
        """Write the file if something changed, at most every SNAPSHOT_INTERVAL_MS."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._saved_ms < SNAPSHOT_INTERVAL_MS or self._state() == self._saved:
            return
        self._saved_ms = now_ms
        try:
            await self._file.write()
        except StoreError:
            return  # logged by the writer; a later round tries again

    async def close(self) -> None:
        """Commit the offsets and write the file. Call this after the last append, and before the
        consumer offsets are closed."""
        if self._store.find_queue(HALF_TOPIC, 0) is None:
            return
        # Twice: the second call commits the offsets that the first one marked.
        await self.move_offsets()
        await self.move_offsets()
        if self._state() != self._saved:
            await self._file.write()

    def _state(self) -> tuple[int, int, int]:
        """Return a value that changes whenever the file's content does."""
        _, end = bounds(self._store, HALF_TOPIC, 0)
        index = self._transactions.index
        return end, self._transactions.trail.applied, index.checks + index.resets

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


def _key(properties: Mapping[str, str]) -> tuple[str, str]:
    """Return the key that a half message and its copies share."""
    return properties.get(props.PRODUCER_GROUP, ""), properties.get(props.UNIQ_KEY, "")


class CheckBack:
    """Checks the open transactions while the broker runs. ``state`` keeps them across restarts."""

    def __init__(self, context: BrokerContext, transactions: Transactions) -> None:
        self._config = context.config
        self._store = context.store
        self._transactions = transactions
        self._members = context.tables.members
        self._clock = context.clock
        self.state = TransactionState(context, transactions)

    async def recover(self) -> None:
        """Find the open transactions at a start. Raise StoreCorrupt if that fails."""
        await self.state.recover()

    async def close(self) -> None:
        """Save the state. Call this after the last append, and before the consumer offsets are
        closed."""
        await self.state.close()

    # ------------------------------------------------------------------------------------- rounds

    async def run_forever(self) -> None:
        """Check due transactions, and keep offsets and file up to date, until cancelled."""
        while True:
            await self._clock.sleep_ms(TICK_MS)
            if self._store.find_queue(HALF_TOPIC, 0) is None:
                continue
            await self.check_due()
            await self.state.move_offsets()
            await self.state.save_sometimes()

    async def check_due(self) -> int:
        """Check a bounded number of due transactions; return how many were due."""
        index = self._transactions.index
        now_ms = self._clock.monotonic_ms()
        found = index.due(now_ms, CHECKS_A_ROUND)
        _, end = bounds(self._store, HALF_TOPIC, 0)
        for half_offset, half in found:
            wait_ms = self._config.transaction_check_interval
            if half.ending or half_offset >= end:
                wait_ms = _REST_MS  # it is ending, or not written yet
            else:
                try:
                    await self._check(half_offset, half)
                except (CometError, OSError) as error:
                    # Put it off all the same: otherwise it would never be checked again.
                    log.error(
                        "transaction check failed half_offset=%d error=%s", half_offset, error
                    )
                    wait_ms = _REST_MS
            if index.get(half_offset) is half:
                index.put_off(half_offset, half, now_ms + wait_ms)
        return len(found)

    async def _check(self, half_offset: int, half: Half) -> None:
        """Ask a producer for the outcome of a transaction, or give the transaction up."""
        record = await find_record(self._store, half.physical_offset)
        if index_changed(self._transactions, half_offset, half):
            return  # it ended during the disk read
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
        self._transactions.index.checks += 1
        self._ask(half_offset, half, record)

    def _ask(self, half_offset: int, half: Half, record: Record) -> None:
        """Send CHECK_TRANSACTION_STATE to one connected producer of the group."""
        properties = props.decode(record.properties)
        place = real_place(properties)
        peers = self._members.producers_of(half.group)
        if place is None or not peers:
            log.info(
                "transaction not checked half_offset=%d group=%s checks=%d reason=%s",
                half_offset, half.group, half.checks,
                "no producer of the group is connected" if place else "it has no topic",
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
        """Move a half message to the topic for operators, and end its transaction."""
        log.warning(
            "transaction given up half_offset=%d group=%s checks=%d topic=%s",
            half_offset, half.group, half.checks, CHECK_MAX_TIME_TOPIC,
        )  # fmt: skip
        self._transactions.ensure_topic(CHECK_MAX_TIME_TOPIC)
        kept = committed(record)
        if kept is not None:
            kept = msgspec.structs.replace(
                kept,
                topic=CHECK_MAX_TIME_TOPIC,
                queue_id=0,
                sys_flag=record.sys_flag,
                prepared_offset=0,
            )
        self._transactions.conclude(half_offset, half, kept)

    # ------------------------------------------------------------------------- for administrators

    def facts(self) -> Mapping[str, str]:
        """Return entries for the broker's runtime information: the number of open transactions,
        the age of the oldest, and the checks sent since the start."""
        oldest_ms = self._transactions.index.oldest_ms()
        age_ms = self._clock.wall_ms() - oldest_ms if oldest_ms else 0
        return {
            "transactionHalfMessages": str(len(self._transactions.index)),
            "transactionOldestHalfAgeMs": str(max(age_ms, 0)),
            "transactionChecksTotal": str(self._transactions.index.checks),
        }


def index_changed(transactions: Transactions, half_offset: int, half: Half) -> bool:
    """Decide whether a transaction is ending or has ended since it was looked up."""
    return half.ending or transactions.index.get(half_offset) is not half
