"""``cometmq topic list|create|describe``."""

from __future__ import annotations

from typing import Annotated

import typer

from cometmq.admin.api import Admin
from cometmq.admin.views import QueueRow, RouteRow, queue_rows, route_rows
from cometmq.cli import render
from cometmq.cli.connect import AsJson, Namesrv, client, run

app = typer.Typer(help="Topics: list, create, describe.", no_args_is_help=True)

#: Prefixes of the retry topics and dead-letter queues of groups.
GROUP_PREFIXES = ("%RETRY%", "%DLQ%")

Name = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


@app.command("list")
def list_(
    namesrv: Namesrv = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Also print system, retry and dead-letter topics.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the topics that the name servers know."""

    async def main() -> list[str]:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            hidden = set() if everything else await admin.system_topics()
            return [name for name in await admin.list_topics() if not is_hidden(name, hidden)]

    def is_hidden(name: str, hidden: set[str]) -> bool:
        return not everything and (name in hidden or name.startswith(GROUP_PREFIXES))

    found = run(main())
    if as_json:
        render.print_json({"topic": name} for name in found)
    else:
        for name in found:
            typer.echo(name)


@app.command()
def create(
    topic: Name,
    namesrv: Namesrv = "",
    queues: Annotated[
        int, typer.Option(min=1, max=65_535, help="Number of queues on each broker.")
    ] = 8,
    order: Annotated[bool, typer.Option("--order", help="Mark it as an ordered topic.")] = False,
    broker: Annotated[
        list[str] | None, typer.Option(help="Only on this broker; may be given several times.")
    ] = None,
) -> None:
    """Create a topic, or change the number of its queues."""

    async def main() -> list[RouteRow]:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            route = await admin.create_topic(
                topic, queues=queues, order=order, brokers=broker or ()
            )
            return route_rows(route)

    for row in run(main()):
        typer.echo(
            f"created topic={topic} broker={row.broker} addresses={row.addresses} "
            f"queues={row.write_queues} permissions={row.permissions}"
        )


@app.command()
def describe(topic: Name, namesrv: Namesrv = "", as_json: AsJson = False) -> None:
    """Print the brokers of a topic, and the offsets of its queues."""

    async def main() -> tuple[list[RouteRow], list[QueueRow]]:
        async with client(namesrv) as opened:
            admin = Admin(opened.session)
            stats = await admin.topic_stats(topic)
            return route_rows(await admin.topic_route(topic)), queue_rows(stats)

    brokers, queues = run(main())
    if as_json:
        render.print_json([{"topic": topic, "brokers": brokers, "queues": queues}])
        return
    render.print_rows(brokers)
    render.print_rows(queues)
