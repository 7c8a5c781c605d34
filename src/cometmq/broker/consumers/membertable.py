"""Groups and the clients in them, from heartbeats: decisions without I/O (upstream:
ConsumerGroupInfo.java, ProducerManager.java).

All consumers of a group must have the same subscriptions. The last heartbeat replaces the
subscriptions of the whole group, so two consumers that differ take messages from each other. The
subscriptions of each consumer are kept too, so that a conflict can be reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cometmq.message.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq.protocol.bodies import ConsumerData, SubscriptionData

EXPIRY_MS: Final = 120_000

Channel = TypeVar("Channel")


#: A consumer's subscriptions, in a form that is equal for consumers that agree: message model, then
#: topic, kind and expression of each subscription.
Wants = tuple[str, frozenset[tuple[str, str, str | frozenset[str]]]]


@dataclass(slots=True)
class Member:
    """One client in one group. ``seen_ms`` is monotonic; ``log_end`` is the end of the log when
    it was seen."""

    client_id: str
    language: str
    version: int
    seen_ms: int
    log_end: int = 0


@dataclass(slots=True)
class OnlineGroup(Generic[Channel]):
    """The online consumers of a group, and their subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Channel, Member] = field(default_factory=dict)
    #: Last heartbeat of each member.
    reported: dict[Channel, ConsumerData] = field(default_factory=dict)
    #: End of the log when the subscription to each topic began.
    since: dict[str, int] = field(default_factory=dict)

    #: Number of members by subscriptions; more than one key means a conflict.
    variants: Counter[Wants] = field(default_factory=Counter)

    def tell(self, channel: Channel, data: ConsumerData) -> None:
        """Record a member's heartbeat."""
        known = self.reported.get(channel)
        if known is None or wants_of(known) != wants_of(data):
            self.forget(channel)
            self.variants[wants_of(data)] += 1
        self.reported[channel] = data

    def forget(self, channel: Channel) -> None:
        """Remove a member's heartbeat."""
        known = self.reported.pop(channel, None)
        if known is not None:
            wants = wants_of(known)
            self.variants[wants] -= 1
            if not self.variants[wants]:
                del self.variants[wants]


def wants_of(data: ConsumerData) -> Wants:
    """Return one consumer's subscriptions. Its retry topic is left out, because some kinds have
    none."""
    return data.message_model, frozenset(
        (each.topic, kind, frozenset(each.tags_set) if kind == "TAG" else each.sub_string)
        for each in data.subscription_data_set
        if not each.topic.startswith(RETRY_PREFIX)
        for kind in (each.expression_type or "TAG",)
    )


class MemberTable(Generic[Channel]):
    """Groups and their members by channel. No I/O; return values report changes. ``on_change``
    callbacks run after the subscriptions of a group changed or its last member left."""

    def __init__(self, expiry_ms: int = EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self.consumers: dict[str, OnlineGroup[Channel]] = {}
        self.producers: dict[str, dict[Channel, Member]] = {}
        self._groups_of: dict[Channel, set[tuple[str, bool]]] = {}
        #: The channel of each producing client, from its last heartbeat.
        self._producers_by_id: dict[str, Channel] = {}
        #: Number of groups in which a channel produces under a client id.
        self._uses_of_id: Counter[tuple[Channel, str]] = Counter()
        self.on_change: list[Callable[[], None]] = []

    def producer(self, client_id: str) -> Channel | None:
        """Return the channel of a producing client, or None."""
        return self._producers_by_id.get(client_id)

    def add_consumer(self, channel: Channel, data: ConsumerData, member: Member) -> bool:
        """Apply a consumer's heartbeat; return True if the members or the subscribed topics of its
        group changed."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = OnlineGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(channel)
        changed = known is None or known.client_id != member.client_id
        group.members[channel] = member
        group.tell(channel, data)
        self._groups_of.setdefault(channel, set()).add((data.group_name, True))
        before = dict(group.subscriptions)
        changed |= _replace_subscriptions(group, data.subscription_data_set)
        if group.subscriptions != before:
            self._notify()
        since = group.since
        group.since = {topic: since.get(topic, member.log_end) for topic in group.subscriptions}
        return changed

    def add_producer(self, channel: Channel, group: str, member: Member) -> None:
        """Apply a producer's heartbeat."""
        members = self.producers.setdefault(group, {})
        known = members.get(channel)
        members[channel] = member
        self._producers_by_id[member.client_id] = channel
        if known is None or known.client_id != member.client_id:
            self._uses_of_id[channel, member.client_id] += 1
            if known is not None:
                self._forget_id(channel, known.client_id)
        self._groups_of.setdefault(channel, set()).add((group, False))

    def remove_consumer(self, channel: Channel, group: str) -> bool:
        """Remove a consumer; return True if it was there."""
        self._forget(channel, group, is_consumer=True)
        known = self.consumers.get(group)
        if known is None or known.members.pop(channel, None) is None:
            return False
        known.forget(channel)
        if not known.members:
            del self.consumers[group]
            self._notify()
        return True

    def remove_producer(self, channel: Channel, group: str) -> bool:
        """Remove a producer; return True if it was there."""
        self._forget(channel, group, is_consumer=False)
        known = self.producers.get(group)
        member = None if known is None else known.pop(channel, None)
        if known is None or member is None:
            return False
        if not known:
            del self.producers[group]
        self._forget_id(channel, member.client_id)
        return True

    def _forget_id(self, channel: Channel, client_id: str) -> None:
        """Count one group less in which a channel produces under a client id."""
        key = (channel, client_id)
        self._uses_of_id[key] -= 1
        if self._uses_of_id[key] > 0:
            return
        del self._uses_of_id[key]
        if self._producers_by_id.get(client_id) is channel:
            del self._producers_by_id[client_id]

    def remove_channel(self, channel: Channel) -> list[str]:
        """Remove a closed connection; return the consumer groups that lost a member."""
        left: list[str] = []
        for group, is_consumer in sorted(self._groups_of.pop(channel, ())):
            if not is_consumer:
                self.remove_producer(channel, group)
            elif self.remove_consumer(channel, group):
                left.append(group)
        return left

    def expire(self, now_ms: int) -> tuple[list[str], set[Channel]]:
        """Remove members that were silent for too long.

        Return the consumer groups that lost a member, and the silent channels, which the caller
        closes.
        """
        limit_ms = now_ms - self._expiry_ms
        lost: list[str] = []
        silent: set[Channel] = set()
        for name, group in list(self.consumers.items()):
            gone = [channel for channel, one in group.members.items() if one.seen_ms <= limit_ms]
            for channel in gone:
                self.remove_consumer(channel, name)
            if gone:
                lost.append(name)
            silent.update(gone)
        for name, members in list(self.producers.items()):
            quiet = [channel for channel, one in members.items() if one.seen_ms <= limit_ms]
            for channel in quiet:
                self.remove_producer(channel, name)
            silent.update(quiet)
        return lost, silent

    def is_member(self, channel: Channel, group: str) -> bool:
        """Decide whether a channel is in a group, as a producer or as a consumer."""
        groups = self._groups_of.get(channel, ())
        return (group, True) in groups or (group, False) in groups

    def channels(self) -> set[Channel]:
        """Return all channels that are members of a group."""
        return set(self._groups_of)

    def _notify(self) -> None:
        for callback in self.on_change:
            callback()

    def _forget(self, channel: Channel, group: str, *, is_consumer: bool) -> None:
        groups = self._groups_of.get(channel)
        if groups is not None:
            groups.discard((group, is_consumer))
            if not groups:
                del self._groups_of[channel]


def _replace_subscriptions(group: OnlineGroup[Any], wanted: Iterable[SubscriptionData]) -> bool:
    """Make ``wanted`` the group's subscriptions; return True if its set of topics changed.

    The subscription to a known topic is replaced only by one with a higher version.
    """
    topics: set[str] = set()
    changed = False
    for subscription in wanted:
        topics.add(subscription.topic)
        known = group.subscriptions.get(subscription.topic)
        if known is None:
            changed = True
        if known is None or subscription.sub_version > known.sub_version:
            group.subscriptions[subscription.topic] = subscription
    for topic in [topic for topic in group.subscriptions if topic not in topics]:
        del group.subscriptions[topic]
        changed = True
    return changed
