"""Checks of open transactions on a virtual clock."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers.members import Member
from cometmq.broker.transactions.checkback import (
    CHECKS_A_ROUND,
    GROUP,
    SNAPSHOT_INTERVAL_MS,
    CheckBack,
)
from cometmq.broker.transactions.endtransaction import Transactions, committed
from cometmq.broker.transactions.halfindex import prepared
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest, StoreCorrupt
from cometmq.message import properties as props
from cometmq.message.ids import encode_offset_id
from cometmq.message.properties import decode_text, encode_text
from cometmq.message.record import Record
from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import CheckTransactionState, ResumeCheckHalfMessage
from tests.broker.world import Parts, connect, open_parts, request, sent_to

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
        await self.parts.appender.stored()
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
        world = World(parts, clock, transactions, checkback)
        member = Member("p@1", "JAVA", 407, clock.monotonic_ms())
        parts.members.table.add_producer(world.producer, "g", member)
        yield world
        if not crash:
            await checkback.close()


async def test_the_first_check_waits_for_the_immunity(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.prepare()
        await world.prepare(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="30")
        assert await world.round_after(5_999) == []
        assert await world.round_after(1) == [0]
        assert await world.round_after(23_999) == []
        assert await world.round_after(1) == [1]
        assert await world.round_after(36_000) == [0]
        assert await world.round_after(24_000) == [1]
        assert world.open() == [(0, 2), (1, 2)]


async def test_what_has_ended_is_not_asked_for(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        first, second = await world.prepare(), await world.prepare()
        await world.end(first)
        await world.end(second, commit=False)
        assert await world.round_after(60_000) == []
        assert [record.body for record in world.parts.read("t", 1)] == [b"half"]


async def test_a_check_without_a_producer_counts_as_one(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.prepare()
        world.parts.members.table.remove_producer(world.producer, "g")
        assert await world.round_after(6_000) == []
        assert world.open() == [(0, 1)]


async def test_after_too_many_checks_a_person_has_to_look(tmp_path: Path) -> None:
    async with open_world(tmp_path, transaction_check_max=2) as world:
        await world.prepare(b"lost", TAGS="red")
        assert await world.round_after(6_000) == [0]
        assert await world.round_after(60_000) == [0]
        assert await world.round_after(60_000) == []
        await world.clock.sleep_ms(0)
        await world.clock.sleep_ms(0)
        (kept,) = world.parts.read(HOPELESS)
        found = props.decode(kept.properties)
        assert (kept.body, kept.sys_flag, found["TAGS"]) == (b"lost", 0, "red")
        assert (found["REAL_TOPIC"], world.parts.topics.get(HOPELESS) is not None) == ("t", True)
        assert [op.body for op in world.parts.read(OP)] == [b"0"]
        assert (world.open(), world.parts.read("t", 1)) == ([], [])


async def resume(world: World, message_id: str) -> None:
    header = ResumeCheckHalfMessage(message_id)
    asked = request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
    await world.transactions.resume(world.producer, asked)


def id_of(record: Record) -> str:
    return encode_offset_id(record.store_host, record.physical_offset)


async def test_what_was_given_up_can_be_asked_again(tmp_path: Path) -> None:
    """It is a half message again, also after a restart, and can be committed."""
    async with open_world(tmp_path, transaction_check_max=1) as world:
        await world.prepare(b"lost", TAGS="red")
        assert await world.round_after(6_000) == [0]
        assert await world.round_after(60_000) == []
        await world.clock.sleep_ms(0)
        (kept,) = world.parts.read(HOPELESS)
        (ended,) = world.parts.read(HALF)
        with pytest.raises(BadRequest, match=f"has ended; .* {HOPELESS}"):
            await resume(world, id_of(ended))
        await resume(world, id_of(kept))
        assert world.open() == [(1, 0)]
        assert await world.round_after(6_000) == [1]
    async with open_world(tmp_path) as world:
        assert world.open() == [(1, 1)]
        await world.end(1)
        assert [record.body for record in world.parts.read("t", 1)] == [b"lost"]


async def test_what_was_given_up_is_resumed_once(tmp_path: Path) -> None:
    """Each half message of it could be committed: once it has ended, a repeat is refused."""
    async with open_world(tmp_path, transaction_check_max=1) as world:
        await world.prepare(b"lost")
        await world.round_after(6_000)
        await world.round_after(60_000)
        await world.clock.sleep_ms(0)
        (kept,) = world.parts.read(HOPELESS)
        await asyncio.gather(*(resume(world, id_of(kept)) for _ in range(3)))
        assert await world.round_after(6_000) == [1]
        await resume(world, id_of(kept))
        assert (world.open(), len(world.parts.read(HALF))) == ([(1, 0)], 2)
    async with open_world(tmp_path) as world:
        await resume(world, id_of(kept))
        assert world.open() == [(1, 0)]
        await world.end(1)
        with pytest.raises(BadRequest, match=f"has ended; .* {HOPELESS}"):
            await resume(world, id_of(kept))
        assert len(world.parts.read(HALF)) == 2
    async with open_world(tmp_path) as world:
        with pytest.raises(BadRequest, match="has ended"):
            await resume(world, id_of(kept))


async def test_the_resumed_ones_that_are_remembered_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.transactions.endtransaction.MAX_RESUMED", 2)
    async with open_world(tmp_path, transaction_check_max=0) as world:
        for number in range(3):
            await world.prepare(b"%d" % number)
        await world.round_after(6_000)
        await world.clock.sleep_ms(0)
        kept = world.parts.read(HOPELESS)
        for record in kept:
            await resume(world, id_of(record))
        assert list(world.transactions.resumed) == [each.physical_offset for each in kept[1:]]


async def test_resuming_what_is_open_forgets_its_checks(tmp_path: Path) -> None:
    """A second half message of it could be committed as well."""
    async with open_world(tmp_path) as world:
        await world.prepare()
        await world.round_after(6_000)
        assert world.open() == [(0, 1)]
        (half,) = world.parts.read(HALF)
        await resume(world, id_of(half))
        assert (world.open(), len(world.parts.read(HALF))) == ([(0, 0)], 1)


async def test_only_half_messages_are_resumed(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.prepare()
        await world.end(0)
        (plain,) = world.parts.read("t", 1)
        with pytest.raises(BadRequest, match="in topic t: only a half message"):
            await resume(world, id_of(plain))
        with pytest.raises(BadRequest, match="no half message here"):
            await resume(world, id_of(plain)[:-16] + "F" * 16)
        with pytest.raises(BadRequest, match="an offset id has 32 or 56"):
            await resume(world, "short")


async def test_a_half_message_about_to_leave_the_log_is_given_up(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.prepare()
        assert await world.round_after(73 * 3_600_000) == []
        await world.clock.sleep_ms(0)
        assert len(world.parts.read(HOPELESS)) == 1


async def test_the_work_of_a_round_is_bounded(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        for _ in range(CHECKS_A_ROUND + 5):
            await world.prepare()
        assert len(await world.round_after(6_000)) == CHECKS_A_ROUND
        assert len(await world.round_after(0)) == 5


async def test_a_half_message_that_was_never_written_is_put_off(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.prepare()
        world.transactions.prepared(1, 999_999, {"PGROUP": "g"})
        assert await world.round_after(6_000) == [0]
        assert (await world.committed_offsets())[0] == 0
        await world.end(0)
        assert (await world.committed_offsets())[0] == 1


async def test_a_half_message_the_log_has_lost_holds_nobody_up(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        offset = await world.prepare()
        half = world.transactions.index.get(offset)
        assert half is not None
        half.physical_offset += 1
        assert await world.round_after(6_000) == []
        assert (world.open(), (await world.committed_offsets())[0]) == ([], 1)


async def test_administrators_see_how_many_and_how_old(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        assert world.checkback.facts()["transactionOldestHalfAgeMs"] == "0"
        await world.prepare()
        await world.round_after(7_000)
        assert world.checkback.facts() == {
            "transactionHalfMessages": "1",
            "transactionOldestHalfAgeMs": "7000",
            "transactionChecksTotal": "1",
        }


async def test_offsets_do_not_pass_what_is_open(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        halves = [await world.prepare() for _ in range(4)]
        for offset in (halves[0], halves[3], halves[2]):
            await world.end(offset)
        assert await world.committed_offsets() == (1, 1)
        await world.end(halves[1], commit=False)
        assert await world.committed_offsets() == (4, 4)
        assert [op.body for op in world.parts.read(OP)] == [b"0", b"3", b"2", b"1"]


@pytest.mark.parametrize("without", [(), ("transactions.json",), ("consumerOffset.json",)])
async def test_a_stop_or_a_lost_file_loses_no_transaction(
    tmp_path: Path, without: tuple[str, ...]
) -> None:
    clock = VirtualClock()
    async with open_world(tmp_path, clock) as world:
        for _ in range(4):
            await world.prepare()
        await world.end(2)
        await world.end(0)
        assert await world.round_after(6_000) == [1, 3]
    for name in without:
        for path in (tmp_path / "config").glob(f"{name}*"):
            path.unlink()
    async with open_world(tmp_path, clock) as world:
        checks = 0 if without == ("transactions.json",) else 1
        assert world.open() == [(1, checks), (3, checks)]
        assert await world.round_after(6_000) == [1, 3]
        await world.end(1)
        await world.end(3)
        assert await world.committed_offsets() == (4, 4)
        assert len(world.parts.read("t", 1)) == 4


async def test_a_crash_keeps_what_was_stored_since_the_file(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_world(tmp_path, clock, crash=True) as world:
        for _ in range(3):
            await world.prepare()
        await world.end(0)
        assert await world.round_after(6_000) == [1, 2]
        clock.advance(SNAPSHOT_INTERVAL_MS)
        await world.checkback.state.save_sometimes()
        await world.end(2)
        await world.prepare()
    async with open_world(tmp_path, clock) as world:
        assert world.open() == [(1, 1), (3, 0)]


async def test_of_a_file_that_is_ahead_of_the_log_only_the_counts_are_believed(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    before, after = tmp_path / "before", tmp_path / "after"
    async with open_world(before, clock) as world:
        await world.prepare()
        assert await world.round_after(6_000) == [0]
    shutil.copytree(before, after)
    async with open_world(after, clock) as world:
        await world.end(0)
        await world.prepare()
    for path in (after / "config").glob("transactions.json*"):
        shutil.copy(path, before / "config" / path.name)
    async with open_world(before, clock) as world:
        assert world.open() == [(0, 0)]


async def test_a_file_that_says_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "transactions.json").write_text('{"halves":{"x":1}}')
    with pytest.raises(StoreCorrupt, match="halves"):
        async with open_world(tmp_path):
            raise AssertionError("it opened")


async def test_a_store_that_a_java_broker_left(tmp_path: Path) -> None:
    """It stores a half message again for each check, counts there, and moves past the old one."""
    async with open_world(tmp_path, crash=True) as world:
        await world.prepare()
        await world.prepare(TRANSACTION_CHECK_TIMES="3")
        await world.prepare()
        await world.parts.put(OP, b"2,", 0, TAGS="d")
        world.parts.offsets.commit(GROUP, HALF, 0, 1)
    async with open_world(tmp_path) as world:
        assert world.open() == [(1, 3)]
        await world.end(1)
        assert await world.committed_offsets() == (3, 2)


@pytest.mark.parametrize("known", [True, False])
async def test_what_a_killed_java_broker_stored_again_is_not_open_twice(
    tmp_path: Path, known: bool
) -> None:
    async with open_world(tmp_path, crash=not known) as world:
        for body in (b"one", b"two", b"three"):
            await world.prepare(body)
    async with open_world(tmp_path, crash=True) as world:
        await world.prepare(b"one", TRANSACTION_CHECK_TIMES="1")
        await world.prepare(b"two", TRANSACTION_CHECK_TIMES="2")
        await world.parts.put(OP, b"3,", 0, TAGS="d")
    async with open_world(tmp_path) as world:
        assert world.open() == [(2, 0), (4, 2)]
