"""The lag of consumer groups, in messages and in time, as the brokers report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.admin.api import Admin
from cometmq.client.blocking import Client
from cometmq.core.errors import BrokerRefused, RouteNotFound

if TYPE_CHECKING:
    from cometmq.protocol.bodies import ConsumeOffset


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group in a topic: messages not consumed yet, the age of the oldest if the
    brokers report it, and the queue with the largest lag."""

    group: str
    topic: str
    lag: int
    behind_ms: int | None
    worst_queue: str
    worst_lag: int


def group_lags(
    nameservers: str, topics: Sequence[str], groups: Sequence[str] = ()
) -> tuple[GroupLag, ...]:
    """Return the lag of groups in topics, the largest first. If no group is named, return all
    groups of the topics.

    Raises NotConnected and RequestTimedOut.
    """
    found = []
    with Client(nameservers) as client:
        admin = Admin(client.inner.session)
        for topic in topics:
            of_topic = client.wait(admin.groups_of(topic))
            for group in of_topic if not groups else [g for g in groups if g in of_topic]:
                progress = client.wait(admin.consumer_progress(group, topic))
                if progress:
                    lags = {f"{q.broker_name}/{q.queue_id}": at for q, at in progress.items()}
                    found.append(_lag(group, topic, lags, _behind_ms(client, admin, group, topic)))
    return tuple(sorted(found, key=lambda lag: (-lag.lag, lag.group, lag.topic)))


def _lag(
    group: str, topic: str, offsets: dict[str, ConsumeOffset], behind_ms: int | None
) -> GroupLag:
    lags = {queue: at.broker_offset - at.consumer_offset for queue, at in offsets.items()}
    worst = max(lags, key=lambda queue: lags[queue])
    return GroupLag(group, topic, sum(lags.values()), behind_ms, worst, lags[worst])


def _behind_ms(client: Client, admin: Admin, group: str, topic: str) -> int | None:
    try:
        spans = client.wait(admin.consumers.time_span(group, topic))
    except (BrokerRefused, RouteNotFound):
        return None  # an older broker does not support this request
    return max((max(span.delay_time, 0) for span in spans.values()), default=None)
