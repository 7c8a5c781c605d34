"""Half messages whose producers are asked again."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest, StoreFull
from cometmq.message.ids import encode_offset_id
from cometmq.message.record import Record
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import ResumeCheckHalfMessage
from tests.broker.transactions.world import HALF, HOPELESS, World, open_world
from tests.broker.world import request


async def resume(world: World, message_id: str) -> None:
    header = ResumeCheckHalfMessage(message_id)
    asked = request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
    await world.resuming.resume(world.producer, asked)


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


async def give_up(world: World, *bodies: bytes) -> list[Record]:
    """Prepare messages and have them given up; return their records in the topic for operators."""
    before = len(world.parts.read(HOPELESS))
    for body in bodies:
        await world.prepare(body)
    world.clock.advance(73 * 3_600_000)
    await world.checkback.check_due()
    await world.parts.appender.turn_outcome()
    return world.parts.read(HOPELESS)[before:]


async def test_a_killed_broker_still_knows_what_was_resumed(tmp_path: Path) -> None:
    """The log says so, whatever became of the state file, and whether the half message is open."""
    clock = VirtualClock()
    async with open_world(tmp_path, clock, crash=True) as world:
        kept, other = await give_up(world, b"lost", b"other")
        for number in range(150):  # more than one file of the half queue
            await world.prepare(b"%d" % number)
        await resume(world, id_of(kept))
    async with open_world(tmp_path, clock, crash=True) as world:
        await resume(world, id_of(kept))
        halves = world.parts.read(HALF)
        assert len(halves) == 153
        assert [half.prepared_offset for half in halves[-2:]] == [0, kept.physical_offset]
        await world.end(152)
    async with open_world(tmp_path, clock) as world:
        with pytest.raises(BadRequest, match=f"has ended; .* {HOPELESS}"):
            await resume(world, id_of(kept))
        await resume(world, id_of(other))
        assert len(world.parts.read(HALF)) == 154
        assert [record.body for record in world.parts.read("t", 1)] == [b"lost"]


async def test_a_given_up_message_is_resumed_again_each_time_it_is_given_up(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        (first,) = await give_up(world, b"lost")
        await resume(world, id_of(first))
        (second,) = await give_up(world)
        with pytest.raises(BadRequest, match="has ended; if it was given up again"):
            await resume(world, id_of(first))
        await resume(world, id_of(second))
        assert len(world.parts.read(HALF)) == 3


async def test_a_resume_whose_client_left_counts(tmp_path: Path) -> None:
    """The half message is in the log, or will be at the end of the turn."""
    async with open_world(tmp_path) as world:
        (kept,) = await give_up(world, b"lost")
        tried = asyncio.ensure_future(resume(world, id_of(kept)))
        while not world.transactions.index:
            await asyncio.sleep(0)
        tried.cancel()
        await resume(world, id_of(kept))
        with pytest.raises(asyncio.CancelledError):
            await tried
        assert len(world.parts.read(HALF)) == 2


async def test_a_resume_that_was_not_written_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(tmp_path) as world:
        (kept,) = await give_up(world, b"lost")
        store = world.parts.store

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(type(store.log), "_write_runs", full)
            with pytest.raises(StoreFull):
                await resume(world, id_of(kept))
        assert len(world.parts.read(HALF)) == 1
        store.state.refusal = None
        await resume(world, id_of(kept))
        assert len(world.parts.read(HALF)) == 2
