"""Checks of open transactions on a virtual clock."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.transactions.checkback import CHECKS_A_ROUND
from cometmq.message import properties as props
from tests.broker.halfworld import HOPELESS, OP, open_world


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
