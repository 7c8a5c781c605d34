"""A broker that leaves the route: nothing that it holds is silently left out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cometmq.client.blocking import Client
from cometmq.core.errors import NotConnected
from cometmq.message.model import MessageQueue
from cometmq.protocol.frame import Request
from cometmq.spark.brokers import cluster
from cometmq.spark.options import BadOption
from cometmq.spark.read import discovery
from cometmq.spark.read.discovery import BrokerMissing, find_queues, wait_for_brokers
from cometmq.spark.read.fetcher import pauses_ms
from cometmq.spark.read.options import MissingBroker, Outage, ReadOptions, parse
from cometmq.spark.read.reader import TopicReader
from cometmq.spark.read.stream import TopicStreamReader
from cometmq.testing.cluster import SMALL_FILES
from tests.compat.anchor import free_port, wait_until
from tests.spark.pairs import Server
from tests.spark.scripted import Answer, ScriptedCluster
from tests.spark.topics import access, fill_all, make_topic, options

EVERYTHING = ReadAllAvailable()
EACH = 20
"""Messages in each of a topic's two queues on each broker."""


@dataclass
class Two:
    """Two brokers behind a name server; ``broker-b`` can go and come back."""

    namesrv: str
    home: Path
    port: int
    second: Server | None = None

    def start_second(self) -> None:
        settings = {**SMALL_FILES, "namesrvAddr": self.namesrv, "brokerName": "broker-b"}
        settings |= {"brokerIP1": "127.0.0.1", "storePathRootDir": str(self.home / "b-store")}
        self.second = Server(self.home / "b", "broker", self.port, **settings)
        wait_until(lambda: "broker-b" in self.registered(), "broker-b in the cluster")

    def stop_second(self) -> None:
        if self.second is not None:
            self.second.stop()
            self.second = None
        wait_until(lambda: "broker-b" not in self.registered(), "broker-b out of the cluster")

    def registered(self) -> frozenset[str]:
        return cluster.masters(access(self.namesrv))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    home = tmp_path_factory.mktemp("two")
    names, first, second = free_port(), free_port(-2, 1), free_port(-2, 1)
    two = Two(f"127.0.0.1:{names}", home, second)
    both = {**SMALL_FILES, "namesrvAddr": two.namesrv, "brokerIP1": "127.0.0.1"}
    with ExitStack() as stack:
        stack.callback(Server(home / "names", "namesrv", names).stop)
        store = {"brokerName": "broker-a", "storePathRootDir": str(home / "a-store")}
        stack.callback(Server(home / "a", "broker", first, **both, **store).stop)
        two.start_second()
        stack.callback(two.stop_second)
        yield two


@pytest.fixture
def two(brokers: Two) -> Two:
    """Both brokers are there."""
    if brokers.second is None:
        brokers.start_second()
    return brokers


def filled(two: Two, topic: str) -> list[MessageQueue]:
    with Client(two.namesrv) as client:
        queues = make_topic(client, topic, 2)
        assert {queue.broker_name for queue in queues} == {"broker-a", "broker-b"}
        fill_all(client, queues, EACH)
    return queues


def batch(read: ReadOptions) -> list[int]:
    reader = TopicReader(read, ("queue_offset",))
    return [
        offset
        for task in reader.partitions()
        for part in reader.read(task)
        for offset in part.column(0).to_pylist()
    ]


def stream(two: Two, topic: str, **extra: str) -> TopicStreamReader:
    given = {"startingOffsets": "earliest", **extra}
    return TopicStreamReader(options(two.namesrv, topic, **given), ("queue_offset",))


def lag(reader: TopicStreamReader, end: dict[str, Any]) -> int:
    newest: Any = reader.reportLatestOffset()
    return int(sum(newest["q"].values()) - sum(end["q"].values()))


# ------------------------------------------------------------------------------------- a batch


def named(topic: str, **broker: int) -> str:
    return json.dumps({topic: {"broker-b": broker}})


@pytest.mark.parametrize(
    ("topic", "option", "value"),
    [
        ("OutBrokers", "brokers", "broker-a,broker-b"),
        ("OutEnding", "endingOffsets", named("OutEnding", **{"0": EACH})),
        ("OutStarting", "startingOffsets", named("OutStarting", **{"0": 0})),
        ("OutTimes", "startingOffsetsByTimestamp", named("OutTimes", **{"0": 5})),
    ],
)
def test_a_batch_fails_with_the_name_of_a_broker_that_left(
    two: Two, topic: str, option: str, value: str
) -> None:
    how = {option: value}
    filled(two, topic)
    read = options(two.namesrv, topic, outageTimeout="1s", **how)
    assert len(batch(read)) == 4 * EACH
    two.stop_second()
    with pytest.raises(BrokerMissing, match=r"broker 'broker-b'.*option '.*lists it"):
        batch(read)
    lax = options(two.namesrv, topic, missingBroker="warn", **how)
    assert len(batch(lax)) == 2 * EACH


@pytest.mark.spark
def test_a_batch_remembers_whom_batches_before_it_saw(two: Two, spark: SparkSession) -> None:
    filled(two, "OutRemembered")

    def count(**given: str) -> int:
        frame = spark.read.format("rocketmq").option("nameservers", two.namesrv)
        frame = frame.options(topic="OutRemembered", outageTimeout="1s", **given)
        return int(frame.load().count())

    assert count() == 4 * EACH
    two.stop_second()
    with pytest.raises(Exception, match=r"broker 'broker-b'.*had queues of 'OutRemembered'"):
        count()
    assert count(missingBroker="warn") == 2 * EACH
    assert count(brokers="broker-a") == 2 * EACH
    two.start_second()
    assert count() == 4 * EACH


def test_patterns_and_streams_remember_too(two: Two) -> None:
    filled(two, "OutPattern-a")
    given = {"nameservers": two.namesrv, "subscribePattern": "OutPattern-.*"}
    find_queues(parse(given))
    two.stop_second()
    read = parse({**given, "missingBroker": "fail"})
    for reader in (batch, find_queues):
        with pytest.raises(BrokerMissing, match="'broker-b'"):
            reader(read)
    found = TopicStreamReader(read, ("queue_offset",))
    with pytest.raises(BrokerMissing, match="'broker-b'"):
        found.initialOffset()
    with pytest.raises(BrokerMissing, match="'broker-b'"):
        found.prepareForTriggerAvailableNow()


def test_assigned_queues_of_a_broker_that_left(two: Two) -> None:
    filled(two, "OutAssigned")
    assign = json.dumps({"OutAssigned": {"broker-a": [0], "broker-b": [1]}})
    given = {"nameservers": two.namesrv, "assign": assign}
    two.stop_second()
    with pytest.raises(BrokerMissing, match="broker-b"):
        batch(parse({**given, "missingBroker": "fail"}))
    assert len(batch(parse({**given, "missingBroker": "warn"}))) == EACH


def test_a_batch_waits_for_a_broker_that_comes_back(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(two, "OutBack")
    two.stop_second()
    waits: list[float] = []

    class Pause:
        def wait(self, seconds: float) -> None:
            waits.append(seconds)
            two.start_second()

    monkeypatch.setattr(discovery, "_pause", Pause())
    read = options(two.namesrv, "OutBack", brokers="broker-b", outageTimeout="60s")
    assert len(batch(read)) == 4 * EACH
    assert len(waits) == 1


def test_a_broker_that_never_was_is_named(two: Two) -> None:
    filled(two, "OutNever")
    read = options(two.namesrv, "OutNever", brokers="broker-c", missingBroker="fail")
    with pytest.raises(BrokerMissing, match="'broker-c'"):
        batch(read)


# ------------------------------------------------------------------------------------ a stream


def test_a_stream_notices_and_its_lag_stays(two: Two) -> None:
    filled(two, "OutStream")
    reader = stream(two, "OutStream", outageTimeout="1ms", maxOffsetsPerTrigger="20")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert lag(reader, end) == 4 * EACH - 20
    two.stop_second()

    def until_it_fails() -> None:
        at = end
        while True:
            at = reader.latestOffset(at, reader.getDefaultReadLimit())
            assert lag(reader, at) >= 2 * EACH - 10

    with pytest.raises(NotConnected, match="broker-b"):
        until_it_fails()


@pytest.mark.usefixtures("finds_at_once")
def test_a_stream_may_fail_at_once_or_go_on(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    filled(two, "OutRules")
    reader = stream(two, "OutRules")
    first = reader.initialOffset()
    end = reader.latestOffset(first, EVERYTHING)
    two.stop_second()
    with pytest.raises(BrokerMissing, match=r"'broker-b'.*has read its queues"):
        stream(two, "OutRules", missingBroker="fail").latestOffset(end, EVERYTHING)
    lax = stream(two, "OutRules", missingBroker="warn", outageTimeout="1ms")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert lax.latestOffset(end, EVERYTHING) == end
    assert len([line for line in caplog.messages if "broker_missing" in line]) == 1
    assert "'broker-b'" in caplog.text
    # It waits by default.
    assert reader.latestOffset(end, EVERYTHING) == end
    two.start_second()
    assert reader.latestOffset(end, EVERYTHING) == end


def test_available_now_knows_brokers_by_its_checkpoint(two: Two) -> None:
    filled(two, "OutNow")
    reader = stream(two, "OutNow", maxOffsetsPerTrigger="20")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    two.stop_second()
    again = stream(two, "OutNow", outageTimeout="1ms", knownBrokers="none")
    again.prepareForTriggerAvailableNow()
    with pytest.raises(BrokerMissing, match="'broker-b'"):
        again.latestOffset(end, EVERYTHING)
    # Whoever is out of service is not among those that are named.
    rest = stream(two, "OutNow", brokers="broker-a")
    rest.prepareForTriggerAvailableNow()
    without: Any = rest.latestOffset(end, EVERYTHING)["q"]
    assert sorted(without.values()) == [5, 5, EACH, EACH]
    lax = stream(two, "OutNow", missingBroker="warn")
    lax.prepareForTriggerAvailableNow()
    following = lax.latestOffset(end, EVERYTHING)
    # What the broker had left is in the lag, as the checkpoint says.
    assert lag(lax, following) == 2 * EACH - 10
    assert lax.latestOffset(following, EVERYTHING) == following
    # With the broker back all that was available is read.
    again = stream(two, "OutNow", outageTimeout="60s", knownBrokers="none")
    again.prepareForTriggerAvailableNow()
    two.start_second()
    last = again.latestOffset(end, EVERYTHING)
    queues: Any = last["q"]
    assert list(queues.values()) == [EACH] * 4


@pytest.mark.spark
def test_spark_fails_with_the_brokers_name(two: Two, spark: SparkSession, tmp_path: Path) -> None:
    filled(two, "OutSpark")
    given = {"nameservers": two.namesrv, "topic": "OutSpark", "outageTimeout": "1s"}

    def drain() -> None:
        frame = spark.readStream.format("rocketmq").options(**given, startingOffsets="earliest")
        writer = frame.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    drain()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 4 * EACH
    two.stop_second()
    with pytest.raises(StreamingQueryException, match="broker 'broker-b'"):
        drain()
    with pytest.raises(Exception, match="broker 'broker-b'"):
        spark.read.format("rocketmq").options(**given, brokers="broker-b").load().count()


# ------------------------------------------------------------------------------ other knowledge


def seven(_: Request[Any]) -> Answer:
    return 0, {"offset": "7"}, b""


def test_another_name_server_may_know_more() -> None:
    with ScriptedCluster("T", seven) as young, ScriptedCluster("T", seven) as old:
        young.broker_name = "broker-y"
        read = parse({"nameservers": f"{young.namesrv};{old.namesrv}", "topic": "T"})
        with pytest.raises(BrokerMissing, match=f"'broker-a'.*{old.namesrv} knows its queues"):
            find_queues(read)
        read = parse({"nameservers": f"{young.namesrv};127.0.0.1:1", "topic": "T"})
        assert find_queues(read).queues == [MessageQueue("T", "broker-y", 0)]


def test_the_configuration_of_an_ordered_topic_names_brokers() -> None:
    with ScriptedCluster("T", seven) as peers:
        peers.order_topic_conf = "broker-a:1;broker-o:4"
        with pytest.raises(BrokerMissing, match=r"'broker-o'.*the route of 'T' lists it"):
            find_queues(options(peers.namesrv, "T"))


def test_who_is_registered_and_has_not_the_topic_is_no_outage() -> None:
    with ScriptedCluster("T", seven) as peers:
        peers.registered["broker-o"] = {"0": "127.0.0.1:1"}
        assert len(find_queues(options(peers.namesrv, "T", brokers="broker-o")).queues) == 1
        # Slaves register no topics.
        peers.registered["broker-o"] = {"1": "127.0.0.1:1"}
        with pytest.raises(BrokerMissing, match="'broker-o'"):
            find_queues(options(peers.namesrv, "T", brokers="broker-o"))


def test_waiting_ends_with_what_was_wrong_last() -> None:
    tried: list[int] = []

    def attempt() -> int:
        tried.append(0)
        raise NotConnected("a", "away")

    for rule in (Outage(MissingBroker.FAIL), Outage(timeout_ms=0)):
        with pytest.raises(NotConnected, match="away"):
            wait_for_brokers(attempt, rule, 60_000)
    assert len(tried) == 2


def test_tasks_wait_as_long_as_the_option_says() -> None:
    assert sum(pauses_ms(None)) == 30_200
    assert sum(pauses_ms(500)) == 500
    assert sum(pauses_ms(120_000)) == 120_000


@pytest.mark.parametrize(
    ("option", "value"),
    [("missingBroker", "maybe"), ("outageTimeout", "soon"), ("brokers", " , ")],
)
def test_bad_options(option: str, value: str) -> None:
    with pytest.raises(BadOption, match=option):
        options("a:1", "T", **{option: value})
