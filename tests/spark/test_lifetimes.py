"""What a read meets in the life of a topic: nothing yet, growth, retention, deletion, many queues.

Readers are used as Spark uses them, without Spark: only the driver's side decides here.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.spark.brokers import cluster, offsets, wire
from cometmq.spark.brokers.wire import Call
from cometmq.spark.options import BadOption
from cometmq.spark.read.checkpoint import StreamOffset, from_json
from cometmq.spark.read.losses import DataLoss
from cometmq.spark.read.options import ReadOptions, parse
from cometmq.spark.read.reader import TopicReader, ranges_of
from cometmq.spark.read.stream import Json, TopicStreamReader
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.compat.anchor import wait_until
from tests.spark.topics import access, delete_topic, fill, fill_all, make_topic, options

pytestmark = pytest.mark.usefixtures("finds_at_once")

EVERYTHING = ReadAllAvailable()
NAMES = ("topic", "queue_id", "queue_offset")


def stream(read: ReadOptions) -> TopicStreamReader:
    return TopicStreamReader(read, NAMES)


def rows(reader: TopicStreamReader, start: Json, end: Json) -> list[tuple[str, int, int]]:
    return sorted(
        (row["topic"], row["queue_id"], row["queue_offset"])
        for task in reader.partitions(start, end)
        for part in reader.read(task)
        for row in part.to_pylist()
    )


def batch(read: ReadOptions) -> list[tuple[str, int, int]]:
    reader = TopicReader(read, NAMES)
    return sorted(
        (row["topic"], row["queue_id"], row["queue_offset"])
        for task in reader.partitions()
        for part in reader.read(task)
        for row in part.to_pylist()
    )


def choose(namesrv: str, **given: str) -> ReadOptions:
    return parse({"nameservers": namesrv, **given})


# ------------------------------------------------------------------- nothing yet, and growth


def test_a_topic_without_messages(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "LifeEmpty", 3)
        read = options(cometmq_session_cluster.namesrv, "LifeEmpty", startingOffsets="earliest")
        assert TopicReader(read, NAMES).partitions() == []
        timed = options(cometmq_session_cluster.namesrv, "LifeEmpty", startingTimestamp="5")
        assert TopicReader(timed, NAMES).partitions() == []
        reader = stream(read)
        start = reader.initialOffset()
        assert reader.latestOffset(start, EVERYTHING) == start
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(start, EVERYTHING) == start
        reader = stream(read)
        fill(client, queues[1], ["a"])
        end = reader.latestOffset(start, EVERYTHING)
    # Queues that stay empty are no work.
    (task,) = reader.partitions(start, end)
    assert [part.queue for part in ranges_of(task)] == [queues[1]]
    assert rows(reader, start, end) == [("LifeEmpty", 1, 0)]


def test_topics_that_match_a_pattern_join(cometmq_session_cluster: Cluster) -> None:
    reader = stream(choose(cometmq_session_cluster.namesrv, subscribePattern="LifePattern-.*"))
    start = reader.initialOffset()
    assert from_json(start).queues == {}
    assert reader.latestOffset(start, EVERYTHING) == start
    with Client(cometmq_session_cluster.namesrv) as client:
        fill_all(client, make_topic(client, "LifePattern-a", 1), 2)
        make_topic(client, "Not-LifePattern-b", 1)
        first = reader.latestOffset(start, EVERYTHING)
        assert rows(reader, start, first) == [("LifePattern-a", 0, at) for at in range(2)]
        fill_all(client, make_topic(client, "LifePattern-b", 2), 1)
        second = reader.latestOffset(first, EVERYTHING)
        assert rows(reader, first, second) == [("LifePattern-b", at, 0) for at in range(2)]
        delete_topic(client, "LifePattern-a")
    assert reader.latestOffset(second, EVERYTHING) == second


def test_assigned_queues_and_no_others(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        fill_all(client, make_topic(client, "LifeAssigned", 3), 2)
    assign = json.dumps({"LifeAssigned": {"broker-a": [0, 2]}})
    read = choose(cometmq_session_cluster.namesrv, assign=assign)
    assert batch(read) == [("LifeAssigned", queue, at) for queue in (0, 2) for at in range(2)]


def test_a_start_after_the_end(cometmq_session_cluster: Cluster) -> None:
    namesrv = cometmq_session_cluster.namesrv
    with Client(namesrv) as client:
        (queue,) = make_topic(client, "LifeOrder", 1)
        fill(client, queue, "abcde")
    at = {number: json.dumps({"LifeOrder": {"broker-a": {"0": number}}}) for number in (3, 4, 9)}
    read = options(namesrv, "LifeOrder", startingOffsets=at[4], endingOffsets=at[3])
    with pytest.raises(BadOption, match="starts at 4, after its end 3"):
        batch(read)
    with pytest.raises(BadOption, match="starts at 9, after its end 5"):
        stream(options(namesrv, "LifeOrder", startingOffsets=at[9])).initialOffset()
    offsets.commit("life-order", {queue: 9}, access(namesrv))
    behind = {"startingOffsets": "group", "consumerGroup": "life-order"}
    with pytest.raises(DataLoss, match="offsets 5 to 8"):
        batch(options(namesrv, "LifeOrder", **behind))
    assert batch(options(namesrv, "LifeOrder", failOnDataLoss="false", **behind)) == []


# ------------------------------------------------------------------------- retention


def has_expired(found: Cluster, queue: MessageQueue) -> bool:
    """Drop all files of the log that can go, and say whether that took messages of a queue."""
    code, reached = RequestCode.DELETE_EXPIRED_COMMITLOG, access(found.namesrv)
    wire.checked(found.broker, code, wire.call(found.broker, code, None, reached))
    return offsets.earliest([queue], reached)[queue] > 0


@pytest.fixture(scope="module")
def expiring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker whose messages are too old at once."""
    settings = {"fileReservedTime": 0, "flushConsumeQueueThoroughInterval": 0}
    with cluster_in_thread(tmp_path_factory.mktemp("expiring"), **settings) as found:
        yield found


def test_messages_expire_while_a_query_runs(expiring: Cluster, tmp_path: Path) -> None:
    topic, reached = "LifeExpires", access(expiring.namesrv)
    strict = stream(choose(expiring.namesrv, topic=topic, startingOffsets="earliest"))
    with Client(expiring.namesrv) as client:
        (queue,) = make_topic(client, topic, 1)
        start = strict.initialOffset()
        before = 60  # of 100 kB: they fill one file of the log and begin another
        for _ in range(before):
            client.send(topic, random.randbytes(100_000), queue=queue)
    end = strict.latestOffset(start, EVERYTHING)
    wait_until(lambda: has_expired(expiring, queue), "the first file expires")
    first = offsets.earliest([queue], reached)[queue]
    with pytest.raises(DataLoss, match=f"offsets 0 to {first - 1} of queue 0 of topic '{topic}'"):
        rows(strict, start, end)
    going_on = {"failOnDataLoss": "false", "dataLossReport": str(tmp_path / "lost")}
    left = [(topic, 0, at) for at in range(first, before)]
    lax = stream(choose(expiring.namesrv, topic=topic, maxRowsPerPartition="7", **going_on))
    assert rows(lax, start, end) == left
    (path,) = (tmp_path / "lost").iterdir()
    lost = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["topic"], line["broker"], line["queue"]) for line in lost} == {
        (topic, "broker-a", 0)
    }
    gone = [at for line in lost for at in range(line["first"], line["last"] + 1)]
    assert gone == list(range(first))
    # A limit does not count the lost messages: the first batch passes all of them.
    capped = stream(
        choose(expiring.namesrv, topic=topic, maxOffsetsPerTrigger="5", failOnDataLoss="false")
    )
    passed = capped.latestOffset(start, capped.getDefaultReadLimit())
    assert from_json(passed).queues == {queue: first + 5}
    # Whoever comes later starts at what there is: a batch, or a stream that meets the queue.
    assert batch(choose(expiring.namesrv, topic=topic)) == left
    nothing = StreamOffset({}).to_json()
    met = strict.latestOffset(nothing, EVERYTHING)
    assert from_json(met).origin == {queue: first}
    assert rows(strict, nothing, met) == left
    offsets.commit("life-expires", {queue: first - 1}, reached)
    behind = choose(
        expiring.namesrv, topic=topic, startingOffsets="group", consumerGroup="life-expires"
    )
    with pytest.raises(DataLoss, match=f"offsets {first - 1} to {first - 1}"):
        batch(behind)


# ------------------------------------------------------------------------- limits and many queues


def test_a_batch_waits_for_enough(
    cometmq_session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "LifeEnough", 2)
        fill_all(client, queues, 1)
        reader = stream(options(cometmq_session_cluster.namesrv, "LifeEnough", **extra))
        limit = reader.getDefaultReadLimit()
        start = reader.initialOffset()
        first = reader.latestOffset(start, limit)
        assert len(rows(reader, start, first)) == 2
        fill_all(client, queues, 2, start=1)
        assert reader.latestOffset(first, limit) == first
        assert reader.latestOffset(first, EVERYTHING) != first
        fill_all(client, queues[:1], 1, start=3)
        reader = stream(options(cometmq_session_cluster.namesrv, "LifeEnough", **extra))
        second = reader.latestOffset(first, limit)
        assert len(rows(reader, first, second)) == 5
        fill_all(client, queues[:1], 1, start=4)
        assert reader.latestOffset(second, limit) == second
        # What is available now is all that there will be.
        reader.prepareForTriggerAvailableNow()
        third = reader.latestOffset(second, limit)
        assert len(rows(reader, second, third)) == 1


def test_bytes_cap_a_batch_about(cometmq_session_cluster: Cluster) -> None:
    extra = {"startingOffsets": "earliest", "maxBytesPerTrigger": "20000"}
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "LifeBytes", 2)
        for queue in queues:
            fill(client, queue, ["x" * 1_000] * 40)
    reader = stream(options(cometmq_session_cluster.namesrv, "LifeBytes", **extra))
    reader.prepareForTriggerAvailableNow()
    end, sizes = reader.initialOffset(), []
    while (following := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
        sizes.append(len(rows(reader, end, following)))
        end = following
    assert sum(sizes) == 80
    # A body lies there twice, in a property (the key) too: about 2.2 kB a message.
    assert all(8 <= size <= 10 for size in sizes[:-1])


def test_tasks_of_large_messages_are_smaller(cometmq_session_cluster: Cluster) -> None:
    namesrv, extra = cometmq_session_cluster.namesrv, {"startingOffsets": "earliest"}
    with Client(namesrv) as client:
        queues = make_topic(client, "LifeLarge", 2)
        for queue in queues:
            fill(client, queue, ["x" * 1_000] * 40)  # about 2.2 kB a message
    assert len(TopicReader(options(namesrv, "LifeLarge"), NAMES).partitions()) == 1
    read = options(namesrv, "LifeLarge", maxBytesPerPartition="22000", **extra)
    tasks = TopicReader(read, NAMES).partitions()
    assert 8 <= len(tasks) <= 10
    assert max(sum(map(len, ranges_of(task))) for task in tasks) <= 11
    reader = stream(read)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert len(reader.partitions(start, end)) == len(tasks)
    assert len(rows(reader, start, end)) == 80


def test_a_thousand_queues(
    cometmq_session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesrv = cometmq_session_cluster.namesrv
    with Client(namesrv) as client:
        queues = make_topic(client, "LifeThousand", 1_000)
        for queue in queues[::100]:
            fill(client, queue, ["a"])
        for queue in queues:
            fill(client, queue, ["b"])
    exchanges = counted(monkeypatch)
    plain = TopicReader(options(namesrv, "LifeThousand"), NAMES)
    assert len(plain.partitions()) == 4
    assert len(exchanges) <= 5
    exchanges.clear()
    timed = TopicReader(options(namesrv, "LifeThousand", startingTimestamp="5"), NAMES)
    assert sum(len(part) for task in timed.partitions() for part in ranges_of(task)) == 1_010
    assert len(exchanges) <= 12
    exchanges.clear()
    reader = stream(options(namesrv, "LifeThousand", startingOffsets="earliest"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert len(reader.partitions(start, end)) == 4
    assert len(exchanges) <= 6
    assert len(rows(reader, start, end)) == 1_010


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests in each exchange from here on."""
    exchanges: list[int] = []

    def counting(real: Callable[..., object]) -> Callable[..., object]:
        def call_many(address: str, calls: list[Call], reached: object) -> object:
            exchanges.append(len(calls))
            return real(address, calls, reached)

        return call_many

    for module in (cluster, offsets):
        monkeypatch.setattr(module, "call_many", counting(wire.call_many))
    return exchanges
