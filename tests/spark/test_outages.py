"""A streaming query goes on while parts of the cluster go, come back, are replaced and are added:
no message is lost and none comes twice. Real processes, and a producer that sends all the while."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cometmq.admin.api import Admin
from cometmq.admin.failover import promote
from cometmq.client.blocking import Client
from cometmq.core.errors import CometError
from cometmq.protocol.bodies import Promote
from cometmq.spark.brokers import cluster
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.compat.anchor import VERSION, JavaCluster, fetch_jars, wait_until
from tests.spark.topics import access, make_topic, read_whole

pytestmark = pytest.mark.spark

TOPIC = "Outages"
QUEUES = 3
"""On each broker."""

SENDS_A_SECOND = 100
AFTER = 60
"""Messages that must come through before an outage, within it and after it."""

Place = tuple[str, int, int]
"""Name of a broker, queue and offset."""


@dataclass
class Servers:
    """Two name servers, ``broker-a`` with a slave that acknowledges each of its messages, and
    ``broker-b``."""

    home: Path
    names: list[NamesrvProcess]
    first: BrokerProcess
    slave: BrokerProcess
    second: BrokerProcess
    stack: ExitStack

    @property
    def namesrv(self) -> str:
        """Both name servers."""
        return ";".join(each.namesrv for each in self.names)

    def registered(self) -> frozenset[str]:
        """Names of the brokers whose masters a name server lists."""
        return cluster.masters(access(self.namesrv))

    def start(self, name: str) -> BrokerProcess:
        """Start a broker more."""
        broker = BrokerProcess(self.home, self.namesrv, name=name)
        broker.start()
        self.stack.callback(broker.kill)
        wait_until(lambda: name in self.registered(), f"{name} in the cluster", 60)
        return broker


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        names = [NamesrvProcess(tmp_path / f"names-{at}") for at in range(2)]
        namesrv = ";".join(each.namesrv for each in names)
        sync = {"brokerRole": "SYNC_MASTER"}
        first = BrokerProcess(tmp_path, namesrv, settings=sync)
        slave = BrokerProcess(tmp_path, namesrv, number=1)
        second = BrokerProcess(tmp_path, namesrv, name="broker-b")
        for node in (*names, first, second, slave):
            node.start()
            stack.callback(node.kill)
        yield Servers(tmp_path, names, first, slave, second, stack)


@dataclass
class Producer:
    """Sends numbered messages from a thread. A send that fails is one of ``unsure``: a broker may
    have stored it all the same."""

    namesrv: str
    acked: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    ends: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send until ``ends`` is set."""
        with Client(self.namesrv, send_timeout_ms=5_000, route_poll_interval_ms=1_000) as client:
            number = 0
            while not self.ends.wait(1 / SENDS_A_SECOND):
                body = f"message-{number}"
                number += 1
                try:
                    client.send(TOPIC, body.encode())
                except CometError:
                    self.unsure.add(body)
                else:
                    self.acked.add(body)


@contextmanager
def producing(namesrv: str) -> Iterator[Producer]:
    producer = Producer(namesrv)
    thread = threading.Thread(target=producer.run)
    thread.start()
    try:
        yield producer
    finally:
        producer.ends.set()
        thread.join(60)
    assert not thread.is_alive()


@dataclass
class Stream:
    """A query and the rows of its micro-batches."""

    namesrv: str
    rows: list[tuple[Place, str]] = field(default_factory=list)
    query: StreamingQuery | None = None

    def take(self, batch: DataFrame, _: int) -> None:
        """Keep a micro-batch's rows; for ``foreachBatch``."""
        self.rows += [
            ((row.broker_name, row.queue_id, row.queue_offset), bytes(row.body).decode())
            for row in batch.collect()
        ]

    def count(self, broker: str) -> int:
        """Rows of a broker."""
        return sum(place[0] == broker for place, _ in list(self.rows))

    def goes_on(self, *brokers: str) -> None:
        """Wait until more messages of each broker came through."""
        goals = {broker: self.count(broker) + AFTER for broker in brokers}

        def are_reached() -> bool:
            return all(self.count(broker) >= goal for broker, goal in goals.items())

        self.until(are_reached, f"more messages of each of {brokers}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something while the query runs."""
        query = self.query
        assert query is not None
        wait_until(lambda: condition() or not query.isActive, what, 90)
        assert query.isActive, query.exception()


def restart_of_a_broker(stream: Stream, servers: Servers) -> None:
    """Killed, and started again when others have gone on; nobody sends to it or reads it."""
    servers.second.kill()
    stream.goes_on("broker-a")
    servers.second.start()
    stream.goes_on("broker-a", "broker-b")


def orderly_restarts(stream: Stream, servers: Servers) -> None:
    """One broker after another, as in an upgrade: each signs off, so the route lacks it."""
    for broker in (servers.second, servers.first):
        broker.terminate()
        broker.start()
    stream.goes_on("broker-a", "broker-b")


def promotion(stream: Stream, servers: Servers) -> None:
    """The slave becomes the master, and the old one its slave."""
    servers.first.kill()
    with Client(servers.namesrv) as client:
        session = client.inner.session
        role = Promote("SYNC_MASTER")
        address = servers.slave.broker

        def begins() -> bool:
            outcome = client.wait(promote(session.remoting, session.clock, address, role))
            return outcome.promotion.begins

        # It is refused until the slave and both name servers know that the master is gone.
        wait_until(begins, "the promotion", 60)
    stream.goes_on("broker-a", "broker-b")
    servers.first.settings |= {"brokerId": "1", "brokerRole": "SLAVE", "haRejoin": "truncate"}
    servers.first.start()
    stream.goes_on("broker-a", "broker-b")


def a_name_server(stream: Stream, servers: Servers) -> None:
    """The first of the list."""
    servers.names[0].kill()
    stream.goes_on("broker-a", "broker-b")
    servers.names[0].start()
    servers.names[1].kill()
    stream.goes_on("broker-a", "broker-b")


def all_name_servers(stream: Stream, servers: Servers) -> None:
    """Without any, queries and clients go on with the routes that they have, however old."""
    for each in servers.names:
        each.kill()
    aged = time.monotonic() + cluster.ROUTE_TTL_MS / 1000 + 1
    while time.monotonic() < aged:
        stream.goes_on("broker-a", "broker-b")
    for each in servers.names:
        each.start()
    stream.goes_on("broker-a", "broker-b")


def a_broker_more(stream: Stream, servers: Servers) -> None:
    """A third one gets queues of the topic."""
    servers.start("broker-c")
    with Client(servers.namesrv) as client:
        client.wait(Admin(client.inner.session).create_topic(TOPIC, queues=QUEUES))
    stream.goes_on("broker-a", "broker-b", "broker-c")


def stored(namesrv: str) -> dict[Place, str]:
    """All messages of the topic, read by a client."""
    found = {}
    with Client(namesrv) as client:
        for queue in client.queues(TOPIC):
            for message in read_whole(client, queue):
                place = (queue.broker_name, queue.queue_id, message.queue_offset)
                found[place] = message.body.decode()
    return found


@contextmanager
def following(spark: SparkSession, stream: Stream, folder: Path) -> Iterator[None]:
    read = spark.readStream.format("rocketmq").option("nameservers", stream.namesrv)
    read = read.option("topic", TOPIC).option("startingOffsets", "earliest")
    read = read.schema("broker_name string, queue_id int, queue_offset bigint, body binary")
    writer = read.load().writeStream.foreachBatch(stream.take)
    stream.query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        yield
    finally:
        stream.query.stop()


@pytest.mark.parametrize(
    "outage",
    [
        restart_of_a_broker,
        orderly_restarts,
        promotion,
        a_name_server,
        all_name_servers,
        a_broker_more,
    ],
    ids=lambda outage: outage.__name__,
)
def test_a_query_goes_on(
    outage: Callable[[Stream, Servers], None],
    servers: Servers,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    def happens(stream: Stream) -> None:
        stream.goes_on("broker-a", "broker-b")
        outage(stream, servers)

    check(spark, servers.namesrv, tmp_path, happens)


@pytest.mark.compat
@pytest.mark.deep
def test_a_java_broker_is_killed_and_its_name_server_restarted(
    spark: SparkSession, tmp_path: Path
) -> None:
    with JavaCluster(fetch_jars(VERSION), tmp_path / "java").until_killed() as java:

        def happens(stream: Stream) -> None:
            for server in (java.broker_server, java.namesrv_server):
                stream.goes_on("broker-a")
                server.stop(signal.SIGKILL)
                server.start()
            stream.goes_on("broker-a")

        check(spark, java.namesrv, tmp_path, happens)


def check(
    spark: SparkSession, namesrv: str, folder: Path, happens: Callable[[Stream], None]
) -> None:
    """Run a query and a producer while something happens; then compare rows and topic."""
    with Client(namesrv) as client:
        make_topic(client, TOPIC, QUEUES)
    stream = Stream(namesrv)
    with following(spark, stream, folder):
        with producing(namesrv) as producer:
            happens(stream)
        whole = stored(namesrv)
        stream.until(lambda: len(stream.rows) >= len(whole), "all messages")
    rows = dict(stream.rows)
    assert rows == whole, sorted(rows.items() ^ whole.items())
    assert len(stream.rows) == len(whole)
    assert producer.acked <= set(whole.values())
