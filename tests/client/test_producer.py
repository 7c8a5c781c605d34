"""Sends: results, attempts on other brokers, order keys, batches, hooks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client.hooks import SendAttempt
from cometmq.client.producer import Producer, SendStatus
from cometmq.core.errors import (
    BadRequest,
    BrokerRefused,
    CometError,
    MessageIllegal,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.message import properties
from cometmq.message.model import Message, MessageQueue, from_record
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.client.fake_broker import FakeCluster, fake_cluster, open_session
from tests.client.scripted import Answer, eventually

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(brokers=2) as cluster:
        cluster.create("t", 2)
        yield cluster


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    async with open_session(cluster) as session:
        yield Producer(session)


class Watching:
    """A hook that writes down what it sees."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[SendAttempt] = []

    def before(self, attempt: SendAttempt) -> None:
        self.begun.append(attempt.queue.broker_name)

    def after(self, attempt: SendAttempt) -> None:
        self.ended.append(attempt)


async def test_a_message_is_stored_as_it_was_given(
    cluster: FakeCluster, producer: Producer
) -> None:
    result = await producer.send(Message("t", b"body", tag="up", keys=("k",)))
    broker = next(each for each in cluster.brokers if each.name == result.queue.broker_name)
    stored = from_record(broker.stored("t")[0])
    assert (stored.body, stored.tag, stored.keys) == (b"body", "up", ("k",))
    assert stored.unique_key == result.message_id
    assert (result.status, result.queue_offset) == (SendStatus.OK, 0)
    assert result.queue.queue_id == stored.queue_id
    assert result.offset_id == stored.offset_id
    await eventually(lambda: broker.heartbeats)
    assert broker.heartbeats[-1].producer_data_set[0].group_name == producer.group


async def test_large_messages_are_compressed_off_the_loop(
    cluster: FakeCluster, producer: Producer
) -> None:
    await producer.send(Message("t", b"x" * 1_000_000))
    (stored,) = [each for broker in cluster.brokers for each in broker.stored("t")]
    assert len(stored.body) < 10_000
    assert from_record(stored).body == b"x" * 1_000_000


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
        await producer.send(Message("t", b""), timeout_ms=60)
    assert sum(len(broker.peer.received(SEND)) for broker in cluster.brokers) == 1


async def test_name_servers_that_are_silent_do_not_prolong_a_send(
    cluster: FakeCluster, producer: Producer
) -> None:
    await producer.send(Message("t", b""))
    cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, None)
    for broker in cluster.brokers:
        broker.peer.on(SEND, Answer(1, remark="no"))
    clock = producer._session.clock
    begun_ms = clock.monotonic_ms()
    with pytest.raises(BrokerRefused):
        await producer.send(Message("t", b""), timeout_ms=150)
    assert clock.monotonic_ms() - begun_ms < 2_500


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


async def test_limits_stop_a_message_before_it_leaves(
    cluster: FakeCluster, producer: Producer
) -> None:
    with pytest.raises(MessageIllegal):
        await producer.send(Message("no good", b""))
    with pytest.raises(MessageIllegal):
        await producer.send_oneway(Message("t", b"", keys=("a b",)))
    with pytest.raises(RouteNotFound):
        await producer.send(Message("missing", b""))
    assert not any(broker.peer.received(SEND) for broker in cluster.brokers)


async def test_one_way_messages_arrive(cluster: FakeCluster, producer: Producer) -> None:
    await producer.send_oneway(Message("t", b"1"), order_key="k")
    await producer.send_oneway(Message("t", b"2"), queue=MessageQueue("t", "broker-1", 0))
    await eventually(lambda: sum(len(broker.stored("t")) for broker in cluster.brokers) == 2)
    assert all(r.oneway for broker in cluster.brokers for r in broker.peer.received(SEND))


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


async def test_many_messages_leave_in_few_batches(cluster: FakeCluster, producer: Producer) -> None:
    messages = [Message("t", b"%d" % at, tag="x") for at in range(500)]
    results = await producer.send_many(messages, order_key="k")
    assert len(results) == 500
    assert [result.queue_offset for result in results] == list(range(500))
    (broker,) = [each for each in cluster.brokers if each.stored("t")]
    stored = [from_record(record) for record in broker.stored("t")]
    assert [each.body for each in stored] == [message.body for message in messages]
    assert [each.unique_key for each in stored] == [result.message_id for result in results]
    assert [each.offset_id for each in stored] == [result.offset_id for result in results]
    assert len(broker.peer.received(RequestCode.SEND_BATCH_MESSAGE)) == 1


async def test_many_messages_of_all_kinds_come_back_in_order(
    cluster: FakeCluster, producer: Producer
) -> None:
    cluster.create("u", 1)
    messages = [
        Message(topic, b"%d" % at, tag=tag, delay_level=delay)
        for at, (topic, tag, delay) in enumerate(
            [("t", "a", 0), ("u", "b", 0), ("t", "b", 0), ("t", "a", 2), ("t", "a", 0)] * 3
        )
    ]
    results = await producer.send_many(messages, order_key=lambda message: message.tag)
    stored = {
        record.offset_id: record.body
        for broker in cluster.brokers
        for topic in ("t", "u")
        for record in map(from_record, broker.stored(topic))
        if record.store_address == broker.peer.address
    }
    assert [stored[result.offset_id] for result in results] == [each.body for each in messages]
    assert await producer.send_many([]) == []


async def test_a_batch_answer_that_does_not_fit(cluster: FakeCluster, producer: Producer) -> None:
    ext = {"msgId": "only-one", "queueId": "0", "queueOffset": "0"}
    for broker in cluster.brokers:
        broker.peer.on(RequestCode.SEND_BATCH_MESSAGE, Answer(ext=ext))
    with pytest.raises(CometError, match="1 ids for 2 messages"):
        await producer.send_many([Message("t", b"")] * 2)


async def test_an_answer_without_its_fields(cluster: FakeCluster, producer: Producer) -> None:
    for broker in cluster.brokers:
        broker.peer.on(SEND, Answer(ext={"msgId": "ID"}))
    with pytest.raises(BadRequest, match="queueId is missing"):
        await producer.send(Message("t", b""))


async def test_no_attempt_is_begun_without_time_left(
    cluster: FakeCluster, producer: Producer
) -> None:
    cluster.brokers[1].registered = False  # so that one broker is asked again, after a pause
    cluster.brokers[0].peer.on(SEND, Answer(1, remark="no"))
    with pytest.raises(BrokerRefused):
        await producer.send(Message("t", b""), timeout_ms=90)
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


async def test_a_hook_can_stop_a_send_and_a_failing_one_does_no_harm(producer: Producer) -> None:
    class Refusing(Watching):
        def before(self, attempt: SendAttempt) -> None:
            raise CometError("not today")

    class Broken(Watching):
        def after(self, attempt: SendAttempt) -> None:
            raise RuntimeError("broken hook")

    producer.hooks.append(Broken())
    assert (await producer.send(Message("t", b""))).status is SendStatus.OK
    producer.hooks.append(Refusing())
    with pytest.raises(CometError, match="not today"):
        await producer.send(Message("t", b""))


async def test_slow_brokers_are_left_alone_when_asked(cluster: FakeCluster) -> None:
    async with open_session(cluster, send_latency_fault=True) as session:
        producer = Producer(session)
        cluster.brokers[0].peer.on(SEND, Answer(1, remark="no"))
        for _ in range(3):
            await producer.send(Message("t", b""))
        before = len(cluster.brokers[0].peer.received(SEND))
        for _ in range(6):
            await producer.send(Message("t", b""))
        assert len(cluster.brokers[0].peer.received(SEND)) == before <= 1
