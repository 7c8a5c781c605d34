"""``cometmq broker``: running brokers, their state, settings and roles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar

from cometmq.cli.command import Noun, Yes, confirm
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option, nearest
from cometmq.cli.render import Address, Result
from cometmq.core.errors import BrokerRefused, CometError, fresh_copy

if TYPE_CHECKING:
    from cometmq.admin.api import Admin, Broker, Unread
    from cometmq.admin.failover import PromotionOutcome, Told
    from cometmq.admin.servers import Applied, ServerSettings, Traffic
    from cometmq.protocol.bodies import Finding

broker = Noun("broker", "Running brokers: their state, settings and roles.")

BrokerName = Annotated[
    str, Argument("BROKER", "Name of the broker, or HOST:PORT of one of its processes.")
]
ClusterName = Annotated[str, Option("--cluster", help="Only in this cluster.")]


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker process; id 0 is the master. Rates are messages per second, over ten seconds."""

    cluster: str
    broker: str
    id: int
    address: Address | None
    version: str | None
    put_per_s: float | None
    get_per_s: float | None
    problem: str | None

    WIDE: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One value of a server, by name."""

    server: Address | None
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Something that speaks for or against a promotion."""

    weight: str
    text: str


@dataclass(frozen=True, slots=True)
class Promoted:
    """Result of a promotion, or of checking whether it is possible."""

    address: Address | None
    name: str
    role: str
    begins: bool
    duration_ms: int
    findings: list[FindingRow]


@dataclass(frozen=True, slots=True)
class DrainRow:
    """Number of topics whose permissions one name server changed."""

    broker: str
    name_server: Address | None
    topics: int
    problem: str | None


class MasterRole(StrEnum):
    """Role that a slave can be promoted to."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"


Role = Annotated[
    MasterRole, Option("--role", help="Its role as a master: when it acknowledges a send.")
]


@broker.command("list", "broker list", "broker list -o json")
async def list_(cluster: Connected, cluster_name: ClusterName = "") -> Result[BrokerRow]:
    """List the brokers, with their versions and rates.

    The exit code is 1 if one of them does not answer.
    """
    admin = cluster.admin
    found = await admin.brokers(cluster_name)
    asked = await admin.ask_together(found, lambda each: _row(admin, each))
    rows = list(asked.values())
    if not rows:
        where = f"cluster {cluster_name!r}" if cluster_name else "any cluster"
        raise CometError(f"the name server knows no broker of {where}")
    silent = [str(row.address) for row in rows if row.problem]
    return Result(rows, problem=f"no answer from {', '.join(silent)}" if silent else "")


async def _row(admin: Admin, each: Broker) -> BrokerRow:
    address = Address.parse(each.address)
    try:
        runtime = await admin.broker_runtime(each.address)
    except CometError as error:
        return BrokerRow(
            each.cluster, each.name, each.broker_id, address, None, None, None, str(error)
        )
    return BrokerRow(
        each.cluster, each.name, each.broker_id, address,
        runtime.get("brokerVersionDesc"), _first_rate(runtime.get("putTps", "")),
        # RocketMQ 5 spells "transferred" with two r.
        _first_rate(runtime.get("getTransferedTps", runtime.get("getTransferredTps", ""))), None,
    )  # fmt: skip


def _first_rate(text: str) -> float | None:
    """Return the first of three rates ("10s 60s 600s"); None if there is none."""
    try:
        return round(float(text.split()[0]), 2)
    except (IndexError, ValueError):
        return None


async def _processes(cluster: Connected, name: str) -> list[Broker]:
    """Return the processes of a broker; HOST:PORT is one process, and is not looked up.

    Raises CometError if no name server knows the broker.
    """
    from cometmq.admin.api import Broker

    if Address.parse(name) is not None:
        return [Broker("", name, 0, name)]
    brokers = await cluster.admin.brokers()
    found = [each for each in brokers if each.name == name]
    if not found:
        known = sorted({each.name for each in brokers})
        raise CometError(
            f"there is no broker {name!r}{nearest(name, known)}; brokers: {', '.join(known) or '-'}"
        )
    return found


@broker.command("show", "broker show broker-a")
async def show(cluster: Connected, name: BrokerName) -> Result[KeyValue]:
    """Show what the processes of a broker report: version, rates, offsets, disk."""
    admin = cluster.admin
    unread: list[Unread] = []
    found = await admin.ask_together(
        await _processes(cluster, name), lambda each: admin.broker_runtime(each.address), unread
    )
    if unread and not found:
        raise fresh_copy(unread[0].error)
    rows = [
        KeyValue(Address.parse(each.address), key, value)
        for each, table in found.items()
        for key, value in sorted(table.items())
    ]
    return Result(rows, problem=missing(unread))


@broker.command(
    "config get", "broker config get broker-a", "broker config get broker-a flushDiskType"
)
async def config_get(
    cluster: Connected,
    name: BrokerName,
    keys: Annotated[list[str] | None, Argument("KEY", "Only these settings.")] = None,
) -> Result[KeyValue]:
    """Show settings of the processes of a broker, without secrets."""
    return settings_rows(await cluster.servers.broker_settings(name), keys)


def settings_rows(found: list[ServerSettings], keys: list[str] | None) -> Result[KeyValue]:
    """Return a row for each setting of each server, or only for ``keys``; secrets are removed.

    Raises CometError if no server showed its settings, or if a server that did lacks a key.
    """
    from cometmq.admin.views import without_secrets

    rows: list[KeyValue] = []
    failed: list[str] = []
    for each in found:
        if each.error is not None:
            failed.append(f"{each.server} at {each.address}: {_reason(each.error)}")
            continue
        server = Address.parse(each.address)
        for key in keys or ():
            if key not in each.values:
                raise CometError(f"{server} has no setting {key!r}{nearest(key, each.values)}")
        rows += [
            KeyValue(server, key, value)
            for key, value in without_secrets(each.values).items()
            if not keys or key in keys
        ]
    errors = [each.error for each in found if each.error is not None]
    if errors and len(errors) == len(found):
        raise fresh_copy(errors[0])
    return Result(rows, problem=f"without what these have: {'; '.join(failed)}" if failed else "")


@dataclass(frozen=True, slots=True)
class AppliedRow:
    """Outcome of a change on one server; ``problem`` is null if the server made it."""

    server: str
    address: Address | None
    problem: str | None


def applied(outcomes: list[Applied]) -> Result[AppliedRow]:
    """Return a row for each server of a change; the command fails if one did not make it."""
    rows = [
        AppliedRow(each.server, Address.parse(each.address), _reason(each.error))
        for each in outcomes
    ]
    failed: dict[str, list[str]] = {}
    for row in rows:
        if row.problem:
            failed.setdefault(row.problem, []).append(row.server or str(row.address))
    reasons = "; ".join(f"{', '.join(servers)}: {each}" for each, servers in failed.items())
    return Result(rows, problem=f"not changed on {reasons}" if reasons else "")


def _reason(error: CometError | None) -> str | None:
    """Return the reason of a failed request: the server's own sentence, if it sent one."""
    if isinstance(error, BrokerRefused) and error.broker_remark:
        return error.broker_remark
    return str(error) if error else None


def missing(unread: list[Unread]) -> str:
    """Return the problem text of a command to which brokers did not answer; "" if all did."""
    reasons = "; ".join(
        f"{each.broker.name} at {each.broker.address}: {_reason(each.error)}" for each in unread
    )
    return f"without what these brokers have: {reasons}" if reasons else ""


@broker.command("config set", "broker config set broker-a fileReservedTime=48", does="updated")
async def config_set(
    cluster: Connected,
    name: BrokerName,
    pairs: Annotated[list[str], Argument("KEY=VALUE", "Settings to change.")],
) -> Result[AppliedRow]:
    """Change settings of the running processes of a broker; they keep them after restarts."""
    from cometmq.cli.configuration import parse_settings

    return applied(await cluster.servers.update_brokers(parse_settings(pairs), name))


BrokerOption = Annotated[str, Option("--broker", help="Only this broker, by name or HOST:PORT.")]


@broker.command("clean", "broker clean --broker broker-a --yes", does="cleaned")
async def clean(
    cluster: Connected,
    broker_name: BrokerOption = "",
    cluster_name: ClusterName = "",
    log: Annotated[bool, Option(help="Delete expired files of the log too.")] = False,
    topics: Annotated[bool, Option(help="Delete queues of topics that are gone too.")] = False,
    yes: Yes = False,
) -> Result[AppliedRow]:
    """Delete files of consume queues whose messages are gone, and expired files of the log."""
    what = "expired queue files" + (", expired log files" if log else "")
    what += ", queues of topics that are gone" if topics else ""
    confirm(f"Delete {what} of {broker_name or cluster_name or 'all brokers'}?", yes)
    outcomes = await cluster.servers.delete_expired_queues(broker_name, cluster_name)
    if log:
        outcomes += await cluster.servers.delete_expired_log(broker_name, cluster_name)
    if topics:
        outcomes += await cluster.servers.delete_unused_topics(broker_name, cluster_name)
    return applied(outcomes)


@dataclass(frozen=True, slots=True)
class ConsumptionRow:
    """Progress of one group in one topic on a broker."""

    group: str
    topic: str
    queues: int
    lag: int
    consumed_per_s: float


@broker.command("consumption", "broker consumption broker-a")
async def consumption(
    cluster: Connected,
    name: BrokerName,
    ordered: Annotated[bool, Option(help="Only topics that are marked as ordered.")] = False,
) -> list[ConsumptionRow]:
    """Show the progress of every group on a broker."""
    from cometmq.client.routes import by_queue

    rows = []
    for each in await cluster.servers.consumption(name, ordered=ordered):
        offsets = by_queue(each.stats.offset_table)
        for topic in sorted({queue.topic for queue in offsets}):
            found = [at for queue, at in offsets.items() if queue.topic == topic]
            lag = sum(max(0, at.broker_offset - at.consumer_offset) for at in found)
            rows.append(ConsumptionRow(each.group, topic, len(found), lag, each.stats.consume_tps))
    return rows


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """One statistic over the last minute, hour and day: its sum, and the average per second.

    ``of`` is a broker or a group. Brokers take samples, so a window may lack the latest ones.
    """

    of: str
    figure: str
    minute: int
    minute_per_s: float
    hour: int
    hour_per_s: float
    day: int
    day_per_s: float


def traffic_row(of: str, figure: str, found: Traffic) -> TrafficRow:
    """Return the row of one statistic; for ``of`` and ``figure`` see TrafficRow."""
    return TrafficRow(
        of, figure, found.minute.sum, found.minute.per_second, found.hour.sum,
        found.hour.per_second, found.day.sum, found.day.per_second,
    )  # fmt: skip


@broker.command("stats", "broker stats", "broker stats --broker broker-a --watch 10")
async def stats(
    cluster: Connected, broker_name: BrokerOption = "", cluster_name: ClusterName = ""
) -> Result[TrafficRow]:
    """Show the messages that were put on brokers and got from them."""
    rows: list[TrafficRow] = []
    unread: list[Unread] = []
    for each in await cluster.servers.broker_traffic(broker_name, cluster_name, unread=unread):
        of = f"{each.server} {each.address}"
        rows += [traffic_row(of, "put", each.put), traffic_row(of, "got", each.got)]
    return Result(rows, problem=missing(unread))


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """One connected producer."""

    group: str
    client_id: str
    address: Address | None
    language: str
    version: str


@broker.command("producers", "broker producers", "broker producers --broker broker-a")
async def producers(cluster: Connected, broker_name: BrokerOption = "") -> Result[ProducerRow]:
    """List the connected producers by group."""
    from cometmq.protocol.codes import version_name

    unread: list[Unread] = []
    found = await cluster.groups.all_producers(broker_name, unread=unread)
    rows = [
        ProducerRow(
            group, each.client_id, Address.parse(each.remote_ip), each.language,
            version_name(each.version),
        )
        for group, infos in found.items()
        for each in infos
    ]  # fmt: skip
    return Result(rows, problem=missing(unread))


@broker.command("promote", "broker promote 10.0.0.2:10911 --check", "broker promote 10.0.0.2:10911")
async def promote(
    cluster: Connected,
    address: Annotated[str, Argument("HOST:PORT", "The running slave.")],
    role: Role = MasterRole.ASYNC_MASTER,
    force: Annotated[bool, Option(help="Promote it although a finding refuses that.")] = False,
    check: Annotated[bool, Option(help="Only print the findings; promote nothing.")] = False,
    yes: Yes = False,
) -> Result[Promoted]:
    """Make a running slave the master of its name; --force asks first."""
    from cometmq.admin.failover import promote as carry_out
    from cometmq.protocol.bodies import Promote

    remoting, clock = cluster.session.remoting, cluster.session.clock
    if force and not check:
        looked = await carry_out(remoting, clock, address, Promote(role.value, check=True))
        refusals = [each.text for each in looked.promotion.findings if each.refuses]
        if refusals:
            confirm(f"Promote {address} despite its refusals ({'; '.join(refusals)})?", yes)
        force = bool(refusals)  # the user agreed to override only these
    wanted = Promote(role.value, force, check)
    outcome = await carry_out(remoting, clock, address, wanted)
    found = outcome.promotion
    row = Promoted(
        Address.parse(address), found.broker_name, role.value, found.begins, outcome.duration_ms,
        [FindingRow(each.weight, each.text) for each in found.findings],
    )  # fmt: skip
    lines = [finding_line(each) for each in found.findings]
    problem = ""
    if found.begins:
        lines += _promoted_lines(address, role.value, outcome)
    elif any(each.refuses for each in found.findings):
        problem = f"{address} was not promoted: see the refusals above; --force overrides them"
    return Result([row], shown="\n".join(lines), problem=problem)


def finding_line(finding: Finding) -> str:
    """Return a finding as a line."""
    return f"{finding.weight:<8} {finding.text}"


def _promoted_lines(address: str, role: str, outcome: PromotionOutcome) -> list[str]:
    return [
        f"promoted {address} name={outcome.promotion.broker_name} role={role} "
        f"duration_ms={outcome.duration_ms}",
        f"It stays {role} after restarts. Set brokerRole={role} and brokerId=0 in its settings "
        "at the next opportunity.",
    ]


Name = Annotated[str, Argument("NAME", "The broker's name.")]


@broker.command("drain", "broker drain broker-a", does="drained")
async def drain(cluster: Connected, name: Name) -> Result[DrainRow]:
    """Make producers stop using a broker; consumers still read its messages."""
    from cometmq.admin import failover

    return _drained(name, await failover.drain(cluster.session, name))


@broker.command("undrain", "broker undrain broker-a", does="undrained")
async def undrain(cluster: Connected, name: Name) -> Result[DrainRow]:
    """Make producers use a drained broker again."""
    from cometmq.admin import failover

    return _drained(name, await failover.undrain(cluster.session, name))


def _drained(name: str, told: list[Told]) -> Result[DrainRow]:
    rows = [
        DrainRow(name, Address.parse(each.name_server), each.topics, each.problem or None)
        for each in told
    ]
    missed = [f"{each.name_server} ({each.problem})" for each in told if each.problem]
    problem = f"not reached, run the command again: {', '.join(missed)}" if missed else ""
    if not missed and not any(each.topics for each in told):
        raise CometError(f"no name server has a topic of broker {name}")
    return Result(rows, problem=problem)
