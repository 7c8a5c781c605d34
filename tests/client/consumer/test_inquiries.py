"""What brokers ask of running consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client.consumer.adminrequests import Inquiries
from cometmq.client.consumer.pullconsumer import PullConsumer
from cometmq.client.session import Session
from cometmq.message.model import MessageQueue
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    ClientStatusRead,
    DirectResult,
    QueueKey,
    RunningInfoRead,
    offset_body,
    queue_table,
)
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.frame import Response
from cometmq.protocol.headers import Header
from tests.client.consumer.test_options import options
from tests.client.consumer.test_pushconsumer import bodies, consumer_of, fill, take
from tests.client.fake_broker import FakeBroker, FakeCluster, open_session
from tests.client.scripted import eventually

KEY = QueueKey("t", "broker-0", 0)
QUEUE = MessageQueue("t", "broker-0", 0)


@pytest.fixture
async def session(cluster: FakeCluster) -> AsyncIterator[Session]:
    async with open_session(cluster) as session:
        Inquiries(session)
        yield session


async def ask(
    broker: FakeBroker, session: Session, code: Code, header: Header, body: bytes = b""
) -> Response:
    """Ask the only consumer of group "g"."""
    return await broker.members["g"][session.client_id].ask(code, header, body)


def reset(
    broker: FakeBroker,
    session: Session,
    offset: int,
    *,
    key: QueueKey = KEY,
    language: str = "JAVA",
) -> None:
    header = h.ResetOffset(key.topic, "g", -1, "true")
    body = offset_body({key: offset}, language)
    broker.members["g"][session.client_id].tell(Code.RESET_CONSUMER_CLIENT_OFFSET, header, body)


async def test_queues_of_others_and_other_groups_are_left_alone(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, *"01")
    async with consumer_of(session) as consumer:
        assert await bodies(consumer, 2) == [b"0", b"1"]
        await eventually(lambda: broker.offset("g", "t") == 2)
        reset(broker, session, 0, key=QueueKey("t", "broker-0", 9))
        reset(broker, session, 0, key=QueueKey("u", "broker-0", 0))
        connection = broker.members["g"][session.client_id]
        header = h.ResetOffset("t", "nobody", -1, "true")
        connection.tell(Code.RESET_CONSUMER_CLIENT_OFFSET, header, offset_body({KEY: 0}))
        connection.tell(Code.RESET_CONSUMER_CLIENT_OFFSET, header, b"{")
        assert consumer.positions("t") == {QUEUE: 2}
        answer = await ask(broker, session, Code.GET_CONSUMER_STATUS_FROM_CLIENT, STATUS)
        table = parse_json(answer.body, ClientStatusRead).message_queue_table
        assert queue_table(table) == {KEY: 2}
        assert broker.offset("g", "t", 9) is None


STATUS = h.GetConsumerStatus("t", "g")


async def test_where_it_stands_and_what_it_holds(session: Session, broker: FakeBroker) -> None:
    fill(broker, *"0123")
    async with consumer_of(session, concurrency=3) as consumer:
        assert await bodies(consumer, 1) == [b"0"]
        held = await take(consumer)
        answer = await ask(broker, session, Code.GET_CONSUMER_STATUS_FROM_CLIENT, STATUS)
        table = parse_json(answer.body, ClientStatusRead).message_queue_table
        assert queue_table(table) == {KEY: 1}
        header = h.GetConsumerRunningInfo("g", session.client_id, "true")
        answer = await ask(broker, session, Code.GET_CONSUMER_RUNNING_INFO, header)
        info = parse_json(answer.body, RunningInfoRead)
        queue = queue_table(info.mq_table)[KEY]
        assert (queue.commit_offset, queue.cached_msg_count) == (1, 3)
        assert queue.last_consume_timestamp >= queue.last_pull_timestamp > 0
        assert info.status_table["t"].pull_tps > 0
        assert info.status_table["t"].consume_ok_tps > 0
        assert info.jstack is not None
        assert "thread MainThread" in info.jstack
        header = h.GetConsumerRunningInfo("g", session.client_id)
        answer = await ask(broker, session, Code.GET_CONSUMER_RUNNING_INFO, header)
        assert parse_json(answer.body, RunningInfoRead).jstack is None
        await held.retry()


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_message_is_consumed_directly(
    session: Session, broker: FakeBroker, ordered: bool
) -> None:
    fill(broker, "0", "1")
    async with consumer_of(session, ordered=ordered) as consumer:
        assert await bodies(consumer, 2) == [b"0", b"1"]
        await eventually(lambda: broker.offset("g", "t") == 2)
        record = broker.queues["t", 0][0]
        header = h.ConsumeMessageDirectly("g", session.client_id, "ID", "broker-0")
        asking = asyncio.create_task(
            ask(broker, session, Code.CONSUME_MESSAGE_DIRECTLY, header, record)
        )
        again = await take(consumer)
        assert (again.body, again.queue) == (b"0", QUEUE)
        async with again.processing():
            raise KeyError("broken")
        result = parse_json((await asking).body, DirectResult)
        assert (result.consume_result, result.order) == ("CR_THROW_EXCEPTION", ordered)
        assert result.remark == "KeyError: 'broken'"
        assert not broker.peer.received(Code.CONSUMER_SEND_MSG_BACK)
        assert consumer.positions("t") == {QUEUE: 2}


async def test_a_consumer_that_polls_tells_of_itself_but_takes_no_orders(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, *"012")
    wanted = options(start="first", polls=True)
    async with PullConsumer(session, wanted) as consumer:
        assert [each.body for each in await consumer.poll(max_messages=2)] == [b"0", b"1"]
        answer = await ask(broker, session, Code.GET_CONSUMER_STATUS_FROM_CLIENT, STATUS)
        table = parse_json(answer.body, ClientStatusRead).message_queue_table
        assert queue_table(table) == {KEY: 2}
        header = h.GetConsumerRunningInfo("g", session.client_id, "true")
        answer = await ask(broker, session, Code.GET_CONSUMER_RUNNING_INFO, header)
        info = parse_json(answer.body, RunningInfoRead)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert queue_table(info.mq_table)[KEY].commit_offset == 2
        assert info.jstack is not None
        direct = h.ConsumeMessageDirectly("g", session.client_id, "ID", "broker-0")
        answer = await ask(broker, session, Code.CONSUME_MESSAGE_DIRECTLY, direct)
        assert answer.code == 1


async def test_what_cannot_be_answered_is_said(session: Session, broker: FakeBroker) -> None:
    async with consumer_of(session):
        direct = h.ConsumeMessageDirectly("g", session.client_id, "ID", "broker-0")
        answer = await ask(broker, session, Code.CONSUME_MESSAGE_DIRECTLY, direct, b"garbage")
        assert (answer.code, "cannot be read" in str(answer.remark)) == (1, True)
        for code, header in (
            (Code.GET_CONSUMER_STATUS_FROM_CLIENT, h.GetConsumerStatus("t", "nobody")),
            (Code.GET_CONSUMER_RUNNING_INFO, h.GetConsumerRunningInfo("nobody", "c")),
            (Code.CONSUME_MESSAGE_DIRECTLY, h.ConsumeMessageDirectly("nobody", "c", "ID")),
        ):
            answer = await ask(broker, session, code, header)
            assert (answer.code, "<nobody> not exist" in str(answer.remark)) == (1, True)
