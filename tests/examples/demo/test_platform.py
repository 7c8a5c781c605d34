"""A platform's copy ends equal to its base, after restarts, failures, repeats and any order."""

import asyncio
import sqlite3
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.testing.cluster import Cluster, running_cluster
from examples.demo.platform import Applied, Copy, Fails, Platform, fails_at_first
from examples.demo.progress import Party
from examples.demo.tables import REGIONS, TABLES, Change, Row, read_table
from tests.examples.demo.test_script import replay
from tests.examples.demo.worlds import small_script, small_world

ROW = small_world()[2]


def change(number: int, row: Row | None = ROW) -> Change:
    return Change("regions", "delete" if row is None else "update", "AD-02", number, 1, row)


def test_a_late_change_does_not_undo_a_newer_one(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    assert copy.apply(change(7, ROW | {"population": 7})) is Applied.NEW
    assert copy.apply(change(5, ROW | {"population": 5})) is Applied.STALE
    assert copy.apply(change(7, ROW | {"population": 7})) is Applied.REPEATED
    assert read_table(copy.path, REGIONS) == [ROW | {"population": 7}]
    copy.close()


def test_a_late_change_does_not_bring_a_deleted_row_back(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    copy.apply(change(1))
    assert copy.apply(change(3, None)) is Applied.NEW
    assert copy.apply(change(2)) is Applied.STALE
    assert read_table(copy.path, REGIONS) == []
    assert copy.apply(change(4)) is Applied.NEW
    assert read_table(copy.path, REGIONS) == [ROW]
    copy.close()


def test_a_deletion_that_overtakes_the_insert_wins(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    assert copy.apply(change(2, None)) is Applied.NEW
    assert copy.apply(change(1)) is Applied.STALE
    assert read_table(copy.path, REGIONS) == []
    copy.close()


def test_tombstones_survive_a_restart(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    copy.apply(change(9, None))
    copy.close()
    again = Copy(tmp_path / "copy.sqlite")
    assert again.apply(change(8)) is Applied.STALE
    assert again.last_changes() == {("regions", "AD-02"): 9}
    again.close()


def test_a_change_that_cannot_be_applied_leaves_no_number_behind(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    with pytest.raises(sqlite3.IntegrityError):
        copy.apply(change(1, ROW | {"name": None}))
    assert copy.last_changes() == {}
    assert copy.apply(change(1)) is Applied.NEW
    copy.close()


@given(seed=st.integers(0, 1_000), shuffle=st.integers(0, 1_000))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_with_repeats_ends_equal(tmp_path: Path, seed: int, shuffle: int) -> None:
    script = small_script(seed)
    edits = list(chain.from_iterable([*script.initial(), *script.steps(40)]))
    changes = [
        Change(edit.table, edit.op, edit.key, number, 1, edit.row)
        for number, edit in enumerate(edits, 1)
    ]
    random = Random(shuffle)
    arriving = changes + random.choices(changes, k=20)
    random.shuffle(arriving)
    path = tmp_path / f"{seed}-{shuffle}.sqlite"
    path.unlink(missing_ok=True)
    copy = Copy(path)
    for arrived in arriving:
        copy.apply(arrived)
    copy.close()
    expected = replay(edits)
    for name, table in TABLES.items():
        rows = sorted(expected[name].values(), key=lambda row: str(row[table.key]))
        assert read_table(path, table) == rows


TOPIC = "changes"
WORLD = small_world()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def publish(client: Client, number: int, row: Row, *, delete: bool = False) -> None:
    key = str(row["code"])
    op = "delete" if delete else "update"
    change = Change("regions", op, key, number, 1, None if delete else row)  # type: ignore[arg-type]
    await client.send(TOPIC, change.encode(), tag=op, keys=[key], order_key=key)


def platform(
    cluster: Cluster, tmp_path: Path, party: Party, fails: Fails | None = None
) -> Platform:
    return Platform(
        "social",
        tmp_path / "social.sqlite",
        namesrv=cluster.namesrv,
        topic=TOPIC,
        party=party,
        clock=SystemClock(),
        fails=fails,
    )


async def test_a_platform_goes_on_where_it_stopped(tmp_path: Path) -> None:
    party = Party("social")
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        for number, row in enumerate(WORLD, 1):
            await publish(client, number, row)
        social = platform(cluster, tmp_path, party)
        await social.start()
        running = party.running
        assert running
        await until(lambda: len(social.known) == len(WORLD))
        await social.stop()
        running = party.running
        assert not running
        await social.stop()  # twice does no harm
        await publish(client, 10, WORLD[0] | {"population": 10})
        await publish(client, 11, WORLD[1], delete=True)
        await social.start()
        assert social.known[("regions", "AD")] == 1
        await until(lambda: social.known[("regions", "FR")] == 11)
        await until(lambda: social.known[("regions", "AD")] == 10)
        await social.stop()
    assert party.outcomes["new"] == len(WORLD) + 2
    rows = {row["code"]: row for row in read_table(social.path, REGIONS)}
    assert rows["AD"]["population"] == 10
    assert "FR" not in rows


async def test_a_failed_change_comes_again_and_undoes_nothing(tmp_path: Path) -> None:
    party = Party("social")
    row = WORLD[2]

    def fails(change: Change, attempts: int) -> bool:
        return change.change == 1 and attempts < 2

    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        await publish(client, 1, row | {"population": 1})
        await publish(client, 2, row | {"population": 2})
        social = platform(cluster, tmp_path, party, fails)
        await social.start()
        await until(lambda: party.outcomes["retried"] == 1)
        await social.stop()
    assert party.outcomes == {"failed": 2, "new": 1, "retried": 1, "stale": 1}
    assert read_table(social.path, REGIONS) == [row | {"population": 2}]


def test_the_failing_changes_are_the_same_in_every_run() -> None:
    fails = fails_at_first(0.02)
    changes = [Change("users", "delete", "U000001", number, 1, None) for number in range(5_000)]
    failing = [change.change for change in changes if fails(change, 0)]
    assert 50 < len(failing) < 150
    assert failing == [change.change for change in changes if fails_at_first(0.02)(change, 0)]
    assert not any(fails(change, 1) for change in changes)
