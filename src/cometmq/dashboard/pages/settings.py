"""Page of the brokers' settings; those that differ from CometMQ's defaults come first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.routing import Route

from cometmq.admin.views import without_secrets
from cometmq.dashboard.rendering import cluster_of, field, options_of, render
from cometmq.dashboard.sharing import NAMES_MS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


@dataclass(frozen=True, slots=True)
class _Row:
    """One setting of one broker; ``default`` is None for a key that CometMQ does not have."""

    key: str
    value: str
    default: str | None

    @property
    def differs(self) -> bool:
        """True if the value is not the default."""
        return self.default is not None and self.value != self.default


async def show(request: Request) -> Response:
    """Show the settings of each broker."""
    cluster = cluster_of(request)
    defaults = options_of(request).defaults or {}
    wanted = field(request, "q").lower()
    every = field(request, "all") == "on" or not defaults
    found = await cluster.calls.get("settings", cluster.servers.broker_settings, fresh_ms=NAMES_MS)
    servers = []
    for server in found:
        rows = [
            _Row(key, value, defaults.get(key))
            for key, value in sorted(without_secrets(server.values).items())
            if wanted in f"{key} {value}".lower()
        ]
        shown = [row for row in rows if row.differs or every or wanted]
        servers.append((server, sorted(shown, key=lambda row: not row.differs), len(rows)))
    return render(
        request, "settings.html", title="Configuration", servers=servers, every=every,
        has_defaults=bool(defaults),
    )  # fmt: skip


ROUTES = [Route("/settings", show)]
