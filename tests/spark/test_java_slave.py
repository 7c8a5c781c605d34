"""The source reads from a Java slave what that has, and the rest from its master."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.core.errors import ClientError, NotConnected
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import PullMessage
from cometmq.spark.brokers import offsets, wire
from cometmq.spark.read import fetcher
from cometmq.spark.read.fetcher import Replica, batches
from cometmq.spark.read.planning import Range
from tests.compat.anchor import JavaCluster, fetch_jars, wait_until
from tests.spark.topics import fill_all, make_topic, options

pytestmark = [pytest.mark.compat, pytest.mark.spark]

TOPIC = "OnSlave"


class Gate:
    """Passes connections on to a port until it is shut for good."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def shut(self) -> None:
        """Nothing comes through any more, nor connects."""
        # A thread that waits in accept would take one more, if this were only closed.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for each in self._open:
            _end(each)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()

    def _start(self, run: Callable[..., None], *sockets: socket.socket) -> None:
        thread = threading.Thread(target=run, args=sockets)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                outer, _ = self._listener.accept()
            except OSError:
                return
            inner = socket.create_connection(("127.0.0.1", self._port))
            self._open += (outer, inner)
            self._start(_pump, outer, inner)
            self._start(_pump, inner, outer)


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass
    _end(target)


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@dataclass
class Pair:
    """A master and its slave, which follows through a gate."""

    master: JavaCluster
    slave: JavaCluster
    gate: Gate
    queues: list[MessageQueue]

    def fill(self, each: int, start: int) -> None:
        with Client(self.master.namesrv) as client:
            fill_all(client, self.queues, each, start)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two queues of 30 messages, which the slave has; nothing of what comes later."""
    jars = fetch_jars()
    with JavaCluster(jars, tmp_path_factory.mktemp("master")).until_killed() as master:
        with Client(master.namesrv) as client:
            queues = make_topic(client, TOPIC, 2)
            fill_all(client, queues, 30)
        gate = Gate(master.broker_server.port + 1)
        follows = {"brokerId": "1", "brokerRole": "SLAVE", "haMasterAddress": gate.address}
        slave = JavaCluster(
            jars,
            tmp_path_factory.mktemp("slave"),
            follows,
            namesrv_seen_by_broker=master.namesrv,
        )
        try:
            slave.broker_server.start()
            try:
                wait_until(lambda: has_all(slave, queues, 30), "the slave has what its master has")
            finally:
                gate.shut()
            yield Pair(master, slave, gate, queues)
        finally:
            slave.broker_server.stop(signal.SIGKILL)


def has_all(slave: JavaCluster, queues: list[MessageQueue], end: int) -> bool:
    """Whether a slave gives the last message of each queue to whoever asks."""
    reached = options(slave.namesrv, TOPIC).access
    try:
        answers = [
            wire.call(slave.broker, int(RequestCode.PULL_MESSAGE), last_of(queue, end), reached)
            for queue in queues
        ]
    except ClientError:
        return False
    return all(answer.code == ResponseCode.SUCCESS for answer in answers)


def last_of(queue: MessageQueue, end: int) -> PullMessage:
    return PullMessage(
        consumer_group=wire.GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=end - 1,
        max_msg_nums=1,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that messages came from, in order."""
    found: list[str] = []
    settles = fetcher._settles

    def noted(answer: object, header: object, holder: Replica) -> bool:
        is_enough = settles(answer, header, holder)  # type: ignore[arg-type]
        if is_enough:
            found.append(holder.address)
        return is_enough

    monkeypatch.setattr(fetcher, "_settles", noted)
    monkeypatch.setattr(fetcher, "PAUSES_MS", (0, 10, 10, 10))
    return found


def rows(pair: Pair, end: int, **extra: str) -> list[tuple[int, int]]:
    read = options(pair.master.namesrv, TOPIC, **extra)
    parts = [Range(queue, 0, end) for queue in pair.queues]
    return [
        (row["queue_id"], row["queue_offset"])
        for batch in batches(parts, read, ("queue_id", "queue_offset"))
        for row in batch.to_pylist()
    ]


def everything(end: int) -> list[tuple[int, int]]:
    return [(queue_id, at) for queue_id in range(2) for at in range(end)]


def test_a_slave_is_read_where_it_is_preferred(pair: Pair, asked: list[str]) -> None:
    assert rows(pair, 30, readFrom="slave") == everything(30)
    assert set(asked) == {pair.slave.broker}
    asked.clear()
    assert rows(pair, 30) == everything(30)
    assert set(asked) == {pair.master.broker}


def test_a_slave_filters_too(pair: Pair, asked: list[str]) -> None:
    assert rows(pair, 30, readFrom="slave", filter="none") == []
    wanted = "KEYS IN ('0-3', '1-29')"
    assert rows(pair, 30, readFrom="slave", sqlFilter=wanted) == [(0, 3), (1, 29)]
    assert set(asked) == {pair.slave.broker}


def test_what_a_late_slave_lacks_comes_from_the_master(pair: Pair, asked: list[str]) -> None:
    pair.fill(10, 30)
    assert rows(pair, 40, readFrom="slave") == everything(40)
    assert set(asked) == {pair.slave.broker, pair.master.broker}


def test_a_late_slave_that_lost_its_master_is_no_loss(
    pair: Pair, asked: list[str], spark: SparkSession
) -> None:
    pair.master.broker_server.stop()
    for where in ("slave", "master"):
        asked.clear()
        assert rows(pair, 30, readFrom=where) == everything(30)
        assert set(asked) == {pair.slave.broker}
        with pytest.raises(NotConnected):
            rows(pair, 40, readFrom=where)
    ends = offsets.ends(pair.queues, options(pair.master.namesrv, TOPIC).access)
    assert set(ends.by_queue.values()) == {30}
    assert ends.copies == set(pair.queues)
    read = spark.read.format("rocketmq").option("nameservers", pair.master.namesrv)
    assert read.option("topic", TOPIC).schema("queue_id int").load().count() == 60
