"""A member of a group from joining to leaving, against brokers that can be told to misbehave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.consumer.options import Sql
from cometmq.client.consumer.pushconsumer import PushConsumer
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.producer import Producer
from cometmq.client.session import Session
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageQueue
from cometmq.message.names import Namespace
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.frame import Request
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster, open_session
from tests.client.scripted import Answer, eventually

PULL = RequestCode.PULL_MESSAGE


@asynccontextmanager
async def consumer_of(session: Session, **changes: Any) -> AsyncIterator[PushConsumer]:
    consumer = PushConsumer(session, Producer(session), options(**{"start": "first", **changes}))
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.close()


@asynccontextmanager
async def joined(
    cluster: FakeCluster, settings: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[PushConsumer]:
    async with (
        open_session(cluster, **(settings or {})) as session,
        consumer_of(session, **changes) as consumer,
    ):
        yield consumer


async def take(consumer: PushConsumer) -> ReceivedMessage:
    message = await asyncio.wait_for(consumer.take(), 10)
    assert message is not None
    return message


async def bodies(consumer: PushConsumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = await take(consumer)
        found.append(message.body)
        message.ack()
    return found


def fill(broker: FakeBroker, *texts: str, queue_id: int = 0, tag: str = "") -> None:
    for text in texts:
        broker.put("t", queue_id, text.encode(), f"TAGS\x01{tag}" if tag else "")


async def test_messages_old_and_new_are_consumed_and_committed(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1", "2")
    async with joined(cluster) as consumer:
        assert await bodies(consumer, 2) == [b"1", b"2"]
        fill(broker, "3")
        assert await bodies(consumer, 1) == [b"3"]
        await eventually(lambda: broker.offset("g", "t") == 3)
    assert consumer.group not in broker.members or not broker.members["g"]


async def test_pulls_tell_how_far_the_group_is_when_there_is_something_new(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1")
    async with joined(cluster, {"offset_persist_interval_ms": 60_000}) as consumer:
        assert await bodies(consumer, 1) == [b"1"]
        # No pull tells the group's first offset in a topic.
        fill(broker, "2")
        assert await bodies(consumer, 1) == [b"2"]
        await eventually(lambda: len(broker.peer.received(PULL)) >= 4)
        await consumer.persist_offsets()
        fill(broker, "3")
        assert await bodies(consumer, 1) == [b"3"]
        await eventually(lambda: len(broker.peer.received(PULL)) >= 5)
    told = [
        (pull.header.sys_flag & 1, pull.header.commit_offset)
        for pull in broker.peer.received(PULL)
        if pull.header.topic == "t"
    ]
    assert told == [(0, -1), (0, -1), (0, -1), (1, 2)]


async def test_an_unsettled_message_holds_the_offset_back(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1", "2", "3")
    async with joined(cluster) as consumer:
        first = await take(consumer)
        assert await bodies(consumer, 2) == [b"2", b"3"]
        await consumer.persist_offsets()
        assert broker.offset("g", "t") == 0
        first.ack()
        await consumer.persist_offsets()
        assert broker.offset("g", "t") == 3


async def test_a_member_goes_on_where_its_group_stood(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, *"abcdef")
    async with joined(cluster) as consumer:
        assert await bodies(consumer, 2) == [b"a", b"b"]
        await take(consumer)
    assert broker.offset("g", "t") == 2
    async with joined(cluster) as consumer:
        assert await bodies(consumer, 4) == [b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize(
    ("start", "expected"), [("first", [b"0", b"1"]), ("last", [b"5"]), (1234, [b"2", b"3"])]
)
async def test_where_a_new_group_begins(
    cluster: FakeCluster, broker: FakeBroker, start: Any, expected: list[bytes]
) -> None:
    for at in range(5):
        broker.put("t", 0, b"%d" % at, store_ms=1_232 + at)
    async with joined(cluster, start=start) as consumer:
        await eventually(lambda: consumer.assigned("t"))
        broker.put("t", 0, b"5", store_ms=1_237)
        assert await bodies(consumer, len(expected)) == expected


async def test_tags_are_compared_again_here(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, "1", tag="AaAa")
    fill(broker, "2", tag="BBBB")  # the same hash
    fill(broker, "3", tag="AaAa")
    async with joined(cluster, expression="AaAa") as consumer:
        assert await bodies(consumer, 2) == [b"1", b"3"]
        await eventually(lambda: broker.offset("g", "t") == 3)
    request = broker.peer.received(PULL)[-1]
    assert request.header.sub_version == 77


async def test_a_failed_message_comes_back_from_the_broker(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1", "2")
    async with joined(cluster) as consumer:
        first = await take(consumer)
        await first.retry(4)
        assert await bodies(consumer, 1) == [b"2"]
        again = await take(consumer)
        assert (again.body, again.topic, again.reconsume_times) == (b"1", "t", 1)
        assert again.stored.topic == "%RETRY%g"
        again.ack()
        await eventually(lambda: broker.offset("g", "t") == 2)
        await eventually(lambda: broker.offset("g", "%RETRY%g") == 1)
    header = broker.peer.received(RequestCode.CONSUMER_SEND_MSG_BACK)[0].header
    assert (header.delay_level, header.max_reconsume_times) == (4, 16)
    assert (header.group, header.origin_topic) == ("g", "t")


async def test_the_last_attempt_is_told(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, "1")
    async with joined(cluster, max_reconsume_times=1) as consumer:
        await (await take(consumer)).retry()
        await (await take(consumer)).retry()
        await eventually(lambda: broker.stored("%DLQ%g"))


async def test_a_send_back_that_fails_is_retried_here(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1")
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, Answer(2, remark="busy"))
    async with joined(cluster) as consumer:
        await (await take(consumer)).retry()
        again = await take(consumer)
        assert (again.body, again.reconsume_times, again.stored.topic) == (b"1", 1, "t")
        await consumer.persist_offsets()
        assert broker.offset("g", "t") == 0
        again.ack()


async def test_a_message_that_is_given_back_comes_at_once(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1")
    async with joined(cluster) as consumer:
        (await take(consumer)).give_back()
        again = await take(consumer)
        assert (again.body, again.reconsume_times) == (b"1", 0)
        again.ack()


async def test_a_message_that_is_held_too_long_is_sent_back(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1")
    with caplog.at_level(logging.WARNING):
        async with joined(cluster, {"consume_timeout_ms": 20}) as consumer:
            held = await take(consumer)
            again = await take(consumer)
            assert (again.body, again.reconsume_times) == (b"1", 1)
            again.ack()
            held.ack()
            await eventually(lambda: broker.offset("g", "t") == 1)
    assert "consume_timeout topic=t" in caplog.text


async def test_a_stuck_message_stays_while_it_cannot_be_sent_back(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1")
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, Answer(2, remark="busy"))
    with caplog.at_level(logging.WARNING):
        async with joined(cluster, {"consume_timeout_ms": 10}) as consumer:
            held = await take(consumer)
            await eventually(lambda: "send_back_failed" in caplog.text)
            held.ack()
            await eventually(lambda: broker.offset("g", "t") == 1)


async def test_pulls_pause_while_a_queue_is_full(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, *map(str, range(100)))
    settings = {"max_queue_messages": 10, "pull_batch_messages": 5}
    async with joined(cluster, settings) as consumer:
        await eventually(lambda: consumer._dispatch.handed_out == 0)
        first = await take(consumer)
        await eventually(lambda: broker.peer.received(PULL)[-1].header.queue_offset >= 5)
        held = await asyncio.gather(*(take(consumer) for _ in range(7)))
        # All that is pulled: 10 messages; the pull at 10 waits.
        assert max(r.header.queue_offset for r in broker.peer.received(PULL)) == 5
        for message in (first, *held):
            message.ack()
        assert len(await bodies(consumer, 92)) == 92


async def test_an_offset_that_is_gone_moves_on(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.first["t", 0] = 50
    fill(broker, "1")
    broker.offsets["g", "t", 0] = 3
    with caplog.at_level(logging.WARNING):
        async with joined(cluster) as consumer:
            message = await take(consumer)
            assert message.queue_offset == 50
            message.ack()
    assert "offset_moved" in caplog.text
    assert broker.offset("g", "t") == 51


async def test_a_broker_that_forgot_the_subscription_gets_a_heartbeat(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1")
    script = broker.peer.scripts[PULL]
    refusals = iter([Answer(24, remark="not subscribed"), Answer(25, remark="old")])

    def forgetful(request: Request[Any]) -> Answer | None:
        return next(refusals, None) or script(request)

    broker.peer.on(PULL, forgetful)
    async with joined(cluster, {"heartbeat_interval_ms": 60_000}) as consumer:
        assert await bodies(consumer, 1) == [b"1"]
        await eventually(lambda: len(broker.heartbeats) >= 2)


async def test_a_broker_that_goes_and_comes_is_read_on(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1")
    async with joined(cluster) as consumer:
        assert await bodies(consumer, 1) == [b"1"]
        await broker.peer.close()
        fill(broker, "2")
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "unavailable address=" in caplog.text)
        await broker.peer.listen(broker.peer.port)
        assert await bodies(consumer, 1) == [b"2"]
        await eventually(lambda: broker.offset("g", "t") == 2)


async def test_queues_move_to_a_member_that_joins_and_back(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 4)
    # Shares follow the order of the ids.
    async with joined(cluster, {"client_id": "a"}) as one:
        await eventually(lambda: len(one.assigned("t")) == 4)
        fill(broker, "a", queue_id=3)
        kept = await take(one)
        async with joined(cluster, {"client_id": "b"}) as two:
            await eventually(lambda: len(one.assigned("t")) == len(two.assigned("t")) == 2)
            # What the first one has in its hands is not its own any more: the second gets it too.
            assert await bodies(two, 1) == [b"a"]
            kept.ack()
            await one.persist_offsets()
            await eventually(lambda: broker.offset("g", "t", 3) == 1)
        await eventually(lambda: len(one.assigned("t")) == 4)


async def test_the_offset_of_a_dropped_queue_is_stored_before_it_is_let_go(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    settings = {"offset_persist_interval_ms": 60_000, "client_id": "a"}
    async with joined(cluster, settings) as one:
        await eventually(lambda: len(one.assigned("t")) == 2)
        fill(broker, "a", "b", queue_id=1)
        assert await bodies(one, 2) == [b"a", b"b"]
        async with joined(cluster, {"client_id": "b"}) as two:
            await eventually(lambda: len(two.assigned("t")) == 1)
        updates = broker.peer.received(RequestCode.UPDATE_CONSUMER_OFFSET)
        stored = {(each.header.queue_id, each.header.commit_offset) for each in updates}
        assert (1, 2) in stored


async def test_a_failed_message_of_a_dropped_queue_is_left_to_its_next_owner(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, "1")
    async with joined(cluster) as consumer:
        message = await take(consumer)
        message._inflight.dropped = True
        await message.retry()
    assert not broker.peer.received(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_leaving_waits_for_messages_in_work(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, "1")
    go_on = asyncio.Event()
    async with open_session(cluster) as session:
        consumer = PushConsumer(session, Producer(session), options(start="first"))
        await consumer.start()
        message = await take(consumer)

        async def work() -> None:
            async with message.processing():
                await go_on.wait()

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        closing = asyncio.create_task(consumer.close())
        assert await consumer.take() is None  # it has begun to close
        await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        await asyncio.gather(working, closing)
        await consumer.close()
        assert broker.offset("g", "t") == 1
        assert await consumer.take() is None


async def test_broadcasting_keeps_offsets_at_home(
    cluster: FakeCluster, broker: FakeBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1", "2")
    settings = {"offsets_dir": tmp_path}
    async with joined(cluster, settings, mode="broadcasting") as consumer:
        assert await bodies(consumer, 1) == [b"1"]
        with caplog.at_level(logging.WARNING):
            await (await take(consumer)).retry()
        assert "broadcast_dropped" in caplog.text
    assert not broker.offsets
    fill(broker, "3")
    async with joined(cluster, settings, mode="broadcasting") as consumer:
        assert await bodies(consumer, 1) == [b"3"]


async def test_two_subscriptions_of_one_group_in_one_client(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session, consumer_of(session):
        with pytest.raises(ValueError, match="already"):
            async with consumer_of(session):
                pass
        assert session.members  # the first one is still in


async def test_a_queue_whose_offset_is_not_told_is_tried_again(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, "1")
    code = RequestCode.QUERY_CONSUMER_OFFSET
    script = broker.peer.scripts[code]
    refusals = iter([Answer(1, remark="not yet")] * 3)

    def reluctant(request: Request[Any]) -> Answer | None:
        return next(refusals, None) or script(request)

    broker.peer.on(code, reluctant)
    with caplog.at_level(logging.WARNING):
        async with joined(cluster) as consumer:
            assert await bodies(consumer, 1) == [b"1"]
    assert "unavailable topic=t" in caplog.text


async def test_a_topic_that_comes_later_is_found(cluster: FakeCluster, broker: FakeBroker) -> None:
    cluster.create("known", 1)
    async with open_session(cluster) as session:
        await session.publish_queues("known")
        async with consumer_of(session, topics="later") as consumer:
            cluster.create("later", 1)
            broker.put("later", 0, b"1")
            assert await bodies(consumer, 1) == [b"1"]


async def test_users_of_a_namespace_see_their_own_names(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("ns%t", 1)
    broker.put("ns%t", 0, b"1")
    namespace = Namespace("ns")
    settings = {"namespace": "ns"}
    async with joined(cluster, settings, namespace=namespace) as consumer:
        first = await take(consumer)
        assert (first.topic, first.queue) == ("t", MessageQueue("t", "broker-0", 0))
        await first.retry()
        again = await take(consumer)
        assert (again.topic, again.queue.topic) == ("t", "%RETRY%g")
        again.ack()
    back = broker.peer.received(RequestCode.CONSUMER_SEND_MSG_BACK)[0].header
    assert (back.group, back.origin_topic) == ("ns%g", "ns%t")
    assert broker.offset("ns%g", "ns%t") == 1
    assert broker.heartbeats[0].consumer_data_set[0].group_name == "ns%g"


async def test_a_late_settlement_of_a_queue_that_was_handed_over_counts_no_more(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    async with joined(cluster, {"client_id": "a"}) as one:
        await eventually(lambda: len(one.assigned("t")) == 2)
        fill(broker, "x", queue_id=1)
        message = await take(one)
        async with joined(cluster, {"client_id": "b"}) as two:
            again = await take(two)
            assert again.body == b"x"
            message.ack()
            await one.persist_offsets()
            assert broker.offset("g", "t", 1) == 0
            again.ack()


async def test_sql_is_checked_before_the_group_is_joined(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    broker.peer.on(RequestCode.CHECK_CLIENT_CONFIG, Answer(1, remark="no property filter"))
    async with open_session(cluster) as session:
        with pytest.raises(BrokerRefused, match="no property filter"):
            async with consumer_of(session, expression=Sql("a = 1")):
                pass
        assert not session.members
        broker.peer.on(RequestCode.CHECK_CLIENT_CONFIG, Answer())
        fill(broker, "1")
        async with consumer_of(session, expression=Sql("a = 1")) as consumer:
            assert await bodies(consumer, 1) == [b"1"]
    body = parse_json(broker.peer.received(RequestCode.CHECK_CLIENT_CONFIG)[0].body)
    assert (body["group"], body["subscriptionData"]["expressionType"]) == ("g", "SQL92")
    pulls = [each.header for each in broker.peer.received(PULL) if each.header.topic == "t"]
    assert (pulls[0].subscription, pulls[0].expression_type) == ("a = 1", "SQL92")
