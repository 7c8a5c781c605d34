"""A store goes from one broker to the other and back, after clean stops and after `kill -9`.

Each way, every message, queue and key must be there, offsets must go on, and a delayed message must
arrive although the broker that took it is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.compat.conftest import SharedPeers, Target
from tests.compat.driver import Driver, Json, column, tables
from tests.compat.groups import Group
from tests.compat.test_producer import pull_all

Row = dict[str, Json]
TOPIC, OTHER, GROUP = "stored", "stored-other", "stored-group"
RETRY = f"%RETRY%{GROUP}"
GONE = "stored-gone"
TOPICS = (TOPIC, OTHER, RETRY)
#: Several files of each kind, so that their borders are crossed.
SETTINGS = {
    "mappedFileSizeCommitLog": str(128 * 1024),
    "mappedFileSizeConsumeQueue": str(50 * 20),
    "maxHashSlotNum": "200",
    "maxIndexNum": "600",
}
KEYS = ("plain-0", "plain-199", "b7-3", "large-1", "other-39", "tagged-8")


@dataclass(frozen=True, slots=True)
class Opener:
    """One kind of broker over the store; it can be started again after either end."""

    store: Path
    start: Callable[[], None]
    stop: Callable[[], object]
    kill: Callable[[], None]
    target: Callable[[], Target]

    def end(self, how: str) -> None:
        """Stops or kills it."""
        if how == "kill":
            self.kill()
        else:
            self.stop()


@pytest.fixture(autouse=True)
def _no_other_java(peers: SharedPeers) -> None:
    """One Java broker at a time is enough for a test machine."""
    peers.stop_java()


@pytest.fixture
def openers(jars: Path, tmp_path: Path) -> Iterator[dict[str, Opener]]:
    """Both kinds of brokers over one store directory."""
    ours = ProcessCluster(tmp_path, **SETTINGS)
    java = anchor.JavaCluster(jars, tmp_path / "java", SETTINGS, store=ours.store)

    def our_target() -> Target:
        return Target("cometmq", ours.namesrv, ours.broker, "broker-a")

    def java_target() -> Target:
        return Target("java", java.namesrv, java.broker, "broker-a")

    yield {
        "cometmq": Opener(ours.store, ours.start, ours.terminate, ours.kill, our_target),
        "java": Opener(ours.store, java.start, java.stop, java.kill, java_target),
    }
    ours.kill()
    java.kill()


def fill(driver: Driver, target: Target) -> None:
    """Plain, tagged, large, batched, delayed and retried messages; a group that read some."""
    at = target.namesrv
    driver.send(at, TOPIC, prefix="plain-", count=200)
    driver.send(at, TOPIC, prefix="tagged-", count=60, tags=["a", "b", "c"], size=700)
    for batch in range(10):
        driver.send(at, TOPIC, mode="batch", prefix=f"b{batch}-", count=16, tags=["d"])
    driver.send(at, TOPIC, prefix="large-", count=5, size=20_000)
    driver.send(at, TOPIC, prefix="user-", count=5, properties={"colour": "grün"})
    driver.send(at, OTHER, prefix="other-", count=40, tags=["a"], size=500)
    group = Group(driver, target, GROUP, OTHER)
    group.received(group.join(failTimes=1), 80)
    group.close()
    driver.send(at, TOPIC, prefix="parked-", count=2, delay=18)


def snapshot(driver: Driver, target: Target) -> dict[str, list[Row]]:
    """Every message of the topics, without what a pull adds to its properties."""
    found = {topic: pull_all(driver, target, topic) for topic in TOPICS}
    for rows in found.values():
        for row in rows:
            properties = cast("dict[str, str]", row["properties"])
            row["properties"] = {
                key: value
                for key, value in properties.items()
                if key not in ("MIN_OFFSET", "MAX_OFFSET")
            }
    return found


def check_keys(driver: Driver, target: Target, messages: dict[str, list[Row]]) -> None:
    """That each key leads to its message, and that ids do."""
    everything = [row for rows in (messages[TOPIC], messages[OTHER]) for row in rows]
    for key in KEYS:
        [row] = [row for row in everything if row["keys"] == key]
        query = {"namesrv": target.namesrv, "topic": str(row["topic"]), "key": key}
        anchor.wait_until(lambda q=query: bool(driver.rows("query", **q)), f"index of {key}")  # type: ignore[misc]
        found = {(each["queueId"], each["queueOffset"]) for each in driver.rows("query", **query)}
        assert found == {(row["queueId"], row["queueOffset"])}


def progress(driver: Driver, target: Target) -> list[list[str]]:
    """Where the group stands, without times."""
    printed = driver.mqadmin("consumerProgress", "-n", target.namesrv, "-g", GROUP)
    return sorted(row[:6] for row in tables(printed) if row[0] == OTHER)


def parked_entries(store: Path) -> int:
    """How many messages of delay level 18 have their queue entry on disk. A Java broker that has to
    make such an entry anew after a crash forgets the delay, so what it shall keep must be there."""
    files = (store / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "17").glob("*")
    entries = b"".join(path.read_bytes() for path in files)
    return sum(any(entries[at : at + 20]) for at in range(0, len(entries), 20))


def place(row: Row) -> tuple[str, int, int]:
    """Where a message lies."""
    return str(row["topic"]), cast("int", row["queueId"]), cast("int", row["queueOffset"])


def delete_topic(driver: Driver, target: Target) -> None:
    """A topic that comes and goes."""
    driver.send(target.namesrv, GONE, prefix="gone-", count=20)
    driver.mqadmin("deleteTopic", "-n", target.namesrv, "-c", "DefaultCluster", "-t", GONE)


def leave_deleted(store: Path) -> None:
    """What a killed CometMQ leaves of deleted topics: their names, and files that are to go."""
    assert GONE in json.loads((store / "config" / "topics.json").read_bytes())["cometmqDeleted"]
    left = store / "consumequeue" / ".deleted" / "gone-77" / "0"
    left.mkdir(parents=True)
    (left / f"{0:020d}").write_bytes(bytes(1_000))


def check_kept(before: dict[str, list[Row]], after: dict[str, list[Row]]) -> list[Row]:
    """That all messages lie where they lay, as they were; gives those that came since."""
    had = {place(row): row for rows in before.values() for row in rows}
    have = {place(row): row for rows in after.values() for row in rows}
    assert had.keys() <= have.keys()
    for where, row in had.items():
        assert have[where] == row
    return [row for where, row in have.items() if where not in had]


def add_more(driver: Driver, target: Target, prefix: str) -> None:
    """Sends on, to the same queues; `pull_all` then checks that offsets go on."""
    driver.send(target.namesrv, TOPIC, prefix=prefix, count=60, size=300)
    driver.send(target.namesrv, TOPIC, mode="batch", prefix=f"{prefix}batch-", count=8)


@pytest.mark.deep  # test_store_moves.py crosses in every run, with more in the store
@pytest.mark.runs("4.9.7")
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize(("first", "second"), [("cometmq", "java"), ("java", "cometmq")])
def test_a_store_goes_there_and_back(
    driver: Driver, openers: dict[str, Opener], first: str, second: str, how: str
) -> None:
    writer, reader = openers[first], openers[second]
    writer.start()
    fill(driver, writer.target())
    before = snapshot(driver, writer.target())
    assert [len(before[topic]) for topic in TOPICS] == [430, 40, 40]
    stands = progress(driver, writer.target())
    anchor.wait_until(lambda: parked_entries(writer.store) == 2, "the delayed messages' entries")
    driver.send(writer.target().namesrv, TOPIC, prefix="late-", delay=2)
    if first == "cometmq":
        delete_topic(driver, writer.target())
    writer.end(how)
    if first == "cometmq":
        leave_deleted(writer.store)

    reader.start()
    if how == "stop":
        assert progress(driver, reader.target()) == stands

    def arrived() -> bool:
        return "late-0" in column(snapshot(driver, reader.target())[TOPIC], "keys")

    anchor.wait_until(arrived, "the delayed message")
    middle = snapshot(driver, reader.target())
    new = check_kept(before, middle)
    assert column(new, "keys").count("late-0") == 1
    if how == "stop":
        assert len(new) == 1
    # Progress of delays is stored every 10 s: after a kill, some are delivered once more.
    unexpected = [row for row in new if row["topic"] != RETRY and row["keys"] != "late-0"]
    assert unexpected == []
    check_keys(driver, reader.target(), before)
    add_more(driver, reader.target(), "second-")
    middle = snapshot(driver, reader.target())
    reader.end(how)
    topics = json.loads((reader.store / "config" / "topics.json").read_bytes())
    assert GONE not in topics["topicConfigTable"]
    assert TOPIC in topics["topicConfigTable"]

    writer.start()
    new = check_kept(middle, snapshot(driver, writer.target()))
    assert how == "kill" or not new
    check_keys(driver, writer.target(), middle)
    add_more(driver, writer.target(), "third-")
    new = check_kept(middle, snapshot(driver, writer.target()))
    assert sum(str(row["keys"]).startswith("third-") for row in new) == 68
