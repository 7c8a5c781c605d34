"""Who is there: the producers and consumers that send heartbeats (upstream: ConsumerManager.java,
ProducerManager.java, ClientManageProcessor.java).

:class:`MemberTable` decides, with the time as an argument; :class:`Members` serves the requests and
tells a group's consumers when it changed. All consumers of a group must subscribe alike: the last
heartbeat replaces the whole group's subscriptions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cometmq.core.errors import BadRequest
from cometmq.message.names import RETRY_PREFIX, is_legal_name
from cometmq.net.router import Reply
from cometmq.protocol.bodies import (
    ClientConnection,
    ConsumerConnections,
    ConsumerData,
    ConsumerIds,
    Heartbeat,
    Subscription,
)
from cometmq.protocol.codes import Language, RequestCode, ResponseCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, encode_json, parse_json
from cometmq.protocol.headers import ConsumerGroup

if TYPE_CHECKING:
    from cometmq.broker.groups import GroupTable
    from cometmq.broker.topics import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import UnregisterClient

log = logging.getLogger(__name__)

EXPIRY_MS: Final = 120_000
#: A heartbeat is read on the loop, and each group it names may become a topic.
MAX_HEARTBEAT_BYTES: Final = 512 * 1024
MAX_GROUPS: Final = 1_000
SCAN_INTERVAL_MS: Final = 10_000

Channel = TypeVar("Channel")


@dataclass(slots=True)
class Member:
    """One client in one group."""

    client_id: str
    language: str
    version: int
    seen_ms: int


@dataclass(slots=True)
class Group(Generic[Channel]):
    """The consumers of a group that are online, and what they want."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: dict[Channel, Member] = field(default_factory=dict)


class MemberTable(Generic[Channel]):
    """Groups and their members by channel. Nothing here does I/O; changes are told by answers."""

    def __init__(self, expiry_ms: int = EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self.consumers: dict[str, Group[Channel]] = {}
        self.producers: dict[str, dict[Channel, Member]] = {}
        self._groups_of: dict[Channel, set[tuple[str, bool]]] = {}
        #: The channel of each client that produces, as its last heartbeat came.
        self._producers_by_id: dict[str, Channel] = {}

    def producer(self, client_id: str) -> Channel | None:
        """Where a client that produces is connected."""
        return self._producers_by_id.get(client_id)

    def add_consumer(self, channel: Channel, data: ConsumerData, member: Member) -> bool:
        """A heartbeat of a consumer; True when members or subscriptions of its group changed."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = Group(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(channel)
        changed = known is None or known.client_id != member.client_id
        group.members[channel] = member
        self._groups_of.setdefault(channel, set()).add((data.group_name, True))
        return _replace_subscriptions(group, data.subscription_data_set) or changed

    def add_producer(self, channel: Channel, group: str, member: Member) -> None:
        """A heartbeat of a producer."""
        self.producers.setdefault(group, {})[channel] = member
        self._producers_by_id[member.client_id] = channel
        self._groups_of.setdefault(channel, set()).add((group, False))

    def remove_consumer(self, channel: Channel, group: str) -> bool:
        """Take a consumer out; True when it was there."""
        self._forget(channel, group, is_consumer=True)
        known = self.consumers.get(group)
        if known is None or known.members.pop(channel, None) is None:
            return False
        if not known.members:
            del self.consumers[group]
        return True

    def remove_producer(self, channel: Channel, group: str) -> bool:
        """Take a producer out; True when it was there."""
        self._forget(channel, group, is_consumer=False)
        known = self.producers.get(group)
        member = None if known is None else known.pop(channel, None)
        if known is None or member is None:
            return False
        if not known:
            del self.producers[group]
        is_left = any(not is_consumer for _, is_consumer in self._groups_of.get(channel, ()))
        if not is_left and self._producers_by_id.get(member.client_id) is channel:
            del self._producers_by_id[member.client_id]
        return True

    def remove_channel(self, channel: Channel) -> list[str]:
        """A connection is gone; gives the consumer groups that lost a member."""
        left: list[str] = []
        for group, is_consumer in sorted(self._groups_of.pop(channel, ())):
            if not is_consumer:
                self.remove_producer(channel, group)
            elif self.remove_consumer(channel, group):
                left.append(group)
        return left

    def expire(self, now_ms: int) -> tuple[list[str], set[Channel]]:
        """Take out who was silent too long; gives the consumer groups that lost a member, and the
        channels, which are to be closed."""
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

    def channels(self) -> set[Channel]:
        """Every channel that is a member of something."""
        return set(self._groups_of)

    def _forget(self, channel: Channel, group: str, *, is_consumer: bool) -> None:
        groups = self._groups_of.get(channel)
        if groups is not None:
            groups.discard((group, is_consumer))
            if not groups:
                del self._groups_of[channel]


def _replace_subscriptions(group: Group[Any], wanted: Iterable[Subscription]) -> bool:
    """Make ``wanted`` the group's subscriptions; True when its set of topics changed."""
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
    """Serves heartbeats, leaving, and questions about who is there."""

    def __init__(self, *, topics: TopicTable, groups: GroupTable, clock: Clock) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._watched: set[Peer] = set()
        self.table: MemberTable[Peer] = MemberTable()

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.connections,
        }

    # ------------------------------------------------------------------------------------ requests

    def heartbeat(self, peer: Peer, request: Request[Any]) -> Reply | None:
        """A client tells of its producers and consumers.

        When a group is new, so is its retry topic. Its client is answered, and told to divide
        queues, after name servers know that topic: it asks for the route at once, and would look
        again only 20 s later.
        """
        if len(request.body) > MAX_HEARTBEAT_BYTES:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"heartbeat of {len(request.body)} bytes is over the limit of "
                f"{MAX_HEARTBEAT_BYTES}: use fewer groups in one client",
            )
        body = parse_json(request.body, Heartbeat, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)
        names = [data.group_name for data in body.consumer_data_set]
        names += [data.group_name for data in body.producer_data_set]
        if len(names) > MAX_GROUPS:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"heartbeat names {len(names)} groups, the limit is {MAX_GROUPS} a client",
            )
        for name in names:
            if not is_legal_name(name):
                raise BadRequest(
                    ResponseCode.SYSTEM_ERROR,
                    f"group name {name[:140]!r} is illegal: use up to 127 of %|a-zA-Z0-9_-",
                )
        if names and peer not in self._watched:
            self._watched.add(peer)
            peer.on_close.append(self._closed)
        version = self._topics.data_version
        changed = self._add(peer, request, body)
        if self._topics.data_version == version:
            for group in changed:
                self._notify(group)
            return Reply()
        self._topics.when_announced(lambda: self._answer_late(peer, request, changed))
        return None

    def _add(self, peer: Peer, request: Request[Any], body: Heartbeat) -> list[str]:
        """Enter a client into its groups; gives those that changed."""
        changed: list[str] = []
        member = Member(
            body.client_id,
            language_name(request.language),
            request.version,
            self._clock.monotonic_ms(),
        )
        for data in body.consumer_data_set:
            self._prepare_group(data)
            if self.table.add_consumer(peer, data, member):
                log.info(
                    "consumer group changed group=%s client=%s peer=%s members=%d",
                    data.group_name, body.client_id, peer.address,
                    len(self.table.consumers[data.group_name].members),
                )  # fmt: skip
                changed.append(data.group_name)
        for producer in body.producer_data_set:
            self.table.add_producer(peer, producer.group_name, member)
        return changed

    def _answer_late(self, peer: Peer, request: Request[Any], changed: list[str]) -> None:
        for group in changed:
            self._notify(group)
        if not peer.closed:
            peer.reply(request, Reply())

    def unregister(self, peer: Peer, request: Request[UnregisterClient]) -> Reply:
        """A client leaves groups."""
        header = request.header
        if header.producer_group:
            self.table.remove_producer(peer, header.producer_group)
        if header.consumer_group and self.table.remove_consumer(peer, header.consumer_group):
            log.info("consumer left group=%s client=%s", header.consumer_group, header.client_id)
            self._notify(header.consumer_group)
        return Reply()

    def consumer_ids(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """The client ids of a group, over which each client divides the queues."""
        name = request.header.consumer_group
        group = self.table.consumers.get(name)
        if group is None:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        ids = list(dict.fromkeys(member.client_id for member in group.members.values()))
        return Reply(body=encode_json(ConsumerIds(ids)))

    def connections(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """The consumers of a group with their subscriptions."""
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
        )
        return Reply(body=encode_json(body))

    # ------------------------------------------------------------------------------- for the broker

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What the online consumers of a group want of a topic."""
        known = self.table.consumers.get(group)
        return None if known is None else known.subscriptions.get(topic)

    def group(self, name: str) -> Group[Peer] | None:
        """The online consumers of a group."""
        return self.table.consumers.get(name)

    def producer(self, client_id: str) -> Peer | None:
        """Where a client that produces is connected."""
        return self.table.producer(client_id)

    def producers_of(self, group: str) -> list[Peer]:
        """The connections of a group's producers that can be written to."""
        peers = self.table.producers.get(group, ())
        return [peer for peer in peers if not peer.closed and not peer.congested]

    def groups_of(self, topic: str) -> list[str]:
        """Online groups that subscribe to a topic."""
        return [
            name for name, group in self.table.consumers.items() if topic in group.subscriptions
        ]

    async def expire_forever(self) -> None:
        """Close connections of clients that sent no heartbeat for 120 s."""
        while True:
            await self._clock.sleep_ms(SCAN_INTERVAL_MS)
            self.expire()

    def expire(self) -> None:
        """One round of :meth:`expire_forever`."""
        groups, silent = self.table.expire(self._clock.monotonic_ms())
        for peer in silent:
            log.warning("client expired peer=%s reason=no heartbeat for 120 s", peer.address)
            peer.close()
        for group in groups:
            self._notify(group)

    # ------------------------------------------------------------------------------------ internals

    def _prepare_group(self, data: ConsumerData) -> None:
        config = self._groups.find(data.group_name)
        if config is not None and config.retry_queue_nums > 0:
            retry_topic = RETRY_PREFIX + data.group_name
            if is_legal_name(retry_topic):
                self._topics.create_retry(retry_topic, config.retry_queue_nums, unit=data.unit_mode)

    def _notify(self, group: str) -> None:
        if not self._groups.notifies(group):
            return
        known = self.table.consumers.get(group)
        for peer in () if known is None else list(known.members):
            peer.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(group))

    def _closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        for group in self.table.remove_channel(peer):
            log.info("consumer connection closed group=%s peer=%s", group, peer.address)
            self._notify(group)


def language_name(language: str | int) -> str:
    """A client's language as its name, whichever codec it came in."""
    if isinstance(language, int):
        try:
            return Language(language).name
        except ValueError:
            return Language.OTHER.name
    return language
