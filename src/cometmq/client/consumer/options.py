"""What a subscription asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from cometmq.client.limits import check_group, check_topic
from cometmq.client.namespace import Namespace
from cometmq.core.errors import SettingsError
from cometmq.filter import tags
from cometmq.message.names import RETRY_PREFIX
from cometmq.protocol.bodies import ConsumerData, Subscription

#: Where a group begins in a queue that it has never read: after everything that is there, at the
#: oldest message, or at a moment (milliseconds since the epoch, or a datetime). A queue whose
#: messages are all still there begins at 0 in any case: brokers answer so.
Start = Literal["last", "first"] | int | datetime
Mode = Literal["clustering", "broadcasting"]

_START_NAMES: Final = {"last": "CONSUME_FROM_LAST_OFFSET", "first": "CONSUME_FROM_FIRST_OFFSET"}


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """Checked options. ``filters`` are tag filters by topic."""

    group: str
    filters: Mapping[str, tags.TagFilter]
    version: int
    concurrency: int = 8
    ordered: bool = False
    broadcasting: bool = False
    start: Start = "last"
    #: -1 leaves it to the mode: 16, and no end for ordered consumers.
    max_reconsume_times: int = -1

    @property
    def retry_topic(self) -> str:
        """Where the group's messages to be retried lie."""
        return RETRY_PREFIX + self.group

    @property
    def topics(self) -> frozenset[str]:
        """All topics to read, the group's retry topic included."""
        own = frozenset(self.filters)
        return own if self.broadcasting else own | {self.retry_topic}

    def filter_of(self, topic: str) -> tags.TagFilter:
        """The filter of a topic; retried messages matched before."""
        return self.filters.get(topic) or tags.parse(tags.ALL)

    def start_ms(self) -> int | None:
        """The moment to start at, if it is one."""
        if isinstance(self.start, datetime):
            return int(self.start.timestamp() * 1000)
        return self.start if isinstance(self.start, int) else None

    def describe(self) -> ConsumerData:
        """What heartbeats say of the group."""
        return ConsumerData(
            group_name=self.group,
            message_model="BROADCASTING" if self.broadcasting else "CLUSTERING",
            consume_from_where=_START_NAMES.get(str(self.start), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=tuple(self._subscription(topic) for topic in sorted(self.topics)),
        )

    def _subscription(self, topic: str) -> Subscription:
        wanted = self.filter_of(topic)
        return Subscription(
            topic=topic,
            sub_string=wanted.expression,
            sub_version=self.version,
            tags_set=tuple(sorted(wanted.tags)),
            code_set=tuple(sorted(wanted.codes)),
        )


def make_options(
    topics: str | Mapping[str, str],
    *,
    group: str,
    expression: str,
    version: int,
    concurrency: int,
    ordered: bool,
    mode: Mode,
    start: Start,
    max_reconsume_times: int,
    namespace: Namespace | None = None,
) -> SubscribeOptions:
    """Check what a caller asked for. ``topics`` is one topic, filtered by ``expression``, or
    filters by topic. Names are users' in ``namespace``; options hold the brokers'.

    Raises MessageIllegal for a bad topic or group name and SettingsError for the rest.
    """
    namespace = namespace or Namespace()
    group = namespace.wrap(group)
    check_group(group)
    filters: dict[str, tags.TagFilter] = {}
    wanted = {topics: expression} if isinstance(topics, str) else topics
    for name, text in wanted.items():
        topic = namespace.wrap(name)
        check_topic(topic)
        try:
            filters[topic] = tags.parse(text)
        except ValueError as error:
            raise SettingsError("filter", str(error)) from None
    if not filters:
        raise SettingsError("topics", "name at least one topic")
    if concurrency < 1:
        raise SettingsError("concurrency", f"{concurrency} is less than 1")
    if mode not in ("clustering", "broadcasting"):
        raise SettingsError("mode", f"{mode!r} is neither 'clustering' nor 'broadcasting'")
    if isinstance(start, str) and start not in _START_NAMES:
        raise SettingsError("start", f"{start!r} is neither 'last' nor 'first' nor a moment")
    return SubscribeOptions(
        group=group,
        filters=filters,
        version=version,
        concurrency=concurrency,
        ordered=ordered,
        broadcasting=mode == "broadcasting",
        start=start,
        max_reconsume_times=max_reconsume_times,
    )
