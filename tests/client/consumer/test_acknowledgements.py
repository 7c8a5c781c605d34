"""What becomes of a message that is done with, failed, or held for too long; and what a broker is
told of a message that failed and whose order does not matter."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from cometmq.client.consumer.acknowledgements import ConsumerSettler, SendBack
from cometmq.client.consumer.inflight import Dispatch, InFlight
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.hooks import ConsumeAttempt, ConsumeHook, Outcome
from cometmq.client.producer import Producer
from cometmq.client.session import Session
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageList, MessageQueue, StoredMessage
from cometmq.message.properties import decode
from cometmq.protocol.codes import RequestCode
from tests.client.consumer.test_inflight import message
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster, fake_cluster, open_session
from tests.client.scripted import Answer, eventually

BACK = RequestCode.CONSUMER_SEND_MSG_BACK


@dataclass
class Hands:
    """A queue with one message taken from it, and all that settles it."""

    broker: FakeBroker
    inflight: InFlight
    dispatch: Dispatch
    settler: ConsumerSettler
    message: StoredMessage

    @property
    def header(self) -> Any:
        return self.broker.peer.received(BACK)[-1].header


@pytest.fixture(autouse=True)
def accepting(broker: FakeBroker) -> None:
    """Send-backs of messages that this broker never stored."""
    broker.peer.on(BACK, Answer())


async def hands(
    cluster: FakeCluster, session: Session, *hooks: ConsumeHook, **changes: Any
) -> Hands:
    wanted = options(**changes)
    dispatch = Dispatch(session.clock, concurrency=4, per_queue=4)
    inflight = InFlight(MessageQueue("t", "broker-0", 0), 0)
    inflight.add(MessageList([structs.replace(message(0), physical_offset=77), message(1)]), 2)
    dispatch.offer(inflight)
    taken = await dispatch.take()
    assert taken is not None
    settler = ConsumerSettler(
        session, wanted, dispatch, SendBack(session, wanted, Producer(session)), hooks
    )
    return Hands(cluster.brokers[0], inflight, dispatch, settler, taken[1])


async def test_success_moves_what_may_be_committed(cluster: FakeCluster, session: Session) -> None:
    it = await hands(cluster, session)
    it.settler.succeeded(it.inflight, it.message)
    assert (it.dispatch.handed_out, it.inflight.committable) == (0, 1)


async def test_a_failure_goes_to_the_broker(cluster: FakeCluster, session: Session) -> None:
    it = await hands(cluster, session)
    await it.settler.failed(it.inflight, it.message, 2)
    assert it.header.delay_level == 2
    assert (it.dispatch.handed_out, it.inflight.count) == (0, 1)


async def test_what_the_broker_does_not_take_stays_here(
    cluster: FakeCluster, session: Session
) -> None:
    it = await hands(cluster, session)
    it.broker.peer.on(BACK, Answer(1, remark="no"))
    await it.settler.failed(it.inflight, it.message, 0)
    assert (it.dispatch.handed_out, it.inflight.count) == (0, 2)
    await eventually(lambda: it.inflight.ready_count == 2)
    again = await it.dispatch.take()
    assert again is not None
    assert (again[1].queue_offset, again[1].reconsume_times) == (0, 1)


async def test_what_failed_of_a_dropped_queue_is_its_next_owners(
    cluster: FakeCluster, session: Session
) -> None:
    it = await hands(cluster, session)
    it.inflight.dropped = True
    await it.settler.failed(it.inflight, it.message, 0)
    assert not it.broker.peer.received(BACK)
    assert (it.dispatch.handed_out, it.inflight.committable) == (0, 0)


async def test_a_stuck_message_goes_back_with_its_own_level(
    cluster: FakeCluster, session: Session
) -> None:
    it = await hands(cluster, session)
    await it.settler.expired(it.inflight, it.message)
    assert it.header.delay_level == 3
    assert (it.inflight.count, it.dispatch.handed_out) == (1, 1)
    it.settler.succeeded(it.inflight, it.message)
    assert it.dispatch.handed_out == 0


class Watching:
    """A hook that writes down what it sees; it may be broken."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.begun: list[str] = []
        self.ended: list[ConsumeAttempt] = []

    def before(self, attempt: ConsumeAttempt) -> None:
        self.begun.append(attempt.message.message_id)
        if self.broken:
            raise RuntimeError("broken hook")

    def after(self, attempt: ConsumeAttempt) -> None:
        self.ended.append(attempt)
        if self.broken:
            raise RuntimeError("broken hook")


async def test_hooks_see_what_work_came_to(
    cluster: FakeCluster, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Watching(broken=True), Watching()
    it = await hands(cluster, session, first, second)
    received = ReceivedMessage(it.settler, it.inflight, it.message)
    async with received.processing():
        assert it.settler.working == 1
        raise ValueError("bad row")
    assert it.settler.working == 0
    for hook in (first, second):
        assert hook.begun == [it.message.message_id]
        (attempt,) = hook.ended
        assert (attempt.group, attempt.outcome) == ("g", Outcome.RETRIED)
        assert repr(attempt.error) == "ValueError('bad row')"
        assert attempt.ended_ms >= attempt.started_ms > 0
    assert caplog.text.count("hook_failed") == 2


@pytest.mark.parametrize("error", [None, ValueError("bad row")])
async def test_a_block_that_settles_nothing_tells_hooks(
    cluster: FakeCluster, session: Session, error: Exception | None
) -> None:
    hook = Watching()
    it = await hands(cluster, session, hook)
    received = ReceivedMessage(it.settler, it.inflight, it.message)
    with nullcontext() if error is None else pytest.raises(ValueError, match="bad row"):
        async with received.processing(settle=False):
            assert it.settler.working == 1
            if error is not None:
                raise error
    assert (it.settler.working, it.inflight.committable) == (0, 0)
    (attempt,) = hook.ended
    assert (attempt.outcome, attempt.error) == (None, error)
    async with received.processing(settle=False):
        received.ack()
    assert hook.ended[-1].outcome is Outcome.ACKNOWLEDGED
    assert it.inflight.committable == 1


async def test_work_without_hooks_is_only_counted(cluster: FakeCluster, session: Session) -> None:
    it = await hands(cluster, session)
    received = ReceivedMessage(it.settler, it.inflight, it.message)
    async with received.processing():
        assert it.settler.working == 1
    assert (it.settler.working, it.inflight.committable) == (0, 1)


QUEUE = MessageQueue("t", "broker-0", 0)


@pytest.mark.parametrize(("given", "sent"), [(-1, 16), (0, 0), (3, 3)])
async def test_a_message_goes_back(given: int, sent: int) -> None:
    stored = structs.replace(message(0), physical_offset=77, properties={"RETRY_TOPIC": "first"})
    async with fake_cluster() as cluster, open_session(cluster) as session:
        cluster.create("t", 1)
        peer = cluster.brokers[0].peer
        peer.on(BACK, Answer())
        wanted = options(max_reconsume_times=given)
        policy = SendBack(session, wanted, Producer(session))
        assert policy.is_final(stored, 2)
        await policy.send_away(QUEUE, stored, 2)
        header = peer.received(BACK)[0].header
        assert (header.offset, header.group, header.delay_level) == (77, "g", 2)
        assert (header.origin_msg_id, header.origin_topic) == (stored.offset_id, "first")
        assert header.max_reconsume_times == sent
        peer.on(BACK, Answer(16, remark="no"))
        with pytest.raises(BrokerRefused):
            await policy.send_away(QUEUE, stored, 0)


@pytest.mark.parametrize(("level", "times", "delay"), [(0, 2, "4"), (7, 2, "7"), (-1, 6, "4")])
async def test_a_broker_that_does_not_have_the_message_gets_it_as_a_whole(
    level: int, times: int, delay: str
) -> None:
    stored = structs.replace(message(0), body=b"x", physical_offset=77, reconsume_times=1)
    async with fake_cluster() as cluster, open_session(cluster) as session:
        cluster.create("t", 1)
        cluster.create("%RETRY%g", 1)
        broker = cluster.brokers[0]
        broker.peer.on(BACK, Answer(1, remark="look message by offset failed, 77"))
        wanted = options(max_reconsume_times=5)
        await SendBack(session, wanted, Producer(session)).send_away(QUEUE, stored, level)
        header = broker.peer.received(RequestCode.SEND_MESSAGE_V2)[0].header
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (
            "%RETRY%g",
            times,
            6,
        )
        record = broker.stored("%RETRY%g")[0]
        properties = decode(record.properties)
        assert (record.body, properties["RETRY_TOPIC"], properties["DELAY"]) == (b"x", "t", delay)
