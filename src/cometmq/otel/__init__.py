"""OpenTelemetry for a client: traces across producers and consumers, and metrics (``pip install
'cometmq[otel]'``).

Names and attributes are those of OpenTelemetry's semantic conventions for messaging and RocketMQ:

| span | kind | when |
|---|---|---|
| ``create TOPIC`` | producer | a message is made; user properties carry the span's context |
| ``send TOPIC`` | client | each attempt to send; linked to ``create`` of each message |
| ``process TOPIC`` | consumer | a handler or a ``processing()`` block; child of ``create`` |

While a handler or block runs, its ``process`` span is the current one, also in threads of
BlockingClient.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from cometmq.client.client import Client
from cometmq.client.hooks import Outcome
from cometmq.core.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

    from cometmq.client.blocking import Client as BlockingClient
    from cometmq.client.hooks import ConsumeAttempt, SendAttempt
    from cometmq.message.model import Message

_SCOPE: Final = "cometmq"
_SYSTEM: Final = {"messaging.system": "rocketmq"}
_DESTINATION: Final = "messaging.destination.name"
_PARTITION: Final = "messaging.destination.partition.id"
_MESSAGE_ID: Final = "messaging.message.id"
_GROUP: Final = "messaging.consumer.group.name"
_ERROR_TYPE: Final = "error.type"
_S_PER_MS: Final = 1 / 1_000
_NS_PER_MS: Final = 1_000_000

Attributes = dict[str, Any]


def instrument(
    client: Client | BlockingClient,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    propagator: TextMapPropagator | None = None,
) -> Instrumentation:
    """Trace and measure all messages that a client sends and processes from now on.

    Providers and propagator that are not given are the global ones. Raises NotOpen if the client is
    not open.
    """
    inner = client if isinstance(client, Client) else client.inner
    tracer = trace.get_tracer(_SCOPE, version(_SCOPE), tracer_provider)
    meter = metrics.get_meter(_SCOPE, version(_SCOPE), meter_provider)
    used = propagate.get_global_textmap() if propagator is None else propagator
    return Instrumentation(inner, tracer, meter, used)


class Instrumentation:
    """The hooks of one client; see :func:`instrument`."""

    def __init__(
        self,
        client: Client,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        propagator: TextMapPropagator,
    ) -> None:
        self._client = client
        self._message_hooks = client.message_hooks
        self._creating = Creating(tracer, propagator)
        self._sending = Sending(tracer, meter, propagator, client.send_hooks)
        self._processing = ProcessingSpans(tracer, meter, propagator, client.consume_hooks)
        self._message_hooks.append(self._creating)
        self._is_removed = False
        meter.create_observable_gauge(
            "cometmq.consumer.lag",
            [self._lag],
            "{message}",
            "Stored messages that a consumer has not processed, as of its last pull.",
        )

    def _lag(self, _: object) -> list[metrics.Observation]:
        """Return the lag of each queue. Called in the thread of a metrics reader."""
        if self._is_removed:
            return []
        try:
            consumers = self._client.status().consumers
        except NotOpen:
            return []
        return [
            metrics.Observation(
                queue.lag,
                {
                    **_SYSTEM,
                    _DESTINATION: queue.queue.topic,
                    _PARTITION: f"{queue.queue.broker_name}:{queue.queue.queue_id}",
                    _GROUP: each.group,
                },
            )
            for each in consumers
            for queue in each.queues
            if queue.lag is not None
        ]

    def remove(self) -> None:
        """Stop tracing and measuring. An open span still ends when its attempt ends."""
        self._is_removed = True
        with suppress(ValueError):
            self._message_hooks.remove(self._creating)
        self._sending.remove()
        self._processing.remove()


class Creating:
    """The message hook: makes the ``create`` span, and adds its context to the properties.

    A message that already has a context, such as a forwarded one, keeps it.
    """

    def __init__(self, tracer: trace.Tracer, propagator: TextMapPropagator) -> None:
        self._tracer = tracer
        self._propagator = propagator

    def __call__(self, message: Message) -> Message:
        """Return the message with the context of its span."""
        if any(name in message.properties for name in self._propagator.fields):
            return message
        span = self._tracer.start_span(
            f"create {message.topic}", kind=SpanKind.PRODUCER, attributes=_of_message(message)
        )
        with trace.use_span(span, end_on_exit=True):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
        # RocketMQ has no properties with empty values.
        own = {name: value for name, value in carrier.items() if value}
        return msgspec.structs.replace(message, properties={**message.properties, **own})


def _of_message(message: Message) -> Attributes:
    found: Attributes = {
        **_SYSTEM,
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        _DESTINATION: message.topic,
        "messaging.message.body.size": len(message.body),
        "messaging.rocketmq.message.type": "delay" if message.is_delayed else "normal",
    }
    if message.tag:
        found["messaging.rocketmq.message.tag"] = message.tag
    if message.keys:
        found["messaging.rocketmq.message.keys"] = tuple(message.keys)
    if message.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if message.deliver_at_ms:
        found["messaging.rocketmq.message.delivery_timestamp"] = message.deliver_at_ms
    return found


class _Spanning:
    """A hook whose span begins in ``before`` and ends in ``after`` of the same attempt object.

    After :meth:`remove` it stays in the list of hooks until its last span has ended.
    """

    def __init__(self, hooks: list[Any]) -> None:
        self._hooks = hooks
        self._open: dict[int, tuple[Span, Any]] = {}
        self._is_removed = False
        hooks.append(self)

    def remove(self) -> None:
        """Begin no more spans."""
        self._is_removed = True
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._is_removed and not self._open:
            with suppress(ValueError):  # another thread was faster
                self._hooks.remove(self)

    def _keep(self, attempt: object, span: Span, more: Any = None) -> None:
        """Store a span until the attempt ends."""
        self._open[id(attempt)] = span, more

    def _taken(self, attempt: object) -> tuple[Span, Any] | None:
        """Return the span of an attempt that ends, and drop it.

        Returns None if the attempt began before the hook was added, or after it was removed.
        """
        found = self._open.pop(id(attempt), None)
        self._leave_if_done()
        return found


class Sending(_Spanning):
    """The send hook: a span and measurements of each attempt."""

    def __init__(
        self,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        propagator: TextMapPropagator,
        hooks: list[Any],
    ) -> None:
        super().__init__(hooks)
        self._tracer = tracer
        self._propagator = propagator
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of an attempt to send."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that a client tried to send."
        )

    def before(self, attempt: SendAttempt) -> None:
        """Begin the span."""
        if self._is_removed:
            return
        links = [
            Link(found)
            for message in attempt.messages
            if (found := _span_context(self._propagator, message.properties)) is not None
        ]
        topic = attempt.queue.topic
        attributes = self._attributes(attempt) | _address(attempt.address)
        attributes["messaging.rocketmq.client_group"] = attempt.group
        if len(attempt.messages) > 1:
            attributes["messaging.batch.message_count"] = len(attempt.messages)
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links,
            start_time=attempt.started_ms * _NS_PER_MS,
        )  # fmt: skip
        self._keep(attempt, span)

    def after(self, attempt: SendAttempt) -> None:
        """End the span, and count."""
        found = self._taken(attempt)
        if found is None and self._is_removed:
            return
        attributes = self._attributes(attempt) | _failure(attempt.error)
        attributes.pop(_PARTITION)
        took_s = max(attempt.ended_ms - attempt.started_ms, 0) * _S_PER_MS
        self._duration.record(took_s, attributes)
        self._sent.add(len(attempt.messages), attributes)
        if found is None:
            return
        span, _ = found
        if len(attempt.unique_keys) == 1:
            span.set_attribute(_MESSAGE_ID, attempt.unique_keys[0])
        _end(span, attempt.error, attempt.ended_ms)

    def _attributes(self, attempt: SendAttempt) -> Attributes:
        return {
            **_SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            _DESTINATION: attempt.queue.topic,
            _PARTITION: f"{attempt.queue.broker_name}:{attempt.queue.queue_id}",
        }


class ProcessingSpans(_Spanning):
    """The consume hook: a span, current while a message is processed, and measurements."""

    def __init__(
        self,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        propagator: TextMapPropagator,
        hooks: list[Any],
    ) -> None:
        super().__init__(hooks)
        self._tracer = tracer
        self._propagator = propagator
        self._duration = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of the processing of a message."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were processed."
        )

    def before(self, attempt: ConsumeAttempt) -> None:
        """Begin the span, and make it the current one."""
        if self._is_removed:
            return
        message = attempt.message
        creation = self._propagator.extract(message.properties)
        attributes = self._attributes(attempt) | {
            _MESSAGE_ID: message.message_id,
            _PARTITION: f"{message.queue.broker_name}:{message.queue.queue_id}",
            "messaging.message.body.size": len(message.body),
            "messaging.rocketmq.message.redelivery_count": message.reconsume_times,
        }
        if message.tag:
            attributes["messaging.rocketmq.message.tag"] = message.tag
        if message.keys:
            attributes["messaging.rocketmq.message.keys"] = tuple(message.keys)
        span = self._tracer.start_span(
            f"process {message.topic}", context=creation, kind=SpanKind.CONSUMER,
            attributes=attributes, start_time=attempt.started_ms * _NS_PER_MS,
        )  # fmt: skip
        current = trace.set_span_in_context(span, creation)
        self._keep(attempt, span, (current, context.attach(current)))

    def after(self, attempt: ConsumeAttempt) -> None:
        """End the span, and count."""
        found = self._taken(attempt)
        if found is None and self._is_removed:
            return
        attributes = self._attributes(attempt) | _failure(attempt.error)
        took_s = max(attempt.ended_ms - attempt.started_ms, 0) * _S_PER_MS
        self._duration.record(took_s, attributes)
        self._consumed.add(1, attributes)
        if found is None:
            return
        span, (current, token) = found
        # If another task left the block than entered it, its context is not the attached one.
        if context.get_current() is current:
            context.detach(token)
        if attempt.outcome is not None:
            span.set_attribute("cometmq.outcome", attempt.outcome.value)
        failed = attempt.outcome is Outcome.RETRIED
        _end(span, attempt.error, attempt.ended_ms, "the message is retried" if failed else "")

    def _attributes(self, attempt: ConsumeAttempt) -> Attributes:
        return {
            **_SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            _DESTINATION: attempt.message.topic,
            _GROUP: attempt.group,
        }


def _span_context(
    propagator: TextMapPropagator, properties: Mapping[str, str]
) -> trace.SpanContext | None:
    found: Context = propagator.extract(properties)
    span_context = trace.get_current_span(found).get_span_context()
    return span_context if span_context.is_valid else None


def _address(address: str) -> Attributes:
    host, _, port = address.rpartition(":")
    return {"server.address": host, "server.port": int(port)} if port.isdigit() else {}


def _failure(error: BaseException | None) -> Attributes:
    return {} if error is None else {_ERROR_TYPE: type(error).__qualname__}


def _end(span: Span, error: BaseException | None, ended_ms: int, problem: str = "") -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute(_ERROR_TYPE, type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    elif problem:
        span.set_status(Status(StatusCode.ERROR, problem))
    span.end(ended_ms * _NS_PER_MS)
