"""A redacted store goes on under a Java broker and under ours: everything else is where it was,
consumers of Java's client pass over the tombstones, and what is rebuilt from the log is the same.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final

import pytest

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.message import properties as props
from cometmq.message.record import COMPRESSED, Record
from cometmq.message.tombstone import ERASED, is_tombstone
from cometmq.store.config import StoreConfig
from cometmq.store.tools.erasure import Way, redact
from cometmq.store.tools.verify import verify
from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor, moving
from tests.compat.conftest import Drivers, SharedPeers, Target
from tests.compat.groups import Groups
from tests.operation.raw import RawPeer, create_topic, pull_queue, query_keys, queue_range

TOPIC: Final = "redacted"
QUEUES: Final = 4
COUNT: Final = 400
GONE: Final = ("customer-3", "customer-7")
TAGS: Final = "abc"
Queues = dict[int, list[Record]]


@pytest.fixture(autouse=True)
def _no_other_java(peers: SharedPeers) -> None:
    """One Java broker at a time is enough for a test machine."""
    peers.stop_java()


async def fill(broker: str, namesrv: str) -> None:
    """Messages of ten customers, every fiftieth a large one; and two that are delivered later."""
    peer = await RawPeer.connect(broker)
    await create_topic(peer, TOPIC, QUEUES)
    await peer.close()
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        for number in range(COUNT):
            customer = f"customer-{number % 10}"
            body = f"{number} of {customer}, ".encode() * (1_000 if number % 50 == 3 else 5)
            await client.send(
                TOPIC, body, tag=TAGS[number % 3], keys=[customer, f"order-{number}"],
                properties={"name": customer},
            )  # fmt: skip
        for customer in ("customer-3", "customer-4"):
            await client.send(TOPIC, b"later " * 10, keys=[customer], delay_level=3)


async def held(broker: str) -> Queues:
    peer = await RawPeer.connect(broker)
    found: Queues = {}
    for queue_id in range(QUEUES):
        first, end = await queue_range(peer, TOPIC, queue_id)
        found[queue_id] = await pull_queue(peer, TOPIC, queue_id)
        offsets = [record.queue_offset for record in found[queue_id]]
        # Delayed messages may arrive in between.
        assert (first, offsets) == (0, list(range(max(end, len(offsets)))))
    await peer.close()
    return found


async def found_by(broker: str, keys: list[str]) -> dict[str, int]:
    """The number of messages that the index finds and that do have the key."""
    peer = await RawPeer.connect(broker)
    answers = await query_keys(peer, TOPIC, keys)
    await peer.close()
    return {
        key: sum(key in props.index_keys(props.decode(each.properties)) for each in records)
        for key, records in answers.items()
    }


def is_gone(record: Record) -> bool:
    return bool(set(GONE).intersection(props.index_keys(props.decode(record.properties))))


async def delivered(broker: str) -> Queues:
    """What the topic has once the later ones are there too: the tombstone did not stop them."""
    async with asyncio.timeout(60):
        while True:
            queues = await held(broker)
            if sum(map(len, queues.values())) == COUNT + 2:
                return queues
            await asyncio.sleep(0.3)


def check(before: Queues, after: Queues) -> None:
    """All are where they were; those of the two customers have no content."""
    for queue_id, records in before.items():
        for old, new in zip(records, after[queue_id], strict=False):
            if not is_gone(old):
                assert new == old
                continue
            places = ("topic", "queue_id", "queue_offset", "physical_offset", "size_bytes")
            assert [getattr(new, name) for name in places] == [
                getattr(old, name) for name in places
            ]
            assert is_tombstone(new.properties)
            assert not any(new.body)
            assert not new.sys_flag & COMPRESSED


async def look(broker: str, before: Queues) -> Queues:
    """Check all that a broker serves; gives it."""
    after = await delivered(broker)
    check(before, after)
    tombs = sum(is_tombstone(each.properties) for records in after.values() for each in records)
    assert tombs == COUNT // 5 + 1
    expected = {f"order-{number}": int(number % 10 not in (3, 7)) for number in range(COUNT)}
    expected |= dict.fromkeys(GONE, 0) | {"customer-4": COUNT // 10 + 1}
    # A Java broker writes its index by and by.
    async with asyncio.timeout(30):
        while (found := await found_by(broker, [*expected])) != expected:
            assert all(found[key] <= count for key, count in expected.items())
            await asyncio.sleep(0.3)
    return after


def consumed(drivers: Drivers, target: Target) -> None:
    """Java's consumers get all messages, and those with a tag none without content."""
    driver = drivers.of(anchor.VERSION)
    groups = Groups(driver, target)
    try:
        everything, tagged = groups.make(TOPIC, "all"), groups.make(TOPIC, "tagged")
        reader, choosy = everything.join(), tagged.join(filter="a || b || c")
        found = everything.received(reader, COUNT + 2, 1_000)
        assert len({(row["queueId"], row["queueOffset"]) for row in found}) == COUNT + 2
        assert sum(row["keys"] == "~ ~" for row in found) == COUNT // 5
        wanted = tagged.received(choosy, COUNT * 8 // 10, 1_000)
        assert len(wanted) == COUNT * 8 // 10
        assert all(str(row["keys"]).startswith("customer-") for row in wanted)
    finally:
        groups.close()


def erase(store: Path) -> None:
    done = redact(StoreConfig(str(store)), GONE, SystemClock(), Way(in_place=True))
    # Also the delayed one, wherever it is by now.
    assert sum(done.counts) in (COUNT // 5 + 1, COUNT // 5 + 2)
    assert [left for left in done.left if "consumequeue" in left.path] == []
    found = verify(StoreConfig(str(store)), full=True)
    assert [each for each in found.findings if each.severity.value == "damage"] == []
    log = b"".join(path.read_bytes() for path in (store / "commitlog").iterdir())
    assert not any(key.encode() in log for key in GONE)


def test_a_store_of_a_java_broker(jars: Path, drivers: Drivers, tmp_path: Path) -> None:
    java = anchor.JavaCluster(jars, tmp_path / "java", moving.SETTINGS, store=tmp_path / "store")
    try:
        java.start()
        asyncio.run(fill(java.broker, java.namesrv))
        before = asyncio.run(held(java.broker))
        java.stop()
        erase(java.store)
        java.start()
        after = asyncio.run(look(java.broker, before))
        target = Target("java", java.namesrv, java.broker, "broker-a")
        consumed(drivers, target)
        drivers.end(anchor.VERSION)
        java.stop()
        # From the log alone the broker makes the same queues and index.
        shutil.rmtree(java.store / "consumequeue")
        shutil.rmtree(java.store / "index")
        java.start()
        assert asyncio.run(look(java.broker, before)) == after
        java.stop()
        ours = ProcessCluster(java.store.parent, **moving.SETTINGS)
        assert ours.store == java.store
        try:
            ours.start()
            assert asyncio.run(look(ours.broker, before)) == after
            assert ours.terminate() == 0
        finally:
            ours.kill()
    finally:
        java.kill()


def test_a_store_of_cometmq(jars: Path, tmp_path: Path) -> None:
    ours = ProcessCluster(tmp_path, **moving.SETTINGS)
    java = anchor.JavaCluster(jars, tmp_path / "java", moving.SETTINGS, store=ours.store)
    try:
        ours.start()
        asyncio.run(fill(ours.broker, ours.namesrv))
        before = asyncio.run(held(ours.broker))
        assert ours.terminate() == 0
        erase(ours.store)
        java.start()
        after = asyncio.run(look(java.broker, before))
        java.stop()
        ours.start()
        assert asyncio.run(look(ours.broker, before)) == after
        assert ours.terminate() == 0
    finally:
        ours.kill()
        java.kill()
    assert any(
        props.decode(record.properties).get(ERASED) == "redacted"
        for records in after.values()
        for record in records
    )
