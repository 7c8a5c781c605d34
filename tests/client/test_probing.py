"""Brokers that could not be reached are asked until they answer, and no longer."""

from __future__ import annotations

from cometmq.client.selection import FaultScores, Prober
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode
from tests.client.fake_broker import FakeCluster, open_session
from tests.client.scripted import Answer, eventually

QUEUE = MessageQueue("t", "broker-0", 1)
PROBE = RequestCode.GET_MAX_OFFSET


async def test_a_broker_is_asked_until_it_answers_whatever_it_answers(
    cluster: FakeCluster,
) -> None:
    peer = cluster.brokers[0].peer
    async with open_session(cluster, probe_interval_ms=5, probe_timeout_ms=5) as session:
        await session.publish_queues("t")
        faults = FaultScores()
        prober = Prober(session, faults)
        peer.on(PROBE, None)
        faults.unreachable(QUEUE, session.clock.monotonic_ms())
        prober.wake()
        prober.wake()
        await eventually(lambda: len(peer.received(PROBE)) >= 3)
        assert not faults.is_available("broker-0", session.clock.monotonic_ms())
        header = peer.received(PROBE)[0].header
        assert (header.topic, header.queue_id) == ("t", 1)
        peer.on(PROBE, Answer(1, remark="not well, but here"))
        await eventually(lambda: faults.is_available("broker-0", session.clock.monotonic_ms()))
        assert prober._running is not None
        await prober._running  # with nobody to ask it ends
        faults.unreachable(QUEUE, session.clock.monotonic_ms())
        prober.wake()
        await eventually(lambda: faults.is_available("broker-0", session.clock.monotonic_ms()))


async def test_a_broker_without_a_route_is_not_asked(cluster: FakeCluster) -> None:
    async with open_session(cluster, probe_interval_ms=1) as session:
        faults = FaultScores()
        prober = Prober(session, faults)
        gone = MessageQueue("t", "gone", 0)
        faults.unreachable(gone, session.clock.monotonic_ms())
        prober.wake()
        await prober._probe(gone)
        assert faults.to_probe(session.clock.monotonic_ms()) == [gone]
