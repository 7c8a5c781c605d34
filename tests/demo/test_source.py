"""The base-data platform publishes everything it commits, also over a crash of the relay."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError
from cometmq.demo.board import Board
from cometmq.demo.change import Change, decode
from cometmq.demo.source import Source
from cometmq.testing.cluster import Cluster
from tests.client.shared_broker import fresh_topic
from tests.demo.worlds import small_script
from tests.outbox.boxes import stored


@pytest.fixture
async def client(cometmq_session_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cometmq_session_cluster.namesrv) as client:
        yield client


async def run(path: Path, client: Client, topic: str, board: Board, *, crash: bool) -> None:
    script = small_script(users=10)
    async with Source(path, client, topic, board, SystemClock()) as source:
        async with asyncio.TaskGroup() as group:
            group.create_task(source.publish())
            for number, step in enumerate([*script.initial(), *script.steps(300)]):
                await source.commit(step)
                if crash and number == 100:
                    source.crash_relay()
            source.finish()
        assert await last_by_row(client, topic) == await source.last_changes()


async def changes(client: Client, topic: str) -> list[Change]:
    return [decode(message.body) for message in await stored(client, topic)]


async def last_by_row(client: Client, topic: str) -> dict[tuple[str, str], int]:
    newest: dict[tuple[str, str], int] = {}
    for change in await changes(client, topic):
        place = change.table, change.key
        newest[place] = max(newest.get(place, 0), change.change)
    return newest


@pytest.mark.parametrize("crash", [False, True])
async def test_what_is_committed_is_published(tmp_path: Path, client: Client, crash: bool) -> None:
    topic, board = await fresh_topic(client), Board(0, {})
    await run(tmp_path / "base.sqlite", client, topic, board, crash=crash)
    found = await changes(client, topic)
    assert {change.change for change in found} == set(range(1, board.committed + 1))
    assert board.published == board.committed
    assert len(found) == board.published + board.published_again
    assert (board.published_again > 0) == crash
    assert any("dies" in event for event in board.events) == crash
    first: dict[tuple[str, str], list[int]] = defaultdict(list)
    for change in found:
        if change.change not in first[change.table, change.key]:
            first[change.table, change.key].append(change.change)
    assert all(numbers == sorted(numbers) for numbers in first.values())


async def test_a_broker_that_is_gone_ends_the_run_and_keeps_the_outbox(
    tmp_path: Path, client: Client
) -> None:
    topic, board, path = await fresh_topic(client), Board(0, {}), tmp_path / "base.sqlite"
    async with Client("127.0.0.1:9", send_timeout_ms=200, request_timeout_ms=100) as lost:
        with pytest.raises(ExceptionGroup) as failed:
            await run(path, lost, topic, board, crash=False)
        assert failed.group_contains(ClientError)
    assert board.published == 0
    async with Source(path, client, topic, board, SystemClock()) as source:
        source.finish()
        await source.publish()
        assert await last_by_row(client, topic) == await source.last_changes()
