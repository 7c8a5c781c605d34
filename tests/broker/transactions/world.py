"""Transactions on a store and a virtual clock, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers.members import Member
from cometmq.broker.transactions.checkback import GROUP, CheckBack
from cometmq.broker.transactions.endtransaction import Transactions, committed
from cometmq.broker.transactions.halfindex import prepared
from cometmq.broker.transactions.resuming import ResumeHandler
from cometmq.core.clock import VirtualClock
from cometmq.message.properties import decode_text, encode_text
from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import CheckTransactionState
from tests.broker.world import Parts, connect, open_parts, sent_to

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HOPELESS = "TRANS_CHECK_MAX_TIME_TOPIC"


@dataclass
class World:
    """Transactions on a store, with a producer that is asked and never answers by itself."""

    parts: Parts
    clock: VirtualClock
    transactions: Transactions
    checkback: CheckBack
    resuming: ResumeHandler
    producer: Peer = field(default_factory=connect)

    async def prepare(self, body: bytes = b"half", **more: str) -> int:
        """Store a half message; gives its offset."""
        asked = {"UNIQ_KEY": body.decode(), "TRAN_MSG": "true", "PGROUP": "g"} | more
        properties = decode_text(prepared(encode_text(asked), "t", 1))
        self.transactions.ensure_topic(HALF)
        stored = await self.parts.put(HALF, body, 0, **properties)
        self.transactions.prepared(stored.queue_offset, stored.physical_offset, properties)
        return stored.queue_offset

    async def end(self, half_offset: int, *, commit: bool = True) -> None:
        """Commit or roll back, as END_TRANSACTION does."""
        half = self.transactions.index.get(half_offset)
        assert half is not None
        record = self.parts.read(HALF)[half_offset]
        self.transactions.conclude(half_offset, half, committed(record) if commit else None)
        await self.parts.appender.turn_outcome()
        await self.clock.sleep_ms(0)

    async def round_after(self, duration_ms: int) -> list[int]:
        """The half offsets that the producer is asked for in one round, that much later."""
        self.clock.advance(duration_ms)
        before = len(sent_to(self.producer))
        await self.checkback.check_due()
        asked = sent_to(self.producer)[before:]
        assert {code for code, _ in asked} <= {RequestCode.CHECK_TRANSACTION_STATE}
        headers = [header for _, header in asked if isinstance(header, CheckTransactionState)]
        return [header.tran_state_table_offset for header in headers]

    async def committed_offsets(self) -> tuple[int, int]:
        """The group's offsets in the half and the op topic, once all is durable."""
        await self.checkback.state.move_offsets()
        self.parts.store.flusher.sync_now()
        await self.checkback.state.move_offsets()
        await self.checkback.state.move_offsets()
        offsets = self.parts.offsets
        return offsets.query(GROUP, HALF, 0), offsets.query(GROUP, OP, 0)

    def open(self) -> list[tuple[int, int]]:
        """Half offsets of open transactions, and how often each was checked."""
        return [(at, half.checks) for at, half in self.transactions.index.below(1 << 40)]


@asynccontextmanager
async def open_world(
    directory: Path, clock: VirtualClock | None = None, *, crash: bool = False, **settings: Any
) -> AsyncIterator[World]:
    """A store with transactions; with ``crash`` nothing is written at the end."""
    clock = clock or VirtualClock()
    config = BrokerConfig(**settings)
    async with open_parts(directory, config, clock) as parts:
        context = parts.context
        transactions = Transactions(context)
        checkback = CheckBack(context, transactions)
        await checkback.recover()
        world = World(parts, clock, transactions, checkback, ResumeHandler(context, transactions))
        member = Member("p@1", "JAVA", 407, clock.monotonic_ms())
        parts.members.table.add_producer(world.producer, "g", member)
        yield world
        if not crash:
            await checkback.close()
