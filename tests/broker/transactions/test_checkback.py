"""Checks of open transactions on a virtual clock."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from cometmq.broker.lookup import find_record
from cometmq.broker.transactions import checkback
from cometmq.broker.transactions.checkback import (
    CHECKS_A_ROUND,
    GROUP,
    SNAPSHOT_INTERVAL_MS,
)
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.message import properties as props
from cometmq.message.record import Record
from cometmq.store.messagestore import MessageStore
from tests.broker.transactions.world import HALF, HOPELESS, OP, open_world


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


async def test_one_that_cannot_be_read_now_is_put_off_and_the_others_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, failures = find_record, [OSError(errno.EIO, "not now")]

    async def failing(store: MessageStore, physical_offset: int) -> Record | None:
        if failures:
            raise failures.pop()
        return await find(store, physical_offset)

    async with open_world(tmp_path) as world:
        await world.prepare()
        await world.prepare(b"other")
        monkeypatch.setattr(checkback, "find_record", failing)
        assert await world.round_after(6_000) == [1]
        assert await world.round_after(1_000) == [0]


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
