"""``cometmq cluster``, ``namesrv`` and ``debug``: the cluster as a whole, and its name servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cometmq.cli.command import Noun, Yes, confirm
from cometmq.cli.commands.broker import (
    AppliedRow,
    KeyValue,
    applied,
    settings_rows,
)
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option
from cometmq.cli.render import Result
from cometmq.core.errors import NotFound, SettingsError

if TYPE_CHECKING:
    from cometmq.admin.health import HealthReport

cluster = Noun("cluster", "The cluster: its brokers, its health, a bundle for support.")
namesrv = Noun("namesrv", "Running name servers: their settings and key-value tables.")
debug = Noun("debug", "What to send to somebody who helps.")


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster: its brokers and topics."""

    cluster: str
    masters: int
    slaves: int
    topics: int


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check of the health of a cluster."""

    aspect: str
    subject: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class BundleRow:
    """A bundle that was written; ``gaps`` are the files that could not be collected."""

    path: str
    size_bytes: int
    files: int
    gaps: list[str]


@cluster.command("list", "cluster list")
async def list_(opened: Connected) -> list[ClusterRow]:
    """List the clusters that the name servers know."""
    brokers = await opened.admin.brokers()
    rows = []
    for name in sorted({each.cluster for each in brokers}):
        mine = [each for each in brokers if each.cluster == name]
        masters = sum(each.broker_id == 0 for each in mine)
        topics = await opened.servers.topics_of_cluster(name)
        rows.append(ClusterRow(name, masters, len(mine) - masters, len(topics)))
    return rows


@cluster.command(
    "health",
    "cluster health",
    "cluster health --broker broker-a --broker broker-b",
    "cluster health --brokers 3 --exit-when-healthy",
    "cluster health --forget broker-b",
    "cluster health --exit-when-healthy --timeout 60",
    "cluster health --slaves 1 --lag billing=1000",
)
async def health(
    opened: Connected,
    wait: Annotated[
        bool, Option("--exit-when-healthy", help="Check until everything is in order.")
    ] = False,
    timeout: Annotated[float, Option(min=0, help="Seconds to wait for that.")] = 300,
    brokers: Annotated[
        list[str] | None,
        Option("--broker", help="Broker that has to be registered; a stopped one is not."),
    ] = None,
    least: Annotated[
        int, Option("--brokers", min=0, help="Least number of brokers, without their slaves.")
    ] = 0,
    forget: Annotated[
        list[str] | None, Option(metavar="NAME", help="Do not miss this broker any more.")
    ] = None,
    memory: Annotated[
        bool,
        Option("--memory/--no-memory", help="Miss the brokers that were seen before, or not."),
    ] = True,
    slaves: Annotated[int, Option(min=0, help="Slaves that each master needs.")] = 0,
    lag: Annotated[
        list[str] | None, Option(metavar="GROUP=N", help="Largest lag of a group.")
    ] = None,
    disk: Annotated[
        float, Option(min=0, max=1, help="Largest part of a disk that may be in use.")
    ] = 0.85,
) -> Result[CheckRow]:
    """Check name servers, brokers, slaves, write permissions, disks and lag.

    The exit code is 1 if something is not in order. A broker that stops is no longer registered.
    It is missed if --broker names it, if there are less than --brokers, or if an earlier
    cluster health of the last 30 days has seen it; --forget ends that.
    """
    from cometmq.admin.health import HealthLimits, NotHealthy, check_health, wait_until_healthy
    from cometmq.cli import seenbrokers

    name_servers = opened.session.config.name_servers
    now_ms = opened.session.clock.wall_ms()
    seen = seenbrokers.load(name_servers, now_ms) if memory else {}
    unknown = sorted(set(forget or ()) - set(seen))
    if unknown:
        raise NotFound("broker", unknown[0], "it was not seen before; there is nothing to forget")
    seen = {name: at for name, at in seen.items() if name not in (forget or ())}
    limits = HealthLimits(
        frozenset(brokers or ()),
        slaves,
        disk_ratio=disk,
        lag=_lags(lag or []),
        seen=seen,
        brokers_min=least,
    )
    try:
        if wait:
            report = await wait_until_healthy(opened.admin, limits, timeout_ms=int(timeout * 1000))
        else:
            report = await check_health(opened.admin, limits)
    except NotHealthy as error:
        report = error.report
    if not memory:
        return _checks(report, set())
    seenbrokers.save(name_servers, report.seen)
    return _checks(report, set(report.seen) - report.brokers)


def _checks(report: HealthReport, missing: set[str]) -> Result[CheckRow]:
    rows = [
        CheckRow(each.aspect.value, each.subject, each.is_ok, each.text) for each in report.checks
    ]
    reasons = "; ".join(f"{each.subject}: {each.text}" for each in report.problems)
    if missing:
        names = " ".join(f"--forget {name}" for name in sorted(missing))
        reasons += f" (if gone for good: cometmq cluster health {names})"
    return Result(rows, problem=f"not healthy: {reasons}" if reasons else "")


def _lags(words: list[str]) -> dict[str, int]:
    found = {}
    for word in words:
        group, _, most = word.rpartition("=")
        if not group or not most.isdecimal():
            raise SettingsError("--lag", f"{word!r} is not of the form GROUP=N")
        found[group] = int(most)
    return found


@debug.command("bundle", "debug bundle cluster.tar.gz", does="wrote")
async def bundle(
    opened: Connected,
    path: Annotated[Path, Argument("FILE", "The file to create, a .tar.gz.")],
) -> BundleRow:
    """Write the state of the cluster into one file, without messages, accounts and secrets."""
    from cometmq.admin.bundle import write_bundle

    made = await write_bundle(opened.admin, path)
    gaps = [f"{gap.what}: {gap.reason}" for gap in made.gaps]
    return BundleRow(str(made.path), made.size_bytes, len(made.files), gaps)


# ------------------------------------------------------------------------------- name servers

Namespace = Annotated[str, Argument("NAMESPACE")]
Key = Annotated[str, Argument("KEY")]
Keys = Annotated[list[str] | None, Argument("KEY", "Only these settings.")]


@namesrv.command("config get", "namesrv config get", "namesrv config get orderMessageEnable")
async def config_get(opened: Connected, keys: Keys = None) -> Result[KeyValue]:
    """Show settings of all name servers, without secrets."""
    return settings_rows(await opened.servers.name_server_settings(), keys)


@namesrv.command("config set", "namesrv config set orderMessageEnable=true", does="updated")
async def config_set(
    opened: Connected,
    pairs: Annotated[list[str], Argument("KEY=VALUE", "Settings to change.")],
) -> Result[AppliedRow]:
    """Change settings of all running name servers."""
    from cometmq.cli.configuration import parse_settings

    return applied(await opened.servers.update_name_servers(parse_settings(pairs)))


@namesrv.command("kv list", "namesrv kv list ORDER_TOPIC_CONFIG")
async def kv_list(opened: Connected, namespace: Namespace) -> list[KeyValue]:
    """Show a namespace of the key-value tables."""
    found = await opened.servers.kv_table(namespace)
    return [KeyValue(None, key, value) for key, value in found.items()]


@namesrv.command("kv get", "namesrv kv get ORDER_TOPIC_CONFIG orders")
async def kv_get(opened: Connected, namespace: Namespace, key: Key) -> KeyValue:
    """Show one value of a namespace."""
    return KeyValue(None, key, await opened.servers.kv_value(namespace, key))


@namesrv.command("kv put", "namesrv kv put ORDER_TOPIC_CONFIG orders broker-a:4", does="put")
async def kv_put(
    opened: Connected, namespace: Namespace, key: Key, value: Annotated[str, Argument("VALUE")]
) -> Result[AppliedRow]:
    """Set a value on all name servers."""
    return applied(await opened.servers.put_kv(namespace, key, value))


@namesrv.command("kv delete", "namesrv kv delete ORDER_TOPIC_CONFIG orders --yes", does="deleted")
async def kv_delete(
    opened: Connected, namespace: Namespace, key: Key, yes: Yes = False
) -> Result[AppliedRow]:
    """Delete a value on all name servers."""
    await opened.servers.kv_value(namespace, key)
    confirm(f"Delete key {key} of namespace {namespace} on all name servers?", yes)
    return applied(await opened.servers.delete_kv(namespace, key))
