"""A platform on a real broker: restarts, failures and repeats leave an equal copy."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.demo.board import Party
from cometmq.demo.change import Change
from cometmq.demo.platform import Fails, Platform, fails_at_first
from cometmq.demo.tables import REGIONS, Row, read_table
from cometmq.testing.cluster import Cluster, running_cluster
from tests.demo.worlds import small_world

TOPIC = "changes"
WORLD = small_world()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
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
