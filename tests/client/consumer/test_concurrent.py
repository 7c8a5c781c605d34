"""What happens to a message that is settled, failed or held too long; order does not matter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from cometmq.client.consumer.concurrent import ConcurrentSettler
from cometmq.client.consumer.dispatch import Dispatch
from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.offsets import RemoteOffsets
from cometmq.client.session import Session
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageQueue, StoredMessage
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
    offsets: RemoteOffsets
    settler: ConcurrentSettler
    message: StoredMessage

    @property
    def header(self) -> Any:
        return self.broker.peer.received(BACK)[-1].header


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster() as cluster:
        cluster.create("t", 1)
        cluster.brokers[0].peer.on(BACK, Answer())
        yield cluster


@pytest.fixture
async def session(cluster: FakeCluster) -> AsyncIterator[Session]:
    async with open_session(cluster) as session:
        yield session


async def hands(cluster: FakeCluster, session: Session, **changes: Any) -> Hands:
    wanted = options(**changes)
    dispatch = Dispatch(session.clock, concurrency=4, per_queue=4)
    inflight = InFlight(MessageQueue("t", "broker-0", 0), 0)
    inflight.add([structs.replace(message(0), physical_offset=77), message(1)], 2)
    dispatch.offer(inflight)
    taken = await dispatch.take()
    assert taken is not None
    offsets = RemoteOffsets(session, "g")
    settler = ConcurrentSettler(session, wanted, offsets, dispatch)
    return Hands(cluster.brokers[0], inflight, dispatch, offsets, settler, taken[1])


async def test_success_moves_the_offset(cluster: FakeCluster, session: Session) -> None:
    it = await hands(cluster, session)
    it.settler.succeeded(it.inflight, it.message)
    assert it.dispatch.handed_out == 0
    await it.offsets.persist()
    assert it.broker.offset("g", "t") == 1


@pytest.mark.parametrize(("given", "sent"), [(-1, 16), (0, 0), (3, 3)])
async def test_a_failure_goes_to_the_broker(
    cluster: FakeCluster, session: Session, given: int, sent: int
) -> None:
    it = await hands(cluster, session, max_reconsume_times=given)
    await it.settler.failed(it.inflight, it.message, 2)
    assert (it.header.offset, it.header.group, it.header.delay_level) == (77, "g", 2)
    assert it.header.max_reconsume_times == sent
    assert it.header.origin_msg_id == it.message.offset_id
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
    with pytest.raises(BrokerRefused):
        await it.settler.send_back(it.inflight, it.message, 0)


async def test_nothing_is_committed_for_a_dropped_queue(
    cluster: FakeCluster, session: Session
) -> None:
    it = await hands(cluster, session)
    it.inflight.dropped = True
    it.settler.succeeded(it.inflight, it.message)
    await it.offsets.persist()
    assert it.broker.offset("g", "t") is None
    it = await hands(cluster, session)
    it.inflight.dropped = True
    await it.settler.failed(it.inflight, it.message, 0)
    assert not it.broker.peer.received(BACK)
    assert it.dispatch.handed_out == 0


async def test_a_stuck_message_goes_back_with_its_own_level(
    cluster: FakeCluster, session: Session
) -> None:
    it = await hands(cluster, session)
    await it.settler.send_back_stuck(it.inflight, it.message)
    assert it.header.delay_level == 3
    assert (it.inflight.count, it.dispatch.handed_out) == (1, 1)
    it.settler.succeeded(it.inflight, it.message)
    assert it.dispatch.handed_out == 0


async def test_work_is_counted(cluster: FakeCluster, session: Session) -> None:
    it = await hands(cluster, session)
    it.settler.begin()
    assert it.settler.working == 1
    it.settler.end()
    assert it.settler.working == 0
