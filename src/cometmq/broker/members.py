"""Who is there: the producers and consumers that send heartbeats (upstream: ConsumerManager.java,
ProducerManager.java, ClientManageProcessor.java).

membertable.py decides; here requests are served, and a group's consumers are told when it changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.membertable import Group, Member, MemberTable, Wants
from cometmq.core.errors import BadRequest
from cometmq.message.names import RETRY_PREFIX, is_legal_name
from cometmq.net.router import Reply
from cometmq.protocol.bodies import (
    ClientConnection,
    ConsumerConnections,
    ConsumerData,
    ConsumerIds,
    Heartbeat,
)
from cometmq.protocol.clientbodies import parse_client_body
from cometmq.protocol.codes import Language, RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.headers import ConsumerGroup

if TYPE_CHECKING:
    from cometmq.broker.groups import GroupTable
    from cometmq.broker.topics import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.bodies import Subscription
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import UnregisterClient

log = logging.getLogger(__name__)

#: A heartbeat is read on the loop, and each group it names may become a topic.
MAX_HEARTBEAT_BYTES: Final = 512 * 1024
MAX_GROUPS: Final = 1_000
SCAN_INTERVAL_MS: Final = 10_000


class Members:
    """Serves heartbeats, leaving, and questions about who is there."""

    def __init__(self, *, topics: TopicTable, groups: GroupTable, clock: Clock) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._watched: set[Peer] = set()
        self._reported: dict[str, frozenset[Wants]] = {}
        self.table: MemberTable[Peer] = MemberTable()
        #: Where the log ends; a broker sets it.
        self.log_end: Callable[[], int] = lambda: 0
        #: How often members of a group began to disagree about its subscriptions.
        self.conflicts = 0
        #: Are told of every heartbeat of a consumer, and of groups that lost their last member.
        self.on_subscribed: list[Callable[[ConsumerData], None]] = []
        self.on_group_gone: list[Callable[[str], None]] = []

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
        body = parse_client_body(request.body, Heartbeat)
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
            self.log_end(),
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
            self._report(data.group_name)
            for tell in self.on_subscribed:
                tell(data)
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
            self._lost(header.consumer_group)
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
            _described(group) if name in self._reported else None,
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

    def subscribed_since(self, group: str, topic: str) -> int | None:
        """Where the log ended when the consumers of a group that are online began to subscribe to
        a topic; None when there are none."""
        known = self.table.consumers.get(group)
        return None if known is None else known.since.get(topic)

    def facts(self) -> dict[str, str]:
        """What the broker's runtime information says of conflicting subscriptions."""
        return {
            "subscriptionConflicts": str(self.conflicts),
            "conflictingGroups": " ".join(sorted(self._reported)),
        }

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
            self._lost(group)

    # ------------------------------------------------------------------------------------ internals

    def _prepare_group(self, data: ConsumerData) -> None:
        config = self._groups.find(data.group_name)
        if config is not None and config.retry_queue_nums > 0:
            retry_topic = RETRY_PREFIX + data.group_name
            if is_legal_name(retry_topic):
                self._topics.create_retry(retry_topic, config.retry_queue_nums, unit=data.unit_mode)

    def _lost(self, group: str) -> None:
        """A group has a member less."""
        self._report(group)
        if group not in self.table.consumers:
            for tell in self.on_group_gone:
                tell(group)
        self._notify(group)

    def _report(self, name: str) -> None:
        """Say once that members of a group subscribe to different things, and once that they agree
        again: each takes messages that another one wanted."""
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
                "subscriptions of one group differ group=%s %s: the last heartbeat counts for all, "
                "so give each subscription a group of its own",
                name, " ".join(f"{each}={wanted}" for each, wanted in _described(group).items()),
            )  # fmt: skip

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
            self._lost(group)


def _described(group: Group[Peer]) -> dict[str, dict[str, str]]:
    """What each client of a group wants: expressions by topic."""
    return {
        group.members[peer].client_id: {
            each.topic: each.sub_string
            for each in sorted(told.subscription_data_set, key=lambda each: each.topic)
            if not each.topic.startswith(RETRY_PREFIX)
        }
        for peer, told in group.told.items()
    }


def language_name(language: str | int) -> str:
    """A client's language as its name, whichever codec it came in."""
    if isinstance(language, int):
        try:
            return Language(language).name
        except ValueError:
            return Language.OTHER.name
    return language
