"""Online producers and consumers, known by their heartbeats (upstream: ConsumerManager.java,
ConsumerGroupInfo.java, ProducerManager.java, ClientManageProcessor.java).

:class:`MemberTable` holds the members and their subscriptions, without I/O. :class:`Members` serves
the requests, and notifies a group's consumers when the group changes.

All consumers of a group must have the same subscriptions. The last heartbeat replaces the
subscriptions of the whole group, so consumers that differ take messages from each other. The
subscriptions of each consumer are kept too, so that a conflict can be reported.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec.structs import replace

from cometmq.core.errors import BadRequest
from cometmq.filter.tags import MAX_TAGS
from cometmq.message.names import RETRY_PREFIX, is_legal_name
from cometmq.net.limits import Limit
from cometmq.protocol.bodies import (
    NO_VERSION,
    ClientConnection,
    ConsumerConnections,
    ConsumerData,
    ConsumerIds,
    Heartbeat,
    parse_client_body,
)
from cometmq.protocol.codes import Language, RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import ConsumerGroup

if TYPE_CHECKING:
    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.bodies import ConsumerData, SubscriptionData
    from cometmq.protocol.frame import Charge, Request
    from cometmq.protocol.headers import UnregisterClient

log = logging.getLogger(__name__)

#: A heartbeat is parsed on the event loop, and each group in it may create a topic.
MAX_HEARTBEAT_BYTES: Final = 512 * 1024
#: Maximum number of heartbeats that wait until name servers know new retry topics. It is lower if
#: the memory limit is low.
MAX_LATE: Final = 10_000
#: Maximum number of groups of one connection.
MAX_GROUPS: Final = 1_000
MAX_CLIENT_ID_CHARS: Final = 1_024
MAX_TOPIC_CHARS: Final = 255
#: Maximum size of the names and subscriptions kept for one connection.
MAX_KEPT_CHARS: Final = 1 << 20
_SUBSCRIPTION_CHARS: Final = 100
_CODE_CHARS: Final = 12
#: Limits of a log line about members with different subscriptions.
_MAX_DESCRIBED: Final = 8
_MAX_LOGGED_CHARS: Final = 200
#: Kept characters from which on they are charged to the connection's memory account. Decoded
#: strings take about four times their size.
CHARGED_CHARS: Final = 4_096
_DECODED_FACTOR: Final = 4
SCAN_INTERVAL_MS: Final = 10_000
EXPIRY_MS: Final = 120_000

Channel = TypeVar("Channel")
#: A consumer's subscriptions in comparable form: the message model, and the topic, kind and
#: expression of each subscription.
Wants = tuple[str, frozenset[tuple[str, str, str | frozenset[str]]]]


@dataclass(slots=True)
class Member:
    """One client in one group. ``seen_ms`` is the monotonic time of its last heartbeat, ``log_end``
    the end of the log at that time."""

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

    def record(self, channel: Channel, data: ConsumerData) -> None:
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
    """Return one consumer's subscriptions.

    The retry topic is left out, because some kinds of consumers do not subscribe to it.
    """
    return data.message_model, frozenset(
        (each.topic, kind, frozenset(each.tags_set) if kind == "TAG" else each.sub_string)
        for each in data.subscription_data_set
        if not each.topic.startswith(RETRY_PREFIX)
        for kind in (each.expression_type or "TAG",)
    )


class MemberTable(Generic[Channel]):
    """Groups and their members by channel, the connection of a client. No I/O; return values report
    changes. ``on_change`` callbacks run after the subscriptions of a group changed or its last
    member left."""

    def __init__(self, expiry_ms: int = EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self.consumers: dict[str, OnlineGroup[Channel]] = {}
        self.producers: dict[str, dict[Channel, Member]] = {}
        #: Groups of each channel; True if it is a consumer in the group, False if a producer.
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
        group.record(channel, data)
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
        """Decrement the number of groups in which a channel produces under a client id."""
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
        """Return whether a channel is in a group, as a producer or as a consumer."""
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


class Members:
    """Serves heartbeats, unregistrations and queries about the online members."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        clock: Clock,
        log_end: Callable[[], int] = lambda: 0,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        #: Kept characters of each connection, by group, and the charge for them.
        self._kept: dict[Peer, dict[str, int]] = {}
        self._charges: dict[Peer, Charge] = {}
        self._reported: dict[str, frozenset[Wants]] = {}
        self.table: MemberTable[Peer] = MemberTable()
        #: Returns the end of the log.
        self.log_end = log_end
        #: Number of times that members of a group began to have different subscriptions.
        self.conflicts = 0
        #: Number of heartbeats that wait until name servers know the retry topics of new groups.
        self.late_count = 0
        #: Callbacks: for every consumer heartbeat, and for groups that lost their last member.
        self.on_subscribed: list[Callable[[ConsumerData], None]] = []
        self.on_group_gone: list[Callable[[str], None]] = []

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.connections,
        }

    # ------------------------------------------------------------------------------------ requests

    def heartbeat(self, peer: Peer, request: Request[Any]) -> Reply | None:
        """Register the producers and consumers of a client.

        A retry topic is created for a new group. The response and the notifications to rebalance
        then wait until name servers have that topic, because the client fetches its route at once,
        and again only after 20 s. If too many heartbeats already wait, the response is sent at
        once.
        """
        if len(request.body) > MAX_HEARTBEAT_BYTES:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"heartbeat of {len(request.body)} bytes is over the limit of "
                f"{MAX_HEARTBEAT_BYTES}: use fewer groups in one client",
            )
        body = self._normalized(parse_client_body(request.body, Heartbeat))
        _check(body)
        kept = self._kept_after(peer, body)
        if kept and peer not in self._kept:
            peer.on_close.append(self._closed)
        if kept:
            self._kept[peer] = kept
            self._charge(peer)
        version = self._topics.data_version
        changed = self._add(peer, request, body)
        if self._topics.data_version == version or not self._may_wait(peer):
            for group in changed:
                self._notify(group)
            return Reply()
        request.drop_body()
        self.late_count += 1
        self._topics.when_announced(lambda: self._answer_late(peer, request, changed))
        return None

    def _may_wait(self, peer: Peer) -> bool:
        """Return whether another heartbeat may wait; count and log it if not."""
        count = self.late_count
        if count < peer.memory.budget.max_waiting(MAX_LATE):
            return True
        reason = f"{count} heartbeats wait until name servers know new retry topics"
        peer.limits.hit(Limit.NEW_GROUP_HEARTBEATS, peer.address, reason)
        return False

    def _normalized(self, body: Heartbeat) -> Heartbeat:
        """Return a heartbeat in the form in which it is recorded.

        Consumer groups without a name are left out, because no pull can name them. A subscription
        without a version gets the current time as its version. It therefore replaces the previous
        one each time, as upstream.
        """
        consumers = body.consumer_data_set
        if all(
            data.group_name
            and all(each.sub_version != NO_VERSION for each in data.subscription_data_set)
            for data in consumers
        ):
            return body
        now_ms = self._clock.wall_ms()
        return replace(
            body,
            consumer_data_set=tuple(
                replace(
                    data,
                    subscription_data_set=tuple(
                        replace(each, sub_version=now_ms)
                        if each.sub_version == NO_VERSION
                        else each
                        for each in data.subscription_data_set
                    ),
                )
                for data in consumers
                if data.group_name
            ),
        )

    def _charge(self, peer: Peer) -> None:
        """Charge the connection's memory account for the names and subscriptions kept."""
        chars = sum(self._kept.get(peer, {}).values())
        charged = self._charges.pop(peer, None)
        if charged is not None:
            charged.give_back()
        if chars >= CHARGED_CHARS:
            self._charges[peer] = peer.memory.charge(chars * _DECODED_FACTOR)

    def _kept_after(self, peer: Peer, body: Heartbeat) -> dict[str, int]:
        """Return the characters kept of a connection's groups if this heartbeat is accepted.

        Raise BadRequest if they exceed a limit.
        """
        kept = dict(self._kept.get(peer, ()))
        for producer in body.producer_data_set:
            kept.setdefault(producer.group_name, len(producer.group_name))
        for data in body.consumer_data_set:
            kept[data.group_name] = _chars_of(data)
        if len(kept) > MAX_GROUPS:
            raise _refused(
                f"the client has {len(kept)} groups, the limit is {MAX_GROUPS} per connection: use "
                "fewer groups in one client"
            )
        chars = sum(kept.values())
        if chars > MAX_KEPT_CHARS:
            raise _refused(
                f"the client's subscriptions have {chars} characters, the limit is "
                f"{MAX_KEPT_CHARS} per connection: use fewer subscriptions in one client"
            )
        return kept

    def _add(self, peer: Peer, request: Request[Any], body: Heartbeat) -> list[str]:
        """Add a client to its groups; return the groups that changed."""
        changed: list[str] = []
        member = Member(
            body.client_id,
            language_name(request.language),
            request.version,
            self._clock.monotonic_ms(),
            self.log_end(),
        )
        for data in body.consumer_data_set:
            self._prepare_group(data)
            if self.table.add_consumer(peer, data, member):
                log.info(
                    "consumer group changed group=%s client=%s peer=%s members=%d",
                    data.group_name, body.client_id[:_MAX_LOGGED_CHARS], peer.address,
                    len(self.table.consumers[data.group_name].members),
                )  # fmt: skip
                changed.append(data.group_name)
            self._report(data.group_name)
            for tell in self.on_subscribed:
                tell(data)
        for producer in body.producer_data_set:
            self.table.add_producer(peer, producer.group_name, member)
        return changed

    def _answer_late(self, peer: Peer, request: Request[Any], changed: list[str]) -> None:
        """Answer a heartbeat once name servers know the retry topics that it created."""
        self.late_count -= 1
        for group in changed:
            self._notify(group)
        if not peer.closed:
            peer.reply(request, Reply())

    def unregister(self, peer: Peer, request: Request[UnregisterClient]) -> Reply:
        """Remove a client from groups."""
        header = request.header
        if header.producer_group:
            self.table.remove_producer(peer, header.producer_group)
            self._forget(peer, header.producer_group)
        if header.consumer_group and self.table.remove_consumer(peer, header.consumer_group):
            log.info(
                "consumer left group=%s client=%s",
                header.consumer_group, header.client_id[:_MAX_LOGGED_CHARS],
            )  # fmt: skip
            self._forget(peer, header.consumer_group)
            self._lost(header.consumer_group)
        return Reply()

    def consumer_ids(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """Return the client ids of a group; each client divides the queues among them."""
        name = request.header.consumer_group
        group = self.table.consumers.get(name)
        if group is None:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        ids = list(dict.fromkeys(member.client_id for member in group.members.values()))
        return Reply(body=encode_json(ConsumerIds(ids)))

    def connections(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """Return the consumers of a group with their subscriptions."""
        name = request.header.consumer_group
        group = self.table.consumers.get(name)
        if group is None:
            raise BadRequest(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        clients = [
            ClientConnection(member.client_id, peer.address, member.language, member.version)
            for peer, member in group.members.items()
        ]
        body = ConsumerConnections(
            clients,
            dict(group.subscriptions),
            group.consume_type,
            group.message_model,
            group.consume_from_where,
            _described(group) if name in self._reported else None,
        )
        return Reply(body=encode_json(body))

    # ------------------------------------------------------------------------------- for the broker

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the group's subscription to a topic, or None."""
        known = self.table.consumers.get(group)
        return None if known is None else known.subscriptions.get(topic)

    def group(self, name: str) -> OnlineGroup[Peer] | None:
        """Return the online consumers of a group, or None."""
        return self.table.consumers.get(name)

    def producer(self, client_id: str) -> Peer | None:
        """Return the connection of a producing client, or None."""
        return self.table.producer(client_id)

    def producers_of(self, group: str) -> list[Peer]:
        """Return the connections of a group's producers that can be written to."""
        peers = self.table.producers.get(group, ())
        return [peer for peer in peers if not peer.closed and not peer.congested]

    def groups_of(self, topic: str) -> list[str]:
        """Return the online groups that subscribe to a topic."""
        return [
            name for name, group in self.table.consumers.items() if topic in group.subscriptions
        ]

    def subscribed_since(self, group: str, topic: str) -> int | None:
        """Return the log's end offset at the time when the online group subscribed to a topic.

        Return None if the group is not online or does not subscribe to the topic.
        """
        known = self.table.consumers.get(group)
        return None if known is None else known.since.get(topic)

    @property
    def conflicting_count(self) -> int:
        """Number of groups whose members have different subscriptions."""
        return len(self._reported)

    def facts(self) -> dict[str, str]:
        """Return entries about conflicting subscriptions for the broker's runtime information."""
        return {
            "subscriptionConflicts": str(self.conflicts),
            "conflictingGroups": " ".join(sorted(self._reported)),
        }

    async def expire_forever(self) -> None:
        """Close connections of clients that sent no heartbeat for 120 s, until cancelled."""
        while True:
            await self._clock.sleep_ms(SCAN_INTERVAL_MS)
            self.expire()

    def expire(self) -> None:
        """Run one round of :meth:`expire_forever`."""
        groups, silent = self.table.expire(self._clock.monotonic_ms())
        for peer in silent:
            log.warning("client expired peer=%s reason=no heartbeat for 120 s", peer.address)
            peer.close()
        for group in groups:
            self._lost(group)

    # ------------------------------------------------------------------------------------ internals

    def _prepare_group(self, data: ConsumerData) -> None:
        """Create a group and its retry topic if they are missing and may be created."""
        config = self._groups.find(data.group_name)
        if config is not None and config.retry_queue_nums > 0:
            retry_topic = RETRY_PREFIX + data.group_name
            if is_legal_name(retry_topic):
                self._topics.create_retry(retry_topic, config.retry_queue_nums, unit=data.unit_mode)

    def _lost(self, group: str) -> None:
        """Report and notify after a group lost a member."""
        self._report(group)
        if group not in self.table.consumers:
            for tell in self.on_group_gone:
                tell(group)
        self._notify(group)

    def _report(self, name: str) -> None:
        """Log when the members of a group begin to have different subscriptions, when these change,
        and when the members agree again.

        While subscriptions differ, each member takes messages that another one wants.
        """
        group = self.table.consumers.get(name)
        variants = frozenset() if group is None else frozenset(group.variants)
        before = self._reported.get(name, frozenset())
        if group is None or len(variants) < 2:
            if self._reported.pop(name, None) is not None:
                log.info("subscriptions agree again group=%s", name)
        elif variants != before:
            self._reported[name] = variants
            self.conflicts += not before
            log.warning(
                "subscriptions of one group differ group=%s %s: the last heartbeat counts for "
                "all members; use a separate group for each subscription",
                name, _in_words(group),
            )  # fmt: skip

    def _forget(self, peer: Peer, group: str) -> None:
        """Stop counting a group for a connection that left it, unless it is still a member in
        another role."""
        kept = self._kept.get(peer)
        if kept is not None and not self.table.is_member(peer, group):
            kept.pop(group, None)
            self._charge(peer)

    def _notify(self, group: str) -> None:
        if not self._groups.notifies(group):
            return
        known = self.table.consumers.get(group)
        for peer in () if known is None else list(known.members):
            peer.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(group))

    def _closed(self, peer: Peer) -> None:
        if (charge := self._charges.pop(peer, None)) is not None:
            charge.give_back()
        self._kept.pop(peer, None)
        for group in self.table.remove_channel(peer):
            log.info("consumer connection closed group=%s peer=%s", group, peer.address)
            self._lost(group)


def _check(body: Heartbeat) -> None:
    """Raise BadRequest for illegal names or too many of them."""
    if len(body.client_id) > MAX_CLIENT_ID_CHARS:
        raise _refused(
            f"client id {body.client_id[:40]!r}... has {len(body.client_id)} characters, the limit "
            f"is {MAX_CLIENT_ID_CHARS}: use a shorter instance name"
        )
    names = [data.group_name for data in body.consumer_data_set]
    names += [data.group_name for data in body.producer_data_set]
    if len(names) > MAX_GROUPS:
        raise _refused(f"heartbeat names {len(names)} groups, the limit is {MAX_GROUPS} per client")
    for name in names:
        if name and not is_legal_name(name):
            raise _refused(f"group name {name[:140]!r} is illegal: use up to 127 of %|a-zA-Z0-9_-")
    for data in body.consumer_data_set:
        for each in data.subscription_data_set:
            _check_subscription(data.group_name, each)


def _check_subscription(group: str, wanted: SubscriptionData) -> None:
    if len(wanted.topic) > MAX_TOPIC_CHARS:
        raise _refused(
            f"group {group} subscribes to topic {wanted.topic[:40]!r}... of {len(wanted.topic)} "
            f"characters, the limit is {MAX_TOPIC_CHARS}"
        )
    tags = max(len(wanted.tags_set), len(wanted.code_set))
    if tags > MAX_TAGS:
        raise _refused(
            f"group {group} subscribes to {tags} tags of topic {wanted.topic!r}, the limit is "
            f"{MAX_TAGS}: use * and filter in the consumer"
        )


def _refused(problem: str) -> BadRequest:
    return BadRequest(ResponseCode.SYSTEM_ERROR, problem)


def _chars_of(data: ConsumerData) -> int:
    """Return the approximate number of characters kept for a consumer's heartbeat."""
    named = (data.group_name, data.consume_type, data.message_model, data.consume_from_where)
    return sum(map(len, named)) + sum(
        _SUBSCRIPTION_CHARS
        + len(each.topic)
        + len(each.sub_string)
        + len(each.expression_type or "")
        + sum(_CODE_CHARS + len(tag) for tag in each.tags_set)
        + _CODE_CHARS * len(each.code_set)
        for each in data.subscription_data_set
    )


def _in_words(group: OnlineGroup[Peer]) -> str:
    """Return the subscriptions of some clients of a group, for the log."""
    pieces = [
        f"{client[:_MAX_LOGGED_CHARS]}={str(wanted)[:_MAX_LOGGED_CHARS]}"
        for client, wanted in islice(_each_described(group), _MAX_DESCRIBED)
    ]
    more = len(group.reported) - len(pieces)
    return " ".join(pieces) + (f" and {more} more" if more > 0 else "")


def _described(group: OnlineGroup[Peer]) -> dict[str, dict[str, str]]:
    """Return the subscriptions of each client of a group: expressions by topic."""
    return dict(_each_described(group))


def _each_described(group: OnlineGroup[Peer]) -> Iterator[tuple[str, dict[str, str]]]:
    for peer, data in group.reported.items():
        yield (
            group.members[peer].client_id,
            {
                each.topic: each.sub_string
                for each in sorted(data.subscription_data_set, key=lambda each: each.topic)
                if not each.topic.startswith(RETRY_PREFIX)
            },
        )


def language_name(language: str | int) -> str:
    """Return the name of a client's language, from a name or a number."""
    if isinstance(language, int):
        try:
            return Language(language).name
        except ValueError:
            return Language.OTHER.name
    return language if language in Language.__members__ else Language.OTHER.name
