"""What a turn of the loop carries to its end."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.broker.acknowledgement import PutResult, Turn
from cometmq.core.errors import StoreError
from cometmq.speedups import Half
from tests.broker.world import connect

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))


def put() -> PutResult:
    return PutResult(0, 0x1234, 7, HOST)


def test_a_put_gives_the_id_of_its_record() -> None:
    assert put().message_id == "7F00000100002A9F0000000000001234"


def test_a_turn_is_awaited_by_whoever_is_in_it() -> None:
    half = Half(100, "g", 1_000, 6_000)
    told: list[object] = []
    assert not Turn().is_awaited
    assert Turn(transactions=[(3, half, 0, None, None)]).is_awaited
    assert Turn(puts=[(told.append, put())]).is_awaited
    assert Turn(sends=[(connect(), None, 0, 0, 100)]).is_awaited  # type: ignore[list-item]


async def test_watchers_hear_once_how_it_ended() -> None:
    loop = asyncio.get_running_loop()
    gone, well = loop.create_future(), loop.create_future()
    gone.cancel()
    Turn(watchers=[gone, well]).end_watch(None)
    assert well.result() is None
    failed: asyncio.Future[None] = loop.create_future()
    turn = Turn(watchers=[failed])
    assert turn.is_awaited
    turn.end_watch(StoreError("no"))
    with pytest.raises(StoreError, match="no"):
        failed.result()
