"""Moves a broker's name from one running process to another, usually away from a Java broker.

plan      inspect the master over the wire: what is copied, what is not, the disk space needed
settings  make the settings of a matching CometMQ slave
status    report the progress of that slave
move      make the slave the master, in these steps:

fence     the old master refuses sends (startAcceptSendRequestTimeStamp)
drain     wait until its log no longer grows and the slave has all of it
retire    a Java master registers with another id, so that it does not take the name back
promote   the slave restarts as the master
address   optionally, the new master takes the address of the old one once that has stopped
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.admin.failover import TAKEOVER_WAIT_MS, look_at_address, promote
from cometmq.admin.failover import take_address as take_over
from cometmq.core.errors import CometError
from cometmq.protocol.bodies import (
    Finding,
    Promote,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.admin.api import Admin
    from cometmq.client.session import Session

#: Settings that are copied from the master to its CometMQ slave.
_CARRIED: Final = (
    "brokerClusterName", "brokerName", "namesrvAddr", "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue", "messageDelayLevel", "flushDiskType", "maxMessageSize",
    "fileReservedTime", "deleteWhen", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
    "defaultTopicQueueNums", "transactionTimeOut", "transactionCheckMax",
    "transactionCheckInterval",
)  # fmt: skip
#: Settings for features that CometMQ lacks, and the consequence of each.
_MISSING: Final[Mapping[str, tuple[str, str]]] = {
    "enableDLegerCommitLog": (
        "refused",
        "its log is in the format of DLedger, which CometMQ cannot copy",
    ),
    "duplicationEnable": ("refused", "its log is a duplicate without a replication port"),
    "aclEnable": (
        "warning",
        "accounts are not carried along: copy conf/plain_acl.yml and conf/acl, and set aclEnable "
        "and rocketmqHome; until then every client may send",
    ),
    "enableLmq": ("warning", "light message queues are kept in the log, but not served"),
    "enableMultiDispatch": ("warning", "messages are only in the queue of their own topic"),
    "enableConsumeQueueExt": ("ok", "its files are read and, with this setting, written"),
}
#: A time in ms since the epoch that is never reached: the year 5138.
_NEVER_MS: Final = 99_999_999_999_999
_RETIRED_ID: Final = "99"
#: A setting that only Java's brokers have.
_JAVA_SETTING: Final = "sendMessageThreadPoolNums"
_NEAR_BYTES: Final = 1 << 20
_STEP_MS: Final = 50
#: Number of consecutive steps in which both logs must end at the same offset.
_QUIET_STEPS: Final = 4
DRAIN_TIMEOUT_MS: Final = 20_000


class NotMoved(CometError):
    """A move failed; the message states where it stopped."""


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """State of a running master, and the consequences of moving it. Sizes in bytes."""

    address: str
    name: str
    cluster: str
    version: str
    role: str
    log_start: int
    log_end: int
    topics: int
    groups: int
    findings: tuple[Finding, ...]
    settings: dict[str, str]

    @property
    def is_refused(self) -> bool:
        """True if the master cannot be moved."""
        return any(finding.refuses for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of a slave.

    ``behind_bytes`` is the number of log bytes that it still lacks, -1 while its master does not
    respond. ``log_end`` is the end of its own log.
    """

    address: str
    role: str
    master: str
    connected: bool
    log_end: int
    behind_bytes: int
    undispatched_bytes: int
    tables_age_ms: int
    problem: str

    @property
    def is_near(self) -> bool:
        """True if the slave can catch up within a moment."""
        return (
            self.connected
            and 0 <= self.behind_bytes < _NEAR_BYTES
            and self.undispatched_bytes < _NEAR_BYTES
            and self.tables_age_ms >= 0
        )


@dataclass(frozen=True, slots=True)
class Move:
    """Result of a completed move.

    ``pause_ms`` is the time for which no broker accepted sends. ``late_bytes`` is the number of
    bytes by which the old master's log grew afterwards; no other broker has them. ``address_ms`` is
    the time from the start of the pause until the new master listened on the old address; -1 if
    that was not requested.
    """

    name: str
    old: str
    new: str
    pause_ms: int
    late_bytes: int
    address_ms: int = -1


async def plan(
    admin: Admin, session: Session, address: str, store: Path, port: int
) -> MigrationPlan:
    """Inspect the master at ``address`` for a slave that stores under ``store`` and uses ``port``.

    Raises NotConnected, RequestTimedOut and BrokerRefused.
    """
    config = await admin.broker_config(address)
    runtime = await admin.broker_runtime(address)
    call, timeout_ms = session.remoting.call, 10_000
    topics = parse_json(
        (await call(address, RequestCode.GET_ALL_TOPIC_CONFIG, None, timeout_ms=timeout_ms)).body,
        TopicConfigTable,
    )
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    groups = parse_json(
        (await call(address, code, None, timeout_ms=timeout_ms)).body, SubscriptionGroupTable
    )
    start, end = int(runtime["commitLogMinOffset"]), int(runtime["commitLogMaxOffset"])
    settings = settings_of_slave(config, store, port, await _free_id(admin, config))
    return MigrationPlan(
        address=address,
        name=config.get("brokerName", ""),
        cluster=config.get("brokerClusterName", ""),
        version=runtime.get("brokerVersionDesc", ""),
        role=config.get("brokerRole", ""),
        log_start=start,
        log_end=end,
        topics=len(topics.topic_config_table),
        groups=len(groups.subscription_group_table),
        findings=tuple(findings(config, end - start, free_bytes(store), store)),
        settings=settings,
    )


def findings(config: Mapping[str, str], log_bytes: int, free: int, store: Path) -> list[Finding]:
    """Return the consequences of moving a broker with these settings.

    ``log_bytes`` is the size of its log, and ``free`` the number of free bytes at ``store``.
    """
    role = config.get("brokerRole", "")
    found: list[Finding] = []
    if not role.endswith("MASTER"):
        found.append(
            Finding("refused", f"it is {role or 'not a broker'}: give the address of the master")
        )
    for key, (weight, text) in _MISSING.items():
        if config.get(key, "false").lower() == "true":
            found.append(Finding(weight, f"{key}=true: {text}"))
    if config.get("filterServerNums", "0") != "0":
        found.append(Finding("warning", "filterServerNums: CometMQ has no filter servers"))
    # Queues and index need about a fifth more; two log files are preallocated.
    need = log_bytes * 6 // 5 + 2 * int(config.get("mappedFileSizeCommitLog", 1 << 30))
    weight = "ok" if free > need else "refused"
    found.append(Finding(weight, f"{store} has {free:,} bytes free, the copy needs about {need:,}"))
    if not found or all(each.weight == "ok" for each in found):
        found.append(Finding("ok", "topics, groups, offsets and the whole log are copied"))
    return found


def settings_of_slave(
    config: Mapping[str, str], store: Path, port: int, broker_id: int
) -> dict[str, str]:
    """Return the settings of a CometMQ slave for a master with these settings."""
    carried = {key: config[key] for key in _CARRIED if config.get(key)}
    return carried | {
        "brokerRole": "SLAVE",
        "brokerId": str(broker_id),
        "listenPort": str(port),
        "storePathRootDir": str(store),
        "slaveReadEnable": "false",
    }


def free_bytes(path: Path) -> int:
    """Return the free bytes on the device of a directory, which need not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


async def _free_id(admin: Admin, config: Mapping[str, str]) -> int:
    known = (await admin.cluster_info()).broker_addr_table.get(config.get("brokerName", ""))
    taken = set() if known is None else set(known.broker_addrs)
    return next(number for number in range(1, 1 << 16) if str(number) not in taken)


async def _log_end(admin: Admin, address: str) -> int:
    return int((await admin.broker_runtime(address))["commitLogMaxOffset"])


async def status(admin: Admin, slave: str) -> Status:
    """Return the progress of a CometMQ slave.

    Raises as :func:`plan`, and NotMoved if the broker is not a CometMQ slave.
    """
    runtime = await admin.broker_runtime(slave)
    role = runtime.get("brokerRole", "")
    if "masterConnected" not in runtime:
        raise NotMoved(f"{slave} is {role or 'not a CometMQ broker'}, not a slave")
    master, end = runtime["masterAddress"], int(runtime["commitLogMaxOffset"])
    try:
        behind = await _log_end(admin, master) - end
    except (CometError, KeyError):
        behind = -1
    return Status(
        address=slave,
        role=role,
        master=master,
        connected=runtime["masterConnected"] == "true",
        log_end=end,
        behind_bytes=behind,
        undispatched_bytes=int(runtime["dispatchBehindBytes"]),
        tables_age_ms=int(runtime["tablesAgeMs"]),
        problem=runtime["replicationProblem"],
    )


class Mover:
    """Makes a CometMQ slave the master in place of its present master.

    ``say`` is called with a line for each step.
    """

    def __init__(
        self, admin: Admin, session: Session, slave: str, *, say: Callable[[str], None]
    ) -> None:
        self._admin = admin
        self._clock = session.clock
        self._remoting = session.remoting
        self._slave = slave
        self._say = say

    async def move(
        self,
        role: str = "ASYNC_MASTER",
        wait_ms: int = 600_000,
        *,
        take_address: bool = False,
        address_wait_ms: int = TAKEOVER_WAIT_MS,
        stop_old: Callable[[], None] = lambda: None,
    ) -> Move:
        """Carry out the whole move.

        ``wait_ms`` limits the time until the slave is near. With ``take_address``, ``stop_old`` is
        called to stop the old master once everything but its address is moved.

        Raises NotMoved; unless the slave was already promoted, the old master then accepts sends
        again. Raises NotTaken if everything but the address was moved.
        """
        seen = await self._until_near(wait_ms)
        if take_address:
            await self._check_address(seen.master)
        old = await self._admin.broker_config(seen.master)
        is_java = _JAVA_SETTING in old
        self._say(f"near: {seen.behind_bytes:,} bytes behind {seen.master}")
        begun_ms = self._clock.monotonic_ms()
        await self._fence(seen.master)
        try:
            end = await self._drain(seen.master)
            self._say(f"drained: both logs end at {end:,}")
            if is_java:
                # Setting the permission makes the broker register at once.
                retired = {"brokerId": _RETIRED_ID, "brokerPermission": old["brokerPermission"]}
                await self._admin.update_broker_config(seen.master, retired)
        except CometError:
            await self._unfence(seen.master, old, is_java)
            raise
        wanted = Promote(role, force=True)
        outcome = await promote(self._remoting, self._clock, self._slave, wanted)
        pause_ms = self._clock.monotonic_ms() - begun_ms
        self._say(f"promoted: {self._slave} is the master of {outcome.promotion.broker_name}")
        late_bytes = await self._late_bytes(seen.master, end)
        if take_address:
            stop_old()
            await take_over(
                self._remoting, self._clock, self._slave, seen.master,
                wait_ms=address_wait_ms, say=self._say,
            )  # fmt: skip
            self._say(f"address: {self._slave} also listens on {seen.master}")
        address_ms = self._clock.monotonic_ms() - begun_ms if take_address else -1
        name = outcome.promotion.broker_name
        return Move(name, seen.master, self._slave, pause_ms, late_bytes, address_ms)

    async def _check_address(self, master: str) -> None:
        found = await look_at_address(self._remoting, self._slave, master)
        if found.state == "not_here":
            raise NotMoved(
                f"{self._slave} cannot take over {master}, an address of another machine "
                f"({found.text}): nothing was changed; promote without the address, move it to the "
                "new machine, and run cometmq migrate take-address then"
            )

    async def _until_near(self, wait_ms: int) -> Status:
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            seen = await status(self._admin, self._slave)
            if seen.problem:
                raise NotMoved(f"{self._slave} does not copy: {seen.problem}")
            if seen.is_near:
                return seen
            if self._clock.monotonic_ms() > deadline_ms:
                raise NotMoved(
                    f"{self._slave} is {seen.behind_bytes:,} bytes behind, and "
                    f"{seen.undispatched_bytes:,} not dispatched, after {wait_ms // 1000} s: "
                    "nothing was changed; wait and try again"
                )
            await self._clock.sleep_ms(_STEP_MS)

    async def _fence(self, master: str) -> None:
        # brokerPermission is not enough: it affects only routes and ordered topics.
        values = {"startAcceptSendRequestTimeStamp": str(_NEVER_MS)}
        await self._admin.update_broker_config(master, values)
        self._say(f"fenced: {master} accepts no sends")

    async def _unfence(self, master: str, old: Mapping[str, str], is_java: bool) -> None:
        keys = ["startAcceptSendRequestTimeStamp"]
        if is_java:
            keys += ["brokerPermission", "brokerId"]
        await self._admin.update_broker_config(master, {key: old[key] for key in keys})
        self._say(f"cancelled: {master} accepts sends again")

    async def _drain(self, master: str) -> int:
        deadline_ms = self._clock.monotonic_ms() + DRAIN_TIMEOUT_MS
        quiet, before = 0, -1
        while quiet < _QUIET_STEPS:
            if self._clock.monotonic_ms() > deadline_ms:
                raise NotMoved(
                    f"{master} was not drained within {DRAIN_TIMEOUT_MS // 1000} s: its log ended "
                    f"at {before:,} at the last check, and is still being written"
                )
            end = await _log_end(self._admin, master)
            has = await _log_end(self._admin, self._slave)
            quiet = quiet + 1 if end == before == has else 0
            before = end
            await self._clock.sleep_ms(_STEP_MS)
        return before

    async def _late_bytes(self, master: str, end: int) -> int:
        try:
            return await _log_end(self._admin, master) - end
        except CometError:
            return 0
