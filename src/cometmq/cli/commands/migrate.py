"""``cometmq migrate``: moves away from a running broker, usually a Java one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cometmq.admin import failover, migration
from cometmq.admin.failover import TAKEOVER_WAIT_MS
from cometmq.admin.migration import MigrationPlan, Move, Mover, NotMoved, Status
from cometmq.cli.command import Noun
from cometmq.cli.commands.broker import FindingRow, MasterRole, Role, finding_line
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option
from cometmq.cli.render import Address, Result
from cometmq.core.errors import SettingsError
from cometmq.core.plural import plural
from cometmq.core.settings import format_properties

app = Noun("migrate", "Move from a running broker, Java or CometMQ, to a new one.")

CONFIG_NAME = "broker.conf"

MasterAt = Annotated[str, Argument(metavar="MASTER", help="HOST:PORT of the old master.")]
SlaveAt = Annotated[
    str,
    Argument(metavar="SLAVE", help="HOST:PORT of the attached broker."),
]
StoreAt = Annotated[Path, Argument(metavar="DIR", help="Directory of the new store.")]
AddressWait = Annotated[float, Option(help="Seconds to wait until the address is free.")]
Port = Annotated[int, Option(help="Port of the new broker.")]


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A running master, and what a move from it means. Offsets and sizes are bytes of its log."""

    address: Address | None
    name: str
    cluster: str
    version: str
    role: str
    log_start: int
    log_end: int
    topics: int
    groups: int
    findings: list[FindingRow]
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """Progress of an attached broker; ``state`` is near, copying or not connected."""

    state: str
    address: Address | None
    log_end: int
    behind_bytes: int | None
    undispatched_bytes: int
    tables_age_ms: int
    bytes_per_s: int
    left_s: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class MovedRow:
    """A completed move; ``write_pause_ms`` is how long no broker accepted sends."""

    name: str
    old: Address | None
    new: Address | None
    write_pause_ms: int
    late_bytes: int
    address_ms: int | None


async def _plan(cluster: Connected, master: str, store: Path, port: int) -> MigrationPlan:
    return await migration.plan(cluster.admin, cluster.session, master, store, port)


@app.command("plan", "migrate plan 10.0.0.1:10911 /data/orders -n 10.0.0.1:9876")
async def plan(
    cluster: Connected, master: MasterAt, store: StoreAt, port: Port = 10911
) -> Result[PlanRow]:
    """Inspect a running master, and report what a move from it would mean. Changes nothing."""
    found = await _plan(cluster, master, store.absolute(), port)
    row = PlanRow(
        Address.parse(found.address), found.name, found.cluster, found.version, found.role,
        found.log_start, found.log_end, found.topics, found.groups,
        [FindingRow(each.weight, each.text) for each in found.findings], found.settings,
    )  # fmt: skip
    return Result([row], shown="\n".join(_lines(found)), problem=_refusal(found))


def _lines(found: MigrationPlan) -> list[str]:
    size = found.log_end - found.log_start
    return [
        f"master   {found.address} name={found.name} cluster={found.cluster} "
        f"version={found.version} role={found.role}",
        f"log      {size:,} bytes, from offset {found.log_start:,} to {found.log_end:,}",
        f"tables   {plural(found.topics, 'topic')}, {plural(found.groups, 'group')}",
        *(finding_line(each) for each in found.findings),
    ]


def _refusal(found: MigrationPlan) -> str:
    if not found.is_refused:
        return ""
    return f"{found.address} cannot be moved: see the refusals above"


@app.command("attach", "migrate attach 10.0.0.1:10911 /data/orders -n 10.0.0.1:9876 --port 10911")
async def attach(
    cluster: Connected,
    master: MasterAt,
    store: StoreAt,
    port: Port = 10911,
    write_only: Annotated[
        bool, Option(help="Write the property file, but do not start the broker.")
    ] = False,
) -> None:
    """Write a property file for a slave of MASTER, and run that slave in this process."""
    store = store.absolute()
    found = await _plan(cluster, master, store, port)
    print("\n".join(_lines(found)))
    if found.is_refused:
        raise NotMoved(_refusal(found))
    path = store / CONFIG_NAME
    if path.exists():
        print(f"settings {path} exists already and is kept")
    else:
        store.mkdir(parents=True, exist_ok=True)
        path.write_text(format_properties(found.settings), encoding="utf-8")
        print(f"settings {path} written")
    words = [sys.executable, "-m", "cometmq.cli", "broker", "-c", str(path)]
    print(f"start    cometmq broker -c {path}")
    sys.stdout.flush()
    if not write_only:
        os.execv(sys.executable, words)


@app.command("status", "migrate status 10.0.0.2:10911 -n 10.0.0.1:9876 --watch")
async def status(
    cluster: Connected,
    slave: SlaveAt,
    watch: Annotated[
        float | None,
        Option(
            "--watch",
            metavar="SECONDS",
            min=0.1,
            alone=1.0,
            help="Repeat every SECONDS until it has nearly caught up (1 without a number).",
        ),
    ] = None,
) -> AsyncIterator[ProgressRow]:
    """Show the progress of the attached broker: bytes, tables, rate."""
    admin, clock = cluster.admin, cluster.session.clock
    seen, seen_ms = await migration.status(admin, slave), clock.monotonic_ms()
    yield _progress(seen, 0)
    while watch is not None and not seen.is_near:
        await clock.sleep_ms(int(watch * 1000))
        later, later_ms = await migration.status(admin, slave), clock.monotonic_ms()
        rate = (later.log_end - seen.log_end) * 1_000 // max(later_ms - seen_ms, 1)
        yield _progress(later, rate)
        seen, seen_ms = later, later_ms


def _progress(seen: Status, rate: int) -> ProgressRow:
    behind = seen.behind_bytes if seen.behind_bytes >= 0 else None
    return ProgressRow(
        "near" if seen.is_near else "copying" if seen.connected else "not connected",
        Address.parse(seen.address), seen.log_end, behind, seen.undispatched_bytes,
        seen.tables_age_ms, rate, behind // rate if behind and rate > 0 else None,
        seen.problem or None,
    )  # fmt: skip


@app.command(
    "promote",
    "migrate promote 10.0.0.2:10911 -n 10.0.0.1:9876",
    "migrate promote 127.0.0.1:10921 --take-address --stop-with 'systemctl stop rocketmq'",
)
async def promote(
    cluster: Connected,
    slave: SlaveAt,
    role: Role = MasterRole.ASYNC_MASTER,
    wait: Annotated[float, Option(help="Seconds to wait until it has nearly caught up.")] = 600,
    address: Annotated[
        bool, Option("--take-address", help="Listen on the old master's address after it stopped.")
    ] = False,
    address_wait: AddressWait = TAKEOVER_WAIT_MS / 1_000,
    stop_with: Annotated[
        str,
        Option(metavar="COMMAND", help="Command that stops the old master after the move."),
    ] = "",
) -> Result[MovedRow]:
    """Make the attached broker the master; the old one refuses sends from then on."""
    if stop_with and not address:
        raise SettingsError("--stop-with", "needs --take-address")
    stopping: list[subprocess.Popen[bytes]] = []

    def stop_old() -> None:
        if stop_with:
            stopping.append(_begin(stop_with))

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    try:
        made = await Mover(cluster.admin, cluster.session, slave, say=say).move(
            role.value,
            int(wait * 1_000),
            take_address=address,
            address_wait_ms=int(address_wait * 1_000),
            stop_old=stop_old,
        )
    finally:
        for process in stopping:
            if process.wait():
                say(f"warning  command ended with exit code {process.returncode}: {stop_with}")
    row = MovedRow(
        made.name, Address.parse(made.old), Address.parse(made.new), made.pause_ms,
        made.late_bytes, made.address_ms if made.address_ms >= 0 else None,
    )  # fmt: skip
    return Result([row], shown="\n".join(_moved(made, address=address)))


def _moved(made: Move, *, address: bool) -> list[str]:
    lines = [f"moved {made.name} from {made.old} to {made.new} write_pause_ms={made.pause_ms}"]
    if made.late_bytes:
        lines.append(
            f"warning  {made.late_bytes:,} bytes were written to {made.old} after the move "
            "(retries, ends of transactions, delayed messages): they are only in its log"
        )
    if address:
        lines.append(
            f"{made.new} also listens on {made.old}, after {made.address_ms} ms, and is registered "
            f"by that address, also after restarts. Set takenAddress={made.old} in its settings at "
            "the next opportunity, and make sure that the old broker is not started again there."
        )
    else:
        lines.append(f"Stop {made.old} now. Its log is unchanged; start it again only as a slave.")
    return lines


def _begin(command: str) -> subprocess.Popen[bytes]:
    """Start the command that stops the old master; later steps run while it does its work."""
    print(f"stopping: {command}", file=sys.stderr)
    return subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL)


@app.command("take-address", "migrate take-address 127.0.0.1:10921 127.0.0.1:10911")
async def take_address(
    cluster: Connected,
    master: Annotated[str, Argument("BROKER", "HOST:PORT of the new master.")],
    address: Annotated[str, Argument("ADDRESS", "HOST:PORT of the old master.")],
    wait: AddressWait = TAKEOVER_WAIT_MS / 1_000,
) -> None:
    """Make the new master also listen on the old master's address after that has stopped."""
    took_ms = await failover.take_address(
        cluster.session.remoting, cluster.session.clock, master, address,
        wait_ms=int(wait * 1_000), say=print,
    )  # fmt: skip
    print(f"{master} also listens on {address} and is registered by it: took_ms={took_ms}")
