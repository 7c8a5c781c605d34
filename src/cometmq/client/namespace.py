"""Namespaces: the same topic and group names for several tenants of one cluster.

A user of namespace ``ns`` writes ``orders``; brokers know ``ns%orders``. The client works with
broker names inside; this module converts from and to user names (upstream: NamespaceUtil.java).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from cometmq.message import names
from cometmq.message import properties as props

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue, StoredMessage


class Namespace:
    """Converts names of one namespace; an empty ``name`` changes nothing.

    Wrapping leaves names unchanged that are wrapped already, or are names of the system.
    """

    __slots__ = ("_prefix", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._prefix = f"{name}%" if name else ""

    def __bool__(self) -> bool:
        return bool(self._prefix)

    def wrap(self, name: str) -> str:
        """Return the broker name of a user's topic or group."""
        if not self._prefix or names.is_system_topic(name):
            return name
        kind, rest = names.split_prefix(name)
        if rest.startswith((self._prefix, names.SYSTEM_GROUP_PREFIX)):
            return name
        return kind + self._prefix + rest

    def unwrap(self, name: str) -> str:
        """Return the user name of a topic or group; names of other namespaces are unchanged."""
        if not self._prefix:
            return name
        kind, rest = names.split_prefix(name)
        return kind + rest.removeprefix(self._prefix)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the broker name of its topic."""
        if not self._prefix:
            return queue
        return structs.replace(queue, topic=self.wrap(queue.topic))

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the user name of its topic."""
        if not self._prefix:
            return queue
        return structs.replace(queue, topic=self.unwrap(queue.topic))

    def unwrap_message(self, message: StoredMessage) -> StoredMessage:
        """Return a message with user names for its topic and the topic it was retried from."""
        if not self._prefix:
            return message
        properties = message.properties
        if (origin := properties.get(props.RETRY_TOPIC)) is not None:
            properties = {**properties, props.RETRY_TOPIC: self.unwrap(origin)}
        return structs.replace(message, topic=self.unwrap(message.topic), properties=properties)
