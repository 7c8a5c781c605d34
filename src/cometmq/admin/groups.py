"""Consumer groups: which exist, their settings, members and progress, and changes of their offsets.

A change of offsets is planned by one call and carried out by another, so that a tool can show its
effect first. A plan has the committed offset and the wanted one of each queue. It is carried out
as the protocol of RocketMQ 4.9 allows:

    no connected member     the wanted offsets are committed as planned
    connected members       a reset of a whole topic to a time: brokers tell the members (code 222)
                            any other plan: GroupInUse, because members would overwrite the offsets

A group that no broker knows raises NotFound, never a progress of 0. For ``unread`` see
:class:`Admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from cometmq.admin.api import END
from cometmq.admin.messages import Messages, Position, PositionKind, Selection
from cometmq.client.consumer.allocate import average, share
from cometmq.client.routes import by_queue
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    NotFound,
    SettingsError,
    fresh_copy,
)
from cometmq.core.plural import plural
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    ClientConnection,
    ConsumeOffset,
    ConsumerConnections,
    ConsumeStatsRead,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
    RunningInfoRead,
    SubscriptionGroupConfig,
    reset_to,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.admin.api import Admin, Broker, Unread
    from cometmq.message.model import MessageQueue

#: Number of concurrent requests.
_CONCURRENT: Final = 16
#: Settings of a group that a request adds (`+name`) or removes (`-name`) one by one; only
#: RocketMQ 5 has some (upstream: SubscriptionGroupManager.java).
_ATTRIBUTES: Final = "attributes"


class GroupInUse(ClientError):
    """``group`` has connected ``members``, which would overwrite its new offsets."""

    def __init__(self, group: str, members: Collection[str], problem: str) -> None:
        self.group = group
        self.members = tuple(sorted(members))
        connected = plural(len(members), "connected consumer")
        super().__init__(f"group {group!r} has {connected}: {problem}")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a group: its offset in each queue, and messages consumed a second in total."""

    group: str
    queues: dict[MessageQueue, ConsumeOffset]
    consumed_per_second: float

    @property
    def lag(self) -> int | None:
        """Number of messages not consumed yet; None if the group has no committed offset."""
        if not self.queues:
            return None
        return sum(
            max(0, each.broker_offset - each.consumer_offset) for each in self.queues.values()
        )


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group: connected members, and its lag (None: it has not consumed yet)."""

    group: str
    members: int
    consume_type: str
    message_model: str
    consumed_per_second: float
    lag: int | None


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """State that a member reports; if it did not, ``info`` is None and ``problem`` says why."""

    connection: ClientConnection
    info: RunningInfoRead | None
    problem: str = ""


def differing_subscriptions(states: Iterable[MemberStatus]) -> dict[str, dict[str, str]]:
    """Return the topics to which members subscribe differently, each with the filters by client id.

    An empty filter means that the member does not subscribe to the topic. Such a group loses
    messages, because brokers keep one subscription for all members.
    """
    by_client = {
        state.connection.client_id: {each.topic: each.sub_string for each in info.subscription_set}
        for state in states
        if (info := state.info) is not None
    }
    topics = {topic for topics in by_client.values() for topic in topics}
    found = {
        topic: {client: each.get(topic, "") for client, each in sorted(by_client.items())}
        for topic in sorted(topics)
    }
    return {topic: each for topic, each in found.items() if len(set(each.values())) > 1}


def blocked_queues(info: RunningInfoRead, *, longer_than_ms: int = 60_000) -> list[MessageQueue]:
    """Return the blocked queues of a member: it holds messages of them and consumes none.

    A queue is blocked if its last pull was more than ``longer_than_ms`` after its last consumption
    (upstream: ConsumerRunningInfo.analyzeProcessQueue).
    """
    return [
        queue
        for queue, each in sorted(by_queue(info.mq_table).items())
        if each.cached_msg_count > 0
        and each.last_pull_timestamp - each.last_consume_timestamp > longer_than_ms
    ]


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Planned offset of one queue.

    ``committed`` is None if the group has none; ``wanted`` is within ``[min_offset, max_offset]``.
    """

    queue: MessageQueue
    committed: int | None
    wanted: int
    min_offset: int
    max_offset: int

    @property
    def skipped(self) -> int:
        """Number of messages that the group would not get."""
        return max(0, self.wanted - (self.min_offset if self.committed is None else self.committed))

    @property
    def repeated(self) -> int:
        """Number of messages that the group would get again."""
        return 0 if self.committed is None else max(0, self.committed - self.wanted)


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """Change of a group's offsets in a topic.

    ``members`` are the ids of the connected consumers when the plan was made. ``at_ms`` is the time
    to which running members can be reset (END: the end of each queue); None if they cannot.
    """

    group: str
    topic: str
    changes: tuple[OffsetChange, ...]
    members: tuple[str, ...]
    at_ms: int | None
    skips_allowed: bool


class Groups:
    """Operations on consumer groups: ``Groups(admin)``.

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, BrokerRefused
    when it refuses, NotFound for an unknown group, and RouteNotFound for an unknown topic.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._messages = Messages(admin)

    # ------------------------------------------------------------------ what there is

    async def names(self, *, unread: list[Unread] | None = None) -> list[str]:
        """Return all groups with settings or offsets on any broker, sorted."""
        masters = await self._admin.brokers(masters_only=True)
        found = await self._admin.ask_together(masters, self._admin.group_names, unread)
        return sorted(set().union(*found.values()))

    async def summaries(
        self, names: Iterable[str] = (), *, unread: list[Unread] | None = None
    ) -> list[GroupSummary]:
        """Return a summary of each group; without ``names``, of all groups."""
        gate = asyncio.Semaphore(_CONCURRENT)
        masters = await self._admin.brokers(masters_only=True)

        async def summary(group: str) -> GroupSummary:
            async def ask(broker: Broker) -> tuple[ConsumeStatsRead, ConsumerConnections | None]:
                stats = await self._admin.consume_stats(broker, group)
                return stats, await self._admin.members_at(broker, group)

            async with gate:
                found = (await self._admin.ask_together(masters, ask, unread)).values()
            progress = _progress_of(group, [stats for stats, _ in found])
            connected = [members for _, members in found if members is not None]
            first = connected[0] if connected else None
            return GroupSummary(
                group,
                len({each.client_id for one in connected for each in one.connection_set}),
                first.consume_type if first else "",
                first.message_model if first else "",
                progress.consumed_per_second,
                progress.lag,
            )

        wanted = list(names) or await self.names(unread=unread)
        return list(await asyncio.gather(*map(summary, wanted)))

    async def config(
        self, group: str, *, unread: list[Unread] | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of a group by broker name, for the brokers that have some."""
        found = (await self.configs(unread=unread)).get(group)
        if found is None:
            await self._admin.require_group(group)
        return found or {}

    async def configs(
        self, *, unread: list[Unread] | None = None
    ) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Return the settings of all groups, by group and broker name."""
        masters = await self._admin.brokers(masters_only=True)
        tables = await self._admin.ask_together(masters, self._admin.group_configs, unread)
        found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker, table in tables.items():
            for group, config in table.items():
                found.setdefault(group, {})[broker.name] = config
        return found

    async def change(self, group: str, changes: Mapping[str, object]) -> list[str]:
        """Change settings of a group on all masters that have some; return their names.

        ``changes`` has the names of the protocol, such as ``retryMaxTimes``. All other settings
        stay, also those that only RocketMQ 5 has. Nothing is changed if a master does not answer.
        """
        masters = await self._admin.brokers(masters_only=True)
        tables = await self._admin.ask_together(masters, self._admin.group_settings)
        found = {broker: table[group] for broker, table in tables.items() if group in table}

        async def change(broker: Broker) -> None:
            # A request changes only the attributes that it lists: without a list, all of them stay.
            kept = {key: value for key, value in found[broker].items() if key != _ATTRIBUTES}
            await self._admin.put_group(broker, kept | dict(changes))

        await self._admin.ask_together(list(found), change)
        return [broker.name for broker in found]

    async def members(
        self, group: str, *, unread: list[Unread] | None = None
    ) -> ConsumerConnections | None:
        """Return the members connected to any broker; None if a known group has none."""
        connected = list((await self._admin.all_connections(group, unread=unread)).values())
        if not connected:
            await self._admin.require_group(group)
            return None
        by_id = {each.client_id: each for one in connected for each in one.connection_set}
        merged = [by_id[key] for key in sorted(by_id)]
        subscriptions = {
            topic: each for one in connected for topic, each in one.subscription_table.items()
        }
        return structs.replace(
            connected[0], connection_set=merged, subscription_table=subscriptions
        )

    async def status(self, group: str, *, stacks: bool = False) -> list[MemberStatus]:
        """Return the state that each connected member reports; empty if there is none."""
        connected = await self.members(group)
        gate = asyncio.Semaphore(_CONCURRENT)

        async def ask(member: ClientConnection) -> MemberStatus:
            async with gate:
                try:
                    info = await self._admin.consumers.running_info(
                        group, member.client_id, stacks=stacks
                    )
                except ClientError as error:
                    return MemberStatus(member, None, str(error))
            return MemberStatus(member, info)

        if connected is None:
            return []
        return list(await asyncio.gather(*map(ask, connected.connection_set)))

    async def progress(
        self, group: str, topic: str = "", *, unread: list[Unread] | None = None
    ) -> Progress:
        """Return the progress of a group in one topic or in all.

        Also raises NotFound if the group has never consumed ``topic``.
        """
        # Brokers report offset 0 in each queue of the topic for a group that does not exist.
        if topic and group not in await self._admin.groups_of(topic, unread=unread):
            await self._admin.require_group(group)
            for each in unread or ():
                raise fresh_copy(each.error)  # the group may have consumed the topic there
            raise NotFound("group", group, f"it has not consumed topic {topic!r}")

        async def ask(broker: Broker) -> ConsumeStatsRead:
            return await self._admin.consume_stats(broker, group, topic or None)

        masters = await self._admin.brokers(masters_only=True)
        parts = await self._admin.ask_together(masters, ask, unread)
        found = _progress_of(group, parts.values())
        if not found.queues:
            await self._admin.require_group(group)
        return found

    async def producers(self, group: str, topic: str = "") -> list[ClientConnection]:
        """Return the connected producers of a producer group. Raises NotFound if there are none.

        With ``topic``, only the brokers of that topic are asked.
        """
        if topic:
            masters = await self._admin.masters_of(topic)
        else:
            masters = await self._admin.brokers(masters_only=True)

        async def ask(broker: Broker) -> list[ClientConnection]:
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            try:
                response = await self._admin.call(broker.address, code, h.ProducerGroup(group))
            except BrokerRefused as refusal:
                if refusal.code != ResponseCode.SYSTEM_ERROR:
                    raise
                return []  # this broker has no producer of the group
            return list(parse_json(response.body, ProducerConnections).connection_set)

        parts = await self._admin.ask_together(masters, ask)
        found = {each.client_id: each for part in parts.values() for each in part}
        if not found:
            raise NotFound("producer group", group, "no producer of it is connected")
        return [found[key] for key in sorted(found)]

    async def all_producers(
        self, broker: str = "", *, unread: list[Unread] | None = None
    ) -> dict[str, list[ProducerInfo]]:
        """Return all connected producers by group, on one broker (name or address) or on all."""

        async def ask(each: Broker) -> ProducerTable:
            response = await self._admin.call(each.address, RequestCode.GET_ALL_PRODUCER_INFO, None)
            return parse_json(response.body, ProducerTable)

        masters = await self._admin.find_brokers(broker, masters_only=True)
        found: dict[str, dict[str, ProducerInfo]] = {}
        for table in (await self._admin.ask_together(masters, ask, unread)).values():
            for group, infos in table.data.items():
                found.setdefault(group, {}).update((info.client_id, info) for info in infos)
        return {group: [ids[key] for key in sorted(ids)] for group, ids in sorted(found.items())}

    async def allocation(
        self, topic: str, client_ids: Iterable[str]
    ) -> dict[str, list[MessageQueue]]:
        """Return the queues that each of these clients would get by the average strategy."""
        queues = await self._messages.queues(topic)
        clients = sorted(set(client_ids))
        return {each: share(average, "", topic, queues, clients, each) for each in clients}

    # ------------------------------------------------------------------ offsets

    async def plan_reset(
        self,
        group: str,
        topic: str,
        position: Position,
        *,
        queues: Collection[int] = (),
        broker: str = "",
        never_skip: bool = False,
        is_new: bool = False,
    ) -> OffsetPlan:
        """Plan to move a group to a position in a topic, or in some of its queues.

        With ``never_skip``, no offset is moved forward. Unless ``is_new``, the group must exist.
        """
        selected = await self._messages.queues(topic, Selection(broker, frozenset(queues)))
        wanted = await self._messages.offsets(selected, position)
        plan = await self.plan_offsets(group, wanted, never_skip=never_skip, is_new=is_new)
        is_whole = not queues and not broker
        at_ms: int | None = None
        if is_whole and position.kind is not PositionKind.OFFSET:
            times = {PositionKind.EARLIEST: 0, PositionKind.LATEST: END}
            at_ms = times.get(position.kind, position.value)
        return replace(plan, at_ms=at_ms)

    async def plan_offsets(
        self,
        group: str,
        offsets: Mapping[MessageQueue, int],
        *,
        never_skip: bool = False,
        is_new: bool = False,
    ) -> OffsetPlan:
        """Plan to set the offsets of a group in queues of one topic.

        Offsets outside of a queue become its nearest end. Raises SettingsError for an empty
        mapping or queues of several topics.
        """
        topics = {queue.topic for queue in offsets}
        if len(topics) != 1:
            raise SettingsError("offsets", f"offsets of one topic are needed, not of {len(topics)}")
        if not is_new:
            await self._admin.require_group(group)
        (topic,) = topics
        committed = await self._admin.group_offsets(group, topic)
        changes = []
        for queue, offset in sorted(offsets.items()):
            low = await self._admin.puller.min_offset(queue)
            high = await self._admin.puller.max_offset(queue)
            before = committed.get(queue)
            within = min(max(offset, low), high)
            wanted = reset_to(within, -1 if before is None else before, force=not never_skip)
            changes.append(OffsetChange(queue, before, wanted, low, high))
        connected = await self._connections(group)
        members = sorted({each.client_id for one in connected for each in one.connection_set})
        return OffsetPlan(group, topic, tuple(changes), tuple(members), None, not never_skip)

    async def plan_clone(self, source: str, target: str, topic: str) -> OffsetPlan:
        """Plan to give group ``target`` the offsets of group ``source`` in a topic.

        Raises NotFound if ``source`` has no offset there. ``target`` may be a new group.
        """
        await self._admin.require_group(source)
        found = await self._admin.group_offsets(source, topic)
        offsets = {queue: at for queue, at in found.items() if at is not None}
        if not offsets:
            raise NotFound("group", source, f"it has no offset in topic {topic!r}")
        return await self.plan_offsets(target, offsets, is_new=True)

    async def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, its retry topic included, sorted."""
        found = await self.progress(group)
        return sorted({queue.topic for queue in found.queues})

    async def apply(self, plan: OffsetPlan) -> dict[MessageQueue, int]:
        """Carry a plan out; return the new offset of each queue.

        Raises GroupInUse if members are connected and cannot follow it.
        """
        connected = await self._connections(plan.group)
        members = {each.client_id for one in connected for each in one.connection_set}
        if not members:
            offsets = {change.queue: change.wanted for change in plan.changes}
            await self._admin.commit_group_offsets(plan.group, offsets)
            return offsets
        if plan.at_ms is None:
            problem = "stop them first, or move the whole topic to a time, its beginning or its end"
            raise GroupInUse(plan.group, members, problem)
        return await self._admin.consumers.reset(
            plan.group, plan.topic, plan.at_ms, force=plan.skips_allowed
        )

    async def forget_offsets(self, group: str) -> None:
        """Delete all offsets of a group and keep its settings.

        RocketMQ 4.9 deletes offsets only together with the group, so the group is deleted and
        created again with its settings. Raises GroupInUse if members are connected.
        """
        connected = await self._connections(group)
        if connected:
            ids = {each.client_id for one in connected for each in one.connection_set}
            raise GroupInUse(group, ids, "stop them first, because they would commit offsets again")
        await self._admin.require_group(group)
        header = h.GroupName(group_name=group, remove_offset=True)

        async def forget(broker: Broker) -> None:
            settings = (await self._admin.group_settings(broker)).get(group)
            await self._admin.call(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
            if settings is not None:
                attributes = settings.get(_ATTRIBUTES) or {}
                added = {f"+{name}": value for name, value in attributes.items()}
                await self._admin.put_group(broker, settings | {_ATTRIBUTES: added or None})

        await self._admin.ask_together(await self._admin.brokers(masters_only=True), forget)

    async def delete(self, group: str, cluster: str = "", *, topics: bool = False) -> None:
        """Delete a group with its offsets; with ``topics`` also its retry and dead-letter topics.

        Raises GroupInUse if members are connected.
        """
        connected = await self._connections(group)
        if connected:
            ids = {each.client_id for one in connected for each in one.connection_set}
            raise GroupInUse(group, ids, "stop them first, because they would create it again")
        await self._admin.require_group(group)
        await self._admin.find_brokers(cluster=cluster)
        await self._admin.delete_group(group, cluster)
        if topics:
            known = set(await self._admin.list_topics())
            for topic in known & {RETRY_PREFIX + group, DLQ_PREFIX + group}:
                await self._admin.delete_topic(topic, cluster)

    # ------------------------------------------------------------------ parts

    async def _connections(self, group: str) -> list[ConsumerConnections]:
        """Return the connections of a group on each master that has some."""
        return list((await self._admin.all_connections(group)).values())


def _progress_of(group: str, parts: Iterable[ConsumeStatsRead]) -> Progress:
    """Return the progress of a group from what brokers report."""
    queues: dict[MessageQueue, ConsumeOffset] = {}
    rate = 0.0
    for stats in parts:
        queues.update(by_queue(stats.offset_table))
        rate += stats.consume_tps
    return Progress(group, dict(sorted(queues.items())), rate)
