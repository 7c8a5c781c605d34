"""Which queues a read covers: topics by name, topics by a pattern, or queues one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.message.model import MessageQueue
from cometmq.message.names import is_system_topic, split_prefix
from cometmq.spark.brokers import cluster
from cometmq.spark.options import BadOption, Given, boolean, get, names, only_one, parsed

if TYPE_CHECKING:
    from cometmq.spark.brokers.access import Access

OPTIONS: Final = ("topic", "subscribePattern", "includeSystemTopics", "assign")
ALIASES: Final = {"subscribe": "topic"}

REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""A cluster's name with this is where answers of request and reply wait."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by their names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Topics whose whole name matches. Those of the system, of retries and of dead letters are left
    out unless ``has_system_topics``."""

    expression: str
    has_system_topics: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """Queues one by one; no other ever joins."""

    queues: frozenset[MessageQueue]


Choice = Topics | Pattern | Assigned


@dataclass(frozen=True, slots=True)
class Found:
    """Queues in order, and those topics of a choice that the name servers do not know."""

    queues: list[MessageQueue]
    unknown: list[str]


def parse(given: Given) -> Choice:
    """What options choose. Raises BadOption."""
    option = only_one(given, ("topic", "subscribePattern", "assign"))
    if "includeSystemTopics" in given and option != "subscribePattern":
        raise BadOption("includeSystemTopics", "needs subscribePattern")
    if option is None:
        raise BadOption("topic", "is required, or subscribePattern, or assign")
    if option == "topic":
        return Topics(parsed(option, given[option], names))
    if option == "assign":
        return Assigned(parsed(option, given[option], _assigned))
    expression = parsed(option, given[option], _expression)
    return Pattern(expression, get(given, "includeSystemTopics", boolean, False))


def find(choice: Choice, access: Access) -> Found:
    """The queues of a choice, as the name servers have them at this moment.

    Raises NotConnected when no name server answers, BrokerRefused.
    """
    topics = _topics(choice, access)
    known = cluster.routes(topics, access, age_max_ms=0)
    queues = cluster.queues_of(known)
    if isinstance(choice, Assigned):
        queues = [queue for queue in queues if queue in choice.queues]
    # What a pattern found a moment ago may be gone by now; nobody named it.
    unknown = [] if isinstance(choice, Pattern) else [name for name in topics if name not in known]
    return Found(queues, unknown)


def find_all(choice: Choice, access: Access) -> list[MessageQueue]:
    """The queues of a choice, all of which must be there.

    Raises RouteNotFound for a topic, BadOption for an assigned queue that does not exist, and what
    :func:`find` raises.
    """
    found = find(choice, access)
    for topic in found.unknown:
        raise cluster.unknown(topic, access)
    if isinstance(choice, Assigned):
        for queue in sorted(choice.queues - set(found.queues)):
            raise BadOption(
                "assign",
                f"no queue {queue.queue_id} of {queue.topic!r} can be read on "
                f"{queue.broker_name!r}",
            )
    return found.queues


def matching(pattern: Pattern, known: Iterable[str], of_cluster: frozenset[str]) -> list[str]:
    """The topics of ``known`` that match; ``of_cluster`` are names of clusters and brokers, which
    are topics of the system."""
    expression = re.compile(pattern.expression)
    return sorted(
        name
        for name in known
        if expression.fullmatch(name)
        if pattern.has_system_topics or not _is_internal(name, of_cluster)
    )


def _topics(choice: Choice, access: Access) -> list[str]:
    if isinstance(choice, Topics):
        return list(choice.names)
    if isinstance(choice, Assigned):
        return sorted({queue.topic for queue in choice.queues})
    of_cluster: frozenset[str] = frozenset()
    if not choice.has_system_topics:
        of_cluster = cluster.cluster_names(access)
    return matching(choice, cluster.topic_names(access), of_cluster)


def _is_internal(name: str, of_cluster: frozenset[str]) -> bool:
    return (
        is_system_topic(name)
        or bool(split_prefix(name)[0])
        or name in of_cluster
        or (name.endswith(REPLY_SUFFIX) and name.removesuffix(REPLY_SUFFIX) in of_cluster)
    )


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _assigned(text: str) -> frozenset[MessageQueue]:
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, list[int]]])
    except msgspec.MsgspecError as error:
        raise ValueError(f'is not like {{"topic": {{"broker": [0, 1]}}}}: {error}') from None
    queues = frozenset(
        MessageQueue(topic, broker, queue_id)
        for topic, brokers in found.items()
        for broker, ids in brokers.items()
        for queue_id in ids
    )
    if not queues:
        raise ValueError("names no queue")
    return queues
