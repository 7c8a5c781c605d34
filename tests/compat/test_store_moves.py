"""All that a store holds goes to the other kind of broker: after clean stops and after `kill -9`,
from CometMQ to a Java broker and back, and from a Java broker to CometMQ.

That is plain, tagged, batched and large messages over many files, delayed ones, retried and dead
ones, transactions that are open (half and op messages), keys and unique keys, and what is left once
the broker has dropped its oldest files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor, moving
from tests.compat.conftest import SharedPeers
from tests.compat.test_stores import parked_entries

WAYS = ("stop", "kill")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java broker with messages that are too old, and where its store is."""

    cluster: anchor.JavaCluster
    store: Path


@pytest.fixture(scope="module", autouse=True)
def aging(
    jars: Path, peers: SharedPeers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Java]]:
    """A Java broker first looks for old files when it has run for a minute, so those that are to
    drop some start before all tests here."""
    peers.stop_java()
    made: dict[str, Java] = {}
    try:
        for how in WAYS:
            home = tmp_path_factory.mktemp(how)
            cluster = anchor.JavaCluster(jars, home / "java", moving.SETTINGS, store=home / "store")
            made[how] = Java(cluster, home / "store")
            cluster.start()
            asyncio.run(moving.fill_with_old(cluster.broker, cluster.namesrv))
        yield made
    finally:
        for java in made.values():
            java.cluster.kill()


async def all_kinds(broker: str, namesrv: str, store: Path) -> tuple[moving.Contents, list[str]]:
    """Put everything into a store, the oldest of which goes; gives what is there and what is not.
    The delayed messages have their queue entries on disk then."""
    gone = await moving.drop_old(broker, store)
    await moving.fill(broker, namesrv)
    await moving.check_gone(broker, gone)
    await moving.until(lambda: parked_entries(store) == 2, "entries of delayed messages")
    held = await moving.contents(broker)
    await moving.check_keys(broker)
    await moving.send_late(namesrv)
    return held, gone


async def check_moved(
    broker: str, namesrv: str, held: moving.Contents, gone: list[str], how: str
) -> moving.Contents:
    """That everything came along; what was under way goes on."""
    await moving.check_gone(broker, gone)
    await moving.end_transactions(broker, namesrv, "early", {b"early", b"late"})
    await moving.settled(broker, {"first", "second", "early"})
    await moving.arrived(broker, "delayed")
    now = await moving.contents(broker)
    came = sorted(moving.body_of(record) for record in moving.check_kept(held, now))
    # Progress of delays is stored every 10 s: after a kill, some are delivered once more.
    again = [body for body in came if body.startswith("refused")]
    assert [body for body in came if body not in again] == ["delayed", "early"]
    assert not again or how == "kill"
    await moving.check_keys(broker)
    await moving.go_on(namesrv, "more-")
    return await moving.contents(broker)


async def check_back(
    broker: str, namesrv: str, held: moving.Contents, gone: list[str], how: str
) -> None:
    """That everything came along once more, and the last transaction ends."""
    await moving.check_gone(broker, gone)
    now = await moving.contents(broker)
    came = moving.check_kept(held, now)
    again = [record for record in came if record.body.startswith((b"refused", b"delayed"))]
    assert came == again
    assert not again or how == "kill"
    await moving.check_keys(broker)
    await moving.end_transactions(broker, namesrv, "late", {b"late"})
    await moving.settled(broker, {"first", "second", "early", "late"})
    async with Client(namesrv) as client:
        runtime = await Admin(client.session).broker_runtime(broker)
    assert runtime["transactionHalfMessages"] == "0"


@pytest.mark.parametrize("how", WAYS)
def test_from_cometmq_to_java_and_back(jars: Path, tmp_path: Path, how: str) -> None:
    ours = ProcessCluster(tmp_path, **moving.SETTINGS)
    java = anchor.JavaCluster(jars, tmp_path / "java", moving.SETTINGS, store=ours.store)
    try:
        ours.start()
        asyncio.run(moving.fill_with_old(ours.broker, ours.namesrv))
        held, gone = asyncio.run(all_kinds(ours.broker, ours.namesrv, ours.store))
        end_ours(ours, how)
        java.start()
        held = asyncio.run(check_moved(java.broker, java.namesrv, held, gone, how))
        end_java(java, how)
        ours.start()
        asyncio.run(check_back(ours.broker, ours.namesrv, held, gone, how))
        assert ours.terminate() == 0
    finally:
        ours.kill()
        java.kill()
    topics = json.loads((ours.store / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert set(moving.QUEUES) <= set(topics)


@pytest.mark.parametrize("how", WAYS)
def test_from_java_to_cometmq(aging: dict[str, Java], tmp_path: Path, how: str) -> None:
    java, store = aging[how].cluster, aging[how].store
    held, gone = asyncio.run(all_kinds(java.broker, java.namesrv, store))
    end_java(java, how)
    ours = ProcessCluster(store.parent, **moving.SETTINGS)
    assert ours.store == store
    try:
        ours.start()
        held = asyncio.run(check_moved(ours.broker, ours.namesrv, held, gone, how))
        end_ours(ours, how)
        ours.start()
        asyncio.run(check_back(ours.broker, ours.namesrv, held, gone, how))
        assert ours.terminate() == 0
    finally:
        ours.kill()


def end_ours(ours: ProcessCluster, how: str) -> None:
    if how == "kill":
        ours.kill()
    else:
        assert ours.terminate() == 0


def end_java(java: anchor.JavaCluster, how: str) -> None:
    if how == "kill":
        java.kill()
    else:
        java.stop()
