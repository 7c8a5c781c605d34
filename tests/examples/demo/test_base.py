"""The base-data platform commits a change with its message, and publishes all that it commits."""

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError
from cometmq.outbox.row import Row, WantedRows
from cometmq.testing.cluster import Cluster
from examples.demo.base import BaseData, Source
from examples.demo.progress import Board
from examples.demo.script import Edit
from examples.demo.tables import REGIONS, Change, decode, read_table
from tests.client.shared_broker import fresh_topic
from tests.examples.demo.worlds import small_script, small_world
from tests.outbox.boxes import stored


def waiting(base: BaseData) -> list[Row]:
    source = base.outbox.open()
    page = source.take(WantedRows(rows=10_000, page_bytes=1 << 30, largest_bytes=1 << 20))
    source.close()
    assert page is not None
    return list(page.rows)


def test_edits_change_the_tables_and_wait_in_the_outbox(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite", "changes")
    row = small_world()[2]
    assert base.apply([Edit("regions", "insert", "AD-02", row)], at_ms=10) == 1
    assert base.apply([Edit("regions", "delete", "AD-02", None)], at_ms=20) == 1
    first, second = waiting(base)
    message = first.message()
    assert (first.topic, first.order_key, message.tag, message.keys) == (
        *("changes", "AD-02"),
        *("insert", ("AD-02",)),
    )
    assert json.loads(first.body)["row"] == row
    assert json.loads(second.body) == {
        "table": "regions",
        "op": "delete",
        "key": "AD-02",
        "change": 2,
        "at_ms": 20,
        "row": None,
    }
    assert read_table(base.path, REGIONS) == []
    base.close()


def test_a_failed_transaction_leaves_neither_row_nor_message(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite", "changes")
    good, bad = small_world()[:2]
    edits = [
        Edit("regions", "insert", "AD", good),
        Edit("regions", "insert", "FR", bad | {"name": None}),
    ]
    with pytest.raises(sqlite3.IntegrityError):
        base.apply(edits, at_ms=1)
    assert waiting(base) == []
    assert read_table(base.path, REGIONS) == []
    assert base.apply(edits[:1], at_ms=2) == 1
    assert json.loads(waiting(base)[0].body)["change"] == 1
    base.close()


def test_a_change_number_is_never_given_twice_also_after_a_restart(tmp_path: Path) -> None:
    row = small_world()[0]
    for op, value in (("insert", row), ("delete", None), ("insert", row), ("update", row)):
        base = BaseData(tmp_path / "base.sqlite", "changes")
        base.apply([Edit("regions", op, "AD", value)], at_ms=1)  # type: ignore[arg-type]
        last = base.last_changes()
        base.close()
    assert last == {("regions", "AD"): 4}


def test_a_whole_script_waits_in_order(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite", "changes")
    for step in small_script().initial():
        base.apply(step, at_ms=1)
    assert [json.loads(row.body)["change"] for row in waiting(base)] == list(range(1, 10))
    base.close()


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
    assert any("killed" in event for event in board.events) == crash
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
