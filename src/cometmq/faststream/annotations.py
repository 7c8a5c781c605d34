"""Annotations of handler arguments that FastStream passes, as in ``async def handle(order: Order,
message: RocketMQMessage)``.
"""

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from cometmq.client import client
from cometmq.faststream import broker, message

Client = Annotated[client.Client, Context("broker._connection")]
RocketMQBroker = Annotated[broker.RocketMQBroker, Context("broker")]
RocketMQMessage = Annotated[message.RocketMQMessage, Context("message")]

__all__ = ["Client", "ContextRepo", "Logger", "NoCast", "RocketMQBroker", "RocketMQMessage"]
