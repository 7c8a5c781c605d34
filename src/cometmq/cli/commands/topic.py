"""``cometmq topic list|create|describe``."""

from __future__ import annotations

from typing import Annotated

import typer

from cometmq.admin import topics
from cometmq.cli import render
from cometmq.cli.connect import AsJson, Namesrv, client, run
from cometmq.protocol.route import PERM_READ, PERM_WRITE

app = typer.Typer(help="Topics: list, create, describe.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


@app.command("list")
def list_(
    namesrv: Namesrv = "",
    everything: Annotated[
        bool, typer.Option("--all", help="System, retry and dead-letter topics too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the topics that the name servers know."""

    async def main() -> list[str]:
        async with client(namesrv) as opened:
            return await topics.list_topics(opened.session)

    found = [name for name in run(main()) if everything or not topics.is_system(name)]
    if as_json:
        render.print_json({"topic": name} for name in found)
    else:
        for name in found:
            typer.echo(name)


@app.command()
def create(
    topic: Name,
    namesrv: Namesrv = "",
    queues: Annotated[int, typer.Option(min=1, max=65_535, help="Queues on every broker.")] = 8,
    order: Annotated[bool, typer.Option("--order", help="Mark it as an ordered topic.")] = False,
    broker: Annotated[
        list[str] | None, typer.Option(help="Only on this broker; may be given several times.")
    ] = None,
) -> None:
    """Create a topic, or change the number of its queues."""

    async def main() -> dict[str, str]:
        async with client(namesrv) as opened:
            return await topics.create_topic(
                opened.session, topic, queues=queues, order=order, broker_names=broker or ()
            )

    for name, address in run(main()).items():
        typer.echo(f"created topic={topic} broker={name} address={address} queues={queues}")


@app.command()
def describe(topic: Name, namesrv: Namesrv = "", as_json: AsJson = False) -> None:
    """Print where a topic lives and what its queues hold."""

    async def main() -> topics.TopicState:
        async with client(namesrv) as opened:
            return await topics.describe_topic(opened.session, topic)

    state = run(main())
    if as_json:
        render.print_json([state])
        return
    render.print_table(
        ("broker", "queue", "permission", "first", "next", "messages", "last stored"),
        (
            (
                queue.broker_name,
                queue.queue_id,
                _perm_text(state.perms.get(queue.broker_name, 0)),
                queue.min_offset,
                queue.max_offset,
                queue.max_offset - queue.min_offset,
                render.time_text(queue.last_store_ms),
            )
            for queue in state.queues
        ),
    )


def _perm_text(perm: int) -> str:
    return ("r" if perm & PERM_READ else "-") + ("w" if perm & PERM_WRITE else "-")
