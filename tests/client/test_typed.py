"""Typed topics: values in, values out, and what becomes of bodies that are none."""

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict, assert_type
from uuid import UUID

import fastavro
import msgspec
import pydantic
import pytest

import cometmq
from cometmq import Client
from cometmq.client.serializers import CONTENT_TYPE, TypedBody
from cometmq.client.typed import TypedMessage, TypedSubscription, TypedTopic
from cometmq.core.errors import SettingsError, UndecodableMessage, WrongArgument
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually


class Order(msgspec.Struct):
    id: int
    customer: str = ""


@dataclass
class Paid:
    id: int
    at: datetime


class Line(TypedDict):
    sku: str
    count: int


class Model(pydantic.BaseModel):
    id: int
    at: datetime


class Numbers(pydantic.BaseModel):
    numbers: list[int]


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: UUID
    at: datetime
    price: Decimal
    kind: tuple[int, str]


AT = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.fixture
async def client(cometmq_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cometmq_cluster.namesrv) as client:
        yield client


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order(7, "Ann")),
        (Paid, Paid(7, AT)),
        (Line, {"sku": "a", "count": 2}),
        (Model, Model(id=7, at=AT)),
        (list[Order], [Order(1), Order(2)]),
        (dict, {"any": ["thing", 1]}),
        (int, 5),
        (str, "text"),
    ],
)
async def test_values_of_many_types(
    client: Client, kind: type[Any], value: Any, serializer: Any
) -> None:
    topic = client.topic("values", kind, serializer=serializer)
    subscription = topic.subscribe(group="all", start="first")
    sent = await topic.send(value, tag="t", keys=["k"], properties={"a": "b"})
    message = await anext(subscription)
    assert message.value == value
    assert type(message.value) is type(value)
    assert (message.message_id, message.tag, message.keys) == (sent.message_id, "t", ("k",))
    assert message.properties["a"] == "b"
    assert message.properties[CONTENT_TYPE] == f"application/{serializer}"
    message.ack()


async def test_types_reach_the_type_checker(client: Client) -> None:
    orders = client.topic("orders", Order)
    assert_type(orders, TypedTopic[Order])
    await orders.send(Order(1))
    async for message in orders.subscribe(group="g", start="first"):
        assert_type(message, TypedMessage[Order])
        assert_type(message.value, Order)
        async with message.processing():
            break


async def test_keys_and_order_keys_come_from_the_value(client: Client) -> None:
    orders = client.topic(
        "orders", Order, keys=lambda order: order.id, order_key=lambda order: order.customer
    )
    await cometmq.Admin(client.session).create_topic("orders", queues=4)
    queues = {(await orders.send(Order(number, "Ann"))).queue for number in range(8)}
    assert len(queues) == 1
    await orders.send(Order(99, "Ann"), keys=["own"])
    results = await orders.send_batch([Order(20), Order(21)])
    assert len(results) == 2
    await orders.send_oneway(Order(30))
    found: dict[int, tuple[str, ...]] = {}
    async for message in orders.subscribe(group="g", start="first"):
        found[message.value.id] = message.keys
        message.ack()
        if len(found) == 12:
            break
    assert found[3] == ("3",)
    assert found[99] == ("own",)
    assert found[21] == ("21",)


async def test_delays_transactions_and_messages(client: Client) -> None:
    orders = client.topic("orders", Order)
    later = orders.message(Order(3), delay_s=1.5, tag="later")
    assert (later.delay_ms, later.tag) == (1_500, "later")
    moment = datetime.now(UTC) + timedelta(seconds=9)
    assert orders.message(Order(3), deliver_at=moment).deliver_at_ms == round(
        moment.timestamp() * 1000
    )
    async with orders.transaction(Order(1), group="shop"):
        pass
    with pytest.raises(RuntimeError, match="no"):
        async with orders.transaction(Order(2), group="shop"):
            raise RuntimeError("no")
    await orders.send(Order(3))
    subscription = orders.subscribe(group="g", start="first", ordered=True)
    found = []
    async for message in subscription:
        found.append(message.value.id)
        message.ack()
        if len(found) == 2:
            break
    assert sorted(found) == [1, 3]


async def test_requests_and_replies(client: Client) -> None:
    orders = client.topic("questions", Order, serializer="msgpack")
    await cometmq.Admin(client.session).create_topic("questions")

    @orders.replier(Paid, group="repliers", start="first")
    async def reply(order: Order) -> Paid | None:
        return Paid(order.id, AT)

    assert await orders.request(Order(7), Paid, timeout_ms=20_000) == Paid(7, AT)


async def test_a_value_of_another_type_is_refused_at_once(client: Client) -> None:
    orders = client.topic("orders", Order)
    with pytest.raises(WrongArgument, match="value must be Order, not Paid"):
        await orders.send(Paid(1, AT))  # type: ignore[arg-type]
    odd: Any = object()
    with pytest.raises(WrongArgument, match="value cannot be encoded"):
        await client.topic("odd", dict).send({"a": odd})
    with pytest.raises(WrongArgument, match="keys"):
        await orders.send(Order(1), keys=1.5)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="no struct, dataclass"):
        client.topic("orders", asyncio.Future)
    with pytest.raises(SettingsError, match="neither json"):
        client.topic("orders", Order, serializer="xml")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="on_undecodable"):
        orders.subscribe(group="g", on_undecodable="drop")  # type: ignore[arg-type]


async def test_wrong_parts_of_a_topic_are_named_where_it_is_made(client: Client) -> None:
    wrong: Any
    for wrong, told in (
        (None, "has no function encode"),
        (io.BytesIO(), "has no function encode"),
        (type("Half", (), {"encode": print, "decode": print}), "has no text content_type"),
    ):
        with pytest.raises(SettingsError, match=told):
            client.topic("orders", Order, serializer=wrong)
    wrong = "id"
    with pytest.raises(WrongArgument, match=r"^keys must be a function, not str"):
        client.topic("orders", Order, keys=wrong)
    with pytest.raises(WrongArgument, match=r"^order_key must be a function, not str"):
        client.topic("orders", Order, order_key=wrong)
    wrong = 5
    with pytest.raises(WrongArgument, match=r"^topic must be str"):
        client.topic(wrong, Order)
    orders = client.topic("orders", Order)
    wrong = {"kyes": ["a"]}
    with pytest.raises(WrongArgument, match=r"^kyes is no keyword of a typed message"):
        orders.message(Order(1), **wrong)
    wrong = {"properties": ["a"]}
    with pytest.raises(WrongArgument, match=r"^properties must be a mapping"):
        await orders.send(Order(1), **wrong)


def test_messages_take_the_keys_of_sends() -> None:
    orders = TypedTopic[Order](Client("127.0.0.1:1"), "orders", TypedBody(Order))
    assert orders.message(Order(1), keys=17).keys == ("17",)
    assert orders.message(Order(1), keys="A17").keys == ("A17",)
    assert orders.message(Order(1), keys=[17, "b"]).keys == ("17", "b")
    with pytest.raises(WrongArgument, match=r"^keys\[0\] must be str or int, not float"):
        orders.message(Order(1), keys=[1.5])  # type: ignore[list-item]


async def test_a_batch_has_one_order_key(client: Client) -> None:
    orders = client.topic("orders", Order, order_key=lambda order: order.customer)
    await cometmq.Admin(client.session).create_topic("orders", queues=8)
    alone = await orders.send(Order(1, "Ann"))
    for _ in range(4):
        results = await orders.send_batch([Order(2, "Ann"), Order(3, "Ann")])
        assert {each.queue for each in results} == {alone.queue}
    mixed = [Order(4, "Ann"), Order(5, "Bob")]
    with pytest.raises(WrongArgument, match="have different order keys"):
        await orders.send_batch(mixed)
    assert len(await orders.send_batch(mixed, order_key=None)) == 2
    assert (await orders.send_batch(mixed, order_key="Ann"))[0].queue == alone.queue
    assert await orders.send_batch([]) == []


BAD = b'{"id": "seven"}'


async def read_on(subscription: TypedSubscription[Any], seen: list[Any]) -> None:
    """Waits for a further message until something was seen; none is left."""
    waiting = asyncio.ensure_future(anext(subscription))
    await eventually(lambda: seen)
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.cometmq_handler_errors(raises=UndecodableMessage)
async def test_undecodable_is_retried_as_any_failure(client: Client) -> None:
    orders = client.topic("orders", Order)
    await client.send("orders", BAD)
    await orders.send(Order(1))
    subscription = orders.subscribe(group="g", start="first", max_reconsume_times=0)
    message = await anext(subscription)
    assert message.value == Order(1)
    message.ack()
    waiting = asyncio.ensure_future(anext(subscription))
    # With no attempt left it is a dead letter.
    letters = client.subscribe("%DLQ%g", group="letters", start="first")
    letter = await anext(letters)
    assert letter.body == BAD
    letter.ack()
    assert subscription.undecodable_count == 1
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_undecodable_becomes_a_dead_letter_at_once(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    orders = client.topic("orders", Order)
    await client.send("orders", BAD)
    await client.send("orders", b"\xc1", properties={CONTENT_TYPE: "application/msgpack"})
    await orders.send(Order(1))
    subscription = orders.subscribe(group="g", start="first", on_undecodable="dead_letter")
    found: list[Order] = []

    async def handle(message: TypedMessage[Order]) -> None:
        found.append(message.value)

    running = asyncio.create_task(subscription.run(handle))
    letters = client.subscribe("%DLQ%g", group="letters", start="first")
    bodies = set()
    async for letter in letters:
        bodies.add(letter.body)
        letter.ack()
        if len(bodies) == 2:
            break
    assert bodies == {BAD, b"\xc1"}
    async with asyncio.timeout(60):
        while not found:
            await asyncio.sleep(0.01)
    await subscription.close()
    await running
    assert found == [Order(1)]
    assert subscription.undecodable_count == 2
    lines = [each.message for each in caplog.records if "message_undecodable" in each.message]
    assert len(lines) == 2
    assert any("content type is 'application/msgpack'" in line for line in lines)


@pytest.mark.parametrize("max_reconsume_times", [-1, 3])
async def test_an_ordered_queue_has_dead_letters_at_once(
    client: Client, max_reconsume_times: int
) -> None:
    orders = client.topic("orders", Order)
    await cometmq.Admin(client.session).create_topic("orders", queues=1)
    await client.send("orders", BAD)
    await orders.send(Order(1))
    subscription = orders.subscribe(
        group="g",
        start="first",
        ordered=True,
        max_reconsume_times=max_reconsume_times,
        on_undecodable="dead_letter",
    )
    message = await anext(subscription)
    assert message.value == Order(1)
    message.ack()
    letter = await anext(client.subscribe("%DLQ%g", group="letters", start="first"))
    assert letter.body == BAD
    letter.ack()
    assert subscription.undecodable_count == 1


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_undecodable_goes_to_a_function(client: Client, is_coroutine: bool) -> None:
    seen: list[tuple[bytes, str]] = []

    def note(message: cometmq.ReceivedMessage, error: UndecodableMessage) -> None:
        seen.append((message.body, error.reason))

    async def note_later(message: cometmq.ReceivedMessage, error: UndecodableMessage) -> None:
        await asyncio.sleep(0)
        note(message, error)

    orders = client.topic("orders", Order)
    await client.send("orders", BAD)
    await orders.send(Order(1))
    action = note_later if is_coroutine else note
    async with orders.subscribe(group="g", start="first", on_undecodable=action) as subscription:
        message = await anext(subscription)
        assert message.value == Order(1)
        message.ack()
        await read_on(subscription, seen)
    [(body, reason)] = seen
    assert body == BAD
    assert "Expected `int`, got `str`" in reason


@pytest.mark.cometmq_handler_errors(raises=UndecodableMessage)
async def test_an_ordered_queue_is_held_up_by_what_is_retried(client: Client) -> None:
    orders = client.topic("orders", Order)
    await cometmq.Admin(client.session).create_topic("orders", queues=1)
    await client.send("orders", BAD)
    await orders.send(Order(1))
    subscription = orders.subscribe(group="g", start="first", ordered=True)
    waiting = asyncio.ensure_future(anext(subscription))
    async with asyncio.timeout(60):
        while subscription.undecodable_count < 2:
            await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


class AvroOrders:
    """A serializer of one's own: Avro by fastavro."""

    content_type = "avro/binary"
    _schema = fastavro.parse_schema(
        {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    )

    def encode(self, value: Order, /) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, {"id": value.id})
        return out.getvalue()

    def decode(self, body: bytes, /) -> Order:
        found: Any = fastavro.schemaless_reader(io.BytesIO(body), self._schema, self._schema)
        return Order(found["id"])


async def test_a_serializer_of_ones_own(client: Client) -> None:
    orders = client.topic("orders", Order, serializer=AvroOrders())
    await orders.send(Order(1 << 40))
    await client.send("orders", b"\x80")
    seen: list[str] = []
    subscription = orders.subscribe(
        group="g", start="first", on_undecodable=lambda _, error: seen.append(error.reason)
    )
    message = await anext(subscription)
    assert message.value == Order(1 << 40)
    message.ack()
    await read_on(subscription, seen)
    assert seen[0].startswith("its body is not avro/binary: ")


@dataclass
class View:
    """What decoding needs of a message."""

    body: bytes
    properties: dict[str, str]
    topic: str = "t"
    message_id: str = "i"


def test_content_types_are_compared_as_media_types() -> None:
    body = TypedBody(Order)

    def message(content_type: str) -> Any:
        return View(b'{"id": 1}', {CONTENT_TYPE: content_type})

    assert body.decode(message("Application/JSON; charset=utf-8")) == Order(1)
    with pytest.raises(UndecodableMessage, match="content type is 'text/plain', not"):
        body.decode(message("text/plain"))


def test_hostile_bodies_are_undecodable() -> None:
    body = TypedBody(Order)
    deep = TypedBody(dict)

    for each in (b"", b"\xff", b"[" * 100_000, b"{}"):
        with pytest.raises(UndecodableMessage):
            body.decode(View(each, {}))  # type: ignore[arg-type]
    with pytest.raises(UndecodableMessage):
        deep.decode(View(b'{"a":' * 100_000, {}))  # type: ignore[arg-type]


def test_a_reason_is_short_though_a_body_has_a_million_errors() -> None:
    body = TypedBody(Numbers)
    with pytest.raises(UndecodableMessage) as raised:
        body.decode(View(b'{"numbers": [' + b'"a",' * 100_000 + b"1]}", {}))  # type: ignore[arg-type]
    assert raised.value.reason == "its body is not application/json: it has 100000 errors"
    assert raised.value.__cause__ is None
    with pytest.raises(UndecodableMessage) as raised:
        body.decode(View(b'{"numbers": ["a"]}', {}))  # type: ignore[arg-type]
    assert "numbers.0" in raised.value.reason


def test_a_strict_model_is_decoded_from_either_format() -> None:
    value = Strict(id=UUID(int=7), at=AT, price=Decimal("1.50"), kind=(1, "a"))
    for serializer in ("json", "msgpack"):
        body = TypedBody(Strict, serializer)
        assert body.decode(View(body.encode(value), {})) == value  # type: ignore[arg-type]
        wrong = body.encode(value).replace(b"1.50", b"x.50")
        with pytest.raises(UndecodableMessage):
            body.decode(View(wrong, {}))  # type: ignore[arg-type]


def test_what_a_format_does_not_have_is_a_wrong_value() -> None:
    with pytest.raises(WrongArgument, match="value cannot be encoded"):
        TypedBody(Order, "msgpack").encode(Order(1 << 70))
    # How deep a value may be depends on the Python and its stack; this one has no end.
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(WrongArgument, match="value cannot be encoded"):
        TypedBody(list).encode(ring)


def test_the_blocking_client(cometmq_cluster: Cluster) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        orders = client.topic("orders", Order, keys=lambda order: order.id)
        client.send("orders", BAD)
        for number in range(3):
            orders.send(Order(number), tag="t")
        orders.send_batch([Order(3), Order(4)])
        orders.send_oneway(Order(5))
        with orders.transaction(Order(6), group="shop"):
            pass
        found: set[int] = set()
        seen: list[UndecodableMessage] = []
        subscription = orders.subscribe(
            group="g", start="first", on_undecodable=lambda _, error: seen.append(error)
        )
        for message in subscription:
            with message.processing():
                assert message.keys == (str(message.value.id),)
                found.add(message.value.id)
            if len(found) == 7 and seen:
                break
        subscription.close()
        assert len(seen) == subscription.undecodable_count == 1
        again = orders.subscribe(group="again", start="first", on_undecodable="dead_letter")

        def handle(message: Any) -> None:
            found.discard(message.value.id)
            if not found:
                raise LookupError("all were seen")

        with pytest.raises(LookupError, match="all were seen"):
            again.run(handle, reraise=True)


def test_blocking_requests(cometmq_cluster: Cluster) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        orders = client.topic("questions", Order)
        client.wait(cometmq.Admin(client.inner.session).create_topic("questions"))

        @orders.replier(Paid, group="repliers", start="first")
        def reply(order: Order) -> Paid | None:
            return Paid(order.id, AT)

        assert orders.request(Order(7), Paid, timeout_ms=20_000) == Paid(7, AT)


def test_clients_without_types_import_nothing_of_this() -> None:
    code = (
        "import sys, cometmq; cometmq.Client, cometmq.BlockingClient; "
        "print([n for n in sys.modules if 'typed' in n or 'serializers' in n or 'pydantic' in n])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
