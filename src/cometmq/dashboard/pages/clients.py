"""Connected producers; consumers are on the pages of their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from cometmq.core.errors import BrokerRefused
from cometmq.dashboard.rendering import cluster_of, field, part_of, render
from cometmq.dashboard.sharing import NAMES_MS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show(request: Request) -> Response:
    """Show a page of the producers."""
    cluster = cluster_of(request)
    problem = ""
    try:
        found = await cluster.calls.get(
            "producers", cluster.groups.all_producers, fresh_ms=NAMES_MS
        )
    except BrokerRefused as error:
        found, problem = {}, str(error)
    wanted = field(request, "q").lower()
    rows = [
        (group, each)
        for group, producers in found.items()
        for each in producers
        if wanted in f"{group} {each.client_id} {each.remote_ip} {each.language}".lower()
    ]
    part = part_of(rows, request)
    return render(request, "producers.html", title="Producers", part=part, problem=problem)


ROUTES = [Route("/producers", show)]
