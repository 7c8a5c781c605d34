"""Bounds and samples of queues, asked of a real cluster and of peers that fail."""

from typing import Any

import pytest

from cometmq.client.blocking import Client
from cometmq.core.errors import BrokerRefused, NotConnected
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request
from cometmq.spark.brokers import offsets
from cometmq.spark.brokers.offsets import EndOffsets, Sample
from cometmq.testing.cluster import Cluster
from tests.spark.scripted import Answer, Script, ScriptedCluster, holder, pull_answer
from tests.spark.topics import access, fill, make_topic

QUEUE = MessageQueue("T", "broker-a", 0)


def offset_of(request: Request[Any]) -> Answer:
    return 0, {"offset": str(7 + request.header.queue_id)}, b""


def gone(_: Request[Any]) -> None:
    return None


def test_a_real_broker(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "Reach", 3)
        fill(client, queues[1], ["a", "b", "c" * 500])
    assert list(offsets.latest(queues, reached).values()) == [0, 3, 0]
    assert list(offsets.earliest(queues, reached).values()) == [0, 0, 0]
    assert offsets.near_moments({queues[1]: 0}, reached) == {queues[1]: 0}
    samples = [offsets.samples({queues[1]: at}, reached)[queues[1]] for at in range(3)]
    assert [each.store_ms for each in samples] == sorted(each.store_ms for each in samples)
    together = offsets.samples({queues[1]: 0}, reached, rows=32)[queues[1]]
    assert together.size_bytes == pytest.approx(sum(each.size_bytes for each in samples) / 3)
    assert together.store_ms == samples[0].store_ms


def test_a_thousand_queues_are_one_exchange_a_broker() -> None:
    queues = [MessageQueue(f"T{at % 3}", "broker-a", at) for at in range(1_000)]
    with ScriptedCluster("T", offset_of) as peers:
        ends = offsets.ends(queues, access(peers.namesrv))
        assert ends == EndOffsets({queue: 7 + queue.queue_id for queue in queues}, frozenset())
        assert peers.routes_asked == ["T0", "T1", "T2"]
        assert peers.brokers[0].connections == 1


def test_a_slaves_word_is_marked() -> None:
    with ScriptedCluster("T", gone, offset_of) as peers:
        ends = offsets.ends([QUEUE], access(peers.namesrv))
    assert ends == EndOffsets({QUEUE: 7}, frozenset({QUEUE}))


def test_nobody_is_there() -> None:
    with ScriptedCluster("T", gone) as peers, pytest.raises(NotConnected):
        offsets.latest([QUEUE], access(peers.namesrv))


def test_a_refusal_is_raised() -> None:
    with (
        ScriptedCluster("T", lambda _: (1, {}, b"")) as peers,
        pytest.raises(BrokerRefused, match="code 1"),
    ):
        offsets.earliest([QUEUE], access(peers.namesrv))


def sample(script: Script, offset: int) -> Sample:
    with ScriptedCluster("T", script) as peers:
        return offsets.samples({QUEUE: offset}, access(peers.namesrv))[QUEUE]


def test_what_is_gone_is_earlier_than_everything() -> None:
    assert sample(holder(6, 9), 2) == Sample(0, 0.0, is_gone=True)
    assert sample(lambda _: pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 9), 2).is_gone
    assert not sample(holder(6, 9), 6).is_gone


def test_a_broker_that_does_not_say_is_no_answer() -> None:
    for code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND):
        with pytest.raises(NotConnected, match="did not report what is at offset 2"):
            sample(lambda _, code=code: pull_answer(code, 2), 2)  # type: ignore[misc]
    with pytest.raises(BrokerRefused):
        sample(lambda _: (ResponseCode.NO_PERMISSION, {}, b""), 2)
