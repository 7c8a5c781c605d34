"""Traces and metrics of a client, as the SDK of OpenTelemetry collects them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import cometmq
from cometmq.client.client import Client
from cometmq.message.model import Message
from cometmq.otel import Instrumentation, instrument
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually

PROPAGATOR = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


class Collected:
    """Collects what an instrumented client reports."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.traces.get_tracer("test")

    def instrument(self, client: Any) -> Instrumentation:
        return instrument(
            client,
            tracer_provider=self.traces,
            meter_provider=self.meters,
            propagator=PROPAGATOR,
        )

    def spans(self, word: str) -> list[ReadableSpan]:
        """The ended spans whose names begin with a word."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(word)]

    def points(self, name: str) -> list[tuple[dict[str, Any], float]]:
        """Attributes and count of each point of a metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", 0)))
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@dataclass
class World:
    client: Client
    collected: Collected


@pytest.fixture
async def world(cometmq_cluster: Cluster) -> AsyncIterator[World]:
    async with Client(cometmq_cluster.namesrv) as client:
        collected = Collected()
        collected.instrument(client)
        yield World(client, collected)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def first_broker(span: ReadableSpan) -> str:
    return str(attributes(span)["messaging.destination.partition.id"]).partition(":")[0]


async def test_a_trace_follows_a_message(world: World) -> None:
    client, collected = world.client, world.collected
    with collected.tracer.start_as_current_span("request") as request:
        sent = await client.send("orders", b"body", tag="paid", keys=["A17"])
    subscription = client.subscribe("orders", group="billing", start="first")
    message = await anext(subscription)
    async with message.processing():
        with collected.tracer.start_as_current_span("query"):
            pass
    [create], [send] = collected.spans("create"), collected.spans("send")
    [process], [query] = collected.spans("process"), collected.spans("query")
    trace_id = request.get_span_context().trace_id
    for span in (create, send, process, query):
        assert span.context.trace_id == trace_id
    assert create.parent is not None
    assert create.parent.span_id == request.get_span_context().span_id
    assert process.parent is not None
    assert process.parent.span_id == create.context.span_id
    assert query.parent is not None
    assert query.parent.span_id == process.context.span_id
    assert [link.context.span_id for link in send.links] == [create.context.span_id]
    assert (create.kind, send.kind, process.kind) == (
        *(SpanKind.PRODUCER, SpanKind.CLIENT),
        SpanKind.CONSUMER,
    )
    assert create.name == "create orders"
    common = {"messaging.system": "rocketmq", "messaging.destination.name": "orders"}
    for span in (create, send, process):
        assert attributes(span).items() >= common.items()
    assert attributes(send)["messaging.message.id"] == sent.message_id
    assert attributes(send)["server.port"] > 0
    assert (
        attributes(process).items()
        >= {
            "messaging.message.id": sent.message_id,
            "messaging.consumer.group.name": "billing",
            "messaging.rocketmq.message.tag": "paid",
            "messaging.rocketmq.message.keys": ("A17",),
            "messaging.message.body.size": 4,
            "cometmq.outcome": "acknowledged",
        }.items()
    )
    assert "traceparent" in message.properties
    assert not trace.get_current_span().get_span_context().is_valid


async def test_every_way_to_send_carries_a_context(world: World) -> None:
    client, collected = world.client, world.collected
    await cometmq.Admin(client.session).create_topic("all", queues=1)
    with collected.tracer.start_as_current_span("request"):
        await client.send_oneway("all", b"oneway")
        await client.send_batch([Message("all", b"b1"), Message("all", b"b2")])
        await client.send_many([Message("all", b"m1"), Message("all", b"m2")])
        await (await client.send_soon("all", b"soon"))
        async with client.transaction("all", b"half", group="shop"):
            pass
    found: dict[bytes, str] = {}
    async for message in client.subscribe("all", group="g", start="first"):
        found[message.body] = message.properties["traceparent"]
        message.ack()
        if len(found) == 7:
            break
    assert len(set(found.values())) == 7
    assert len({text.split("-")[1] for text in found.values()}) == 1
    batches = [span for span in collected.spans("send") if len(span.links) == 2]
    assert [attributes(span)["messaging.batch.message_count"] for span in batches] == [2, 2]


@pytest.mark.cometmq_handler_errors(raises=RuntimeError)
async def test_failures_are_errors_and_a_retry_is_a_span_of_its_own(world: World) -> None:
    client, collected = world.client, world.collected
    await client.send("orders", b"body")
    subscription = client.subscribe("orders", group="g", start="first", ordered=True)
    failures = [RuntimeError("not yet")]

    async def handle(message: cometmq.ReceivedMessage) -> None:
        if failures:
            raise failures.pop()

    running = asyncio.create_task(subscription.run(handle))
    await eventually(lambda: len(collected.spans("process")) == 2)
    await subscription.close()
    await running
    first, second = collected.spans("process")
    assert first.status.status_code is StatusCode.ERROR
    assert attributes(first)["error.type"] == "RuntimeError"
    assert [event.name for event in first.events] == ["exception"]
    assert second.status.status_code is StatusCode.UNSET
    [create] = collected.spans("create")
    assert {span.parent.span_id for span in (first, second) if span.parent} == {
        create.context.span_id
    }
    [sent] = collected.spans("send")
    nowhere = cometmq.MessageQueue("orders", first_broker(sent), 99)
    with pytest.raises(cometmq.BrokerRefused):
        await client.send("orders", b"body", queue=nowhere, timeout_ms=1_000)
    refused = collected.spans("send")[-1]
    assert attributes(refused)["error.type"] == "BrokerRefused"
    assert refused.status.status_code is StatusCode.ERROR
    counts = dict(
        (point.get("error.type", ""), count)
        for point, count in collected.points("messaging.client.consumed.messages")
    )
    assert counts == {"": 1, "RuntimeError": 1}


async def test_metrics_count_messages_and_time(world: World) -> None:
    client, collected = world.client, world.collected
    for _ in range(3):
        await client.send("orders", b"body")
    await client.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    subscription = client.subscribe("orders", group="g", start="first")
    for _ in range(5):
        async with (await anext(subscription)).processing():
            pass
    [(point, sent)] = collected.points("messaging.client.sent.messages")
    assert sent == 5
    assert point == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
    }
    [(_, attempts)] = collected.points("messaging.client.operation.duration")
    [(point, processed)] = collected.points("messaging.process.duration")
    assert (attempts, processed) == (4, 5)
    assert point["messaging.consumer.group.name"] == "g"


async def test_messages_at_once_have_contexts_of_their_own(world: World) -> None:
    client, collected = world.client, world.collected
    for number in range(8):
        await client.send("orders", b"%d" % number, keys=[str(number)])
    seen: dict[str, int] = {}
    together = asyncio.Event()

    async def handle(message: cometmq.ReceivedMessage) -> None:
        seen[message.message_id] = trace.get_current_span().get_span_context().span_id
        if len(seen) == 8:
            together.set()
        await together.wait()
        assert trace.get_current_span().get_span_context().span_id == seen[message.message_id]

    subscription = client.subscribe("orders", group="g", start="first", concurrency=8)
    running = asyncio.create_task(subscription.run(handle))
    await eventually(lambda: len(collected.spans("process")) == 8)
    await subscription.close()
    await running
    ids = {
        str(attributes(span)["messaging.message.id"]): span.context.span_id
        for span in collected.spans("process")
    }
    assert ids == seen


async def test_a_message_that_is_passed_on_keeps_its_context(world: World) -> None:
    client, collected = world.client, world.collected
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.send("orders", b"body", properties={"traceparent": given})
    message = await anext(client.subscribe("orders", group="g", start="first"))
    assert message.properties["traceparent"] == given
    async with message.processing():
        pass
    assert collected.spans("create") == []
    [process] = collected.spans("process")
    assert process.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C


async def test_it_can_be_removed(cometmq_cluster: Cluster) -> None:
    async with Client(cometmq_cluster.namesrv) as client:
        collected = Collected()
        collected.instrument(client).remove()
        await client.send("orders", b"body")
        assert collected.spans("") == []
        assert not client.message_hooks
        assert not client.send_hooks
        assert not client.consume_hooks


async def test_open_spans_end_after_it_was_removed(cometmq_cluster: Cluster) -> None:
    async with Client(cometmq_cluster.namesrv) as client:
        collected = Collected()
        instrumentation = collected.instrument(client)
        await client.send("orders", b"first")
        subscription = client.subscribe("orders", group="g", start="first")
        message = await anext(subscription)
        async with message.processing():
            instrumentation.remove()
            instrumentation.remove()
            await client.send("orders", b"second")
            async with (await anext(subscription)).processing():
                pass
        [process] = collected.spans("process")
        assert attributes(process)["messaging.message.id"] == message.message_id
        assert len(collected.spans("send")) == 1
        [(_, count)] = collected.points("messaging.client.consumed.messages")
        assert count == 1
        assert not client.consume_hooks
        assert not client.send_hooks
        again = collected.instrument(client)
    again.remove()


class Emptying(TraceContextTextMapPropagator):
    def inject(self, carrier: Any, *args: Any, **keywords: Any) -> None:
        super().inject(carrier, *args, **keywords)
        carrier["tracestate"] = ""


async def test_an_empty_value_of_a_propagator_does_not_stop_a_send(
    cometmq_cluster: Cluster,
) -> None:
    async with Client(cometmq_cluster.namesrv) as client:
        instrument(client, tracer_provider=TracerProvider(), propagator=Emptying())
        await client.send("orders", b"")
        message = await anext(client.subscribe("orders", group="g", start="first"))
        assert "traceparent" in message.properties


def test_the_blocking_client(cometmq_cluster: Cluster) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        collected = Collected()
        collected.instrument(client)
        client.send("orders", b"body")
        subscription = client.subscribe("orders", group="g", start="first")
        for message in subscription:
            with message.processing(), collected.tracer.start_as_current_span("query"):
                pass
            break
        assert not trace.get_current_span().get_span_context().is_valid
        [create], [process] = collected.spans("create"), collected.spans("process")
        assert process.parent is not None
        assert process.parent.span_id == create.context.span_id
        client.send("orders", b"again")

        def handle(_: object) -> None:
            with collected.tracer.start_as_current_span("query"):
                Thread(target=subscription.close).start()

        subscription.run(handle)
        _, again = collected.spans("process")
        for work, query in zip((process, again), collected.spans("query"), strict=True):
            assert query.parent is not None
            assert query.parent.span_id == work.context.span_id


async def test_lag_is_measured_by_queue(cometmq_cluster: Cluster) -> None:
    collected = Collected()
    async with Client(cometmq_cluster.namesrv) as client:
        await cometmq.Admin(client.session).create_topic("orders", queues=1)
        instrumentation = collected.instrument(client)
        await client.send_many([Message("orders", b"body")] * 5)
        subscription = client.subscribe("orders", group="g", start="first", concurrency=1)
        (await anext(subscription)).ack()
        async with client.pull_consumer("orders", group="p", start="first") as puller:
            assert len(await puller.poll(max_messages=2)) == 2

            def lags() -> dict[tuple[str, str], float]:
                found = collected.points("cometmq.consumer.lag")
                return {
                    (each["messaging.consumer.group.name"], each["messaging.destination.name"]): lag
                    for each, lag in found
                }

            wanted = {("g", "orders"): 4, ("p", "orders"): 5}
            # A metrics reader has a thread of its own.
            assert (await asyncio.to_thread(lags)).items() >= wanted.items()
        instrumentation.remove()
        assert lags() == {}
        collected.instrument(client)
    assert lags() == {}


def test_clients_without_it_do_not_import_it() -> None:
    code = (
        "import sys, cometmq; cometmq.Client, cometmq.BlockingClient; "
        "print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
