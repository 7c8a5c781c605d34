"""Options of a consumer, with its filters: by tag, or by a SQL92 expression.

The client checks the options; brokers check SQL92 filters before the consumer starts (upstream:
MQClientInstance.checkClientInBroker).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from cometmq.client.arguments import check_function, check_number, check_text, refuse
from cometmq.client.consumer.allocate import NAMED, ByConfig, Strategy, average
from cometmq.client.limits import check_group, check_topic
from cometmq.core.errors import RouteNotFound, SettingsError
from cometmq.filter import tags
from cometmq.filter.sqltext import parse
from cometmq.filter.tags import TagFilter
from cometmq.message.names import RETRY_PREFIX, Namespace
from cometmq.protocol.bodies import ClientConfigCheck, ConsumerData, SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json

if TYPE_CHECKING:
    from cometmq.client.session import Session


@dataclass(frozen=True, slots=True)
class Sql:
    """Filter for messages whose properties match a SQL92 expression, such as ``Sql("price > 5 AND
    region IN ('AD', 'FR')")``.

    Raises BadFilter (a ValueError) for an invalid expression. Brokers evaluate it; Java brokers do
    so only with ``enablePropertyFilter=true``.
    """

    expression: str

    kind: ClassVar[str] = "SQL92"
    tags: ClassVar[frozenset[str]] = frozenset()
    codes: ClassVar[frozenset[int]] = frozenset()
    #: The broker filters; the client accepts every message that it receives.
    matches_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_text("expression", self.expression)
        parse(self.expression)

    def accepts(self, tag: str) -> bool:
        """Return True: the broker has already applied the filter."""
        del tag
        return True


Filter = TagFilter | Sql


def parse_filter(wanted: str | Sql) -> Filter:
    """Parse a filter from tags (``insert || update``), or return an Sql as it is.

    Raises ValueError.
    """
    return wanted if isinstance(wanted, Sql) else tags.parse_exactly(wanted)


#: Position at which a group begins in a queue that it has never read. "last" is the first message
#: stored after this consumer joined, "first" the oldest message. An int (milliseconds since the
#: epoch) or a datetime is the time of the first message to read. Java brokers of the 4.x line
#: ignore this for a queue that still has all its messages, and begin at 0.
Start = Literal["last", "first"] | int | datetime
Mode = Literal["clustering", "broadcasting"]
#: Strategy by which the members of a group share queues; see allocate.py.
Allocation = Literal["average", "circle", "consistent-hash"] | Strategy
_START_NAMES: Final = {"last": "CONSUME_FROM_LAST_OFFSET", "first": "CONSUME_FROM_FIRST_OFFSET"}


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """Checked options of a consumer.

    ``filters`` maps topics to filters. ``polls`` is True for a consumer that polls for messages,
    and False for one that messages are pushed to.
    """

    group: str
    filters: Mapping[str, Filter]
    version: int
    concurrency: int = 8
    ordered: bool = False
    broadcasting: bool = False
    start: Start = "last"
    #: -1 means the default: 16, or unlimited for ordered consumers.
    max_reconsume_times: int = -1
    allocation: Strategy = average
    polls: bool = False

    def __str__(self) -> str:
        topics = ", ".join(
            topic if wanted.expression == tags.ALL else f"{topic} ({wanted.expression})"
            for topic, wanted in self.filters.items()
        )
        return f"group {self.group} to {topics or 'assigned queues'}"

    @property
    def retry_topic(self) -> str:
        """Retry topic of the group."""
        return RETRY_PREFIX + self.group

    @property
    def topics(self) -> frozenset[str]:
        """All topics to read.

        They include the group's retry topic, except for consumers that never send messages back:
        broadcasting and polling ones.
        """
        own = frozenset(self.filters)
        return own if self.broadcasting or self.polls else own | {self.retry_topic}

    def filter_of(self, topic: str) -> Filter:
        """Return the filter of a topic. The retry topic has none, because its messages have
        already matched the filter of their topic.
        """
        return self.filters.get(topic) or tags.parse(tags.ALL)

    def start_ms(self) -> int | None:
        """Return the time to start at, or None if the start is not a time."""
        if isinstance(self.start, datetime):
            return int(self.start.timestamp() * 1000)
        return self.start if isinstance(self.start, int) else None

    def describe(self) -> ConsumerData:
        """Return the group's entry in heartbeats."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY" if self.polls else "CONSUME_PASSIVELY",
            message_model="BROADCASTING" if self.broadcasting else "CLUSTERING",
            consume_from_where=_START_NAMES.get(str(self.start), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=tuple(self.subscription(topic) for topic in sorted(self.topics)),
        )

    def subscription(self, topic: str) -> SubscriptionData:
        """Return the entry of a topic in heartbeats."""
        wanted = self.filter_of(topic)
        return SubscriptionData(
            topic=topic,
            sub_string=wanted.expression,
            sub_version=self.version,
            expression_type=wanted.kind,
            tags_set=tuple(sorted(wanted.tags)),
            code_set=tuple(sorted(wanted.codes)),
        )


def make_options(
    topics: str | Mapping[str, str | Sql] | None,
    *,
    group: str,
    expression: str | Sql,
    version: int,
    concurrency: int = 1,
    ordered: bool = False,
    mode: Mode = "clustering",
    start: Start = "last",
    max_reconsume_times: int = -1,
    allocation: Allocation = "average",
    polls: bool = False,
    namespace: Namespace | None = None,
) -> SubscribeOptions:
    """Check the options that a caller passed.

    ``topics`` is one topic, filtered by ``expression``, or a mapping of topics to filters; a
    consumer that ``polls`` needs none. Topics and groups are passed without the prefix of
    ``namespace``; the options hold them with it, as brokers know them. Raises MessageIllegal for an
    invalid topic or group name and SettingsError for the rest.
    """
    namespace = namespace or Namespace()
    check_text("group", group)
    group = namespace.wrap(group)
    check_group(group)
    _check_types(topics, concurrency, start, max_reconsume_times)
    if concurrency < 1:
        raise SettingsError("concurrency", f"{concurrency} is less than 1")
    if mode not in ("clustering", "broadcasting"):
        raise SettingsError("mode", f"{mode!r} is neither 'clustering' nor 'broadcasting'")
    if isinstance(start, str) and start not in _START_NAMES:
        raise SettingsError("start", f"{start!r} is neither 'last' nor 'first' nor a time")
    wanted = {topics: expression} if isinstance(topics, str) else topics or {}
    filters = _filters(wanted, namespace)
    if not filters and not polls:
        raise SettingsError("topics", "name at least one topic")
    return SubscribeOptions(
        group=group,
        filters=filters,
        version=version,
        concurrency=concurrency,
        ordered=ordered,
        broadcasting=mode == "broadcasting",
        start=start,
        max_reconsume_times=max_reconsume_times,
        allocation=_strategy(allocation, namespace),
        polls=polls,
    )


def _check_types(
    topics: object, concurrency: object, start: object, max_reconsume_times: object
) -> None:
    """Raise WrongArgument for options of a wrong type."""
    if topics is not None and not isinstance(topics, str | Mapping):
        refuse(
            "topics", "str or a mapping of topics to filters", topics, "write {'a': '*', 'b': '*'}"
        )
    check_number("concurrency", concurrency)
    check_number("max_reconsume_times", max_reconsume_times)
    if isinstance(start, bool) or not isinstance(start, str | int | datetime):
        refuse("start", "'last', 'first', or a time as int (ms) or datetime", start)


def _filters(wanted: Mapping[str, str | Sql], namespace: Namespace) -> dict[str, Filter]:
    filters: dict[str, Filter] = {}
    for name, expression in wanted.items():
        check_text("a name in topics", name)
        if not isinstance(expression, str | Sql):
            refuse(f"the filter of {name!r}", "str or Sql", expression)
        topic = namespace.wrap(name)
        check_topic(topic)
        try:
            filters[topic] = parse_filter(expression)
        except ValueError as error:
            raise SettingsError("filter", str(error)) from None
    return filters


def _strategy(allocation: Allocation, namespace: Namespace) -> Strategy:
    if isinstance(allocation, ByConfig):
        return allocation.wrapped(namespace)
    if not isinstance(allocation, str):
        check_function("allocation", allocation)
        return allocation
    strategy = NAMED.get(allocation)
    if strategy is None:
        raise SettingsError("allocation", f"{allocation!r} is not one of {', '.join(NAMED)}")
    return strategy


async def check_filters(session: Session, options: SubscribeOptions) -> None:
    """Have one broker of each topic check the topic's SQL92 filter; skip topics without a route.

    Raises BrokerRefused with the broker's reason, NotConnected or RequestTimedOut.
    """
    for topic, wanted in options.filters.items():
        if not isinstance(wanted, Sql):
            continue
        try:
            queues = await session.subscribe_queues(topic)
        except RouteNotFound:
            continue
        for queue in queues[:1]:
            body = ClientConfigCheck(
                subscription_data=options.subscription(topic),
                client_id=session.client_id,
                group=options.group,
            )
            await session.remoting.call(
                await session.master_of(queue),
                RequestCode.CHECK_CLIENT_CONFIG,
                None,
                encode_json(body),
                timeout_ms=session.config.request_timeout_ms,
            )
