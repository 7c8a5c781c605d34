"""``cometmq group members|progress|status|reset``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from cometmq.admin.api import END, Admin, held
from cometmq.admin.views import (
    HeldRow,
    MemberRow,
    PositionRow,
    held_rows,
    member_rows,
    position_rows,
    progress_rows,
    total_lag,
)
from cometmq.cli import render
from cometmq.cli.connect import AsJson, Namesrv, client, run
from cometmq.core.errors import CometError, SettingsError

app = typer.Typer(help="Consumer groups: members, progress, status, reset.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
OfTopic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


@app.command()
def members(group: Name, namesrv: Namesrv = "", as_json: AsJson = False) -> None:
    """Print the consumers of a group that are connected."""

    async def main() -> list[MemberRow]:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            found = await admin.consumer_connections(group)
            if found is None:
                await _demand(admin, group)
                return []
            return member_rows(found)

    rows = run(main())
    if not rows:
        raise CometError(f"no consumer of group {group!r} is connected")
    if as_json:
        render.print_json(rows)
    else:
        render.print_rows(rows)


@app.command()
def progress(
    group: Name,
    namesrv: Namesrv = "",
    topic: Annotated[str, typer.Option(help="Only this topic.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print the offsets of a group, and its lag, from its brokers."""

    async def main() -> None:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            await _demand(admin, group, topic)
            found = await admin.consumer_progress(group, topic or None)
            if topic and group not in await admin.groups_of(topic):
                raise CometError(f"group {group!r} has not consumed topic {topic!r}")
        rows = progress_rows(found)
        if as_json:
            render.print_json(rows)
        else:
            render.print_rows(rows)
            typer.echo(f"lag={total_lag(found.values())}")

    run(main())


@app.command()
def status(
    group: Name,
    member: Annotated[str, typer.Argument(metavar="CLIENT_ID", show_default=False)],
    namesrv: Namesrv = "",
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also print the stacks of its threads and tasks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the messages that one consumer holds of each queue, as it reports them."""

    async def main() -> tuple[list[HeldRow], str | None]:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            await _demand(admin, group)
            info = await admin.consumers.running_info(group, member, stacks=stacks)
            return held_rows(held(info)), info.jstack

    rows, text = run(main())
    if as_json:
        render.print_json(rows)
        return
    render.print_rows(rows)
    if text:
        typer.echo(text)


@app.command()
def reset(
    group: Name,
    topic: OfTopic,
    to: Annotated[
        str,
        typer.Option(help="first, last, or a time: ISO 8601, or ms since the epoch."),
    ],
    namesrv: Namesrv = "",
    keep: Annotated[
        bool,
        typer.Option(
            "--never-skip", help="Leave queues unchanged if the reset would skip messages."
        ),
    ] = False,
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="Accept a group that no broker knows; it will begin at that point."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set the offsets of a group in a topic, whether its consumers run or not."""
    at_ms = moment_of(to)

    async def main() -> list[PositionRow]:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            await _demand(admin, "" if new else group, topic)
            return position_rows(await admin.consumers.reset(group, topic, at_ms, force=not keep))

    rows = run(main())
    if as_json:
        render.print_json(rows)
    else:
        render.print_rows(rows)


async def _demand(admin: Admin, group: str, topic: str = "") -> None:
    """Check that a group and a topic exist; an empty name is not checked.

    Raises RouteNotFound for the topic and CometError for the group.
    """
    if topic:
        await admin.topic_route(topic)
    if group and not await admin.knows_group(group):
        raise CometError(f"no broker knows group {group!r}: check its name")


def moment_of(text: str) -> int:
    """Parse a time to ms since the epoch; "last" is END. Raises SettingsError."""
    if text in ("first", "last"):
        return 0 if text == "first" else END
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            "--to", f"{text!r} is not first, last or a time such as 2026-01-31T08:00"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
