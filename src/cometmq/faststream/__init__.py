"""FastStream on RocketMQ (``pip install 'cometmq[faststream]'``).

``RocketMQBroker`` takes the place of FastStream's other brokers::

    broker = RocketMQBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", group="billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice: ...

| module | owns |
|---|---|
| ``broker`` | the broker: its life, ``publish``, ``request`` |
| ``registration`` | ``subscriber()``, ``publisher()``, routers and routes |
| ``subscriber``, ``publisher``, ``producer`` | reading and sending through ``cometmq.Client`` |
| ``message``, ``commands`` | messages and headers, both ways |
| ``keywords`` | checks of keyword arguments |
| ``testing`` | the broker in memory |
| ``fastapi``, ``prometheus``, ``opentelemetry`` | what these need; imported by their users only |
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
