"""Names of topics and groups: legal characters and lengths, names reserved for the system, and the
namespaces of tenants (upstream: TopicValidator.java, NamespaceUtil.java).

The retry topic of a group is ``%RETRY%`` + group, its dead-letter topic is ``%DLQ%`` + group. With
a namespace it is ``%RETRY%ns%group``.

Namespaces let several tenants of one cluster use the same names: a user of namespace ``ns`` writes
``orders`` (the user name), and brokers store ``ns%orders`` (the broker name). Inside the client,
all names are broker names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import structs

from cometmq.message import properties as props

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue, StoredMessage

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
#: Groups of Java clients that name none; no client may use them (upstream: MixAll.java).
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"

#: Topic whose route brokers register if they create topics on the first message.
AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

#: Topics that only brokers write to.
FORBIDDEN_TO_SEND: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
#: Topics that hold messages until these move to their real topic. Clients cannot read from them.
WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC})
SYSTEM_TOPICS: Final = FORBIDDEN_TO_SEND | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

MAX_NAME_CHARACTERS: Final = 127
#: The name of the group's retry topic has a prefix, and may not be longer than other names.
MAX_GROUP_CHARACTERS: Final = MAX_NAME_CHARACTERS - len(RETRY_PREFIX)
MAX_PRODUCER_GROUP_CHARACTERS: Final = 255
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def has_legal_characters(name: str) -> bool:
    """Return whether ``name`` is not empty and has only characters legal in topics and groups."""
    return _NAME.fullmatch(name) is not None


def is_legal_name(name: str) -> bool:
    """Return whether ``name`` is legal for a topic or a group."""
    return len(name) <= MAX_NAME_CHARACTERS and has_legal_characters(name)


def is_system_topic(topic: str) -> bool:
    """Return whether ``topic`` is a system topic, which is the same in every namespace."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def split_prefix(name: str) -> tuple[str, str]:
    """Return the retry or dead-letter prefix of a topic (or an empty text), and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


class Namespace:
    """Converts between user names and broker names of one namespace.

    With an empty ``name`` they are the same. Names that are wrapped already, and names of the
    system, are not wrapped.
    """

    __slots__ = ("_prefix", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._prefix = f"{name}%" if name else ""

    def __bool__(self) -> bool:
        return bool(self._prefix)

    def wrap(self, name: str) -> str:
        """Return the broker name of a user's topic or group."""
        if not self._prefix or is_system_topic(name):
            return name
        kind, rest = split_prefix(name)
        if rest.startswith((self._prefix, SYSTEM_GROUP_PREFIX)):
            return name
        return kind + self._prefix + rest

    def unwrap(self, name: str) -> str:
        """Return the user name of a topic or group; names of other namespaces are unchanged."""
        if not self._prefix:
            return name
        kind, rest = split_prefix(name)
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
