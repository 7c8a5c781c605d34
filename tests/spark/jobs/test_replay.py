"""Messages sent once more: in order, at a rate, under ids that are always the same."""

from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.core.clock import SystemClock
from cometmq.spark.jobs import archive, replay
from cometmq.spark.jobs.inputs import InputOptions, read_live
from cometmq.spark.options import BadOption
from cometmq.testing.cluster import Cluster
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark
KEYS = ("a", "b", "c")


@pytest.fixture(scope="module")
def namesrv(cometmq_session_cluster: Cluster) -> str:
    """60 messages of three keys in three queues, each with its number in its key's order."""
    found = cometmq_session_cluster.namesrv
    with Client(found) as client:
        make_topic(client, "Replay", 3)
        for at in range(60):
            key = KEYS[at % 3]
            tag = "even" if at % 2 == 0 else "odd"
            client.send(
                "Replay", str(at).encode(), keys=[key, f"n{at}"], tag=tag, order_key=key,
                properties={"own": str(at)},
            )  # fmt: skip
    return found


def held(spark: SparkSession, namesrv: str, topic: str) -> list[tuple[int, int, str, bytes]]:
    columns = ("queue_id", "queue_offset", "msg_id", "body", "properties", "keys")
    rows = read_live(spark, InputOptions(nameservers=namesrv, topics=(topic,)), columns).collect()
    assert all(row.properties["own"] == bytes(row.body).decode() for row in rows)
    return sorted((row.queue_id, row.queue_offset, row.msg_id, bytes(row.body)) for row in rows)


def options(namesrv: str, to: str, **words: object) -> replay.ReplayOptions:
    return replay.ReplayOptions(nameservers=namesrv, topics=("Replay",), to=to, **words)  # type: ignore[arg-type]


def test_a_dry_run_counts_and_sends_nothing(spark: SparkSession, namesrv: str) -> None:
    report = replay.run(spark, options(namesrv, "Nowhere", where="tags = 'even'", dry_run=True))
    (source,) = report.sources
    assert (source.topic, source.messages, report.chosen, report.sent) == ("Replay", 30, 30, 0)


def test_again_it_sends_the_same_ids(spark: SparkSession, namesrv: str) -> None:
    with Client(namesrv) as client:
        make_topic(client, "ReplayTwice", 2)
    for turn in (1, 2):
        report = replay.run(spark, options(namesrv, "ReplayTwice", where="tags = 'odd'"))
        assert (report.chosen, report.sent) == (30, 30)
        found = held(spark, namesrv, "ReplayTwice")
        assert len(found) == 30 * turn
        assert len({message for *_, message, _ in found}) == 30


@pytest.mark.parametrize("order", ["key", "queue"])
def test_an_order_is_kept(spark: SparkSession, namesrv: str, order: str) -> None:
    topic = f"ReplayBy-{order}"
    with Client(namesrv) as client:
        make_topic(client, topic, 4)
    replay.run(spark, options(namesrv, topic, order=order))
    by_key: dict[int, list[int]] = defaultdict(list)
    queues: dict[int, set[int]] = defaultdict(set)
    for queue, _, _, body in held(spark, namesrv, topic):
        by_key[int(body) % 3].append(int(body))
        queues[int(body) % 3].add(queue)
    assert sorted(at for its in by_key.values() for at in its) == list(range(60))
    assert all(its == sorted(its) for its in by_key.values())
    assert all(len(found) == 1 for found in queues.values())


def test_an_archive_to_another_topic(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    target = str(tmp_path / "archive")
    archive.run(
        spark, archive.ArchiveOptions(nameservers=namesrv, topics=("Replay",), target=target)
    )
    with Client(namesrv) as client:
        make_topic(client, "ReplayArchive", 2)
    both = replay.ReplayOptions(
        nameservers=namesrv, topics=("Replay",), archive=target, to="ReplayArchive"
    )
    assert replay.run(spark, both).sent == 60
    with pytest.raises(BadOption, match="target cluster is missing"):
        replay.run(spark, replay.ReplayOptions(archive=target, to="x"))


def test_a_task_keeps_its_pace() -> None:
    clock = SystemClock()
    start_ms = clock.monotonic_ms()
    assert list(replay.pace(100)(range(40))) == list(range(40))
    assert clock.monotonic_ms() - start_ms >= 350


def test_a_rate_is_held_by_all_tasks(spark: SparkSession, namesrv: str) -> None:
    with Client(namesrv) as client:
        make_topic(client, "ReplayPaced", 1)
    assert replay.run(spark, options(namesrv, "ReplayPaced", rate=1_000)).sent == 60
    assert len(held(spark, namesrv, "ReplayPaced")) == 60
