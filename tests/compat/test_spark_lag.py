"""How far a Spark stream has come, as the real mqadmin shows it under a consumer group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import offsets, wire
from cometmq.spark.read import discovery
from cometmq.spark.read.checkpoint import from_json
from cometmq.spark.read.positions import AtGroup, Edge, NamedPosition, resolve
from cometmq.spark.read.stream import Json, TopicStreamReader
from tests.client.shared_broker import fresh_name
from tests.compat.conftest import Target
from tests.compat.driver import Driver, tables
from tests.spark.topics import access, fill_all, make_topic, options

pytestmark = [
    pytest.mark.compat,
    pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq", "4.9.7-java", "5.5.0-java5"),
]


@pytest.fixture(autouse=True)
def _finds_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(discovery, "DISCOVERY_MS", 0)
    yield
    wire.close_all()


def batch(reader: TopicStreamReader, start: Json) -> tuple[Json, int]:
    """The end of the next batch, and how many messages it has."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end) if end != start else []
    return end, sum(part.num_rows for task in tasks for part in reader.read(task))


def progress(driver: Driver, target: Target, group: str) -> dict[int, tuple[int, int, int]]:
    """consumerProgress: the broker's offset, the group's and the difference, by queue."""
    printed = driver.mqadmin("consumerProgress", "-n", target.namesrv, "-g", group)
    rows = [row for row in tables(printed) if row[1:] and row[1] == target.broker_name]
    return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}


def test_the_lag_of_a_stream(driver: Driver, target: Target) -> None:
    topic, group = fresh_name("spark-lag"), fresh_name("spark-group")
    with Client(target.namesrv) as client:
        queues = make_topic(client, topic, 3)
        fill_all(client, queues, 4)
    extra = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6", "consumerGroup": group}
    reader = TopicStreamReader(options(target.namesrv, topic, **extra), ("queue_offset",))
    first, rows = batch(reader, reader.initialOffset())
    assert rows == 6
    # Spark asks for the next batch when it has finished this one.
    second, rows = batch(reader, first)
    assert rows == 6
    assert progress(driver, target, group) == {
        queue.queue_id: (4, at, 4 - at) for queue, at in from_json(first).queues.items()
    }
    assert batch(reader, second) == (second, 0)
    assert progress(driver, target, group) == dict.fromkeys(range(3), (4, 4, 0))
    listed = tables(driver.mqadmin("consumerProgress", "-n", target.namesrv))
    assert group in {row[0] for row in listed}
    # Another query goes on where the group stands.
    with Client(target.namesrv) as client:
        fill_all(client, queues[:1], 2, start=4)
    again = options(target.namesrv, topic, startingOffsets="group", consumerGroup=group)
    reader = TopicStreamReader(again, ("queue_offset",))
    assert batch(reader, reader.initialOffset())[1] == 2


def test_what_is_not_committed(driver: Driver, target: Target) -> None:
    topic, group = fresh_name("spark-lag"), fresh_name("spark-group")
    reached = access(target.namesrv)
    with Client(target.namesrv) as client:
        queues: list[MessageQueue] = make_topic(client, topic, 4)
        fill_all(client, queues, 3)
    offsets.ensure_group(group, queues, reached)
    offsets.commit(group, {queues[0]: 2, queues[1]: 0}, reached)
    for edge, offset in ((Edge.EARLIEST, 0), (Edge.LATEST, 3)):
        found = resolve(NamedPosition("startingOffsets", AtGroup(group, edge)), queues, reached)
        assert [found[queue] for queue in queues] == [2, 0, offset, offset]
