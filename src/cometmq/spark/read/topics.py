"""The choice of queues to read: those of named topics, of topics that match a pattern, or single
queues. Finds the queues of a choice in the routes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.message.model import MessageQueue
from cometmq.message.names import is_system_topic, split_prefix
from cometmq.spark.brokers import cluster
from cometmq.spark.options import BadOption, Given, boolean, get, names, only_one, parsed

if TYPE_CHECKING:
    from cometmq.protocol.bodies import TopicRoute
    from cometmq.spark.brokers.access import Access

OPTIONS: Final = ("topic", "subscribePattern", "includeSystemTopics", "assign")
ALIASES: Final = {"subscribe": "topic"}

REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""Suffix of the topic that holds a cluster's replies to requests: CLUSTER_REPLY_TOPIC."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by their names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Topics whose whole name matches the regular expression.

    System topics, retry topics and dead-letter queues are left out unless ``has_system_topics``.
    """

    expression: str
    has_system_topics: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """Single queues; no other queue is ever added."""

    queues: frozenset[MessageQueue]


#: What the user chose to read.
TopicChoice = Topics | Pattern | Assigned


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The queues of a choice, sorted. ``unknown`` are topics that the name servers do not know.

    ``brokers`` has the brokers with an address in the route of each topic. ``absent`` has the
    brokers that a route names without an address, each with a text about that route.
    """

    queues: list[MessageQueue]
    unknown: list[str]
    brokers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


def parse(given: Given) -> TopicChoice:
    """Parse the options that choose topics or queues. Raises BadOption."""
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


def find(choice: TopicChoice, access: Access) -> TopicQueues:
    """Return the queues of a choice, as the name servers currently know them.

    Raises NotConnected if no name server answers, BrokerRefused if one refuses.
    """
    topics = _topics(choice, access)
    known = cluster.routes(topics, access, age_max_ms=0)
    queues = cluster.queues_of(known)
    if isinstance(choice, Assigned):
        queues = [queue for queue in queues if queue in choice.queues]
    # A topic that matched a pattern a moment ago may be gone. That is no error, as the user did not
    # name it.
    unknown = [] if isinstance(choice, Pattern) else [name for name in topics if name not in known]
    reachable = {
        topic: frozenset(data.broker_name for data in route.broker_datas if data.broker_addrs)
        for topic, route in known.items()
    }
    return TopicQueues(queues, unknown, reachable, _absent(known, reachable))


def find_all(choice: TopicChoice, access: Access) -> list[MessageQueue]:
    """Return the queues of a choice, all of which must exist.

    Raises the errors of :func:`check` and :func:`find`.
    """
    found = find(choice, access)
    check(found, choice, access)
    return found.queues


def check(
    found: TopicQueues, choice: TopicChoice, access: Access, *, without: Collection[str] = ()
) -> None:
    """Check that each chosen topic or queue exists. Queues of brokers in ``without`` may be
    missing.

    Raises RouteNotFound for a topic and BadOption for an assigned queue that does not exist.
    """
    for topic in found.unknown:
        raise cluster.unknown(topic, access)
    if isinstance(choice, Assigned):
        for queue in sorted(choice.queues - set(found.queues)):
            if queue.broker_name not in without:
                raise BadOption(
                    "assign",
                    f"no queue {queue.queue_id} of {queue.topic!r} can be read on "
                    f"{queue.broker_name!r}",
                )


def matching(pattern: Pattern, known: Iterable[str], cluster_names: frozenset[str]) -> list[str]:
    """Return the topics of ``known`` that match.

    ``cluster_names`` are the names of clusters and brokers, each of which is also the name of a
    system topic.
    """
    expression = re.compile(pattern.expression)
    return sorted(
        name
        for name in known
        if expression.fullmatch(name)
        if pattern.has_system_topics or not _is_internal(name, cluster_names)
    )


def _absent(
    known: Mapping[str, TopicRoute], reachable: Mapping[str, frozenset[str]]
) -> dict[str, str]:
    """Return the brokers that a route names without an address, each with a text about that route.

    A route names the brokers that have queues, and, for an ordered topic, those in its
    configuration (``broker-a:4;broker-b:4``).
    """
    found: dict[str, str] = {}
    for topic, route in known.items():
        named = [data.broker_name for data in route.queue_datas]
        for part in (route.order_topic_conf or "").split(";"):
            name, _, queues = part.strip().rpartition(":")
            if name and queues.isascii() and queues.isdigit():
                named.append(name)
        for name in named:
            if name not in reachable[topic]:
                found.setdefault(name, f"the route of {topic!r} lists it")
    return found


def _topics(choice: TopicChoice, access: Access) -> list[str]:
    if isinstance(choice, Topics):
        return list(choice.names)
    if isinstance(choice, Assigned):
        return sorted({queue.topic for queue in choice.queues})
    cluster_names: frozenset[str] = frozenset()
    if not choice.has_system_topics:
        cluster_names = cluster.cluster_names(access)
    return matching(choice, cluster.topic_names(access), cluster_names)


def _is_internal(name: str, cluster_names: frozenset[str]) -> bool:
    return (
        is_system_topic(name)
        or bool(split_prefix(name)[0])
        or name in cluster_names
        or (name.endswith(REPLY_SUFFIX) and name.removesuffix(REPLY_SUFFIX) in cluster_names)
    )


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
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
        raise ValueError("contains no queue")
    return queues
