"""``cometmq broker promote|drain|undrain``."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.admin import failover
from cometmq.admin.failover import PromotionOutcome, promote
from cometmq.cli import render
from cometmq.cli.connect import AsJson, Namesrv, client, run
from cometmq.core.errors import CometError
from cometmq.protocol.bodies import Finding, Promote

if TYPE_CHECKING:
    from cometmq.admin.failover import Told


class MasterRole(StrEnum):
    """Role that a slave can be promoted to."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"


Role = Annotated[
    MasterRole,
    typer.Option(
        help="Its role as a master, which decides when it acknowledges a send.",
        case_sensitive=False,
    ),
]


def show_finding(finding: Finding) -> None:
    """Print a finding as a line."""
    typer.echo(f"{finding.weight:<8} {finding.text}")


def promote_command(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", show_default=False, help="The running slave.")
    ],
    role: Role = MasterRole.ASYNC_MASTER,
    force: Annotated[
        bool, typer.Option("--force", help="Promote it although a finding refuses that.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only print the findings; promote nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a running slave the master of its name."""

    async def main() -> PromotionOutcome:
        async with client("") as opened:
            remoting, clock = opened.session.remoting, opened.session.clock
            wanted = Promote(role.value, force, check)
            return await promote(remoting, clock, address, wanted)

    outcome = run(main())
    found = outcome.promotion
    if as_json:
        render.print_json([found])
    else:
        for finding in found.findings:
            show_finding(finding)
    if found.begins:
        if not as_json:
            _say_promoted(address, role.value, outcome)
        return
    if any(finding.refuses for finding in found.findings):
        raise CometError(
            f"{address} was not promoted: see the refusals above; --force overrides them"
        )


def _say_promoted(address: str, role: str, outcome: PromotionOutcome) -> None:
    typer.echo(
        f"promoted {address} name={outcome.promotion.broker_name} role={role} "
        f"duration_ms={outcome.duration_ms}"
    )
    typer.echo(
        f"It stays {role} after restarts. Set brokerRole={role} and brokerId=0 in its settings "
        "at the next opportunity."
    )


Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The broker's name.")]


def drain_command(name: Name, namesrv: Namesrv = "", as_json: AsJson = False) -> None:
    """Make producers stop using a broker; consumers still read its messages."""

    async def main() -> list[Told]:
        async with client(namesrv) as opened:
            return await failover.drain(opened.session, name)

    _show_told("drained", name, run(main()), as_json)


def undrain_command(name: Name, namesrv: Namesrv = "", as_json: AsJson = False) -> None:
    """Make producers use a drained broker again."""

    async def main() -> list[Told]:
        async with client(namesrv) as opened:
            return await failover.undrain(opened.session, name)

    _show_told("undrained", name, run(main()), as_json)


def _show_told(done: str, name: str, told: list[Told], as_json: bool) -> None:
    if as_json:
        render.print_json(told)
    for each in told:
        if not (as_json or each.problem):
            typer.echo(f"{done} broker={name} name_server={each.name_server} topics={each.topics}")
    missed = [f"{each.name_server} ({each.problem})" for each in told if each.problem]
    if missed:
        raise CometError(f"not reached, run the command again: {', '.join(missed)}")
    if not any(each.topics for each in told):
        raise CometError(f"no name server has a topic of broker {name}")
