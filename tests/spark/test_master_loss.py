"""The master dies and its slave is read: nothing is lost, nothing comes twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cometmq.client.blocking import Client
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import TopicQueue
from cometmq.spark.brokers import offsets, wire
from cometmq.spark.read.checkpoint import from_json
from cometmq.spark.read.options import parse
from cometmq.spark.read.reader import TopicReader
from cometmq.spark.read.stream import TopicStreamReader
from tests.compat.anchor import VERSION, fetch_jars, wait_until
from tests.spark.pairs import Pair, java_pair, our_pair
from tests.spark.topics import access, fill_all, make_topic

pytestmark = pytest.mark.compat

TOPIC = "MasterLoss"
EVERYTHING = ReadAllAvailable()


@pytest.fixture(params=["cometmq", "java"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = (
        our_pair(tmp_path)
        if request.param == "cometmq"
        else java_pair(fetch_jars(VERSION), tmp_path)
    )
    with made as found:
        yield found


@pytest.mark.usefixtures("finds_at_once")
def test_a_slave_is_read_when_its_master_dies(pair: Pair) -> None:
    reached = access(pair.namesrv)
    with Client(pair.namesrv) as client:
        queues = make_topic(client, TOPIC, 2)
        fill_all(client, queues, 10)
    pair.wait_for_slave(TOPIC)
    read = parse(
        {
            "nameservers": pair.namesrv,
            "topic": TOPIC,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "8",
            "consumerGroup": "master-loss",
        }
    )
    reader = TopicStreamReader(read, ("queue_id", "queue_offset"))
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    wait_until(lambda: copied(pair) == 20, "the slave has all", 60)
    pair.lose_master()
    found = rows(reader, start, first)
    end = first
    while (following := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
        found += rows(reader, end, following)
        end = following
    assert sorted(found) == [(queue, at) for queue in range(2) for at in range(10)]
    # A slave that is behind is no loss: its master has the rest.
    ahead = {queue: offset + 5 for queue, offset in from_json(end).queues.items()}
    assert offsets.ends(queues, reached).copies == set(queues)
    further = {"v": 1, "q": {f"broker-a|{TOPIC}|{q.queue_id}": at for q, at in ahead.items()}}
    assert reader.latestOffset(further, EVERYTHING) == further
    assert len(rows_of_batch(TopicReader(read, ("queue_id", "queue_offset")))) == 20


def copied(pair: Pair) -> int:
    """Messages that the slave has, asked of it alone."""
    code = int(RequestCode.GET_MAX_OFFSET)
    calls: list[wire.Call] = [(code, TopicQueue(topic=TOPIC, queue_id=at)) for at in range(2)]
    answers = wire.call_many(pair.slave, calls, access(pair.namesrv))
    return sum(int(answer.ext["offset"]) for answer in answers)


def rows(
    reader: TopicStreamReader, start: dict[str, object], end: dict[str, object]
) -> list[tuple[int, int]]:
    return [
        (row["queue_id"], row["queue_offset"])
        for task in reader.partitions(start, end)
        for part in reader.read(task)
        for row in part.to_pylist()
    ]


def rows_of_batch(reader: TopicReader) -> list[object]:
    return [
        row
        for task in reader.partitions()
        for part in reader.read(task)
        for row in part.to_pylist()
    ]
