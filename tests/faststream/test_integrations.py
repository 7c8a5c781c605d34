"""AsyncAPI, FastAPI, Prometheus, OpenTelemetry, the CLI's application, accounts and TLS."""

from __future__ import annotations

import ssl
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from faststream.specification import AsyncAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry

from cometmq.client.config import ClientConfig
from cometmq.faststream import RocketMQBroker, RocketMQRouter, TestRocketMQBroker
from cometmq.faststream.fastapi import RocketMQMessage
from cometmq.faststream.fastapi import RocketMQRouter as FastAPIRouter
from cometmq.faststream.opentelemetry import RocketMQTelemetryMiddleware
from cometmq.faststream.prometheus import RocketMQPrometheusMiddleware
from cometmq.net.outgoing import TlsOptions
from cometmq.protocol.acl import Credentials
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name


def test_asyncapi_has_a_channel_for_each_topic() -> None:
    router = RocketMQRouter("shop-")

    @router.subscriber("orders", "refunds", group="billing", description="Bills")
    @router.publisher("invoices", title="Invoices")
    async def bill(number: int) -> str:
        return str(number)

    broker = RocketMQBroker("a:9876;b:9876", routers=[router])
    found: dict[str, Any] = (
        AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()
    )
    assert {name: each["address"] for name, each in found["channels"].items()} == {
        "shop-orders:Bill": "shop-orders",
        "shop-refunds:Bill": "shop-refunds",
        "Invoices": "shop-invoices",
    }
    assert {each["host"] for each in found["servers"].values()} == {"a:9876", "b:9876"}
    assert {each["protocol"] for each in found["servers"].values()} == {"rocketmq"}


def doubled(number: int) -> int:
    return number * 2


async def test_a_fastapi_application(cometmq_session_cluster: Cluster) -> None:
    router, topic, seen = FastAPIRouter(cometmq_session_cluster.namesrv), fresh_name(), list[Any]()

    @router.subscriber(topic, group=fresh_name(), start="first")
    async def handle(
        number: int, message: RocketMQMessage, twice: Annotated[int, Depends(doubled)]
    ) -> None:
        seen.append((number, twice, message.raw_message.topic))

    application = FastAPI()
    application.include_router(router)
    async with router.lifespan_context(application):
        assert await router.broker.ping()
        await router.broker.publish({"number": 4}, topic)
        await eventually(lambda: seen, deadline_s=60)
    assert seen == [(4, 8, topic)]
    assert not await router.broker.ping()


async def test_metrics_count_messages_by_topic() -> None:
    registry = CollectorRegistry()
    broker = RocketMQBroker(middlewares=[RocketMQPrometheusMiddleware(registry=registry)])

    @broker.subscriber("orders", group="a", batch=True)
    async def handle(bodies: list[str]) -> None: ...

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish_batch("a", "bcd", topic="orders")
    labels = {"app_name": "faststream", "broker": "rocketmq", "handler": "orders"}
    for name, value in (
        ("faststream_received_messages_total", 2),
        ("faststream_received_messages_size_bytes_sum", 4),
    ):
        assert registry.get_sample_value(name, labels) == value, list(registry.collect())


async def test_one_trace_from_publisher_to_handler() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    broker = RocketMQBroker(
        middlewares=[RocketMQTelemetryMiddleware(tracer_provider=provider)], apply_types=False
    )

    @broker.subscriber("orders", group="a")
    @broker.publisher("invoices")
    async def handle(body: str) -> str:
        return body

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish("x", "orders")
    spans = exporter.get_finished_spans()
    kinds = {span.kind for span in spans}
    assert {SpanKind.PRODUCER, SpanKind.CONSUMER} <= kinds
    first = next(span for span in spans if span.name == "orders process")
    assert first.attributes is not None
    assert first.attributes["messaging.system"] == "rocketmq"
    assert "invoices publish" in {span.name for span in spans}
    created = next(span for span in spans if span.name == "orders create")
    assert first.parent is not None
    assert first.context.trace_id == created.context.trace_id


def test_security_becomes_the_clients() -> None:
    def config(**options: Any) -> ClientConfig:
        return RocketMQBroker(**options).client_config

    found = config(security=SASLPlaintext("key", "secret", use_ssl=True))
    assert found.credentials == Credentials("key", "secret")
    assert found.tls == TlsOptions()
    assert config(security=BaseSecurity(use_ssl=True)).credentials is None
    own = TlsOptions(verify=False)
    given = ClientConfig.recommended("a:1", tls=own)
    assert config(config=given, security=BaseSecurity(use_ssl=True)).tls == own
    with pytest.raises(SetupError, match="RocketMQ has no SASLScram256"):
        config(security=SASLScram256("key", "secret"))
    with pytest.raises(SetupError, match="makes its own TLS context"):
        config(security=BaseSecurity(ssl_context=ssl.create_default_context()))
