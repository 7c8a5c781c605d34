"""``cometmq group``: consumer groups, their lag, members, offsets and settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from cometmq.cli.command import DryRun, Noun, Yes, confirm
from cometmq.cli.commands.broker import missing
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option, position_of
from cometmq.cli.render import Address, Result, when
from cometmq.core.errors import CometError, RouteNotFound, SettingsError
from cometmq.core.plural import plural
from cometmq.message.names import DLQ_PREFIX, SYSTEM_GROUP_PREFIX

if TYPE_CHECKING:
    from cometmq.admin.api import Admin, Unread
    from cometmq.admin.groups import OffsetPlan
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.bodies import ConsumerConnections

offset = Noun("offset", "Committed offsets of consumer groups.")
group = Noun("group", "Consumer groups: their lag, members, offsets and settings.")

#: Number of concurrent requests to members.
_CONCURRENT: Final = 8

#: Groups that every broker has (upstream: SubscriptionGroupManager.java).
SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
    }
)  # fmt: skip
Name = Annotated[str, Argument("GROUP")]
OfTopic = Annotated[str, Argument("TOPIC")]
OneTopic = Annotated[str, Option("--topic", "-t", help="Only this topic.")]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group: its members, and how many messages it has not consumed (null: it never consumed)."""

    group: str
    members: int
    lag: int | None
    consumed_per_s: float
    type: str | None
    model: str | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One connected consumer of a group."""

    client_id: str
    address: Address | None
    language: str
    version: str


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscription of the members of a group."""

    topic: str
    filter: str
    filter_type: str


@dataclass(frozen=True, slots=True)
class LagRow:
    """Progress of a group in one queue; ``lag`` counts messages."""

    topic: str
    broker: str
    queue: int
    broker_offset: int
    consumer_offset: int
    lag: int
    consumed_at: datetime | None
    client_id: str | None

    WIDE: ClassVar[tuple[str, ...]] = ("client_id",)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group: its members, subscriptions, lag by topic, and settings on each broker."""

    group: str
    lag: int | None
    consumed_per_s: float
    type: str | None
    model: str | None
    start: str | None
    members: list[MemberRow]
    subscriptions: list[SubscriptionRow]
    topics: list[TopicLag]
    settings: list[GroupSettings]


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Lag of a group in one topic."""

    topic: str
    queues: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a group on one broker."""

    group: str
    broker: str
    consume: bool
    broadcast: bool
    from_min: bool
    retry_queues: int
    retries: int
    read_from: int
    read_from_when_slow: int
    notify_members: bool

    WIDE: ClassVar[tuple[str, ...]] = ("from_min", "read_from", "read_from_when_slow")


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Prefetch state of one queue, as its consumer reports it."""

    topic: str
    broker: str
    queue: int
    offset: int
    held: int
    held_mib: int
    locked: bool
    pulled_at: datetime | None
    consumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """Committed offset of a group in one queue (null: none), and the ends of the queue."""

    topic: str
    broker: str
    queue: int
    min_offset: int
    max_offset: int
    committed: int | None


@dataclass(frozen=True, slots=True)
class ResetRow:
    """Offset of a group in one queue, before a change and after it, and messages that this skips or
    repeats.
    """

    topic: str
    broker: str
    queue: int
    before: int | None
    offset: int
    skipped: int
    repeated: int


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """A group that was deleted, and the brokers that had it."""

    group: str
    brokers: list[str]


@group.command("list", "group list", "group list -o json")
async def list_(
    cluster: Connected,
    everything: Annotated[bool, Option("--all", "-a", help="Also system groups.")] = False,
) -> Result[GroupRow]:
    """List the groups that the brokers know, with their members and lag."""
    groups = cluster.groups
    unread: list[Unread] = []
    known = await groups.names(unread=unread)
    names = [name for name in known if everything or not _is_system(name)]
    rows = [
        GroupRow(
            each.group, each.members, each.lag, each.consumed_per_second,
            each.consume_type or None, each.message_model or None,
        )
        for each in (await groups.summaries(names, unread=unread) if names else ())
    ]  # fmt: skip
    return Result(rows, problem=missing(unread))


def _is_system(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


@group.command("show", "group show billing")
async def show(cluster: Connected, name: Name) -> Result[GroupInfo]:
    """Show a group: members, subscriptions, lag by topic, settings."""
    groups = cluster.groups
    unread: list[Unread] = []
    connections = await groups.members(name, unread=unread)
    progress = await groups.progress(name, unread=unread)
    by_topic: dict[str, list[int]] = {}
    for queue, each in progress.queues.items():
        behind = max(0, each.broker_offset - each.consumer_offset)
        by_topic.setdefault(queue.topic, []).append(behind)
    subscriptions = connections.subscription_table if connections else {}
    info = GroupInfo(
        name,
        progress.lag,
        progress.consumed_per_second,
        connections.consume_type if connections else None,
        connections.message_model if connections else None,
        connections.consume_from_where if connections else None,
        _members(connections),
        [
            SubscriptionRow(topic, each.sub_string, each.expression_type or "TAG")
            for topic, each in sorted(subscriptions.items())
        ],
        [TopicLag(topic, len(found), sum(found)) for topic, found in sorted(by_topic.items())],
        await _settings(cluster, name, unread),
    )
    return Result([info], shown=info, problem=missing(unread))


@group.command(
    "lag", "group lag billing --watch", "group lag billing --topic orders", old=("progress",)
)
async def lag(cluster: Connected, name: Name, topic: OneTopic = "") -> Result[LagRow]:
    """Show the offsets of a group, and its lag, in each queue."""
    if topic:
        await cluster.admin.topic_route(topic)
    unread: list[Unread] = []
    progress = await cluster.groups.progress(name, topic, unread=unread)
    topics = {queue.topic for queue in progress.queues}
    owners = await _owners(cluster.admin, name, topics, unread)
    rows = [
        LagRow(
            queue.topic, queue.broker_name, queue.queue_id, each.broker_offset,
            each.consumer_offset, max(0, each.broker_offset - each.consumer_offset),
            when(each.last_timestamp), owners.get(queue),
        )
        for queue, each in progress.queues.items()
    ]  # fmt: skip
    if not rows:
        raise CometError(f"group {name!r} has not consumed any topic")
    return Result(rows, notes=(f"lag={progress.lag}",), problem=missing(unread))


async def _owners(
    admin: Admin, name: str, topics: set[str], unread: list[Unread]
) -> dict[MessageQueue, str]:
    """Return the member that reads each queue, as far as the members report it."""
    import asyncio

    if not await admin.all_connections(name, unread=unread):
        return {}
    gate = asyncio.Semaphore(_CONCURRENT)

    async def positions(topic: str) -> dict[str, dict[MessageQueue, int]]:
        async with gate:
            try:
                return await admin.consumers.positions(name, topic)
            except CometError:
                return {}  # the members do not answer: only the owners of queues stay unknown

    found: dict[MessageQueue, str] = {}
    for by_client in await asyncio.gather(*map(positions, sorted(topics))):
        for client_id, queues in by_client.items():
            found |= dict.fromkeys(queues, client_id)
    return found


@group.command("members", "group members billing")
async def members(cluster: Connected, name: Name) -> list[MemberRow]:
    """List the connected consumers of a group."""
    rows = _members(await cluster.groups.members(name))
    if not rows:
        raise CometError(f"no consumer of group {name!r} is connected")
    return rows


def _members(found: ConsumerConnections | None) -> list[MemberRow]:
    from cometmq.protocol.codes import version_name

    return [
        MemberRow(
            each.client_id, Address.parse(each.client_addr), each.language,
            version_name(each.version),
        )
        for each in (found.connection_set if found else ())
    ]  # fmt: skip


@group.command("status", "group status billing 10.0.0.7@4711#1 --stacks")
async def status(
    cluster: Connected,
    name: Name,
    member: Annotated[str, Argument("CLIENT_ID")],
    stacks: Annotated[bool, Option(help="Also print the stacks of its threads and tasks.")] = False,
) -> Result[HeldRow]:
    """Show the messages that one consumer holds of each queue, as it reports them."""
    from cometmq.admin.api import held

    await cluster.admin.require_group(name)
    info = await cluster.admin.consumers.running_info(name, member, stacks=stacks)
    rows = [
        HeldRow(
            queue.topic, queue.broker_name, queue.queue_id, each.commit_offset,
            each.cached_msg_count, each.cached_msg_size_in_mi_b, each.locked,
            when(each.last_pull_timestamp), when(each.last_consume_timestamp),
        )
        for queue, each in held(info).items()
    ]  # fmt: skip
    return Result(rows, notes=(info.jstack,) if info.jstack else ())


@dataclass(frozen=True, slots=True)
class MemberProblem:
    """A problem of a member of a group."""

    client_id: str
    topic: str | None
    problem: str


@group.command("check", "group check billing")
async def check(cluster: Connected, name: Name) -> Result[MemberProblem]:
    """Look for what is wrong with the members of a group; the exit code is 1 if something is.

    Members that subscribe differently lose messages; a member that consumed none for a minute while
    it holds some is blocked.
    """
    from cometmq.admin.groups import blocked_queues, differing_subscriptions

    states = await cluster.groups.status(name)
    rows = [
        MemberProblem(client, topic, f"subscribes {filter or 'not at all'}, unlike other members")
        for topic, filters in differing_subscriptions(states).items()
        for client, filter in filters.items()
    ]
    for state in states:
        client = state.connection.client_id
        if state.info is None:
            rows.append(MemberProblem(client, None, f"does not report its state: {state.problem}"))
            continue
        rows += [
            MemberProblem(client, queue.topic, f"blocked at {queue.broker_name}/{queue.queue_id}")
            for queue in blocked_queues(state.info)
        ]
    problem = f"group {name!r} has {plural(len(rows), 'problem')}" if rows else ""
    return Result(rows, notes=(f"members={len(states)}",), problem=problem)


@group.command(
    "reset",
    "group reset billing orders --to 2026-01-31T08:00 --dry-run",
    "group reset billing orders --to first",
    does="reset",
)
async def reset(
    cluster: Connected,
    name: Name,
    topic: OfTopic,
    to: Annotated[
        str, Option(metavar="POSITION", help="first, last, a time (ISO 8601, ms), or -1h.")
    ],
    queue: Annotated[list[int] | None, Option(min=0, help="Only this queue.")] = None,
    broker: Annotated[str, Option(help="Only the queues of this broker.")] = "",
    offset: Annotated[bool, Option(help="POSITION is an offset.")] = False,
    keep: Annotated[
        bool, Option("--never-skip", help="Leave queues that would skip messages unchanged.")
    ] = False,
    new: Annotated[
        bool, Option("--new", help="Accept a group that no broker knows; it begins there.")
    ] = False,
    dry_run: DryRun = False,
) -> Result[ResetRow]:
    """Set the offsets of a group in a topic, whether its consumers run or not.

    Running consumers follow a reset of a whole topic. The output shows the offsets before, so that
    the change can be undone.
    """
    position = position_of(to, cluster.session.clock.wall_ms(), offsets=offset)
    plan = await cluster.groups.plan_reset(
        name, topic, position, queues=queue or (), broker=broker, never_skip=keep, is_new=new
    )
    return await _carried_out(cluster, plan, dry_run, "reset")


@group.command("clone", "group clone billing billing-2 orders --dry-run", does="cloned")
async def clone(
    cluster: Connected,
    source: Annotated[str, Argument("SOURCE", "The group whose offsets are copied.")],
    target: Annotated[str, Argument("TARGET", "The group that gets them; it may be new.")],
    topic: OfTopic,
    dry_run: DryRun = False,
) -> Result[ResetRow]:
    """Give a group the offsets that another one has in a topic."""
    await cluster.admin.topic_route(topic)
    plan = await cluster.groups.plan_clone(source, target, topic)
    return await _carried_out(cluster, plan, dry_run, "clone")


async def _carried_out(
    cluster: Connected, plan: OffsetPlan, dry_run: bool, verb: str
) -> Result[ResetRow]:
    """Carry out a change of offsets unless it is a dry run; return what changes."""
    offsets = None if dry_run else await cluster.groups.apply(plan)
    rows = [
        ResetRow(
            each.queue.topic, each.queue.broker_name, each.queue.queue_id, each.committed,
            each.wanted if offsets is None else offsets.get(each.queue, each.wanted),
            each.skipped, each.repeated,
        )
        for each in plan.changes
    ]  # fmt: skip
    skipped, repeated = sum(row.skipped for row in rows), sum(row.repeated for row in rows)
    notes = [f"queues={len(rows)} skipped={skipped} repeated={repeated}"]
    if dry_run:
        notes.append("dry run: nothing was changed")
        return Result(rows, notes=tuple(notes), does=f"would {verb}")
    return Result(rows, notes=tuple(notes))


@group.command("config", "group config billing")
async def config(cluster: Connected, name: Name) -> Result[GroupSettings]:
    """Show the settings of a group on each broker."""
    unread: list[Unread] = []
    return Result(await _settings(cluster, name, unread), problem=missing(unread))


_RETRIES: Final = "Retries before the dead-letter queue; a consumer may ask for others."


@group.command("create", "group create billing --retries 3", does="created")
async def create(
    cluster: Connected,
    name: Name,
    retries: Annotated[
        int,
        Option(min=-1, help=_RETRIES),
    ] = 16,
    retry_queues: Annotated[int, Option(min=0, help="Queues of its retry topic.")] = 1,
    consume: Annotated[bool, Option("--consume", help="May its members consume?")] = True,
    broadcast: Annotated[bool, Option("--broadcast", help="May they broadcast?")] = True,
    only_new: Annotated[
        bool, Option("--if-not-exists", help="Skip brokers that have the group.")
    ] = False,
    cluster_name: Annotated[str, Option("--cluster", help="Only in this cluster.")] = "",
) -> Result[GroupSettings]:
    """Create a group on all masters, or on those of a cluster, before its first consumer does.

    If one of them has it already, nothing is created.
    """
    from cometmq.protocol.bodies import SubscriptionGroupConfig as Config

    chosen = await cluster.admin.find_brokers(cluster=cluster_name, masters_only=True)
    known = (await cluster.groups.configs()).get(name, {})
    having = [each.name for each in chosen if each.name in known]
    lacking = [each.name for each in chosen if each.name not in known]
    if having and not only_new:
        raise CometError(
            f"group {name!r} exists on {', '.join(having)}: change it with cometmq group update, "
            "or leave it as it is with --if-not-exists"
        )
    if having and not lacking:
        return Result(await _settings(cluster, name), does="unchanged")
    wanted = Config(
        name, consume_enable=consume, consume_broadcast_enable=broadcast,
        retry_queue_nums=retry_queues, retry_max_times=retries,
    )  # fmt: skip
    await cluster.admin.update_group(wanted, cluster_name, lacking)
    return Result(await _settings(cluster, name))


@group.command("update", "group update billing --no-consume", does="updated")
async def update(
    cluster: Connected,
    name: Name,
    retries: Annotated[
        int | None,
        Option(min=-1, help=_RETRIES),
    ] = None,
    retry_queues: Annotated[int | None, Option(min=0, help="Queues of its retry topic.")] = None,
    consume: Annotated[
        bool | None, Option("--consume/--no-consume", help="May its members consume?")
    ] = None,
    broadcast: Annotated[
        bool | None, Option("--broadcast/--no-broadcast", help="May they broadcast?")
    ] = None,
) -> list[GroupSettings]:
    """Change settings of a group on all masters; all other settings stay as they are."""
    given = {
        "retryMaxTimes": retries, "retryQueueNums": retry_queues,
        "consumeEnable": consume, "consumeBroadcastEnable": broadcast,
    }  # fmt: skip
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise SettingsError("update", "name at least one setting, such as --retries 3")
    if not await cluster.groups.change(name, changes):
        await cluster.admin.require_group(name)
        raise CometError(f"no broker has settings of group {name!r}: cometmq group create {name}")
    return await _settings(cluster, name)


@group.command("delete", "group delete billing --yes", does="deleted")
async def delete(
    cluster: Connected,
    name: Name,
    topics: Annotated[
        bool, Option(help="Also delete its retry topic and its dead letters.")
    ] = False,
    yes: Yes = False,
) -> GroupDeleted:
    """Delete a group with its offsets, on all masters."""
    await cluster.admin.require_group(name)
    letters = await _dead_letters(cluster, name) if topics else 0
    more = f", its retry topic and its {plural(letters, 'dead letter')}" if topics else ""
    having = await _having(cluster, name)
    where = ", ".join(having) or "no broker"
    confirm(f"Delete group {name} with its offsets{more} on {where}?", yes)
    await cluster.groups.delete(name, topics=topics)
    return GroupDeleted(name, having)


async def _having(cluster: Connected, name: str) -> list[str]:
    """Return the masters that have settings or offsets of a group."""
    admin = cluster.admin
    masters = await admin.brokers(masters_only=True)
    known = await admin.ask_together(masters, admin.group_names)
    return [each.name for each, names in known.items() if name in names]


async def _dead_letters(cluster: Connected, name: str) -> int:
    try:
        stats = await cluster.admin.topic_stats(DLQ_PREFIX + name)
    except RouteNotFound:
        return 0
    return sum(each.max_offset - each.min_offset for each in stats.values())


@group.command("forget", "group forget billing --yes", does="forgot")
async def forget(cluster: Connected, name: Name, yes: Yes = False) -> GroupDeleted:
    """Delete all offsets of a group and keep its settings."""
    await cluster.admin.require_group(name)
    having = await _having(cluster, name)
    confirm(f"Delete all offsets of group {name} on {', '.join(having) or 'no broker'}?", yes)
    await cluster.groups.forget_offsets(name)
    return GroupDeleted(name, having)


async def _settings(
    cluster: Connected, name: str, unread: list[Unread] | None = None
) -> list[GroupSettings]:
    found = await cluster.groups.config(name, unread=unread)
    return [
        GroupSettings(
            name, broker, each.consume_enable, each.consume_broadcast_enable,
            each.consume_from_min_enable, each.retry_queue_nums, each.retry_max_times,
            each.broker_id, each.which_broker_when_consume_slowly,
            each.notify_consumer_ids_changed_enable,
        )
        for broker, each in sorted(found.items())
    ]  # fmt: skip


# ------------------------------------------------------------------------------- offsets


@offset.command("show", "offset show billing orders")
async def show_offsets(cluster: Connected, name: Name, topic: OfTopic) -> list[OffsetRow]:
    """Show the committed offset of a group in each queue of a topic, and the ends of the queue."""
    await cluster.admin.require_group(name)
    found = await cluster.admin.group_offsets(name, topic)
    puller = cluster.admin.puller
    return [
        OffsetRow(
            queue.topic, queue.broker_name, queue.queue_id, await puller.min_offset(queue),
            await puller.max_offset(queue), committed,
        )
        for queue, committed in found.items()
    ]  # fmt: skip


@offset.command("set", "offset set billing orders --queue 3 --to 1700 --dry-run", does="set")
async def set_offset(
    cluster: Connected,
    name: Name,
    topic: OfTopic,
    to: Annotated[int, Option(min=0, metavar="OFFSET", help="The next message to consume.")],
    queue: Annotated[list[int] | None, Option(min=0, help="Only this queue.")] = None,
    broker: Annotated[str, Option(help="Only the queues of this broker.")] = "",
    dry_run: DryRun = False,
) -> Result[ResetRow]:
    """Set the committed offset of a group, in queues of a topic; its consumers must be stopped."""
    from cometmq.admin.messages import at_offset

    plan = await cluster.groups.plan_reset(
        name, topic, at_offset(to), queues=queue or (), broker=broker
    )
    return await _carried_out(cluster, plan, dry_run, "set")


offset.command("reset", "offset reset billing orders --to first --dry-run", does="reset")(reset)
offset.command("clone", "offset clone billing billing-2 orders --dry-run", does="cloned")(clone)
