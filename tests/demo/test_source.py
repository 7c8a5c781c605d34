"""The base-data platform publishes everything it commits, also over a crash of the publisher."""

import asyncio
from pathlib import Path

import pytest

from cometmq.core.clock import SystemClock
from cometmq.demo.board import Board
from cometmq.demo.change import decode
from cometmq.demo.source import Source
from tests.demo.test_publisher import Wire
from tests.demo.worlds import small_script


async def run(path: Path, wire: Wire, board: Board, *, crash: bool) -> dict[tuple[str, str], int]:
    script = small_script(users=10)
    async with Source(path, wire, "changes", board, SystemClock()) as source:
        async with asyncio.TaskGroup() as group:
            group.create_task(source.publish())
            for number, step in enumerate([*script.initial(), *script.steps(300)]):
                await source.commit(step)
                if crash and number == 100:
                    source.crash_publisher()
            source.finish()
        return await source.last_changes()


@pytest.mark.parametrize("crash", [False, True])
async def test_what_is_committed_is_published(tmp_path: Path, crash: bool) -> None:
    wire, board = Wire(), Board(0, {})
    last = await run(tmp_path / "base.sqlite", wire, board, crash=crash)
    changes = [decode(body) for body in wire.arrived]
    assert {change.change for change in changes} == set(range(1, board.committed + 1))
    assert board.published == board.committed
    assert (board.published_again > 0) == crash
    assert any("dies" in event for event in board.events) == crash
    newest: dict[tuple[str, str], int] = {}
    for change in changes:
        place = change.table, change.key
        newest[place] = max(newest.get(place, 0), change.change)
    assert newest == last


async def test_a_broker_that_is_gone_ends_the_run_and_keeps_the_outbox(tmp_path: Path) -> None:
    board = Board(0, {})
    path = tmp_path / "base.sqlite"
    with pytest.raises(ExceptionGroup) as failed:
        await run(path, Wire(breaks_at=50), board, crash=False)
    assert failed.group_contains(ConnectionError)
    wire = Wire()
    async with Source(path, wire, "changes", board, SystemClock()) as source:
        source.finish()
        await source.publish()
        assert wire.arrived
        assert set((await source.last_changes()).values()) >= {
            decode(body).change for body in wire.arrived[-1:]
        }
