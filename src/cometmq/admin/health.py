"""Health of a cluster: name servers, brokers, slaves, write permission, disks and lag.

:func:`check_health` asks all servers once and returns every check with its reason. A check that
fails names the server and the figure, so that an operator needs no second command.
:func:`wait_until_healthy` repeats that until all checks pass, for deployments and tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.admin.api import Broker
from cometmq.admin.groups import Groups
from cometmq.admin.views import moment
from cometmq.core.errors import ClientError, CometError
from cometmq.core.plural import plural
from cometmq.message.names import SELF_TEST_TOPIC
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import ClusterInfo, TopicRoute, writable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.admin.api import Admin

_STEP_MS: Final = 500
#: A server that takes longer is not healthy.
_TIMEOUT_MS: Final = 3_000


class Aspect(Enum):
    """Subject of a check."""

    NAME_SERVER = "name-server"
    REGISTRATION = "registration"
    BROKER = "broker"
    WRITES = "writes"
    SLAVE = "slave"
    DISK = "disk"
    DISPATCH = "dispatch"
    LAG = "lag"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check. ``subject`` is an address, a name or a group; ``text`` is the reason."""

    aspect: Aspect
    subject: str
    is_ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """Limits of a healthy cluster.

    ``brokers`` are names of brokers that must be registered. So must the brokers in ``seen``, which
    were registered before: it has the time of each name in milliseconds since the epoch.
    ``brokers_min`` is the least number of broker names. ``slaves`` is the number of slaves that
    each master needs. ``disk_ratio`` is the largest used part of a disk, from 0 to 1. ``lag`` is
    the largest lag by group.
    """

    brokers: frozenset[str] = frozenset()
    slaves: int = 0
    slave_behind_bytes: int = 1 << 20
    dispatch_behind_bytes: int = 16 << 20
    disk_ratio: float = 0.85
    lag: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, int] = field(default_factory=dict)
    brokers_min: int = 0


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All checks of one round, those of name servers first.

    ``brokers`` are the names of the registered brokers. ``seen`` has these names and those of
    brokers that were registered before, each with the last time in ms since the epoch.
    """

    checks: tuple[Check, ...]
    brokers: frozenset[str] = frozenset()
    seen: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """True if every check passed."""
        return all(check.is_ok for check in self.checks)

    @property
    def problems(self) -> list[Check]:
        """Checks that failed."""
        return [check for check in self.checks if not check.is_ok]


class NotHealthy(CometError):
    """A cluster was not healthy before the deadline; ``report`` is that of the last round."""

    def __init__(self, report: HealthReport, timeout_ms: int) -> None:
        self.report = report
        reasons = "; ".join(f"{each.subject}: {each.text}" for each in report.problems)
        super().__init__(f"not healthy within {timeout_ms} ms: {reasons}")


async def check_health(admin: Admin, limits: HealthLimits | None = None) -> HealthReport:
    """Ask all servers and return the checks. A server that does not answer is a failed check."""
    limits = limits or HealthLimits()
    name_servers = admin.session.config.name_servers
    views = await asyncio.gather(*(_cluster(admin, address) for address in name_servers))
    checks: list[Check] = []
    known: dict[str, Broker] = {}
    for address, view in zip(name_servers, views, strict=True):
        if isinstance(view, CometError):
            checks.append(Check(Aspect.NAME_SERVER, address, False, str(view)))
            continue
        brokers = _brokers(view)
        checks.append(
            Check(Aspect.NAME_SERVER, address, True, f"answers, {plural(len(brokers), 'broker')}")
        )
        known.update((each.address, each) for each in brokers)
    for address, view in zip(name_servers, views, strict=True):
        if not isinstance(view, CometError):
            listed = _brokers(view)
            checks += _registrations(address, {each.address for each in listed}, known)
            masters = {each.name for each in listed if each.broker_id == 0}
            checks += await _writes(admin, address, masters) if masters else ()
    checks += _masters(known, limits)
    checks += await _broker_checks(admin, list(known.values()), limits)
    checks += await asyncio.gather(*(_lag(admin, *each) for each in limits.lag.items()))
    names = frozenset(each.name for each in known.values())
    seen = {**limits.seen, **dict.fromkeys(names, admin.session.clock.wall_ms())}
    return HealthReport(tuple(checks), names, seen)


async def wait_until_healthy(
    admin: Admin, limits: HealthLimits | None = None, *, timeout_ms: int, step_ms: int = _STEP_MS
) -> HealthReport:
    """Check until everything passes and return that report. Raises NotHealthy after the timeout.

    A broker that is registered in one round must be registered in the later ones.
    """
    clock = admin.session.clock
    deadline_ms = clock.monotonic_ms() + timeout_ms
    limits = limits or HealthLimits()
    while True:
        report = await check_health(admin, limits)
        limits = replace(limits, seen=report.seen)
        if report.is_healthy:
            return report
        if clock.monotonic_ms() + step_ms > deadline_ms:
            raise NotHealthy(report, timeout_ms)
        await clock.sleep_ms(step_ms)


# -------------------------------------------------------------------------------- name servers


async def _cluster(admin: Admin, address: str) -> ClusterInfo | CometError:
    try:
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        response = await admin.call(address, code, None, timeout_ms=_TIMEOUT_MS)
        return parse_json(response.body, ClusterInfo)
    except CometError as error:
        return error


def _brokers(info: ClusterInfo) -> list[Broker]:
    return sorted(
        (
            Broker(each.cluster, each.broker_name, int(broker_id), address)
            for each in info.broker_addr_table.values()
            for broker_id, address in each.broker_addrs.items()
        ),
        key=lambda broker: (broker.cluster, broker.name, broker.broker_id),
    )


def _registrations(name_server: str, listed: set[str], known: Mapping[str, Broker]) -> list[Check]:
    """Return a failed check for each broker that only another name server lists."""
    return [
        Check(
            Aspect.REGISTRATION,
            name_server,
            False,
            f"it does not list {broker.name} at {address}, which another name server does",
        )
        for address, broker in known.items()
        if address not in listed
    ]


async def _writes(admin: Admin, name_server: str, masters: set[str]) -> list[Check]:
    """Check that the routes of a name server allow writes to each broker.

    One topic that every broker has is enough: draining a broker changes all its topics.
    """
    try:
        code, header = RequestCode.GET_ROUTEINFO_BY_TOPIC, h.Topic(SELF_TEST_TOPIC)
        response = await admin.call(name_server, code, header, timeout_ms=_TIMEOUT_MS)
        route = parse_json(response.body, TopicRoute)
    except CometError as error:
        return [Check(Aspect.WRITES, name_server, False, str(error))]
    return [
        Check(
            Aspect.WRITES,
            data.broker_name,
            writable(data.perm),
            f"{'writable' if writable(data.perm) else 'drained: not writable'} at {name_server}",
        )
        for data in route.queue_datas
        if data.broker_name in masters
    ]


def _masters(known: Mapping[str, Broker], limits: HealthLimits) -> list[Check]:
    """Check that there are enough broker names, and that each has a master and enough slaves."""
    ids: dict[str, list[int]] = {name: [] for name in (*limits.brokers, *limits.seen)}
    for each in known.values():
        ids.setdefault(each.name, []).append(each.broker_id)
    if not ids:
        return [Check(Aspect.REGISTRATION, "cluster", False, "no broker is registered")]
    checks: list[Check] = []
    if limits.brokers_min:
        count = sum(map(bool, ids.values()))
        text = f"{plural(count, 'broker')} registered, {limits.brokers_min} needed"
        is_ok = count >= limits.brokers_min
        checks.append(Check(Aspect.REGISTRATION, "cluster", is_ok, text))
    for name, found in sorted(ids.items()):
        slaves = sum(each != 0 for each in found)
        if not found:
            before = limits.seen.get(name)
            since = f", and was at {_time(before)}" if before else ""
            text = f"it is not registered{since}: is it stopped?"
            checks.append(Check(Aspect.REGISTRATION, name, False, text))
        elif 0 not in found:
            checks.append(Check(Aspect.REGISTRATION, name, False, "it has no master"))
        else:
            needed = f", {limits.slaves} needed" if limits.slaves else ""
            text = f"master and {plural(slaves, 'slave')} registered{needed}"
            checks.append(Check(Aspect.REGISTRATION, name, slaves >= limits.slaves, text))
    return checks


# ------------------------------------------------------------------------------------- brokers


async def _broker_checks(admin: Admin, brokers: list[Broker], limits: HealthLimits) -> list[Check]:
    """Check all brokers, the masters first, so that a slave is compared with an earlier log end."""
    checks: list[Check] = []
    ends: dict[str, int] = {}
    now_ms = admin.session.clock.wall_ms()
    for is_master in (True, False):
        part = [each for each in brokers if (each.broker_id == 0) is is_master]
        tables = await asyncio.gather(*(_runtime(admin, each.address) for each in part))
        for broker, table in zip(part, tables, strict=True):
            if isinstance(table, CometError):
                checks.append(Check(Aspect.BROKER, broker.address, False, str(table)))
                continue
            version = table.get("brokerVersionDesc", "")
            checks.append(Check(Aspect.BROKER, broker.address, True, f"answers, {version}"))
            checks += store_checks(broker, table, limits, now_ms)
            end = _number(table, "commitLogMaxOffset")
            if is_master:
                ends[broker.name] = end
                continue
            # A Java slave does not report whether it is connected.
            if table.get("masterConnected") == "false":
                reason = table.get("replicationProblem") or "see its log"
                text = f"it is not connected to its master: {reason}"
                checks.append(Check(Aspect.SLAVE, broker.address, False, text))
            if broker.name in ends:
                behind = max(0, ends[broker.name] - end)
                in_step = behind <= limits.slave_behind_bytes
                text = f"{plural(behind, 'byte')} behind its master"
                checks.append(Check(Aspect.SLAVE, broker.address, in_step, text))
    return checks


def store_checks(
    broker: Broker, table: Mapping[str, str], limits: HealthLimits, now_ms: int
) -> list[Check]:
    """Return the checks of one broker's runtime information. Figures that it lacks are skipped."""
    checks: list[Check] = []
    for key, name in (("commitLogDiskRatio", "log"), ("consumeQueueDiskRatio", "queues")):
        ratio = _ratio(table, key)
        if ratio is not None:
            text = f"disk of the {name} is {ratio:.0%} full, the limit is {limits.disk_ratio:.0%}"
            checks.append(Check(Aspect.DISK, broker.address, ratio <= limits.disk_ratio, text))
    behind = _number(table, "dispatchBehindBytes")
    if behind >= 0:
        text = plural(behind, "byte is", "bytes are") + " not in the queues yet"
        is_ok = behind <= limits.dispatch_behind_bytes
        checks.append(Check(Aspect.DISPATCH, broker.address, is_ok, text))
    if table.get("brokerRole") == "SYNC_MASTER" and (needed := _number(table, "slavesNeeded")) > 0:
        connected = _number(table, "slaves")
        waits_for = plural(needed, "slave")
        text = f"its sends wait for {waits_for}, connected: {connected}"
        checks.append(Check(Aspect.SLAVE, broker.address, connected >= needed, text))
    accepts_ms = _number(table, "startAcceptSendRequestTimeStamp")
    if broker.broker_id == 0 and accepts_ms > now_ms:
        text = "it refuses sends: startAcceptSendRequestTimeStamp is in the future"
        checks.append(Check(Aspect.WRITES, broker.address, False, text))
    return checks


async def _runtime(admin: Admin, address: str) -> dict[str, str] | CometError:
    try:
        async with asyncio.timeout(_TIMEOUT_MS / 1000):
            return await admin.broker_runtime(address)
    except TimeoutError:
        return ClientError(f"no answer within {_TIMEOUT_MS} ms")
    except CometError as error:
        return error


async def _lag(admin: Admin, group: str, most: int) -> Check:
    try:
        lag = (await Groups(admin).progress(group)).lag
    except CometError as error:
        return Check(Aspect.LAG, group, False, str(error))
    if lag is None:
        return Check(Aspect.LAG, group, False, "it has not consumed yet")
    return Check(Aspect.LAG, group, lag <= most, f"lag is {lag:,}, the limit is {most:,}")


def _time(ms: int) -> str:
    return moment(ms).replace(" ", "T").replace("+00:00", "Z")


def _number(table: Mapping[str, str], key: str) -> int:
    """Return a whole number; -1 if the broker does not report it."""
    text = table.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _ratio(table: Mapping[str, str], key: str) -> float | None:
    """Return a ratio; None if the broker does not report it or could not measure it."""
    try:
        ratio = float(table.get(key, ""))
    except ValueError:
        return None
    return ratio if 0 <= ratio <= 1 else None
