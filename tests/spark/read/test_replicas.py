"""Which copy is asked, and whose word counts."""

from typing import Any

import pytest

from cometmq.core.errors import BrokerRefused, NotConnected
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request
from cometmq.spark.read import fetcher
from cometmq.spark.read.fetcher import ReplicaClient
from cometmq.spark.read.filters import RowFilter, parse
from cometmq.spark.read.pullwindow import next_offset
from tests.spark.scripted import Answer, Script, ScriptedCluster, holder, pull_answer
from tests.spark.topics import options

QUEUE = MessageQueue("T", "broker-a", 0)
EVERYTHING = RowFilter()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PAUSES_MS", (0, 1, 1, 1))


class Seen:
    """A script that remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[Request[Any]] = []

    def __call__(self, request: Request[Any]) -> Answer | None:
        self.requests.append(request)
        return self._script(request)

    @property
    def expressions(self) -> list[tuple[str, str]]:
        return [
            (request.header.subscription, request.header.expression_type)
            for request in self.requests
        ]


def away(_: Request[Any]) -> None:
    return None


def closed(request: Request[Any]) -> Answer:
    return pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, request.header.queue_offset)


def client(
    cluster: ScriptedCluster,
    queue: MessageQueue = QUEUE,
    row_filter: RowFilter = EVERYTHING,
    **extra: str,
) -> ReplicaClient:
    return ReplicaClient(queue, options(cluster.namesrv, "T", **extra).access, row_filter)


def test_the_master_is_asked_unless_slaves_are_preferred() -> None:
    master, slave = Seen(holder(0, 9)), Seen(holder(0, 9))
    with ScriptedCluster("T", master, slave) as cluster:
        client(cluster).pull(0, 5)
        assert (len(master.requests), len(slave.requests)) == (1, 0)
        preferring = client(cluster, readFrom="slave")
        preferring.pull(0, 5)
        preferring.pull(3, 5)
        assert (len(master.requests), len(slave.requests)) == (1, 2)


def test_queues_are_spread_over_slaves() -> None:
    slaves = [Seen(holder(0, 9)) for _ in range(3)]
    with ScriptedCluster("T", Seen(holder(0, 9)), *slaves) as cluster:
        for queue_id in range(6):
            client(cluster, MessageQueue("T", "broker-a", queue_id), readFrom="slave").pull(0, 5)
    assert [len(slave.requests) for slave in slaves] == [2, 2, 2]


@pytest.mark.parametrize(
    "slave",
    [
        pytest.param(holder(0, 4), id="behind: moved down"),
        pytest.param(holder(0, 6), id="behind: not found"),
        pytest.param(holder(8, 9), id="keeps less: moved up"),
        pytest.param(closed, id="may not be read"),
        pytest.param(
            lambda request: pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 8), id="skips"
        ),
        pytest.param(lambda request: (ResponseCode.TOPIC_NOT_EXIST, {}, b""), id="knows no topic"),
        pytest.param(away, id="away"),
    ],
)
def test_what_a_slave_lacks_is_asked_of_the_master(slave: Script) -> None:
    with ScriptedCluster("T", holder(0, 9), slave) as cluster:
        answer = client(cluster, readFrom="slave").pull(6, 2)
        assert (answer.code, next_offset(answer)) == (0, 8)


def test_a_late_slave_alone_is_no_loss() -> None:
    for behind in (holder(0, 4), holder(0, 6), closed):
        with (
            ScriptedCluster("T", away, behind) as cluster,
            pytest.raises(NotConnected),
        ):
            client(cluster).pull(6, 2)


def test_a_slave_alone_gives_what_it_has() -> None:
    with ScriptedCluster("T", away, holder(0, 9)) as cluster:
        assert next_offset(client(cluster).pull(6, 2)) == 8


def test_without_a_master_in_the_route_the_slaves_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedCluster("T", holder(0, 4)) as cluster:
        only = fetcher.Replica(cluster.brokers[0].address, is_master=False)
        monkeypatch.setattr(fetcher, "replicas", lambda *_, **__: [only])
        with pytest.raises(NotConnected, match="slaves have not reached offset 6 of queue 0 of T"):
            client(cluster).pull(6, 2)


def test_the_masters_word_is_enough() -> None:
    master = Seen(holder(7, 9))
    with ScriptedCluster("T", master, holder(0, 4)) as cluster:
        answer = client(cluster, readFrom="slave").pull(5, 2)
        assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_OFFSET_MOVED, 7)
    assert len(master.requests) == 1


def test_a_master_that_has_nothing_is_asked_again_before_it_is_believed() -> None:
    master = Seen(holder(0, 5))
    with ScriptedCluster("T", master) as cluster:
        assert client(cluster).pull(5, 2).code == ResponseCode.PULL_NOT_FOUND
    assert len(master.requests) == fetcher.EMPTY_ROUNDS


def test_a_skip_by_a_filter_is_believed_of_a_slave() -> None:
    def skips(request: Request[Any]) -> Answer:
        return pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 8)

    master = Seen(holder(0, 9))
    with ScriptedCluster("T", master, skips) as cluster:
        found = client(cluster, row_filter=parse({"filter": "a"}), readFrom="slave").pull(5, 2)
        assert next_offset(found) == 8
    assert master.requests == []


@pytest.mark.parametrize(
    "refusal",
    [
        (
            ResponseCode.SYSTEM_ERROR,
            {"remark": "The broker does not support consumer to filter message by SQL92"},
        ),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, {}),
    ],
)
def test_a_broker_that_cannot_filter_gives_everything(
    refusal: tuple[int, dict[str, str]],
) -> None:
    healthy = holder(0, 9)

    def plain(request: Request[Any]) -> Answer | None:
        return refused if request.header.expression_type == "SQL92" else healthy(request)

    refused: Answer = (refusal[0], refusal[1], b"")
    script = Seen(plain)
    with ScriptedCluster("T", script) as cluster:
        one = client(cluster, row_filter=RowFilter(sql="CONTAINS(a, 'x')"))
        seen = [one.filters, next_offset(one.pull(0, 3)), one.filters, next_offset(one.pull(3, 3))]
    assert seen == [True, 3, False, 6]
    assert script.expressions == [("CONTAINS(a, 'x')", "SQL92"), ("*", "TAG"), ("*", "TAG")]


def test_queue_entries_that_hold_no_tags_are_not_filtered_by_the_broker() -> None:
    scheduled = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 0)
    script = Seen(holder(0, 9))
    with ScriptedCluster("T", script) as cluster:
        one = client(cluster, scheduled, parse({"filter": "a"}))
        assert not one.filters
        one.pull(0, 3)
    assert script.expressions == [("*", "TAG")]


def test_a_masters_refusal_ends_it() -> None:
    with (
        ScriptedCluster("T", lambda _: (ResponseCode.NO_PERMISSION, {}, b"")) as cluster,
        pytest.raises(BrokerRefused, match="code 16"),
    ):
        client(cluster).pull(0, 1)


def test_places_asked_for_together() -> None:
    healthy = holder(0, 9)
    left = [3]

    def dies(request: Request[Any]) -> Answer | None:
        left[0] -= 1
        return healthy(request) if left[0] >= 0 else None

    with ScriptedCluster("T", dies) as cluster:
        one = client(cluster)
        assert not one.has_replica(set())
        assert next_offset(one.pull(0, 1)) == 1
        assert one.has_replica(set())
        with one.pipeline() as pulls:
            pulls.send([(1, 2), (3, 2)])
            assert [next_offset(pulls.receive()) for _ in range(2)] == [3, 5]
            pulls.send([(5, 1)])
            with pytest.raises(NotConnected):
                pulls.receive()
