"""What a move means and what it is told, on brokers of ours; tests/cluster has the Java one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.admin import migration
from cometmq.admin.api import Admin
from cometmq.admin.migration import Mover, NotMoved, findings, free_bytes, settings_of_slave
from cometmq.broker.config import load
from cometmq.client.client import Client
from tests.broker.replicated import group, hurry
from tests.broker.serving import SMALL
from tests.broker.test_supervisor import SLAVE, living, until_same
from tests.replication.pairs import until

JAVA = {
    "brokerRole": "SYNC_MASTER",
    "brokerName": "orders",
    "brokerClusterName": "c",
    "namesrvAddr": "10.0.0.1:9876",
    "mappedFileSizeCommitLog": "1073741824",
    "messageDelayLevel": "1s 2s",
    "flushDiskType": "ASYNC_FLUSH",
    "sendMessageThreadPoolNums": "16",
}


def weights(**changes: str) -> list[tuple[str, str]]:
    found = findings(JAVA | changes, 1_000, 1 << 40, Path("/d"))
    return [(each.weight, each.text) for each in found]


def test_a_plain_master_goes_along() -> None:
    assert [weight for weight, _ in weights()] == ["ok", "ok"]
    assert findings(JAVA, 1 << 40, 1 << 30, Path("/d"))[0].weight == "refused"


@pytest.mark.parametrize(
    ("changes", "weight", "text"),
    [
        ({"brokerRole": "SLAVE"}, "refused", "it is SLAVE"),
        ({"enableDLegerCommitLog": "true"}, "refused", "DLedger"),
        ({"aclEnable": "true"}, "warning", "every client may send"),
        ({"filterServerNums": "1"}, "warning", "filter servers"),
    ],
)
def test_what_does_not_go_along(changes: dict[str, str], weight: str, text: str) -> None:
    assert any(found[0] == weight and text in found[1] for found in weights(**changes))


def test_the_settings_are_those_of_a_slave_that_fits() -> None:
    settings = settings_of_slave(JAVA, Path("/data/new"), 10_915, 3)
    broker, store, _ = load(settings)
    assert broker.is_slave
    assert (broker.broker_name, broker.broker_id, broker.listen_port) == ("orders", 3, 10_915)
    assert store.mapped_file_size_commit_log == 1 << 30
    assert "sendMessageThreadPoolNums" not in settings


def test_room_is_that_of_the_directory_that_will_hold_it(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") > 0


async def test_a_master_of_ours_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    async with group(tmp_path) as made, living(made, "a") as old, Client(made.namesrv) as client:
        admin, master = Admin(client.session), f"127.0.0.1:{old.broker.port}"
        await client.send("t", b"one")
        plan = await migration.plan(admin, client.session, master, tmp_path / "b", 0)
        assert (plan.name, plan.role, plan.is_refused) == ("broker-a", "ASYNC_MASTER", False)
        assert plan.settings["brokerId"] == "1"
        with pytest.raises(NotMoved, match="is ASYNC_MASTER, not a slave"):
            await migration.status(admin, master)
        values = {**SLAVE, **{key: SMALL[key] for key in SMALL}}
        async with living(made, "b", **values) as new:
            await until_same(old, new)
            slave = f"127.0.0.1:{new.broker.port}"
            await until(lambda: new.broker.replication.part.facts()["tablesAgeMs"] != "-1")
            seen = await migration.status(admin, slave)
            assert (seen.master, seen.behind_bytes, seen.is_near) == (master, 0, True)
            said: list[str] = []
            moved = await Mover(admin, client.session, slave, say=said.append).move("SYNC_MASTER")
            assert (moved.name, moved.old, moved.new) == ("broker-a", master, slave)
            assert len(said) == 4
            assert old.broker.config.start_accept_send_request_time_stamp > 0
            assert not new.broker.config.is_slave


async def test_a_slave_that_does_not_come_near_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "b", **SLAVE) as alone,
    ):
        slave = f"127.0.0.1:{alone.broker.port}"
        mover = Mover(Admin(client.session), client.session, slave, say=lambda text: None)
        with pytest.raises(NotMoved, match="nothing was changed"):
            await mover.move(wait_ms=100)


async def test_a_master_that_is_not_drained_takes_sends_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(migration, "DRAIN_TIMEOUT_MS", -1)
    async with (
        group(tmp_path) as made,
        living(made, "a") as old,
        Client(made.namesrv) as client,
        living(made, "b", **SLAVE) as new,
    ):
        slave = f"127.0.0.1:{new.broker.port}"
        said: list[str] = []
        mover = Mover(Admin(client.session), client.session, slave, say=said.append)
        with pytest.raises(NotMoved, match="was not drained"):
            await mover.move(wait_ms=20_000)
        assert said[-1].startswith("cancelled")
        assert old.broker.config.start_accept_send_request_time_stamp == 0
        await client.send("t", b"one")
        assert new.broker.config.is_slave
