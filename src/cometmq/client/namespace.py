"""Namespaces: the same topic and group names for several tenants of one cluster.

A client with a namespace says ``orders`` where brokers know ``ns%orders``. Names inside the client
are the brokers'; this is where they become users' names and back (upstream: NamespaceUtil.java).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from cometmq.message import names
from cometmq.message import properties as props

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue, StoredMessage


class Namespace:
    """Names of one namespace; an empty ``name`` changes nothing.

    Wrapping what is wrapped, or is a system's own name, changes nothing either.
    """

    __slots__ = ("_prefix", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._prefix = f"{name}%" if name else ""

    def __bool__(self) -> bool:
        return bool(self._prefix)

    def wrap(self, name: str) -> str:
        """A user's name of a topic or group as brokers know it."""
        if not self._prefix or names.is_system_topic(name):
            return name
        kind, rest = names.split_prefix(name)
        if rest.startswith((self._prefix, names.SYSTEM_GROUP_PREFIX)):
            return name
        return kind + self._prefix + rest

    def unwrap(self, name: str) -> str:
        """A broker's name as users of this namespace say it; others' names stay."""
        if not self._prefix:
            return name
        kind, rest = names.split_prefix(name)
        return kind + rest.removeprefix(self._prefix)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """A queue with its topic's name as brokers know it."""
        if not self._prefix:
            return queue
        return structs.replace(queue, topic=self.wrap(queue.topic))

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """A queue with its topic's name as users say it."""
        if not self._prefix:
            return queue
        return structs.replace(queue, topic=self.unwrap(queue.topic))

    def unwrap_message(self, message: StoredMessage) -> StoredMessage:
        """A message whose topics, also the one that it was retried from, are users' names."""
        if not self._prefix:
            return message
        properties = message.properties
        if (origin := properties.get(props.RETRY_TOPIC)) is not None:
            properties = {**properties, props.RETRY_TOPIC: self.unwrap(origin)}
        return structs.replace(message, topic=self.unwrap(message.topic), properties=properties)
