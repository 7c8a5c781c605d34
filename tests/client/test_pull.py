"""Pulls and ranges: what is asked, what comes back, and what happens where a queue ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client.pull import OffsetsLost, Puller, PullStatus
from cometmq.core.errors import BrokerRefused, NotConnected
from cometmq.message.model import MessageQueue
from cometmq.net.client import Pulled, Remoting
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Response
from tests.client.fake_broker import FakeBroker, FakeCluster, fake_cluster, open_session
from tests.client.scripted import Answer, scripted_peer

QUEUE = MessageQueue("t", "broker-0", 0)
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster() as cluster:
        cluster.create("t", 1)
        yield cluster


@pytest.fixture
def broker(cluster: FakeCluster) -> FakeBroker:
    return cluster.brokers[0]


@pytest.fixture
async def puller(cluster: FakeCluster) -> AsyncIterator[Puller]:
    async with open_session(cluster) as session:
        yield Puller(session)


def fill(broker: FakeBroker, count: int) -> None:
    for at in range(count):
        broker.put("t", 0, b"%d" % at)


async def collect(puller: Puller, start: int, end: int, *, strict: bool = True) -> list[int]:
    return [
        message.queue_offset
        async for part in puller.read_range(QUEUE, start, end, strict=strict)
        for message in part
    ]


async def test_a_pull_finds_messages(broker: FakeBroker, puller: Puller) -> None:
    fill(broker, 40)
    result = await puller.pull(QUEUE, 3, max_messages=5)
    assert result.status is PullStatus.FOUND
    assert [message.body for message in result.messages] == [b"3", b"4", b"5", b"6", b"7"]
    assert {message.queue for message in result.messages} == {QUEUE}
    assert (result.next_offset, result.min_offset, result.max_offset) == (8, 0, 40)
    header = broker.peer.received(PULL)[0].header
    assert (header.sys_flag, header.commit_offset, header.subscription) == (4, -1, "*")


async def test_the_answers_of_pulls_that_find_something_are_plain(
    broker: FakeBroker, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 8)
    kinds: list[type] = []
    pull = Remoting.pull

    async def noted(remoting: Remoting, *args: Any, **named: Any) -> Pulled | Response:
        answer = await pull(remoting, *args, **named)
        kinds.append(type(answer))
        return answer

    monkeypatch.setattr(Remoting, "pull", noted)
    for offset in (0, 4, 8):
        await puller.pull(QUEUE, offset, max_messages=4)
    assert kinds == [Pulled, Pulled, Response]


async def test_flags_say_what_is_wanted(broker: FakeBroker, puller: Puller) -> None:
    fill(broker, 1)
    await puller.pull(QUEUE, 0, commit_offset=7, suspend_ms=100, subscription_known=True)
    header = broker.peer.received(PULL)[0].header
    assert (header.sys_flag, header.commit_offset) == (3, 7)
    assert header.suspend_timeout_millis == 100


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (2, PullStatus.OFFSET_MOVED, 5),
        (10, PullStatus.NOTHING_NEW, 10),
        (11, PullStatus.OFFSET_MOVED, 10),
    ],
)
async def test_where_a_queue_ends(
    broker: FakeBroker, puller: Puller, offset: int, status: PullStatus, next_offset: int
) -> None:
    broker.first["t", 0] = 5
    fill(broker, 5)
    result = await puller.pull(QUEUE, offset)
    assert (result.status, result.next_offset, result.messages) == (status, next_offset, [])


async def test_a_refused_pull(broker: FakeBroker, puller: Puller) -> None:
    broker.peer.on(PULL, Answer(26, remark="no such group"))
    with pytest.raises(BrokerRefused, match="no such group"):
        await puller.pull(QUEUE, 0)
    with pytest.raises(NotConnected):
        await puller.pull(MessageQueue("t", "nobody", 0), 0)


async def test_the_suggested_replica_is_asked_next(
    cluster: FakeCluster, broker: FakeBroker, puller: Puller
) -> None:
    fill(broker, 1)

    def answer(suggested: int) -> Answer:
        return Answer(
            19,
            h.PullMessageResponse(
                suggest_which_broker_id=suggested,
                next_begin_offset=0,
                min_offset=0,
                max_offset=0,
            ),
        )

    async with scripted_peer() as slave:
        route = cluster.route("t", 1)
        route.broker_datas[0].broker_addrs["1"] = slave.address
        cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(body=_encode(route)))
        broker.peer.on(PULL, answer(1))
        slave.on(PULL, answer(0))
        for _ in range(3):
            await puller.pull(QUEUE, 0, commit_offset=5)
        assert [r.header.sys_flag & 1 for r in broker.peer.received(PULL)] == [1, 1]
        # A slave keeps no offsets.
        assert [r.header.sys_flag & 1 for r in slave.received(PULL)] == [0]


def _encode(value: object) -> bytes:
    from cometmq.protocol.fastjson import encode_json

    return encode_json(value)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 100), (0, 1), (5, 37), (99, 100), (32, 64), (10, 10), (20, 10)]
)
async def test_a_range_is_read_exactly(
    broker: FakeBroker, puller: Puller, start: int, end: int
) -> None:
    fill(broker, 100)
    assert await collect(puller, start, end) == list(range(start, end))


async def test_a_range_with_holes_of_what_does_not_match(
    broker: FakeBroker, puller: Puller
) -> None:
    fill(broker, 10)
    script = broker.peer.scripts[PULL]

    def skipping(request: object) -> Answer | None:
        offset = broker.peer.requests[-1].header.queue_offset
        if offset == 0:
            return broker._pulled(("t", 0), 20, 4)
        return script(broker.peer.requests[-1])

    broker.peer.on(PULL, skipping)
    assert await collect(puller, 0, 10) == [4, 5, 6, 7, 8, 9]


async def test_a_pull_that_never_gets_on_is_an_error(broker: FakeBroker, puller: Puller) -> None:
    broker.peer.on(PULL, lambda _: broker._pulled(("t", 0), 20, 0))
    with pytest.raises(NotConnected, match="no progress"):
        await collect(puller, 0, 10)


async def test_lost_offsets_are_told_or_left_out(broker: FakeBroker, puller: Puller) -> None:
    broker.first["t", 0] = 20
    fill(broker, 20)
    with pytest.raises(OffsetsLost) as caught:
        await collect(puller, 10, 30)
    assert (caught.value.offset, caught.value.min_offset, caught.value.max_offset) == (10, 20, 40)
    assert "the queue holds 20 to 40" in str(caught.value)
    assert await collect(puller, 10, 30, strict=False) == list(range(20, 30))


async def test_a_range_behind_the_end(broker: FakeBroker, puller: Puller) -> None:
    fill(broker, 20)
    with pytest.raises(OffsetsLost):
        await collect(puller, 10, 30)
    assert await collect(puller, 10, 30, strict=False) == list(range(10, 20))
    for strict in (True, False):
        with pytest.raises(OffsetsLost):
            await collect(puller, 25, 30, strict=strict)


async def test_an_abandoned_range_leaves_nothing_behind(broker: FakeBroker, puller: Puller) -> None:
    fill(broker, 100)
    reading = puller.read_range(QUEUE, 0, 100)
    assert len(await anext(reading)) == 32
    await reading.aclose()  # type: ignore[attr-defined]
    with pytest.raises(StopAsyncIteration):
        await anext(reading)


async def test_a_range_tells_what_failed(broker: FakeBroker, puller: Puller) -> None:
    broker.peer.on(PULL, Answer(1, remark="broken"))
    with pytest.raises(BrokerRefused):
        await collect(puller, 0, 5)


async def test_offsets(broker: FakeBroker, puller: Puller) -> None:
    broker.first["t", 0] = 4
    fill(broker, 3)
    broker.peer.on(RequestCode.GET_EARLIEST_MSG_STORETIME, Answer(ext={"timestamp": "99"}))
    assert await puller.min_offset(QUEUE) == 4
    assert await puller.max_offset(QUEUE) == 7
    assert await puller.search_offset(QUEUE, 1234) == 3
    request = broker.peer.received(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[0]
    assert request.header.timestamp == 1234
    assert await puller.earliest_store_ms(QUEUE) == 99
