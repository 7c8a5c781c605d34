"""CometMQ: Apache RocketMQ in Python, with broker, name server, clients, tools and Spark source.

    async with cometmq.Client("127.0.0.1:9876") as client:
        await client.send("orders", b"...", tag="paid", keys=["A17"])
        async for message in client.subscribe("orders", group="billing"):
            async with message.processing():  # after an exception the message is retried
                print(message.body)

    Client, BlockingClient    send and consume, with an event loop and without
    ClientConfig              settings of both clients
    Message, MessageView      a message to send, and a received one
    TypedTopic                values instead of bytes: client.topic("orders", Order)
    Admin                     operations on topics, groups, stored messages and servers
    SqliteOutbox, Relay       messages that are committed in a database transaction, then sent
    CometError                the root of all errors

``cometmq start`` runs a name server and a broker; the pytest fixture ``cometmq_cluster`` runs them
for a test. The module of each public name is imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.admin.api import Admin as Admin
    from cometmq.client import blocking as _blocking
    from cometmq.client.client import Client as Client
    from cometmq.client.config import ClientConfig as ClientConfig
    from cometmq.client.consumer.allocate import ByConfig as ByConfig
    from cometmq.client.consumer.allocate import ConsistentHash as ConsistentHash
    from cometmq.client.consumer.allocate import MachineRoom as MachineRoom
    from cometmq.client.consumer.allocate import MachineRoomNearby as MachineRoomNearby
    from cometmq.client.consumer.options import Sql as Sql
    from cometmq.client.consumer.pullconsumer import PullConsumer as PullConsumer
    from cometmq.client.consumer.pushconsumer import Subscription as Subscription
    from cometmq.client.consumer.received import ReceivedMessage as ReceivedMessage
    from cometmq.client.hooks import ConsumeAttempt as ConsumeAttempt
    from cometmq.client.hooks import SendAttempt as SendAttempt
    from cometmq.client.sendrequests import SendResult as SendResult
    from cometmq.client.sendrequests import SendStatus as SendStatus
    from cometmq.client.serializers import Serializer as Serializer
    from cometmq.client.transactions import Transaction as Transaction
    from cometmq.client.typed import TypedMessage as TypedMessage
    from cometmq.client.typed import TypedSubscription as TypedSubscription
    from cometmq.client.typed import TypedTopic as TypedTopic
    from cometmq.core.errors import AlreadyInUse as AlreadyInUse
    from cometmq.core.errors import BrokerRefused as BrokerRefused
    from cometmq.core.errors import ClientError as ClientError
    from cometmq.core.errors import CometError as CometError
    from cometmq.core.errors import MessageIllegal as MessageIllegal
    from cometmq.core.errors import NotConnected as NotConnected
    from cometmq.core.errors import NotFound as NotFound
    from cometmq.core.errors import NotOpen as NotOpen
    from cometmq.core.errors import RequestTimedOut as RequestTimedOut
    from cometmq.core.errors import RouteNotFound as RouteNotFound
    from cometmq.core.errors import SettingsError as SettingsError
    from cometmq.core.errors import UndecodableMessage as UndecodableMessage
    from cometmq.core.errors import WrongArgument as WrongArgument
    from cometmq.filter.sqltext import BadFilter as BadFilter
    from cometmq.message.model import Message as Message
    from cometmq.message.model import MessageQueue as MessageQueue
    from cometmq.message.model import MessageView as MessageView
    from cometmq.message.model import StoredMessage as StoredMessage
    from cometmq.net.outgoing import TlsOptions as TlsOptions
    from cometmq.outbox.postgres import PostgresOutbox as PostgresOutbox
    from cometmq.outbox.relay import Relay as Relay
    from cometmq.outbox.relay import RelaySettings as RelaySettings
    from cometmq.outbox.row import OutboxBusy as OutboxBusy
    from cometmq.outbox.sqlite import SqliteOutbox as SqliteOutbox
    from cometmq.protocol.acl import Credentials as Credentials

    # An assignment, because type checkers take an import under another name for a private one.
    BlockingClient = _blocking.Client

#: The only place that states the version; the build reads it from here.
__version__ = "0.1.0.dev0"

_ERRORS = (
    "AlreadyInUse",
    "BrokerRefused",
    "ClientError",
    "CometError",
    "MessageIllegal",
    "NotConnected",
    "NotFound",
    "NotOpen",
    "RequestTimedOut",
    "RouteNotFound",
    "SettingsError",
    "UndecodableMessage",
    "WrongArgument",
)
_STRATEGIES = ("ByConfig", "ConsistentHash", "MachineRoom", "MachineRoomNearby")
#: The module of each public name, with ``:attribute`` if it has another name there.
_HOMES = {
    "Admin": "cometmq.admin.api",
    "BadFilter": "cometmq.filter.sqltext",
    "BlockingClient": "cometmq.client.blocking:Client",
    "Client": "cometmq.client.client",
    "ClientConfig": "cometmq.client.config",
    "ConsumeAttempt": "cometmq.client.hooks",
    "Credentials": "cometmq.protocol.acl",
    "Message": "cometmq.message.model",
    "MessageQueue": "cometmq.message.model",
    "MessageView": "cometmq.message.model",
    "OutboxBusy": "cometmq.outbox.row",
    "PostgresOutbox": "cometmq.outbox.postgres",
    "PullConsumer": "cometmq.client.consumer.pullconsumer",
    "ReceivedMessage": "cometmq.client.consumer.received",
    "Relay": "cometmq.outbox.relay",
    "RelaySettings": "cometmq.outbox.relay",
    "SendAttempt": "cometmq.client.hooks",
    "SendResult": "cometmq.client.sendrequests",
    "SendStatus": "cometmq.client.sendrequests",
    "Serializer": "cometmq.client.serializers",
    "Sql": "cometmq.client.consumer.options",
    "SqliteOutbox": "cometmq.outbox.sqlite",
    "StoredMessage": "cometmq.message.model",
    "TlsOptions": "cometmq.net.outgoing",
    "Subscription": "cometmq.client.consumer.pushconsumer",
    "Transaction": "cometmq.client.transactions",
    "TypedMessage": "cometmq.client.typed",
    "TypedSubscription": "cometmq.client.typed",
    "TypedTopic": "cometmq.client.typed",
    **dict.fromkeys(_ERRORS, "cometmq.core.errors"),
    **dict.fromkeys(_STRATEGIES, "cometmq.client.consumer.allocate"),
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cometmq' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    value: object = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
