"""``cometmq outbox relay|status|retry|discard``: operates an application's outbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from cometmq.cli import render, serve
from cometmq.cli.connect import AsJson, Namesrv, client, run
from cometmq.core.clock import SystemClock
from cometmq.outbox import PostgresOutbox, Relay, SqliteOutbox
from cometmq.outbox.relay import RelaySettings

T = TypeVar("T")
AnyOutbox = SqliteOutbox | PostgresOutbox

FAILED = 1

app = typer.Typer(
    help="The outbox of an application: publish rows, show waiting and refused rows.",
    no_args_is_help=True,
)

Database = Annotated[
    str,
    typer.Argument(
        metavar="DATABASE", show_default=False, help="A SQLite file, or postgresql://..."
    ),
]
Table = Annotated[str, typer.Option(help="Name of the outbox's table.")]
RowId = Annotated[int, typer.Argument(metavar="ROW", show_default=False)]


@app.command()
def relay(
    database: Database,
    namesrv: Namesrv = "",
    table: Table = "outbox",
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional", help="Send rows without an order key as transactional messages."
        ),
    ] = False,
    keep_hours: Annotated[float, typer.Option(min=0, help="Hours to keep published rows.")] = 0,
    create: Annotated[
        bool, typer.Option("--create", help="Create the table if it is missing.")
    ] = False,
) -> None:
    """Publish waiting and new rows until stopped by SIGTERM or an interrupt.

    Several relays may run on one outbox: one works, and another one takes over when it ends.
    """
    outbox = outbox_at(database, table)
    settings = RelaySettings(transactional=transactional, keep_ms=int(keep_hours * 3_600_000))

    async def main() -> None:
        async with client(namesrv) as opened:
            working = Relay(opened, outbox, settings)
            serve.on_signals(working.stop)
            typer.echo(f"ready outbox={outbox.name}")
            await working.run()
            typer.echo(f"stopped published={working.published} refused={working.refused}")

    if create:
        _asked(outbox, outbox.create)
    run(main())


@app.command()
def status(database: Database, table: Table = "outbox", as_json: AsJson = False) -> None:
    """Print the number of waiting rows, the age of the oldest, and the refused rows."""
    outbox = outbox_at(database, table)
    found = _asked(outbox, outbox.status)
    refused = _asked(outbox, outbox.refused)
    age_ms = SystemClock().wall_ms() - found.oldest_ms if found.oldest_ms is not None else 0
    if as_json:
        line = {"waiting": found.waiting, "oldest_age_ms": age_ms, "refused": found.refused}
        render.print_json([line])
        return
    typer.echo(f"waiting={found.waiting} oldest_age_s={age_ms // 1000} refused={found.refused}")
    for row in refused:
        typer.echo(f"refused row={row.id} topic={row.topic} key={row.order_key}: {row.reason}")


@app.command()
def retry(database: Database, row: RowId, table: Table = "outbox") -> None:
    """Send a refused row again, and the rows that wait for it."""
    outbox = outbox_at(database, table)
    _decided(row, _asked(outbox, lambda: outbox.retry(row)))


@app.command()
def discard(database: Database, row: RowId, table: Table = "outbox") -> None:
    """Delete a refused row, and send the rows that wait for it."""
    outbox = outbox_at(database, table)
    _decided(row, _asked(outbox, lambda: outbox.discard(row)))


def outbox_at(database: str, table: str) -> AnyOutbox:
    """Return the outbox in a SQLite file or at a PostgreSQL address. Raises SettingsError."""
    if database.startswith(("postgresql://", "postgres://")):
        return PostgresOutbox(database, table)
    return SqliteOutbox(database, table)


def _asked(outbox: AnyOutbox, question: Callable[[], T]) -> T:
    try:
        return question()
    except outbox.errors as error:
        line = " ".join(str(error).split())
        typer.echo(f"cometmq outbox: {outbox.name}: {line}", err=True)
        raise typer.Exit(FAILED) from None


def _decided(row: int, done: bool) -> None:
    if not done:
        typer.echo(f"cometmq outbox: row {row} is not refused", err=True)
        raise typer.Exit(FAILED)
