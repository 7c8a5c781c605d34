"""What a restart, a crash or a Java broker leaves of open transactions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cometmq.broker.transactions.state import GROUP, SNAPSHOT_INTERVAL_MS
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from tests.broker.halfworld import HALF, OP, open_world


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
