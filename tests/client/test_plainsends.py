"""Plain sends: what takes the short way, what it puts on the wire, and how sends go on from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client import delivery, plainsends
from cometmq.client.producer import Producer
from cometmq.client.sendrequests import SendResult, SendStatus
from cometmq.core.errors import BrokerRefused, RequestTimedOut
from cometmq.message import properties
from cometmq.message.model import Message
from cometmq.net.client import Link
from cometmq.net.outgoing import ConnectOptions
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.client.fake_broker import FakeCluster, open_session
from tests.client.scripted import Answer, eventually

pytestmark = pytest.mark.core

SEND = RequestCode.SEND_MESSAGE_V2


class Counted:
    """Counts the frames that left the short way."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted, post = Counted(), Link.post

    def counting(self: Link, *words: Any) -> Any:
        counted.count += 1
        return post(self, *words)

    monkeypatch.setattr(Link, "post", counting)
    return counted


def sent_to(cluster: FakeCluster) -> list[Request[Any]]:
    """Requests to send, but for those of :func:`connected`."""
    received = [each for broker in cluster.brokers for each in broker.peer.received(SEND)]
    return [request for request in received if request.body != b"first"]


async def connected(producer: Producer) -> None:
    """Connections to both brokers are open."""
    for _ in range(4):
        await producer.send(Message("t", b"first"))


async def test_it_is_the_frame_and_the_result_of_any_other_send(
    cluster: FakeCluster, producer: Producer, posted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connected(producer)
    posted.count = 0
    message = Message("t", b"body", "up", ("a", "b"), properties={"name": 'v"\u4e2d\u6587'})
    results: list[SendResult] = [await producer.send(message) for _ in range(4)]
    assert posted.count == 4
    monkeypatch.setattr(producer._plain, "_is_wanted", False)
    results += [await producer.send(message) for _ in range(4)]
    assert posted.count == 4
    requests = sent_to(cluster)
    by_queue: dict[tuple[str, int], list[Request[Any]]] = {}
    for request in sorted(requests, key=lambda each: each.header.born_timestamp):
        where = request.header.broker_name, request.header.queue_id
        by_queue.setdefault(where, []).append(request)
    for short, long in by_queue.values():
        pairs = [properties.decode_text(each.header.properties) for each in (short, long)]
        keys = [pair.pop(properties.UNIQ_KEY) for pair in pairs]
        assert pairs[0] == pairs[1]
        assert len(set(keys)) == 2
        for each in (short, long):
            each.header.born_timestamp = 0
            each.header.properties = ""
        assert short.header == long.header
        assert (short.body, short.flag, short.language) == (long.body, long.flag, long.language)
    for first, second in zip(results[:4], results[4:], strict=True):
        assert (first.status, first.queue, first.region) == (
            SendStatus.OK, second.queue, second.region,
        )  # fmt: skip
        assert second.queue_offset == first.queue_offset + 1


async def test_answers_need_no_header_each(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connected(producer)

    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(delivery, "read_results", never)
    sent = await asyncio.gather(*(producer.send(Message("t", b"%d" % n)) for n in range(100)))
    assert len({result.message_id for result in sent}) == 100
    assert len({(result.queue, result.queue_offset) for result in sent}) == 100


@pytest.mark.parametrize(
    "change",
    [
        {"flag": 1},
        {"wait_store": False},
        {"delay_level": 1},
        {"born_ms": 5},
        {"body": b"x" * 5_000},
        {"body": bytearray(b"x")},
    ],
    ids=str,
)
async def test_others_take_the_long_way(
    producer: Producer, posted: Counted, change: dict[str, Any]
) -> None:
    await connected(producer)
    posted.count = 0
    await producer.send(Message(**{"topic": "t", "body": b"", **change}))
    await producer.send(Message("t", b""), order_key="k")
    assert posted.count == 0
    await producer.send(Message("t", b""))
    assert posted.count == 1


async def test_a_refused_send_goes_on_with_its_key_to_another_broker(
    cluster: FakeCluster, producer: Producer, posted: Counted
) -> None:
    await connected(producer)
    cluster.brokers[0].peer.on(SEND, Answer(2, remark="busy"))
    results = [await producer.send(Message("t", b"")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"broker-1"}
    keys = [
        properties.decode_text(each.header.properties)[properties.UNIQ_KEY]
        for each in sent_to(cluster)
    ]
    assert set(keys) == {result.message_id for result in results}
    assert len(keys) > 4  # some were sent twice


async def test_what_is_final_ends_a_send(cluster: FakeCluster, producer: Producer) -> None:
    await connected(producer)
    for broker in cluster.brokers:
        broker.peer.on(SEND, Answer(13, remark="illegal"))
    with pytest.raises(BrokerRefused, match="illegal"):
        await producer.send(Message("t", b""))


async def test_a_silent_broker_costs_the_time_of_the_send(
    cluster: FakeCluster, producer: Producer
) -> None:
    await connected(producer)
    for broker in cluster.brokers:
        broker.peer.scripts[SEND] = lambda _: None
    with pytest.raises(RequestTimedOut) as caught:
        await producer.send(Message("t", b""), timeout_ms=50)
    assert caught.value.timeout_ms == 50


async def test_a_lost_connection_is_another_attempt(
    cluster: FakeCluster, producer: Producer
) -> None:
    await connected(producer)
    broken = cluster.brokers[0].peer

    def break_off(request: Request[Any]) -> Answer | None:
        broken.break_off()
        return None

    broken.scripts[SEND] = break_off
    results = [await producer.send(Message("t", b"")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"broker-1"}


async def test_a_cancelled_send_is_forgotten(cluster: FakeCluster, producer: Producer) -> None:
    await connected(producer)
    for broker in cluster.brokers:
        broker.peer.scripts[SEND] = lambda _: None
    sends = sum(len(broker.peer.received(SEND)) for broker in cluster.brokers)
    task = asyncio.create_task(producer.send(Message("t", b""), timeout_ms=600_000))
    await eventually(
        lambda: sum(len(broker.peer.received(SEND)) for broker in cluster.brokers) > sends
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Heartbeats are in flight too, now and then; the send would be for ten minutes.
    links = producer._session.remoting._links
    await eventually(lambda: not sum(link.connection.in_flight for link in links.values()))


async def test_a_new_route_is_followed(cluster: FakeCluster, posted: Counted) -> None:
    async with open_session(cluster) as session:
        producer = Producer(session)
        await connected(producer)
        cluster.create("t", 5)
        await session.refresh("t")
        posted.count = 0
        results = [await producer.send(Message("t", b"")) for _ in range(10)]
        assert posted.count == 10
        assert len({result.queue for result in results}) == 10


async def test_a_namespace_takes_the_long_way(cluster: FakeCluster, posted: Counted) -> None:
    cluster.create("n%t", 2)
    async with open_session(cluster, namespace="n") as session:
        producer = Producer(session)
        await connected(producer)
        assert posted.count == 0


async def test_more_than_may_be_in_flight_wait(cluster: FakeCluster) -> None:
    async with open_session(cluster) as session:
        session.remoting.options = ConnectOptions(max_in_flight=2)
        producer = Producer(session)
        await connected(producer)
        sends = [producer.send(Message("t", b"")) for _ in range(50)]
        assert len(await asyncio.gather(*sends)) == 50


async def test_the_prepared_sends_of_many_topics_are_dropped(
    cluster: FakeCluster, producer: Producer, posted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plainsends, "_MANY_LANES", 4)
    await connected(producer)
    for at in range(12):
        cluster.create(f"t{at}", 1)
        for _ in range(2):
            await producer.send(Message(f"t{at}", b""))
    assert len(producer._plain._lanes) <= 4
    assert posted.count >= 12
