"""Checks of open transactions with their producers (upstream: TransactionalMessageServiceImpl.java,
AbstractTransactionalMessageCheckListener.java).

A half message is first left alone for transactionTimeOut, or for the immunity time in its
properties. Then the broker asks one connected producer of its group for the outcome, and repeats
that every transactionCheckInterval. After transactionCheckMax checks, or when the log is about to
delete the half message, it moves to TRANS_CHECK_MAX_TIME_TOPIC for an operator to look at.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.lookup import bounds, find_record
from cometmq.broker.transactions.endtransaction import committed, is_half
from cometmq.broker.transactions.halfindex import real_place
from cometmq.broker.transactions.state import TransactionState
from cometmq.core.errors import CometError
from cometmq.message import properties as props
from cometmq.message.ids import encode_offset_id
from cometmq.message.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from cometmq.message.record import pack
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import CheckTransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.context import BrokerContext
    from cometmq.broker.transactions.endtransaction import Transactions
    from cometmq.message.record import Record
    from cometmq.speedups import Half

log = logging.getLogger(__name__)

TICK_MS: Final = 500
#: Most half messages checked in one round.
CHECKS_A_ROUND: Final = 500
#: Delay before a half message is checked again after a failure.
_REST_MS: Final = 1_000


class CheckBack:
    """Checks the open transactions while the broker runs. ``state`` keeps them across restarts."""

    def __init__(
        self, config_directory: str, context: BrokerContext, transactions: Transactions
    ) -> None:
        self._config = context.config
        self._store = context.store
        self._transactions = transactions
        self._members = context.tables.members
        self._clock = context.clock
        self.state = TransactionState(
            config_directory,
            config=context.config,
            store=context.store,
            transactions=transactions,
            offsets=context.tables.offsets,
            clock=context.clock,
            tasks=context.tasks,
            files=context.files,
        )

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
