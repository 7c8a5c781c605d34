"""FastStream on RocketMQ (``pip install 'cometmq[faststream]'``).

``RocketMQBroker`` is used like FastStream's brokers for Kafka or NATS::

    broker = RocketMQBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", group="billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice: ...

| module | owns |
|---|---|
| ``broker`` | the broker: start, stop, ``publish``, ``request`` |
| ``registration`` | ``subscriber()``, ``publisher()``, routers and routes |
| ``subscriber``, ``publisher``, ``producer`` | reading and sending through ``cometmq.Client`` |
| ``message``, ``commands`` | received messages, and messages to send, with their headers |
| ``config``, ``security``, ``keywords`` | settings, and checks of keyword arguments |
| ``annotations`` | annotations of handler arguments |
| ``testing`` | an in-memory broker for tests |
| ``fastapi``, ``prometheus``, ``opentelemetry`` | integrations; only their users import them |
"""

from cometmq.faststream.annotations import RocketMQMessage
from cometmq.faststream.broker import RocketMQBroker
from cometmq.faststream.commands import RocketMQPublishCommand, RocketMQResponse
from cometmq.faststream.registration import RocketMQPublisherRoute, RocketMQRoute, RocketMQRouter
from cometmq.faststream.testing import TestRocketMQBroker

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisherRoute",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "TestRocketMQBroker",
]
