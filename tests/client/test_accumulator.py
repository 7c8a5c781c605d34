"""Single sends that leave in batches: which go together, when they leave, what each is told.

Order, limits, errors and cancellation are shown with brokers that obey; tests/compat/test_linger.py
meets real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from cometmq.client.client import Client
from cometmq.client.config import make_config
from cometmq.client.hooks import SendAttempt
from cometmq.client.producer import Producer
from cometmq.client.sendrequests import SendResult
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import (
    BrokerRefused,
    MessageIllegal,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
    SettingsError,
    WrongArgument,
)
from cometmq.message import batch, properties
from cometmq.message.model import Message, MessageQueue
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request
from tests.client.fake_broker import (
    FakeBroker,
    FakeCluster,
    fake_cluster,
    open_session,
    quick_config,
)
from tests.client.scripted import Answer, Script, eventually

LONG_MS = 60_000


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One broker with two queues of topic ``t``."""
    async with fake_cluster() as cluster:
        cluster.create("t", 2)
        yield cluster


@asynccontextmanager
async def lingering(cluster: FakeCluster, **settings: Any) -> AsyncIterator[Client]:
    times = {"linger_ms": LONG_MS, "send_timeout_ms": 4 * LONG_MS}
    config = quick_config(cluster, **{**times, **settings})
    async with Client(config=config) as client:
        yield client


def requests(broker: FakeBroker) -> list[Request[Any]]:
    """All sends that a broker received, in order."""
    codes = (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
    return [each for each in broker.peer.requests if each.code in codes]


def bodies(request: Request[Any]) -> list[bytes]:
    if request.code == Code.SEND_MESSAGE_V2:
        return [request.body]
    return [entry.body for entry in batch.split(request.body)]


def sent(broker: FakeBroker) -> list[list[bytes]]:
    return [bodies(request) for request in requests(broker)]


class Gate:
    """Keeps the answers of a broker's sends back."""

    def __init__(self, broker: FakeBroker) -> None:
        self._peer = broker.peer
        self._scripts = {
            code: broker.peer.scripts[code]
            for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
        }
        self.held: list[tuple[Any, Request[Any]]] = []
        for code in self._scripts:
            self._peer.on(code, self._hold)

    def _hold(self, request: Request[Any]) -> None:
        self.held.append((self._peer.answering, request))

    def answer(self, answer: Answer | None = None) -> None:
        """Answer the oldest request that is kept back."""
        connection, request = self.held.pop(0)
        connection.answer(request, answer or self._scripts[Code(request.code)](request))

    def open(self) -> None:
        for code, script in self._scripts.items():
            self._peer.on(code, script)
        while self.held:
            self.answer()


async def busy(client: Client, broker: FakeBroker) -> tuple[Gate, asyncio.Future[SendResult]]:
    """A lane with one batch on its way."""
    gate = Gate(broker)
    first = await client.send_soon("t", b"first")
    await eventually(lambda: gate.held)
    return gate, first


async def round_trip(client: Client) -> None:
    """Waits until the broker has received all that was sent before."""
    await client.puller.max_offset(MessageQueue("t", "broker-0", 0))


@pytest.mark.core
async def test_sends_of_one_turn_leave_together_and_each_gets_its_own_result(
    cluster: FakeCluster,
) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        results = await asyncio.gather(
            *(client.send("t", b"%d" % at, tag="a", keys=[f"k{at}"]) for at in range(9))
        )
    assert sent(broker) == [[b"%d" % at for at in range(9)]]
    stored = {record.queue_offset: record for record in broker.stored("t")}
    assert [result.queue_offset for result in results] == list(range(9))
    for at, result in enumerate(results):
        pairs = properties.decode(stored[at].properties)
        assert (stored[at].body, pairs["KEYS"], pairs["TAGS"]) == (b"%d" % at, f"k{at}", "a")
        assert pairs["UNIQ_KEY"] == result.message_id
    assert len({result.message_id for result in results}) == 9
    assert len({result.offset_id for result in results}) == 9


async def test_one_send_leaves_at_once_as_a_single_one(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        for at in range(3):
            await client.send("t", b"%d" % at)
    assert [request.code for request in requests(broker)] == [Code.SEND_MESSAGE_V2] * 3


async def test_what_comes_while_a_batch_is_on_its_way_leaves_when_it_is_answered(
    cluster: FakeCluster,
) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        gate, first = await busy(client, broker)
        later = [await client.send_soon("t", b"%d" % at) for at in range(5)]
        await round_trip(client)
        assert sent(broker) == [[b"first"]]
        gate.open()
        await asyncio.gather(first, *later)
    assert sent(broker) == [[b"first"], [b"0", b"1", b"2", b"3", b"4"]]


async def test_a_batch_waits_no_longer_than_it_may_linger(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    clock = VirtualClock()
    config = quick_config(cluster, linger_ms=7.5)
    async with Client(config=config, clock=clock) as client:
        gate, first = await busy(client, broker)
        second = await client.send_soon("t", b"second")
        await round_trip(client)
        clock.advance(7)
        await round_trip(client)
        assert len(gate.held) == 1
        clock.advance(1)
        await eventually(lambda: len(gate.held) == 2)
        gate.open()
        await asyncio.gather(first, second)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"linger_batch_messages": 4}, [4, 4, 2]),
        ({"linger_batch_bytes": 3 * (1_000 + 88)}, [3, 3, 3, 1]),
    ],
)
async def test_full_batches_leave_at_once(
    cluster: FakeCluster, settings: dict[str, Any], parts: list[int]
) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, **settings) as client:
        gate, first = await busy(client, broker)
        more = [await client.send_soon("t", bytes(1_000)) for _ in range(10)]
        await eventually(lambda: len(gate.held) == len(parts))
        gate.open()
        await asyncio.gather(first, *more)
    assert [len(each) for each in sent(broker)[1:]] == parts


async def test_no_batch_is_larger_than_a_message_may_be(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    limits = {"max_message_bytes": 100_000, "linger_batch_bytes": 100_000}
    async with lingering(cluster, linger_batch_messages=1_000, **limits) as client:
        waiting = [
            await client.send_soon("t", bytes(4_000), properties={"p": "x" * 20_000})
            for _ in range(20)
        ]
        await asyncio.gather(*waiting)
    assert max(len(request.body) for request in requests(broker)) <= 100_000
    assert len(requests(broker)) < 20


async def test_an_illegal_message_fails_alone(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, max_message_bytes=100_000) as client:
        results = await asyncio.gather(
            client.send("t", b"one"),
            client.send("t", bytes(100_001)),
            client.send("t", b"two", properties={"TAGS": "x"}),
            client.send("t", b"three", properties={"p": "x" * 40_000}),
            client.send("t", "text"),  # type: ignore[call-overload]
            client.send("bad topic", b"four"),
            client.send(Message(["t"], b"five")),  # type: ignore[arg-type]
            client.send("t", b"six"),
            return_exceptions=True,
        )
    kinds = [type(each) for each in results]
    illegal, wrong = MessageIllegal, WrongArgument
    assert kinds == [SendResult, illegal, illegal, illegal, wrong, illegal, wrong, SendResult]
    assert sent(broker) == [[b"one", b"six"]]


async def test_a_refused_batch_fails_each_of_its_messages(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    broker.peer.on(Code.SEND_BATCH_MESSAGE, Answer(ResponseCode.MESSAGE_ILLEGAL, remark="no"))
    async with lingering(cluster) as client:
        errors = await asyncio.gather(
            *(client.send("t", b"%d" % at) for at in range(3)), return_exceptions=True
        )
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, BrokerRefused)
        assert (error.code, error.broker_remark) == (ResponseCode.MESSAGE_ILLEGAL, "no")
        assert str(error).endswith("with code 13: no")


async def test_messages_of_one_key_are_never_overtaken(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, linger_batch_messages=2) as client:
        gate = Gate(broker)
        waiting = [
            await client.send_soon("t", b"%d" % at, order_key=17, tag="x" if at % 3 else "")
            for at in range(7)
        ]
        await eventually(lambda: gate.held)
        await round_trip(client)
        assert len(gate.held) == 1
        gate.answer(Answer(ResponseCode.SYSTEM_BUSY, remark="later"))
        gate.open()
        results = await asyncio.gather(*waiting)
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(7))
    assert [record.body for record in broker.stored("t")] == [b"%d" % at for at in range(7)]


async def test_messages_of_one_key_stay_in_order_though_some_are_sent_alone(
    cluster: FakeCluster,
) -> None:
    (broker,) = cluster.brokers
    kinds: list[dict[str, Any]] = [{}, {}, {"wait_store": False}, {"born_ms": 5}, {}, {}]
    async with lingering(cluster) as client:
        messages = [Message("t", b"%d" % at, **kind) for at, kind in enumerate(kinds)]
        messages.insert(1, Message("t", bytes(100_000)))
        waiting = [await client.send_soon(each, order_key="k") for each in messages]
        await asyncio.gather(*waiting)
    parts = [[body[:1] for body in part] for part in sent(broker)]
    assert parts == [[b"0"], [b"x"], [b"1"], [b"2"], [b"3"], [b"4", b"5"]]


async def test_keys_of_an_unknown_topic_stay_in_order(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        waiting = [await client.send_soon("t", b"%d" % at, order_key="k") for at in range(5)]
        await eventually(lambda: cluster.namesrv.requests)
        waiting += [await client.send_soon("t", b"%d" % at, order_key="k") for at in range(5, 9)]
        await asyncio.gather(*waiting)
        with pytest.raises(RouteNotFound):
            await client.send("unknown", b"", order_key="k")
    assert [record.body for record in broker.stored("t")] == [b"%d" % at for at in range(9)]


async def test_what_no_batch_may_hold_leaves_alone(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        queue = MessageQueue("t", "broker-0", 1)
        await asyncio.gather(
            client.send("t", b"plain"),
            client.send("t", b"delayed", delay_level=1),
            client.send(Message("t", b"born", born_ms=7)),
            client.send("t", b"large" * 1_000),
            client.send("t", b"chosen", queue=lambda queues, _: queues[0]),
            client.send("t", b"there", queue=queue),
            client.send(Message("t", b"flag", flag=3)),
            client.send(Message("t", b"own", message_id="MINE")),
            client.send(Message("t", b"not waited for", wait_store=False)),
        )
    parts = sorted(sent(broker), key=len)
    assert [b"plain", b"flag", b"own"] in parts
    assert len(parts) == 7
    stored = {record.body: record for record in broker.stored("t")}
    assert stored[b"there"].queue_id == 1
    assert stored[b"flag"].flag == 0  # the broker of these tests stores no flags of batches
    assert properties.decode(stored[b"own"].properties)["UNIQ_KEY"] == "MINE"


async def test_a_cancelled_send_is_not_sent(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        gate, first = await busy(client, broker)
        kept = await client.send_soon("t", b"kept")
        gone = asyncio.ensure_future(client.send("t", b"gone", tag="x"))
        last = await client.send_soon("t", b"last", tag="y")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(first, kept, last)
        assert gone.cancelled()
    assert sent(broker) == [[b"first"], [b"kept", b"last"]]
    tags = [properties.decode(each.properties).get("TAGS") for each in broker.stored("t")]
    assert sorted(tags, key=str) == [None, None, "y"]


async def test_sends_wait_for_room(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, linger_buffer_bytes=1_100, linger_batch_messages=1) as client:
        gate, first = await busy(client, broker)
        second = await client.send_soon("t", bytes(1_000))
        third = asyncio.ensure_future(client.send_soon("t", bytes(1_000)))
        fourth = asyncio.ensure_future(client.send("t", b"fourth"))
        await eventually(lambda: len(gate.held) == 2)
        await round_trip(client)
        assert not third.done()
        gate.answer()
        await eventually(lambda: len(gate.held) == 2)
        assert third.done()
        assert not fourth.done()
        gate.open()
        await asyncio.gather(first, second, await third, fourth)
    assert [len(body) for (body,) in sent(broker)] == [5, 1_000, 1_000, 6]


async def test_a_send_that_finds_no_room_in_time_fails(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, linger_buffer_bytes=10) as client:
        gate, first = await busy(client, broker)
        assert not first.done()
        with pytest.raises(RequestTimedOut, match="was not sent within 100 ms"):
            await client.send("t", b"no room", timeout_ms=100)
        with pytest.raises(RequestTimedOut, match="was not sent within 100 ms"):
            await client.producer.send(Message("t", b""), order_key="k", timeout_ms=100)
        gate.open()
        await first
    assert sent(broker) == [[b"first"]]


async def test_a_caller_that_no_longer_waits_for_room_takes_its_message_back(
    cluster: FakeCluster,
) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, linger_buffer_bytes=10) as client:
        gate, first = await busy(client, broker)
        for send in (client.send_soon, client.producer.send_soon):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await send(Message("t", b"given up"))
        gate.open()
        await first
        await client.send("t", b"last")
    assert sent(broker) == [[b"first"], [b"last"]]


async def test_a_message_with_little_time_does_not_linger(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        gate, first = await busy(client, broker)
        hasty = asyncio.ensure_future(client.send("t", b"hasty", timeout_ms=LONG_MS))
        await eventually(lambda: len(gate.held) == 2)
        gate.open()
        await asyncio.gather(first, hasty)


async def test_properties_that_fit_a_batch_but_no_single_send_fail(cluster: FakeCluster) -> None:
    """Only a single send has the property WAIT."""
    async with lingering(cluster) as client:
        room = properties.MAX_SIZE_BYTES - len("p\x01\x02UNIQ_KEY\x01id")
        await client.send("t", b"opens a connection")
        message = Message("t", b"", properties={"p": "x" * room}, message_id="id")
        with pytest.raises(MessageIllegal, match="the limit is 32767"):
            async with asyncio.timeout(60):
                await client.send(message)
        both = await asyncio.gather(client.send(message), client.send("t", b"other"))
        assert len(both) == 2


async def test_messages_behind_a_silent_batch_fail_in_time(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, send_timeout_ms=LONG_MS) as client:
        gate = Gate(broker)
        first = await client.send_soon("t", b"first", order_key="k")
        await eventually(lambda: gate.held)
        with pytest.raises(RequestTimedOut, match="was not sent within 120 ms"):
            await client.send("t", b"behind", order_key="k", timeout_ms=120)
        last = await client.send_soon("t", b"last", order_key="k")
        gate.open()
        await asyncio.gather(first, last)
    assert sent(broker) == [[b"first"], [b"last"]]


async def test_closing_sends_what_waits(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        gate, _ = await busy(client, broker)
        for at in range(3):
            await client.send_soon("t", b"%d" % at)
            await client.send_soon("t", b"k%d" % at, order_key="k")
        asyncio.get_running_loop().call_later(0.05, gate.open)
    assert sorted(body for part in sent(broker) for body in part) == sorted(
        [b"first", b"0", b"1", b"2", b"k0", b"k1", b"k2"]
    )


async def test_a_closed_client_fails_what_waits(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with open_session(cluster, linger_ms=LONG_MS) as session:
        producer = Producer(session)
        gate = Gate(broker)
        first = await producer.send_soon(Message("t", b"first"))
        await eventually(lambda: gate.held)
        waiting = await producer.send_soon(Message("t", b"waiting"))
        unrouted = await producer.send_soon(Message("u", b""), order_key="k")
    for future in (first, waiting, unrouted):
        with pytest.raises(NotConnected):
            await future
    with pytest.raises(NotConnected, match="closed"):
        await producer.send(Message("t", b"late"))


async def test_batches_grow_with_the_time_of_an_answer(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    loop = asyncio.get_running_loop()
    for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE):
        store = broker.peer.scripts[code]

        def answer_late(request: Request[Any], store: Script = store) -> None:
            loop.call_later(0.02, broker.peer.answering.answer, request, store(request))

        broker.peer.on(code, answer_late)

    async def work(client: Client, number: int) -> None:
        for at in range(5):
            await client.send("t", b"%d-%d" % (number, at), order_key=number % 2)

    async with lingering(cluster) as client:
        await asyncio.gather(*(work(client, number) for number in range(100)))
    stored = [record.body for record in broker.stored("t")]
    assert sorted(stored) == sorted(b"%d-%d" % (n, at) for n in range(100) for at in range(5))
    assert len(requests(broker)) <= 20
    for number in range(100):
        mine = [body for body in stored if body.startswith(b"%d-" % number)]
        assert mine == sorted(mine)


async def test_hooks_see_the_batch_and_may_forbid_it(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    attempts: list[SendAttempt] = []

    class Watching:
        def before(self, attempt: SendAttempt) -> None:
            attempts.append(attempt)

        def after(self, attempt: SendAttempt) -> None:
            assert [each.message_id for each in attempt.results] == list(attempt.unique_keys)

    def forbid(attempt: SendAttempt) -> None:
        if attempt.messages[0].tag == "forbidden":
            raise MessageIllegal("not today")

    async with lingering(cluster, namespace="ns") as client:
        cluster.create("ns%t", 2)
        client.send_hooks.append(Watching())
        client.forbidden_hooks.append(forbid)
        results = await asyncio.gather(*(client.send("t", b"%d" % at) for at in range(3)))
        assert [message.body for message in attempts[0].messages] == [b"0", b"1", b"2"]
        assert attempts[0].queue == results[0].queue
        refused = await asyncio.gather(
            *(client.send("t", b"", tag="forbidden") for _ in range(2)), return_exceptions=True
        )
    assert [str(each) for each in refused] == ["not today"] * 2
    assert len(broker.stored("ns%t")) == 3


async def test_message_hooks_see_each_message_of_a_batch(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster) as client:
        await client.send("t", b"before")  # from here on the short ways are open
        client.producer.message_hooks.append(
            lambda message: msgspec.structs.replace(message, properties={"seen": "yes"})
        )
        waiting = [await client.send_soon("t", b"soon") for _ in range(2)]
        await asyncio.gather(*waiting, client.send("t", b"a"), client.send("t", b"b"))
        await client.send_many([Message("t", b"many") for _ in range(3)])
    pairs = [properties.decode(record.properties) for record in broker.stored("t")]
    assert sum(each.get("seen") == "yes" for each in pairs) == 7
    assert len(pairs) == 8


async def test_without_linger_only_send_soon_makes_batches(cluster: FakeCluster) -> None:
    (broker,) = cluster.brokers
    async with lingering(cluster, linger_ms=0) as client:
        await asyncio.gather(*(client.send("t", b"single") for _ in range(3)))
        gate, _ = await busy(client, broker)
        for _ in range(2):
            await client.send_soon("t", b"a")
            await client.send_soon("t", b"b")
            await round_trip(client)  # the turn ends
        gate.open()
        await client.flush()
    assert sent(broker)[:3] == [[b"single"]] * 3
    assert sent(broker)[3:] == [[b"first"], [b"a", b"b"], [b"a", b"b"]]


async def test_send_soon_takes_no_function_for_a_queue(cluster: FakeCluster) -> None:
    async with lingering(cluster) as client:
        pick: Callable[..., Any] = lambda queues, _: queues[0]  # noqa: E731
        with pytest.raises(WrongArgument, match="queue must be a MessageQueue"):
            await client.send_soon("t", b"", queue=pick)  # type: ignore[call-overload]
        with pytest.raises(WrongArgument, match="order_key must be str or int"):
            await client.send_soon("t", b"", order_key=1.5)  # type: ignore[call-overload]


async def test_the_lanes_of_many_topics_are_dropped(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.accumulator._MANY_LANES", 3)
    async with lingering(cluster) as client:
        for at in range(8):
            cluster.create(f"t{at}", 1)
            await client.send(f"t{at}", b"")
            await client.send(f"t{at}", b"", order_key="k")
        accumulator = client.producer.accumulator
        assert accumulator is not None
        assert len(accumulator._lanes) <= 4


def test_bad_settings_are_named() -> None:
    with pytest.raises(Exception, match=r"linger_ms.*is not a number"):
        Client("127.0.0.1:1", linger_ms="soon")
    for name, value in (
        ("linger_ms", float("inf")),
        ("linger_ms", float("nan")),
        ("linger_ms", -1),
        ("linger_batch_messages", 0),
        ("linger_batch_bytes", 0),
        ("linger_buffer_bytes", 0),
    ):
        with pytest.raises(SettingsError, match=name):
            make_config("127.0.0.1:1", {name: value})
