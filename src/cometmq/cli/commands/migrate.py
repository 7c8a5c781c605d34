"""``cometmq migrate``: moves away from a running broker, usually a Java one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from cometmq.admin import failover, migration
from cometmq.admin.api import Admin
from cometmq.admin.failover import TAKEOVER_WAIT_MS
from cometmq.admin.migration import MigrationPlan, Move, Mover, NotMoved, Status
from cometmq.cli import render
from cometmq.cli.commands.broker import MasterRole, Role, show_finding
from cometmq.cli.connect import AsJson, Namesrv, client, run
from cometmq.core.settings import format_properties

app = typer.Typer(
    help="Move from a running broker to a new one: plan, attach, status, promote, take-address.",
    no_args_is_help=True,
)

CONFIG_NAME = "broker.conf"
WATCH_MS = 1_000

MasterAt = Annotated[
    str, typer.Argument(metavar="MASTER", show_default=False, help="HOST:PORT of the old master.")
]
SlaveAt = Annotated[
    str,
    typer.Argument(metavar="SLAVE", show_default=False, help="HOST:PORT of the attached broker."),
]
StoreAt = Annotated[
    Path, typer.Argument(metavar="DIR", show_default=False, help="Directory of the new store.")
]
AddressWait = Annotated[float, typer.Option(help="Seconds to wait until the address is free.")]
Port = Annotated[int, typer.Option(help="Port of the new broker.")]


async def _plan(namesrv: str, master: str, store: Path, port: int) -> MigrationPlan:
    async with client(namesrv) as opened:
        admin = Admin(opened.session)
        return await migration.plan(admin, opened.session, master, store, port)


@app.command()
def plan(
    master: MasterAt,
    store: StoreAt,
    namesrv: Namesrv = "",
    port: Port = 10911,
    as_json: AsJson = False,
) -> None:
    """Inspect a running master, and report what a move from it would mean. Changes nothing."""
    found = run(_plan(namesrv, master, store.absolute(), port))
    if as_json:
        render.print_json([found])
    else:
        _show(found)
    _check(found)


def _show(found: MigrationPlan) -> None:
    typer.echo(
        f"master   {found.address} name={found.name} cluster={found.cluster} "
        f"version={found.version} role={found.role}"
    )
    size = found.log_end - found.log_start
    typer.echo(f"log      {size:,} bytes, from offset {found.log_start:,} to {found.log_end:,}")
    typer.echo(f"tables   {found.topics:,} topics, {found.groups:,} groups")
    for finding in found.findings:
        show_finding(finding)


def _check(found: MigrationPlan) -> None:
    if found.is_refused:
        raise NotMoved(f"{found.address} cannot be moved: see the refusals above")


@app.command()
def attach(
    master: MasterAt,
    store: StoreAt,
    namesrv: Namesrv = "",
    port: Port = 10911,
    write_only: Annotated[
        bool,
        typer.Option("--write-only", help="Write the property file, but do not start the broker."),
    ] = False,
) -> None:
    """Write a property file for a slave of MASTER, and run that slave in this process."""
    found = run(_plan(namesrv, master, store.absolute(), port))
    _show(found)
    _check(found)
    path = store / CONFIG_NAME
    if path.exists():
        typer.echo(f"settings {path} exists already and is kept")
    else:
        store.mkdir(parents=True, exist_ok=True)
        path.write_text(format_properties(found.settings), encoding="utf-8")
        typer.echo(f"settings {path} written")
    words = [sys.executable, "-m", "cometmq.cli", "broker", "-c", str(path)]
    typer.echo(f"start    cometmq broker -c {path}")
    sys.stdout.flush()
    if not write_only:
        os.execv(sys.executable, words)


@app.command()
def status(
    slave: SlaveAt,
    namesrv: Namesrv = "",
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Print a line every second until the broker has nearly caught up."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the progress of the attached broker: bytes, tables, rate."""

    async def main() -> None:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            clock = opened.session.clock
            seen, seen_ms = await migration.status(admin, slave), clock.monotonic_ms()
            _show_status(seen, 0, as_json)
            while watch and not seen.is_near:
                await clock.sleep_ms(WATCH_MS)
                later, later_ms = await migration.status(admin, slave), clock.monotonic_ms()
                rate = (later.log_end - seen.log_end) * 1_000 // max(later_ms - seen_ms, 1)
                _show_status(later, rate, as_json)
                seen, seen_ms = later, later_ms

    run(main())


def _show_status(seen: Status, rate: int, as_json: bool) -> None:
    if as_json:
        render.print_json([seen])
        return
    state = "near" if seen.is_near else "copying" if seen.connected else "not connected"
    left = f" left_s={seen.behind_bytes / rate:.0f}" if rate > 0 and seen.behind_bytes > 0 else ""
    typer.echo(
        f"{state} log_end={seen.log_end:,} behind_bytes={seen.behind_bytes:,} "
        f"undispatched_bytes={seen.undispatched_bytes:,} "
        f"tables_age_s={seen.tables_age_ms / 1000:.1f} bytes_per_s={rate:,}{left}"
    )
    if seen.problem:
        typer.echo(f"problem  {seen.problem}")


@app.command()
def promote(
    slave: SlaveAt,
    namesrv: Namesrv = "",
    role: Role = MasterRole.ASYNC_MASTER,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait until it has nearly caught up.")
    ] = 600,
    address: Annotated[
        bool,
        typer.Option(
            "--take-address", help="Listen on the old master's address after it has stopped."
        ),
    ] = False,
    address_wait: AddressWait = TAKEOVER_WAIT_MS / 1_000,
    stop_with: Annotated[
        str,
        typer.Option(
            metavar="COMMAND", help="Command that stops the old master; it runs after the move."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Make the attached broker the master; the old one refuses sends from then on."""
    if stop_with and not address:
        raise typer.BadParameter("--stop-with needs --take-address")

    stopping: list[subprocess.Popen[bytes]] = []

    def stop_old() -> None:
        if stop_with:
            stopping.append(_begin(stop_with))

    async def main() -> Move:
        async with client(namesrv) as opened:
            say = (lambda text: None) if as_json else typer.echo
            mover = Mover(Admin(opened.session), opened.session, slave, say=say)
            return await mover.move(
                role.value,
                int(wait * 1_000),
                take_address=address,
                address_wait_ms=int(address_wait * 1_000),
                stop_old=stop_old,
            )

    try:
        made = run(main())
    finally:
        for process in stopping:
            if process.wait():
                typer.echo(
                    f"warning  command ended with exit code {process.returncode}: {stop_with}",
                    err=True,
                )
    if as_json:
        render.print_json([made])
        return
    typer.echo(f"moved {made.name} from {made.old} to {made.new} write_pause_ms={made.pause_ms}")
    if made.late_bytes:
        typer.echo(
            f"warning  {made.late_bytes:,} bytes were written to {made.old} after the move "
            "(retries, ends of transactions, delayed messages): they are only in its log"
        )
    if address:
        typer.echo(
            f"{made.new} also listens on {made.old}, after {made.address_ms} ms, and is registered "
            f"by that address, also after restarts. Set takenAddress={made.old} in its settings at "
            "the next opportunity, and make sure that the old broker is not started again there."
        )
    else:
        typer.echo(f"Stop {made.old} now. Its log is unchanged; start it again only as a slave.")


def _begin(command: str) -> subprocess.Popen[bytes]:
    """Start the command that stops the old master. It takes time, so later steps run meanwhile."""
    typer.echo(f"stopping: {command}", err=True)
    return subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL)


@app.command("take-address")
def take_address(
    master: Annotated[
        str, typer.Argument(metavar="BROKER", show_default=False, help="The new master.")
    ],
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", show_default=False, help="HOST:PORT of the old master."),
    ],
    wait: AddressWait = TAKEOVER_WAIT_MS / 1_000,
) -> None:
    """Make the new master also listen on the old master's address after that has stopped."""

    async def main() -> int:
        async with client("") as opened:
            session = opened.session
            return await failover.take_address(
                session.remoting, session.clock, master, address,
                wait_ms=int(wait * 1_000), say=typer.echo,
            )  # fmt: skip

    took_ms = run(main())
    typer.echo(f"{master} also listens on {address} and is registered by it: took_ms={took_ms}")
