"""Page of the connected producers. Consumers are on the pages of their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from cometmq.dashboard.rendering import cluster_of, field, part_of, render
from cometmq.dashboard.sharing import NAMES_MS
from cometmq.dashboard.watched import reasons

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.dashboard.watched import WatchedCluster
    from cometmq.protocol.bodies import ProducerInfo


async def show(request: Request) -> Response:
    """Show one page of the list of producers."""
    cluster = cluster_of(request)
    found, unread = await cluster.calls.get(
        "producers", lambda: _producers(cluster), fresh_ms=NAMES_MS
    )
    wanted = field(request, "q").lower()
    rows = [
        (group, each)
        for group, producers in found.items()
        for each in producers
        if wanted in f"{group} {each.client_id} {each.remote_ip} {each.language}".lower()
    ]
    part = part_of(rows, request)
    return render(request, "producers.html", title="Producers", part=part, unread=unread)


async def _producers(
    cluster: WatchedCluster,
) -> tuple[dict[str, list[ProducerInfo]], dict[str, str]]:
    """Return the producers by group, and by broker the reason why its producers are unknown."""
    unread = cluster.silent()
    found = await cluster.groups.all_producers(unread=unread)
    return found, reasons(unread)


ROUTES = [Route("/producers", show)]
