"""Rendering of templates, and the values of a request that handlers read.

An open page polls with the header ``X-Fragment``; the response is then only the part of the page
that the script replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from cometmq.core.errors import CometError
from cometmq.core.plural import plural
from cometmq.dashboard import drawing, shown
from cometmq.dashboard.guard import TOKEN_FIELD, path_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from cometmq.dashboard.accounts import Viewer
    from cometmq.dashboard.schemas import Schemas
    from cometmq.dashboard.watched import WatchedCluster

#: Rows of a list on one page.
PAGE_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class Options:
    """Options with which the dashboard was started.

    ``defaults`` are the default settings of a CometMQ broker, by name. ``schemas`` decode the
    bodies of topics.
    """

    allow_changes: bool = False
    defaults: Mapping[str, str] | None = None
    schemas: Schemas | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One page of a list."""

    rows: list[Any]
    page: int
    pages: int
    total: int


def part_of(rows: list[Any], request: Request) -> Part:
    """Return the page of a list that the query parameter ``page`` names, counted from 1."""
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(max(1, whole(request.query_params.get("page", ""), 1)), pages)
    return Part(rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS], page, pages, len(rows))


class InputRefused(CometError):
    """A form has a value that cannot be used; nothing was changed."""


def moment_ms(text: str) -> int:
    """Parse a time in UTC, or ms since the epoch. Raises InputRefused."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InputRefused(f"{text!r} is not a time such as 2026-01-31T08:00") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def whole(text: str, default: int) -> int:
    """Parse a whole number of at most 18 digits; return ``default`` for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default


def viewer_of(request: Request) -> Viewer:
    """Return the viewer of a request; the guard let none without a viewer through."""
    viewer: Viewer = request.state.viewer
    return viewer


def options_of(request: Request) -> Options:
    """Return the options with which the dashboard was started."""
    options: Options = request.app.state.options
    return options


def cluster_of(request: Request) -> WatchedCluster:
    """Return the cluster of a request's viewer, and note that somebody looks at it."""
    cluster = viewer_of(request).cluster
    cluster.look()
    return cluster


def field(request: Request, name: str) -> str:
    """Return a field of the form, otherwise of the query, without outer spaces; "" if absent."""
    sent = request.state.form.get(name)
    return (sent[0] if sent else request.query_params.get(name, "")).strip()


def link(path: str, *names: str, **query: object) -> str:
    """Return a path with an escaped name for each ``{}``, and a query without empty values."""
    filled = path.format(*(quote(name, safe="") for name in names))
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{filled}?{urlencode(given)}" if given else filled


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template with ``values`` to a response; for a poll only the part that changes."""
    is_poll = "x-fragment" in request.headers
    viewer: Viewer | None = request.state.viewer
    options = options_of(request)
    cluster = viewer.cluster if viewer is not None else None
    text = (
        _environment()
        .get_template(template)
        .render(
            base="fragment.html" if is_poll else "page.html",
            path=path_of(request),
            query=request.query_params,
            viewer=viewer,
            account=cluster.account if cluster is not None else "",
            trouble=cluster.problem if cluster is not None else "",
            name_servers=", ".join(cluster.servers.name_servers) if cluster is not None else "",
            now_ms=cluster.clock.wall_ms() if cluster is not None else 0,
            may_change=options.allow_changes,
            token_field=TOKEN_FIELD,
            **values,
        )
    )
    return HTMLResponse(text, status)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("cometmq.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in ("count", "rate", "size", "duration", "at", "percent", "short"):
        made.filters[name] = getattr(shown, name)
    made.filters["plural"] = plural
    made.globals.update(link=link, spark=drawing.spark, bar=drawing.bar)
    return made
