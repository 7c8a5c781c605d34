"""Attempts: which queue, which broker, for how long, and who is told.

Queues take turns, failed brokers are passed over, and a key has one queue. Slow and failed brokers
are left alone for the time that upstream gives them; those that could not be reached are asked
until they answer, and no longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cometmq.client import delivery
from cometmq.client.delivery import (
    FAILURE_LATENCY_MS,
    FaultScores,
    Prober,
    RoundRobin,
    by_key,
    penalty_ms,
)
from cometmq.client.hooks import SendAttempt
from cometmq.client.producer import Producer
from cometmq.client.sendrequests import SendStatus
from cometmq.core.errors import (
    BrokerRefused,
    CometError,
    MessageIllegal,
    NotConnected,
    RequestTimedOut,
)
from cometmq.message import properties
from cometmq.message.model import Message, MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.client.fake_broker import FakeCluster, open_session
from tests.client.scripted import Answer, eventually

SEND = RequestCode.SEND_MESSAGE_V2


class Watching:
    """A hook that writes down what it sees."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[SendAttempt] = []

    def before(self, attempt: SendAttempt) -> None:
        self.begun.append(attempt.queue.broker_name)

    def after(self, attempt: SendAttempt) -> None:
        self.ended.append(attempt)


async def test_queues_take_turns(producer: Producer) -> None:
    queues = [(await producer.send(Message("t", b""))).queue for _ in range(8)]
    assert len(set(queues[:4])) == 4
    assert queues[:4] == queues[4:]


async def test_one_key_has_one_queue(producer: Producer) -> None:
    queues = {(await producer.send(Message("t", b""), order_key="k")).queue for _ in range(5)}
    assert len(queues) == 1


async def test_a_queue_can_be_chosen(producer: Producer) -> None:
    queue = MessageQueue("t", "broker-1", 1)
    await producer.send(Message("t", b""))
    assert (await producer.send(Message("t", b""), queue=queue)).queue == queue


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_stored_but_not_as_safely(
    cluster: FakeCluster, producer: Producer, code: int, status: SendStatus
) -> None:
    for broker in cluster.brokers:
        ext = {"msgId": "ID", "queueId": "0", "queueOffset": "5"}
        broker.peer.on(SEND, Answer(code, ext=ext))
    result = await producer.send(Message("t", b""))
    assert (result.status, result.offset_id, result.queue.queue_id) == (status, "ID", 0)


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
async def test_another_broker_is_tried_when_one_refuses(
    cluster: FakeCluster, producer: Producer, code: int
) -> None:
    cluster.brokers[0].peer.on(SEND, Answer(code, remark="not now"))
    for _ in range(4):
        assert (await producer.send(Message("t", b""))).queue.broker_name == "broker-1"


@pytest.mark.parametrize("code", [13, 26, 999])
async def test_some_refusals_are_final(cluster: FakeCluster, producer: Producer, code: int) -> None:
    for broker in cluster.brokers:
        broker.peer.on(SEND, Answer(code, remark="never"))
    with pytest.raises(BrokerRefused, match="never") as caught:
        await producer.send(Message("t", b""))
    assert caught.value.code == code
    assert sum(len(broker.peer.received(SEND)) for broker in cluster.brokers) == 1


async def test_another_broker_is_tried_when_one_is_away(
    cluster: FakeCluster, producer: Producer
) -> None:
    await producer.send(Message("t", b""))
    await cluster.brokers[0].peer.close()
    keys = {(await producer.send(Message("t", b""))).queue.broker_name for _ in range(4)}
    assert keys == {"broker-1"}


async def test_the_last_error_is_told_when_all_attempts_fail(
    cluster: FakeCluster, producer: Producer
) -> None:
    for broker in cluster.brokers:
        broker.peer.on(SEND, Answer(14, remark="disk full"))
    with pytest.raises(BrokerRefused, match="disk full"):
        await producer.send(Message("t", b""))
    assert sum(len(broker.peer.received(SEND)) for broker in cluster.brokers) == 3
    for broker in cluster.brokers:
        await broker.peer.close()
    with pytest.raises(NotConnected):
        await producer.send(Message("t", b""))


async def test_all_attempts_share_one_time_out(cluster: FakeCluster, producer: Producer) -> None:
    for broker in cluster.brokers:
        broker.peer.on(SEND, None)
    with pytest.raises(RequestTimedOut):
        await producer.send(Message("t", b""), timeout_ms=2_500)
    assert sum(len(broker.peer.received(SEND)) for broker in cluster.brokers) == 1


async def test_name_servers_that_are_silent_do_not_prolong_a_send(cluster: FakeCluster) -> None:
    async with open_session(cluster, request_timeout_ms=60_000) as session:
        producer = Producer(session)
        await producer.send(Message("t", b""))
        cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, None)
        for broker in cluster.brokers:
            broker.peer.on(SEND, Answer(1, remark="no"))
        begun_ms = session.clock.monotonic_ms()
        with pytest.raises(BrokerRefused):
            await producer.send(Message("t", b""), timeout_ms=150)
        assert session.clock.monotonic_ms() - begun_ms < 20_000


async def test_attempts_with_a_key_stay_on_its_queue(
    cluster: FakeCluster, producer: Producer
) -> None:
    queue = (await producer.send(Message("t", b""), order_key="k")).queue
    broker = next(each for each in cluster.brokers if each.name == queue.broker_name)
    script = broker.peer.scripts[SEND]
    failures = iter([Answer(1, remark="once")])

    def fail_once(request: Request[Any]) -> Answer | None:
        return next(failures, None) or script(request)

    broker.peer.on(SEND, fail_once)
    assert (await producer.send(Message("t", b"again"), order_key="k")).queue == queue
    keys = [
        properties.decode_text(r.header.properties)["UNIQ_KEY"]
        for r in broker.peer.received(SEND)[1:]
    ]
    assert keys[0] == keys[1]


async def test_a_one_way_message_that_cannot_leave(
    cluster: FakeCluster, producer: Producer
) -> None:
    watching = Watching()
    producer.hooks.append(watching)
    await producer.send(Message("t", b""))
    for broker in cluster.brokers:
        await broker.peer.close()
    connected = producer._session.remoting.is_connected
    await eventually(lambda: not any(connected(each.peer.address) for each in cluster.brokers))
    with pytest.raises(NotConnected):
        await producer.send_oneway(Message("t", b""))
    assert isinstance(watching.ended[-1].error, NotConnected)


async def test_no_attempt_is_begun_without_time_left(
    cluster: FakeCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_SAME_BROKER_PAUSE_MS", 3_000)
    cluster.brokers[1].registered = False  # so that one broker is asked again, after a pause
    cluster.brokers[0].peer.on(SEND, Answer(1, remark="no"))
    with pytest.raises(BrokerRefused):
        await producer.send(Message("t", b""), timeout_ms=2_500)
    assert len(cluster.brokers[0].peer.received(SEND)) == 1


async def test_hooks_see_every_attempt(cluster: FakeCluster, producer: Producer) -> None:
    watching = Watching()
    producer.hooks.append(watching)
    cluster.brokers[0].peer.on(SEND, Answer(1, remark="no"))
    for _ in range(4):
        await producer.send(Message("t", b"body"))
    failed = [each for each in watching.ended if each.error]
    good = [each for each in watching.ended if each.result]
    assert len(good) == 4
    assert failed
    assert {each.queue.broker_name for each in failed} == {"broker-0"}
    assert [each.number for each in good] == [2 if each.number == 2 else 1 for each in good]
    assert all(each.ended_ms >= each.started_ms > 0 for each in watching.ended)
    assert watching.begun == [each.queue.broker_name for each in watching.ended]


async def test_a_forbidden_hook_ends_the_send_before_anything_happens(
    cluster: FakeCluster, producer: Producer
) -> None:
    watching = Watching()
    producer.hooks.append(watching)
    asked: list[SendAttempt] = []

    def forbid(attempt: SendAttempt) -> None:
        asked.append(attempt)
        raise CometError(f"{attempt.messages[0].topic} is closed today")

    producer.forbidden_hooks.append(forbid)
    with pytest.raises(CometError, match="t is closed today"):
        await producer.send(Message("t", b""))
    with pytest.raises(CometError, match="closed"):
        await producer.send_oneway(Message("t", b""))
    assert [attempt.oneway for attempt in asked] == [False, True]
    assert not watching.begun
    assert not any(broker.peer.received(SEND) for broker in cluster.brokers)


async def test_a_hook_is_told_when_a_send_is_cancelled(
    cluster: FakeCluster, producer: Producer
) -> None:
    watching = Watching()
    producer.hooks.append(watching)
    for broker in cluster.brokers:
        broker.peer.on(SEND, None)
    sending = asyncio.create_task(producer.send(Message("t", b"")))
    await eventually(lambda: any(broker.peer.received(SEND) for broker in cluster.brokers))
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert isinstance(watching.ended[0].error, asyncio.CancelledError)


async def test_a_function_picks_the_queue(cluster: FakeCluster, producer: Producer) -> None:
    asked: list[tuple[int, str]] = []

    def last(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        asked.append((len(queues), message.tag))
        return queues[-1]

    for _ in range(3):
        result = await producer.send(Message("t", b"", tag="x"), queue=last)
        assert result.queue == MessageQueue("t", "broker-1", 1)
    await producer.send_oneway(Message("t", b"", tag="y"), queue=last)
    results = await producer.send_batch([Message("t", b"", tag="z")] * 2, queue=last)
    assert {result.queue.queue_id for result in results} == {1}
    assert asked == [(4, "x")] * 3 + [(4, "y"), (4, "z")]
    await eventually(lambda: len(cluster.brokers[1].stored("t")) == 6)


async def test_a_queue_of_a_broker_that_nobody_knows(producer: Producer) -> None:
    with pytest.raises(NotConnected, match="no route contains a master"):
        await producer.send(Message("t", b""), queue=MessageQueue("t", "nowhere", 0))


async def test_a_function_that_picks_nothing_known(producer: Producer) -> None:
    with pytest.raises(MessageIllegal, match="not a queue of the topic"):
        await producer.send(Message("t", b""), queue=lambda *_: MessageQueue("u", "broker-0", 0))


async def test_every_attempt_asks_the_function(cluster: FakeCluster, producer: Producer) -> None:
    cluster.brokers[0].peer.on(SEND, Answer(1, remark="no"))
    turns = iter([0, 2])
    result = await producer.send(
        Message("t", b""), queue=lambda queues, _: queues[next(turns)], timeout_ms=5_000
    )
    assert result.queue.broker_name == "broker-1"


async def test_not_stored_as_safely_is_tried_elsewhere_when_asked(cluster: FakeCluster) -> None:
    ext = {"msgId": "ID", "queueId": "0", "queueOffset": "5"}
    cluster.brokers[0].peer.on(SEND, Answer(12, ext=ext))
    async with open_session(cluster, retry_not_stored_ok=True) as session:
        producer = Producer(session)
        for _ in range(4):
            result = await producer.send(Message("t", b""))
            assert (result.status, result.queue.broker_name) == (SendStatus.OK, "broker-1")
        cluster.brokers[1].peer.on(SEND, Answer(13, remark="never"))
        result = await producer.send(Message("t", b""), queue=MessageQueue("t", "broker-0", 0))
        assert result.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        # Stored once, though not safely, is better than an error.
        turns = iter([0, 2, 2])
        result = await producer.send(Message("t", b""), queue=lambda q, _: q[next(turns)])
        assert (result.status, result.offset_id) == (SendStatus.FLUSH_SLAVE_TIMEOUT, "ID")


async def test_a_silent_broker_costs_one_attempt_when_attempts_are_bounded(
    cluster: FakeCluster,
) -> None:
    cluster.brokers[0].peer.on(SEND, None)
    async with open_session(cluster, send_attempt_timeout_ms=1_000) as session:
        producer = Producer(session)
        for _ in range(4):
            assert (await producer.send(Message("t", b""))).queue.broker_name == "broker-1"
        for broker in cluster.brokers:
            broker.peer.on(SEND, None)
        # The last attempt has all the time that is left.
        with pytest.raises(RequestTimedOut):
            await producer.send(Message("t", b""), timeout_ms=2_500)


async def test_brokers_that_refuse_are_left_alone_when_asked(cluster: FakeCluster) -> None:
    async with open_session(cluster, send_latency_fault=True) as session:
        producer = Producer(session)
        cluster.brokers[0].peer.on(SEND, Answer(1, remark="no"))
        for _ in range(3):
            await producer.send(Message("t", b""))
        before = len(cluster.brokers[0].peer.received(SEND))
        for _ in range(6):
            await producer.send(Message("t", b""))
        assert len(cluster.brokers[0].peer.received(SEND)) == before <= 1


async def test_a_message_that_no_broker_takes_is_no_brokers_fault(cluster: FakeCluster) -> None:
    async with open_session(cluster, send_latency_fault=True) as session:
        producer = Producer(session)
        illegal = Answer(13, remark="never")
        scripts = [broker.peer.scripts[SEND] for broker in cluster.brokers]
        for broker in cluster.brokers:
            broker.peer.on(SEND, illegal)
        for _ in range(4):
            with pytest.raises(BrokerRefused):
                await producer.send(Message("t", b""))
        for broker, script in zip(cluster.brokers, scripts, strict=True):
            broker.peer.on(SEND, script)
        used = {(await producer.send(Message("t", b""))).queue.broker_name for _ in range(4)}
        assert used == {"broker-0", "broker-1"}


async def test_a_broker_that_was_away_is_used_again_when_it_is_back(cluster: FakeCluster) -> None:
    settings = {"send_latency_fault": True, "probe_interval_ms": 20}
    away = cluster.brokers[0].peer
    async with open_session(cluster, **settings) as session:
        producer = Producer(session)
        port = away.port
        await away.close()
        while (await producer.send(Message("t", b""))).queue.broker_name == "broker-0":
            pass
        for _ in range(4):
            assert (await producer.send(Message("t", b""))).queue.broker_name == "broker-1"
        await away.listen(port)
        async with asyncio.timeout(60):
            while (await producer.send(Message("t", b""))).queue.broker_name != "broker-0":
                await asyncio.sleep(0.005)


pytestmark = pytest.mark.core

QUEUES = [MessageQueue("t", name, at) for name in "ab" for at in range(2)]


def test_every_queue_gets_its_turn() -> None:
    turns = RoundRobin()
    picked = [turns.pick(QUEUES) for _ in range(8)]
    assert picked[:4] == picked[4:]
    assert sorted(picked[:4]) == QUEUES


def test_topics_take_turns_apart() -> None:
    turns = RoundRobin()
    others = [MessageQueue("u", "a", at) for at in range(3)]
    first = turns.pick(QUEUES)
    for _ in range(5):
        turns.pick(others)
    assert turns.pick(QUEUES) == QUEUES[(QUEUES.index(first) + 1) % 4]


def test_a_list_that_shrank_is_no_problem() -> None:
    turns = RoundRobin()
    for _ in range(7):
        turns.pick(QUEUES)
    assert turns.pick(QUEUES[:1]) == QUEUES[0]


def test_the_broker_that_failed_is_avoided_while_there_is_another() -> None:
    turns = RoundRobin()
    for _ in range(8):
        assert turns.pick(QUEUES, avoid_broker="a").broker_name == "b"
    only = QUEUES[:2]
    assert turns.pick(only, avoid_broker="a") in only


def test_brokers_with_faults_are_passed_over() -> None:
    turns, faults = RoundRobin(), FaultScores()
    faults.refused("a", 0)
    for _ in range(8):
        assert turns.pick(QUEUES, faults=faults, now_ms=1).broker_name == "b"
    faults.answered("b", 600, 0)
    assert turns.pick(QUEUES, faults=faults, now_ms=1).broker_name == "b"
    assert {turns.pick(QUEUES, faults=faults, now_ms=700_000).broker_name for _ in range(4)} == {
        "a",
        "b",
    }


@pytest.mark.parametrize(
    ("key", "index"),
    # What Java prints for Math.abs(key.hashCode() % 3).
    [("AD-02", 0), ("order-7", 2), ("polygenelubricants", 2), ("a", 1), ("", 0)],
)
def test_a_key_goes_where_java_sends_it(key: str, index: int) -> None:
    assert by_key(QUEUES[:3], key) == QUEUES[index]


A, B, C = (MessageQueue("t", name, 0) for name in "abc")


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0),
        (549, 0),
        (550, 30_000),
        (1_000, 60_000),
        (2_000, 120_000),
        (3_000, 180_000),
        (14_999, 180_000),
        (15_000, 600_000),
        (FAILURE_LATENCY_MS, 600_000),
    ],
)
def test_penalties(latency_ms: int, expected_ms: int) -> None:
    assert penalty_ms(latency_ms) == expected_ms


def test_a_slow_broker_is_left_alone_until_its_time_is_over() -> None:
    scores = FaultScores()
    assert scores.is_available("a", 0)
    scores.answered("a", 1_200, 10)
    assert not scores.is_available("a", 60_009)
    assert scores.is_available("a", 60_010)
    assert scores.to_probe(11) == []
    scores.answered("a", 5, 20)
    assert scores.is_available("a", 20)


def test_a_refusal_counts_as_a_failure_and_is_not_probed() -> None:
    scores = FaultScores()
    scores.refused("a", 0)
    assert not scores.is_available("a", 599_999)
    assert scores.is_available("a", 600_000)
    assert scores.to_probe(1) == []


def test_a_broker_that_cannot_be_reached_is_probed_until_it_is_back() -> None:
    scores = FaultScores()
    scores.unreachable(A, 0)
    scores.unreachable(B, 100_000)
    assert scores.to_probe(1) == [A, B]
    assert scores.to_probe(600_000) == [B]
    scores.is_back("b")
    assert scores.is_available("b", 100_001)
    assert scores.to_probe(100_001) == [A]


def test_when_all_are_left_alone_the_first_to_be_back_is_taken() -> None:
    scores = FaultScores()
    scores.refused("a", 0)
    scores.answered("b", 600, 0)
    scores.answered("c", 2_500, 0)
    assert scores.least_bad(["a", "b", "c"], 1) == "b"


def test_a_broker_that_answers_is_better_than_one_that_does_not() -> None:
    scores = FaultScores()
    scores.unreachable(A, 0)
    scores.refused("b", 500_000)
    assert scores.least_bad(["a", "b"], 500_001) == "b"


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
