"""``cometmq outbox relay|status|retry|discard``: operates an application's outbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

from cometmq.cli.command import Noun, Yes, confirm
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError

if TYPE_CHECKING:
    from cometmq.outbox import PostgresOutbox, SqliteOutbox

T = TypeVar("T")
AnyOutbox: TypeAlias = "SqliteOutbox | PostgresOutbox"

app = Noun("outbox", "The outbox of an application: publish rows, show waiting and refused rows.")


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the broker refused, and why."""

    row: int
    topic: str
    order_key: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """Rows that wait, the age of the oldest, and the refused rows."""

    waiting: int
    oldest_age_ms: int
    refused: int
    refused_rows: list[RefusedRow]


Database = Annotated[
    str,
    Argument(metavar="DATABASE", help="A SQLite file, or postgresql://..."),
]
Table = Annotated[str, Option(help="Name of the outbox's table.")]
RowId = Annotated[int, Argument(metavar="ROW")]
#: Limit of the refused rows among which ``discard`` looks for its row.
_ROWS_MAX: Final = 1_000_000


@app.command("relay", "outbox relay shop.sqlite")
async def relay(
    cluster: Connected,
    database: Database,
    table: Table = "outbox",
    transactional: Annotated[
        bool, Option(help="Send rows without an order key as transactional messages.")
    ] = False,
    keep_hours: Annotated[float, Option(min=0, help="Hours to keep published rows.")] = 0,
    create: Annotated[bool, Option(help="Create the table if it is missing.")] = False,
) -> None:
    """Publish waiting and new rows until stopped by SIGTERM or an interrupt.

    Several relays may run on one outbox: one works, and another one takes over when it ends.
    """
    from cometmq.cli.serve import stop_signals
    from cometmq.outbox import Relay
    from cometmq.outbox.relay import RelaySettings

    outbox = outbox_at(database, table)
    if create:
        _asked(outbox, outbox.create)
    settings = RelaySettings(transactional=transactional, keep_ms=int(keep_hours * 3_600_000))
    working = Relay(cluster.client, outbox, settings)
    with stop_signals(working.stop):
        print(f"ready outbox={outbox.name}", flush=True)
        await working.run()
        print(f"stopped published={working.published} refused={working.refused}", flush=True)


@app.command("status", "outbox status shop.sqlite --watch")
def status(database: Database, table: Table = "outbox") -> OutboxStatus:
    """Show the number of waiting rows, the age of the oldest, and the refused rows."""
    outbox = outbox_at(database, table)
    found = _asked(outbox, outbox.status)
    age_ms = SystemClock().wall_ms() - found.oldest_ms if found.oldest_ms is not None else 0
    return OutboxStatus(
        found.waiting,
        age_ms,
        found.refused,
        [
            RefusedRow(row.id, row.topic, row.order_key or None, row.reason)
            for row in _asked(outbox, outbox.refused)
        ],
    )


@app.command("retry", "outbox retry shop.sqlite 17")
def retry(database: Database, row: RowId, table: Table = "outbox") -> None:
    """Send a refused row again, and the rows that wait for it."""
    outbox = outbox_at(database, table)
    _decided(row, _asked(outbox, lambda: outbox.retry(row)))


@app.command("discard", "outbox discard shop.sqlite 17 --yes")
def discard(database: Database, row: RowId, table: Table = "outbox", yes: Yes = False) -> None:
    """Delete a refused row, and send the rows that wait for it."""
    outbox = outbox_at(database, table)
    refused = _asked(outbox, lambda: outbox.refused(_ROWS_MAX))
    _decided(row, any(each.id == row for each in refused))
    confirm(f"Delete row {row} of {outbox.name} with its message?", yes)
    _decided(row, _asked(outbox, lambda: outbox.discard(row)))


def outbox_at(database: str, table: str) -> AnyOutbox:
    """Return the outbox in a SQLite file or at a PostgreSQL address. Raises SettingsError."""
    from cometmq.outbox import PostgresOutbox, SqliteOutbox

    if database.startswith(("postgresql://", "postgres://")):
        return PostgresOutbox(database, table)
    return SqliteOutbox(database, table)


def _asked(outbox: AnyOutbox, question: Callable[[], T]) -> T:
    """Return the result of a call of an outbox; turn errors of its database into CometError."""
    try:
        return question()
    except outbox.errors as error:
        line = " ".join(str(error).split())
        raise CometError(f"{outbox.name}: {line}") from None


def _decided(row: int, done: bool) -> None:
    if not done:
        raise CometError(f"row {row} is not refused")
