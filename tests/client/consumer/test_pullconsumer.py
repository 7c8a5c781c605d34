"""A consumer that is asked: polls, positions, commits, queues of its own and of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.consumer.options import Sql
from cometmq.client.consumer.pullconsumer import PullConsumer
from cometmq.core.errors import BrokerRefused, SettingsError
from cometmq.message.model import MessageQueue, MessageView
from cometmq.message.names import Namespace
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster, open_session
from tests.client.scripted import Answer, eventually

QUEUE = MessageQueue("t", "broker-0", 0)
NEVER_MS = 60_000


@asynccontextmanager
async def polling(
    cluster: FakeCluster,
    topics: Any = "t",
    *,
    settings: dict[str, Any] | None = None,
    auto_commit: bool = True,
    on_assignment: Any = None,
    **changes: Any,
) -> AsyncIterator[PullConsumer]:
    wanted = options(topics, **{"start": "first", "polls": True, **changes})
    async with (
        open_session(cluster, **(settings or {})) as session,
        PullConsumer(
            session, wanted, auto_commit=auto_commit, on_assignment=on_assignment
        ) as consumer,
    ):
        yield consumer


async def bodies(consumer: PullConsumer, count: int, **how: Any) -> list[bytes]:
    """As many messages, in as many polls as it takes."""
    found: list[MessageView] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await consumer.poll(**how)
    return [message.body for message in found]


def fill(broker: FakeBroker, *texts: str, queue_id: int = 0, tag: str = "") -> None:
    for text in texts:
        broker.put("t", queue_id, text.encode(), f"TAGS\x01{tag}" if tag else "")


async def test_messages_come_in_order_and_no_more_than_are_asked_for(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, *"abcde")
    async with polling(cluster) as consumer:
        first = await consumer.poll(max_messages=2)
        assert [(each.body, each.queue, each.queue_offset) for each in first] == [
            (b"a", QUEUE, 0),
            (b"b", QUEUE, 1),
        ]
        assert consumer.position(QUEUE) == 2
        assert await bodies(consumer, 3) == [b"c", b"d", b"e"]
        assert await consumer.poll(timeout_ms=1) == []
        assert await consumer.poll(timeout_ms=0) == []
        waiting = asyncio.create_task(consumer.poll(timeout_ms=NEVER_MS))
        await asyncio.sleep(0)
        fill(broker, "f")
        assert [message.body for message in await waiting] == [b"f"]


async def test_the_group_is_described_as_one_that_asks(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    async with polling(cluster) as consumer:
        await eventually(lambda: consumer.assignment() == (QUEUE,))
        data = broker.heartbeats[-1].consumer_data_set[0]
        assert data.consume_type == "CONSUME_ACTIVELY"
        assert [each.topic for each in data.subscription_data_set] == ["t"]
    assert not broker.members["g"]


async def test_what_a_poll_gave_is_committed_once_the_next_has_begun(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, *"abcd")
    async with polling(cluster) as consumer:
        assert len(await consumer.poll(max_messages=2)) == 2
        await eventually(lambda: broker.offset("g", "t") == 0)
        assert len(await consumer.poll(max_messages=1)) == 1
        await eventually(lambda: broker.offset("g", "t") == 2)
    assert broker.offset("g", "t") == 3


async def test_a_block_that_raises_leaves_the_last_poll_undone(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, *"abc")

    async def work() -> None:
        async with polling(cluster) as consumer:
            await consumer.poll(max_messages=1)
            await consumer.poll(max_messages=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert broker.offset("g", "t") == 1


async def test_without_automatic_commits_only_commit_stores(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, *"abc")
    async with polling(cluster, auto_commit=False) as consumer:
        assert await bodies(consumer, 2, max_messages=2) == [b"a", b"b"]
        assert await consumer.committed(QUEUE) is None
        await consumer.commit()
        assert await consumer.committed(QUEUE) == 2
        await consumer.commit({QUEUE: 1})
        assert await consumer.committed(QUEUE) == 1
        await bodies(consumer, 1)
        broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, Answer(1, remark="no"))
        with pytest.raises(BrokerRefused):
            await consumer.commit()
    assert broker.offset("g", "t") == 1


async def test_iteration_gives_one_by_one(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, *"abc")
    found = []
    async with polling(cluster) as consumer:
        async for message in consumer:
            found.append(message.body)
            if len(found) == 2:
                break
    assert found == [b"a", b"b"]
    assert broker.offset("g", "t") == 2


async def test_a_poll_ends_with_the_consumer(cluster: FakeCluster) -> None:
    async with polling(cluster) as consumer:
        waiting = asyncio.create_task(consumer.poll(timeout_ms=NEVER_MS))
        await asyncio.sleep(0)
        await consumer.close()
        assert await waiting == []
        assert await consumer.poll() == []
        assert [message async for message in consumer] == []
        await consumer.start()
        assert consumer.assignment() == ()


async def test_positions_are_moved_also_while_a_pull_is_held(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    for at in range(5):
        broker.put("t", 0, b"%d" % at, store_ms=10 * at)
    async with polling(cluster) as consumer:
        assert len(await bodies(consumer, 5)) == 5
        await consumer.seek(QUEUE, 3)
        assert consumer.position(QUEUE) == 3
        assert await bodies(consumer, 2) == [b"3", b"4"]
        await consumer.seek_to_begin()
        assert len(await bodies(consumer, 5)) == 5
        await consumer.seek_to_time(11, QUEUE)
        assert await bodies(consumer, 3) == [b"2", b"3", b"4"]
        assert await consumer.offset_for_time(QUEUE, 30) == 3
        await consumer.seek_to_begin(QUEUE)
        await consumer.seek_to_end()
        assert consumer.position(QUEUE) == 5
        fill(broker, "x")
        assert await bodies(consumer, 1) == [b"x"]
        for offset in (-1, 7):
            with pytest.raises(SettingsError, match="0 to 6"):
                await consumer.seek(QUEUE, offset)
        with pytest.raises(SettingsError, match="not assigned"):
            await consumer.seek(MessageQueue("t", "broker-0", 9), 0)


async def test_what_was_read_before_a_seek_is_not_given(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, *"abcdef")
    async with polling(cluster) as consumer:
        assert await bodies(consumer, 1, max_messages=1) == [b"a"]
        await consumer.seek(QUEUE, 4)
        assert await bodies(consumer, 2) == [b"e", b"f"]


async def test_a_paused_queue_rests(cluster: FakeCluster, broker: FakeBroker) -> None:
    cluster.create("t", 2)
    other = MessageQueue("t", "broker-0", 1)
    async with polling(cluster) as consumer:
        await eventually(lambda: len(consumer.assignment()) == 2)
        consumer.pause(QUEUE)
        assert consumer.paused() == (QUEUE,)
        fill(broker, "a", "b")
        fill(broker, "c", queue_id=1)
        assert await bodies(consumer, 1) == [b"c"]
        assert await consumer.poll(timeout_ms=30) == []
        consumer.resume(QUEUE, other)
        assert consumer.paused() == ()
        assert await bodies(consumer, 2) == [b"a", b"b"]
        with pytest.raises(SettingsError):
            consumer.pause(MessageQueue("u", "broker-0", 0))


async def test_what_is_held_is_bounded_over_all_queues(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 4)
    for queue_id in range(4):
        fill(broker, *"abcdefgh", queue_id=queue_id)
    settings = {"max_polled_messages": 3, "pull_batch_messages": 2}
    async with polling(cluster, settings=settings) as consumer:
        assert sorted(await bodies(consumer, 32)) == sorted(
            letter.encode() for letter in "abcdefgh" * 4
        )


async def test_queues_of_one_s_own_need_no_group(cluster: FakeCluster, broker: FakeBroker) -> None:
    cluster.create("t", 3)
    queues = [MessageQueue("t", "broker-0", at) for at in range(3)]
    for queue_id in range(3):
        fill(broker, str(queue_id), queue_id=queue_id)
    broker.offsets["g", "t", 1] = 1
    async with polling(cluster, None) as consumer:
        await consumer.assign(queues[:2])
        assert consumer.assignment() == tuple(queues[:2])
        assert await bodies(consumer, 1) == [b"0"]
        assert await consumer.poll(timeout_ms=0) == []
        await consumer.assign(queues[1:])
        assert consumer.assignment() == tuple(queues[1:])
        assert broker.offset("g", "t", 0) == 1
        assert await bodies(consumer, 1) == [b"2"]
        assert not broker.heartbeats
    assert broker.offset("g", "t", 2) == 1
    pull = broker.peer.received(RequestCode.PULL_MESSAGE)[0].header
    assert (pull.sys_flag & 7, pull.subscription, pull.consumer_group) == (6, "*", "g")


async def test_who_shares_topics_is_not_assigned_to(cluster: FakeCluster) -> None:
    async with polling(cluster) as consumer:
        with pytest.raises(SettingsError, match="this consumer subscribes to topics"):
            await consumer.assign([QUEUE])


async def test_tags_are_compared_again_here(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, "1", tag="AaAa")
    fill(broker, "2", tag="BBBB")  # the same hash
    async with polling(cluster, expression="AaAa") as consumer:
        assert await bodies(consumer, 1) == [b"1"]
        await consumer.poll(timeout_ms=0)
        await eventually(lambda: consumer.position(QUEUE) == 2)


async def test_queues_move_between_members_with_what_is_done(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t", 2)
    told: list[tuple[int, int]] = []

    def listen(came: frozenset[MessageQueue], went: frozenset[MessageQueue]) -> None:
        told.append((len(came), len(went)))
        raise ZeroDivisionError

    one_s = {"client_id": "a", "offset_persist_interval_ms": NEVER_MS}
    with caplog.at_level(logging.ERROR):
        async with polling(cluster, settings=one_s, on_assignment=listen) as one:
            await eventually(lambda: len(one.assignment()) == 2)
            fill(broker, *"abc", queue_id=1)
            await bodies(one, 1, max_messages=1)
            await bodies(one, 1, max_messages=1)  # which is not done yet
            async with polling(cluster, settings={"client_id": "b"}) as two:
                await eventually(lambda: len(two.assignment()) == 1)
                assert await bodies(two, 2) == [b"b", b"c"]
            await eventually(lambda: len(told) == 3)
    assert told == [(2, 0), (0, 1), (1, 0)]
    assert "assignment_listener_failed added=2" in caplog.text


async def test_a_start_that_is_refused_can_be_tried_again(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    code = RequestCode.CHECK_CLIENT_CONFIG
    fill(broker, "1")
    wanted = options(expression=Sql("a = 1"), start="first", polls=True)
    async with open_session(cluster) as session:
        consumer = PullConsumer(session, wanted)
        with pytest.raises(BrokerRefused):
            await consumer.poll()
        broker.peer.on(code, Answer())
        assert await bodies(consumer, 1) == [b"1"]
        await consumer.close()


async def test_users_of_a_namespace_see_their_own_names(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("ns%t", 1)
    broker.put("ns%t", 0, b"1")
    settings = {"namespace": "ns"}
    async with polling(cluster, settings=settings, namespace=Namespace("ns")) as consumer:
        (message,) = await consumer.poll()
        assert (message.topic, consumer.assignment()) == ("t", (QUEUE,))
        consumer.pause(QUEUE)
        assert consumer.paused() == (QUEUE,)
        await consumer.seek(QUEUE, 0)
        await consumer.commit({QUEUE: 1})
        assert await consumer.committed(QUEUE) == 1
    assert broker.offset("ns%g", "ns%t") is not None


async def test_broadcasting_members_keep_offsets_at_home(
    cluster: FakeCluster, broker: FakeBroker, tmp_path: Path
) -> None:
    fill(broker, *"ab")
    settings = {"offsets_dir": tmp_path}
    for body in (b"a", b"b"):
        async with polling(
            cluster, settings=settings, mode="broadcasting", auto_commit=False
        ) as consumer:
            assert await bodies(consumer, 1, max_messages=1) == [body]
            await consumer.commit()
            assert await consumer.committed(QUEUE) == int(body == b"b") + 1
    assert not broker.offsets


async def test_administrators_see_where_it_stands(cluster: FakeCluster, broker: FakeBroker) -> None:
    fill(broker, *"abc")
    async with polling(cluster) as consumer:
        await bodies(consumer, 2, max_messages=2)
        assert consumer.positions("t") == {QUEUE: 2}
        assert consumer.positions("u") == {}
        info = consumer.running_info(with_stacks=True)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert info.jstack
        assert b'"cachedMsgCount":1' in encode_json(info)
