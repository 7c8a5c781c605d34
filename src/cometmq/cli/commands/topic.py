"""``cometmq topic``: list, show, create, update and delete topics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from cometmq.cli.command import Noun, Yes, confirm
from cometmq.cli.commands.broker import AppliedRow, TrafficRow, applied, missing, traffic_row
from cometmq.cli.configuration import parse_settings
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option
from cometmq.cli.render import Address, Result, when
from cometmq.core.errors import CometError, NotFound, SettingsError, fresh_copy
from cometmq.core.plural import plural

if TYPE_CHECKING:
    from cometmq.admin.api import Broker, Unread
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.bodies import TopicConfig, TopicOffset, TopicRoute

topic = Noun("topic", "Topics: their queues, permissions, offsets and brokers.")

#: Prefixes of the retry topics and dead-letter queues of groups.
RETRY, DEAD = "%RETRY%", "%DLQ%"

Name = Annotated[str, Argument("TOPIC")]
Brokers = Annotated[list[str] | None, Option("--broker", help="Only on this broker.")]
ClusterName = Annotated[str, Option("--cluster", help="Only in this cluster.")]
Queues = Annotated[int, Option(min=1, max=65_535, help="Number of queues on each broker.")]
#: Permissions as the command line has them, and on the wire.
Permissions = Literal["RW", "R", "W", "none"]
_PERM = {"RW": 6, "R": 4, "W": 2, "none": 0}


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic that the name servers know. ``kind`` is normal, system, retry or dead-letter."""

    topic: str
    kind: str


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address of one process of a broker; id 0 is the master."""

    id: int
    address: Address | None


@dataclass(frozen=True, slots=True)
class RouteRow:
    """Queues of a topic on one broker."""

    broker: str
    cluster: str
    addresses: list[BrokerAddress]
    read_queues: int
    write_queues: int
    permissions: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of a topic. Offsets count messages."""

    broker: str
    queue: int
    min_offset: int
    max_offset: int
    messages: int
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: where it is, its queues, and the groups that read it."""

    topic: str
    kind: str
    messages: int
    brokers: list[RouteRow]
    queues: list[QueueRow]
    groups: list[str]


@dataclass(frozen=True, slots=True)
class TopicConfigRow:
    """Configuration of a topic on one broker."""

    topic: str
    broker: str
    read_queues: int
    write_queues: int
    permissions: str
    order: bool
    filter_type: str
    sys_flag: int

    WIDE: ClassVar[tuple[str, ...]] = ("filter_type", "sys_flag")


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic that was deleted, and the brokers that had it."""

    topic: str
    brokers: list[str]


def permissions(perm: int) -> str:
    """Format permissions as ``RW``, ``R-``, ``-W`` or ``--``."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-")


def kind_of(name: str, system: set[str]) -> str:
    """Return the kind of a topic, from its name and the names of the system topics."""
    if name.startswith(RETRY):
        return "retry"
    if name.startswith(DEAD):
        return "dead-letter"
    return "system" if name in system else "normal"


def route_rows(route: TopicRoute) -> list[RouteRow]:
    """Return a row for each broker that has queues of the topic."""
    brokers = {each.broker_name: each for each in route.broker_datas}
    rows = []
    for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
        broker = brokers.get(data.broker_name)
        found = sorted((int(k), v) for k, v in broker.broker_addrs.items()) if broker else []
        addresses = [BrokerAddress(number, Address.parse(text)) for number, text in found]
        rows.append(
            RouteRow(
                data.broker_name, broker.cluster if broker else "", addresses,
                data.read_queue_nums, data.write_queue_nums, permissions(data.perm),
            )
        )  # fmt: skip
    return rows


def queue_rows(stats: dict[MessageQueue, TopicOffset]) -> list[QueueRow]:
    """Return a row for each queue, in order."""
    return [
        QueueRow(
            queue.broker_name, queue.queue_id, each.min_offset, each.max_offset,
            each.max_offset - each.min_offset, when(each.last_update_timestamp),
        )
        for queue, each in sorted(stats.items())
    ]  # fmt: skip


@topic.command("list", "topic list", "topic list --all -o json")
async def list_(
    cluster: Connected,
    everything: Annotated[
        bool, Option("--all", "-a", help="Also system, retry and dead-letter topics.")
    ] = False,
) -> Result[TopicName]:
    """List the topics that the name servers know."""
    unread: list[Unread] = []
    system = await cluster.admin.system_topics(unread=unread)
    rows = [TopicName(name, kind_of(name, system)) for name in await cluster.admin.list_topics()]
    shown = [row for row in rows if everything or row.kind == "normal"]
    return Result(shown, problem=missing(unread))


@topic.command("show", "topic show orders", old=("describe",))
async def show(cluster: Connected, name: Name) -> Result[TopicInfo]:
    """Show a topic: its brokers, its queues with their offsets, and its groups."""
    admin = cluster.admin
    unread: list[Unread] = []
    queues = queue_rows(await admin.topic_stats(name, unread=unread))
    info = TopicInfo(
        name,
        kind_of(name, await admin.system_topics(unread=unread)),
        sum(row.messages for row in queues),
        route_rows(await admin.topic_route(name)),
        queues,
        await admin.groups_of(name, unread=unread),
    )
    return Result([info], shown=info, problem=missing(unread))


@topic.command(
    "create",
    "topic create orders --queues 8 --broker broker-a",
    "topic create orders --if-not-exists",
    does="created",
)
async def create(
    cluster: Connected,
    name: Name,
    queues: Queues = 8,
    read_queues: Annotated[int | None, Option(min=1, help="Number of queues to read.")] = None,
    permission: Annotated[Permissions, Option("--permissions", help="What clients may do.")] = "RW",
    order: Annotated[bool, Option(help="Mark it as an ordered topic.")] = False,
    only_new: Annotated[
        bool, Option("--if-not-exists", help="Leave brokers alone that have the topic.")
    ] = False,
    cluster_name: ClusterName = "",
    broker: Brokers = None,
) -> Result[TopicConfigRow]:
    """Create a topic on all masters, on those of a cluster, or on those named.

    If one of them has the topic already, or a named one is not there, nothing is created.
    """
    having, lacking = await _having(cluster, name, cluster_name, broker)
    if having and not only_new:
        raise CometError(
            f"topic {name!r} exists on {', '.join(having)}: change it with cometmq topic update, "
            "or leave it as it is with --if-not-exists"
        )
    if having and not lacking:
        return Result(await _configs(cluster, name, having), does="unchanged")
    await cluster.admin.create_topic(
        name, queues=queues, read_queues=read_queues, perm=_PERM[permission], order=order,
        brokers=lacking,
    )  # fmt: skip
    return Result(await _configs(cluster, name, lacking))


async def _having(
    cluster: Connected, name: str, cluster_name: str, broker: list[str] | None
) -> tuple[list[str], list[str]]:
    """Return the names of the chosen masters that have a topic, and of those that do not.

    Raise NotFound for a broker or cluster that is not there.
    """
    chosen = {
        each.name: each.address
        for wanted in broker or [""]
        for each in await cluster.admin.find_brokers(wanted, cluster_name, masters_only=True)
    }
    having: list[str] = []
    lacking: list[str] = []
    for each, address in sorted(chosen.items()):
        config = await cluster.admin.topic_config(address, name)
        (lacking if config is None else having).append(each)
    return having, lacking


@topic.command("update", "topic update orders --queues 16", does="updated")
async def update(
    cluster: Connected,
    name: Name,
    queues: Annotated[int | None, Option(min=1, help="Number of queues to write and read.")] = None,
    read_queues: Annotated[int | None, Option(min=0, help="Number of queues to read.")] = None,
    write_queues: Annotated[int | None, Option(min=0, help="Number of queues to write.")] = None,
    permission: Annotated[
        Permissions | None, Option("--permissions", help="What clients may do.")
    ] = None,
    order: Annotated[bool | None, Option("--order/--no-order", help="Ordered or not.")] = None,
    broker: Brokers = None,
) -> list[TopicConfigRow]:
    """Change a topic on the brokers that have it; what is not named stays as it is."""
    for each, before in (await _found(cluster, name, broker)).items():
        await cluster.admin.change_topic(
            name, each.name, before,
            read_queues=_first(read_queues, queues, before.read_queue_nums),
            write_queues=_first(write_queues, queues, before.write_queue_nums),
            perm=_PERM[permission] if permission else before.perm,
            order=before.order if order is None else order,
        )  # fmt: skip
    return await _configs(cluster, name, broker)


@topic.command("permissions", "topic permissions orders R --yes", does="updated")
async def set_permissions(
    cluster: Connected,
    name: Name,
    permission: Annotated[Permissions, Argument(help="What clients may do from now on.")],
    broker: Brokers = None,
    yes: Yes = False,
) -> list[TopicConfigRow]:
    """Set what clients may do with a topic: read and write, one of them, or nothing."""
    if permission != "RW":
        warning = f"Clients of topic {name} that need more than {permission!r} will fail."
        confirm(warning, yes, lasting=False)
    return await update(cluster, name, permission=permission, broker=broker)


@topic.command("config", "topic config orders")
async def config(cluster: Connected, name: Name, broker: Brokers = None) -> Result[TopicConfigRow]:
    """Show the configuration of a topic on each master."""
    unread: list[Unread] = []
    return Result(await _configs(cluster, name, broker, unread), problem=missing(unread))


@topic.command("delete", "topic delete orders --yes", does="deleted")
async def delete(
    cluster: Connected, name: Name, cluster_name: ClusterName = "", yes: Yes = False
) -> TopicDeleted:
    """Delete a topic with its messages, on all brokers and name servers."""
    rows = route_rows(await cluster.admin.topic_route(name))
    if cluster_name:
        await cluster.admin.find_brokers(cluster=cluster_name)
        rows = [row for row in rows if row.cluster == cluster_name]
        if not rows:
            raise NotFound("topic", name, f"no broker of cluster {cluster_name!r} has it")
    names = [row.broker for row in rows]
    count = await _stored(cluster, name, names)
    stored = plural(count, "message")
    confirm(f"Delete topic {name} with {stored} on {', '.join(names)}?", yes)
    await cluster.admin.delete_topic(name, cluster_name)
    return TopicDeleted(name, names)


async def _stored(cluster: Connected, name: str, brokers: list[str]) -> int:
    """Return the number of messages of a topic on some brokers.

    Raises the error of one of them that does not answer.
    """
    unread: list[Unread] = []
    stats = await cluster.admin.topic_stats(name, unread=unread)
    for each in unread:
        if each.broker.name in brokers:
            raise fresh_copy(each.error)
    return sum(
        each.max_offset - each.min_offset
        for queue, each in stats.items()
        if queue.broker_name in brokers
    )


@topic.command("route", "topic route orders -o wide")
async def route(cluster: Connected, name: Name) -> list[RouteRow]:
    """Show the brokers of a topic, as clients learn them from a name server."""
    return route_rows(await cluster.admin.topic_route(name))


@topic.command("groups", "topic groups orders")
async def groups(cluster: Connected, name: Name) -> Result[GroupName]:
    """List the groups that read a topic, or did."""
    found = await cluster.admin.groups_of(name)
    return Result([GroupName(name, each) for each in found])


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group that reads a topic."""

    topic: str
    group: str


@topic.command("stats", "topic stats orders")
async def stats(cluster: Connected, name: Name) -> list[TrafficRow]:
    """Show what was put into a topic, and what each of its groups got."""
    found = await cluster.servers.topic_traffic(name)
    rows = [
        traffic_row(name, "put", found.put),
        traffic_row(name, "put_bytes", found.put_bytes),
    ]
    for group, each in found.groups.items():
        rows += [
            traffic_row(group, "got", each.got),
            traffic_row(group, "got_bytes", each.got_bytes),
            traffic_row(group, "sent_back", each.sent_back),
        ]
    return rows


@topic.command("order", "topic order orders broker-a=4 broker-b=4", does="set")
async def order(
    cluster: Connected,
    name: Name,
    counts: Annotated[list[str], Argument("BROKER=N", "Number of queues on a broker.")],
) -> Result[AppliedRow]:
    """Set the queues of an ordered topic on all name servers.

    Producers use them where name servers have orderMessageEnable.
    """
    await cluster.admin.topic_route(name)
    queues = {}
    for broker, count in parse_settings(counts).items():
        if not count.isdecimal():
            raise SettingsError(broker, f"{count!r} is not a number of queues")
        queues[broker] = int(count)
    return applied(await cluster.servers.set_order(name, queues))


async def _configs(
    cluster: Connected,
    name: str,
    brokers: list[str] | None,
    unread: list[Unread] | None = None,
) -> list[TopicConfigRow]:
    """Return a row for each master that has the topic. Raises as :func:`_found`."""
    found = await _found(cluster, name, brokers, unread)
    return [
        TopicConfigRow(
            name, each.name, config.read_queue_nums, config.write_queue_nums,
            permissions(config.perm), config.order, config.topic_filter_type,
            config.topic_sys_flag,
        )
        for each, config in found.items()
    ]  # fmt: skip


async def _found(
    cluster: Connected,
    name: str,
    brokers: list[str] | None,
    unread: list[Unread] | None = None,
) -> dict[Broker, TopicConfig]:
    """Return the configuration of a topic on each master that has it, or on those in ``brokers``.

    Raises NotFound for a broker that does not exist, and CometError if none has the topic.
    """
    admin = cluster.admin
    wanted = {
        each: None
        for broker in brokers or [""]
        for each in await admin.find_brokers(broker, masters_only=True)
    }
    answers = await admin.ask_together(
        list(wanted), lambda each: admin.topic_config(each.address, name), unread
    )
    found = {each: config for each, config in answers.items() if config is not None}
    if not found and not unread:
        where = f"broker {', '.join(brokers)}" if brokers else "any broker"
        raise CometError(f"there is no topic {name!r} on {where}: see cometmq topic list --all")
    return found


def _first(*found: int | None) -> int:
    return next(each for each in found if each is not None)
