"""The web application: its routes, and the server that runs it in the caller's event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cometmq.core.errors import CometError, NotFound, RouteNotFound, SettingsError
from cometmq.core.hosts import is_loopback
from cometmq.dashboard.accounts import Viewers
from cometmq.dashboard.connections import BrowserConnection
from cometmq.dashboard.guard import Guard, Place
from cometmq.dashboard.pages import (
    access,
    clients,
    cluster,
    deadletters,
    groups,
    login,
    messages,
    settings,
    stores,
    topics,
    waiting,
)
from cometmq.dashboard.rendering import InputRefused, Options, render
from cometmq.net.tasks import Tasks

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.client.client import Client
    from cometmq.core.clock import Clock
    from cometmq.dashboard.schemas import Schemas

log = logging.getLogger(__name__)

#: Time that requests have to finish when the server stops.
_STOP_S: Final = 3


def build(viewers: Viewers, place: Place, options: Options) -> Starlette:
    """Return the ASGI application: all pages and static files, behind the guard."""
    routes: list[Route | Mount] = [
        *(route for module in _PAGES for route in module.ROUTES),
        Mount("/static", StaticFiles(packages=[("cometmq.dashboard", "static")])),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, viewers=viewers, place=place, allow_changes=options.allow_changes)
        ],
        exception_handlers={CometError: _failed, OSError: _failed, 404: _missing},
    )
    app.state.viewers = viewers
    app.state.options = options
    return app


_PAGES: Final = (
    *(cluster, topics, groups, messages, deadletters, clients, waiting, stores, settings),
    *(access, login),
)


async def _failed(request: Request, error: Exception) -> Response:
    """Return the page for an error of a handler: 404, 400 for bad input, otherwise 502."""
    if isinstance(error, NotFound | RouteNotFound):
        return render(request, "failed.html", 404, title="Not found", error=str(error))
    status = 400 if isinstance(error, InputRefused) else 502
    title = "This cannot be done" if status == 400 else "The cluster did not do it"
    return render(request, "failed.html", status, title=title, error=str(error))


async def _missing(request: Request, error: Exception) -> Response:
    if getattr(request.state, "viewer", None) is None:
        return PlainTextResponse("There is no such page.", 404)
    return render(request, "failed.html", 404, title="There is no such page", error="")


@asynccontextmanager
async def running_dashboard(
    client: Client,
    clock: Clock,
    place: Place,
    *,
    allow_changes: bool = False,
    defaults: Mapping[str, str] | None = None,
    schemas: Schemas | None = None,
) -> AsyncIterator[str]:
    """Serve the dashboard of a client's cluster; yield its URL. The client is closed at the end.

    ``defaults`` are the default settings of a CometMQ broker, by name. Raises SettingsError if
    anybody on the network could change the cluster without a login, and OSError for a port in use.
    """
    is_local = is_loopback(place.address)
    if allow_changes and not is_local and client.config.credentials is None:
        raise SettingsError(
            "--allow-changes",
            f"anybody who reaches {place.address} could change the cluster: keep the page on this "
            "machine, or start it with an account (--credentials)",
        )
    listener = socket.create_server(
        (place.address, place.port),
        family=socket.AF_INET6 if ":" in place.address else socket.AF_INET,
    )
    viewers = Viewers(client, clock)
    tasks = Tasks()
    try:
        await viewers.start()
        app = build(viewers, place, Options(allow_changes, defaults, schemas))
        server = _Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none",
                server_header=False,
                proxy_headers=bool(place.proxies), forwarded_allow_ips=list(place.proxies),
                timeout_graceful_shutdown=_STOP_S, http=BrowserConnection,
            )
        )  # fmt: skip
        serving = tasks.spawn(server.serve([listener]), name="dashboard")
        try:
            host = f"[{place.address}]" if ":" in place.address else place.address
            if not is_local:
                log.warning("dashboard_is_reachable address=%s", place.address)
            yield f"http://{host}:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            await asyncio.wait([serving])
    finally:
        await tasks.close()
        await viewers.close()
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the CLI command installs its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield
