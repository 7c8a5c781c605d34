"""Checks of every request before a handler runs: host, login, token; and security headers.

A browser that can reach the dashboard also opens other sites. Another site must not read the
dashboard under its own host name (DNS rebinding), embed it, or send forms to it:

    Host header     must be an address, localhost, or a host name of the command line
    Origin header   of a change, if the browser sends it: must name this host
    cookie          HttpOnly, SameSite=Strict
    token           each change must have the token that only forms of this viewer contain
    CSP             scripts, styles and connections from this host only; nothing inline
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from cometmq.net.hostheader import host_names, is_known_host

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from cometmq.dashboard.accounts import Viewer, Viewers

#: Prefix of the name of the login cookie.
COOKIE: Final = "cometmq_login"
TOKEN_FIELD: Final = "change_token"
LOGIN_PATH: Final = "/login"
STATIC_PATH: Final = "/static/"
#: Requests at one time; further ones are refused with 503. uvicorn's own limit would also count
#: idle connections.
REQUESTS_MAX: Final = 128
#: Bytes of a form; a larger one is refused with 413.
FORM_BYTES_MAX: Final = 256 * 1024
_FORM_FIELDS_MAX: Final = 500
#: Time in which a form must arrive.
FORM_S: Final = 30.0
#: Headers that a proxy adds.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "via")
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer, browsers would send `Origin: null` with forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the dashboard listens; ``names`` are further host names by which browsers may ask.

    ``proxies`` are addresses or networks of trusted proxies: their headers X-Forwarded-For and
    X-Forwarded-Proto are used.
    """

    address: str = "127.0.0.1"
    port: int = 0
    names: Collection[str] = ()
    proxies: Collection[str] = ()


class Guard:
    """ASGI middleware that makes the checks. Handlers find the viewer and the form in
    ``request.state``."""

    def __init__(self, app: ASGIApp, viewers: Viewers, place: Place, allow_changes: bool) -> None:
        self._app = app
        self._viewers = viewers
        self._names = host_names(place.names)
        self._has_proxies = bool(place.proxies)
        self._allow_changes = allow_changes
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        is_static = path_of(request).startswith(STATIC_PATH)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = "max-age=3600" if is_static else "no-store"
                added = {**HEADERS, "cache-control": kept}
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.encode(), value.encode()) for name, value in added.items()),
                ]
            await send(message)

        if self._under_way >= REQUESTS_MAX:
            text = "Too many requests are under way: try again."
            await PlainTextResponse(text, 503)(scope, receive, with_headers)
            return
        self._under_way += 1
        try:
            refused = await self._refused(request, is_static)
            await (refused or self._app)(scope, receive, with_headers)
        finally:
            self._under_way -= 1

    async def _refused(self, request: Request, is_static: bool) -> Response | None:
        """Return the response that refuses a request; None if a handler may serve it."""
        if not is_known_host(request.headers.get("host", ""), self._names):
            text = "This page is not known by that name. Use its address, or start it with --host."
            return PlainTextResponse(text, 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Use GET or POST.", 405)
        if is_static:
            return None
        viewer = self._viewers.of(request.cookies.get(cookie_name(request), ""))
        request.state.viewer = viewer
        request.state.form = {}
        if request.method == "POST":
            return await self._refused_change(request, viewer)
        if viewer is not None or path_of(request) == LOGIN_PATH:
            return None
        if "x-fragment" in request.headers:
            return PlainTextResponse("Log in.", 401)
        return RedirectResponse(LOGIN_PATH, 303)

    async def _refused_change(self, request: Request, viewer: Viewer | None) -> Response | None:
        """Return the response that refuses a form; otherwise keep its fields and return None."""
        if not _same_origin(request.headers.get("origin"), request.headers.get("host", "")):
            return PlainTextResponse("A change must come from this page.", 403)
        try:
            async with asyncio.timeout(FORM_S):
                form = await _form(request)
        except TimeoutError:
            return PlainTextResponse("The form took too long.", 408, {"connection": "close"})
        if form is None:
            return PlainTextResponse("The form is too large.", 413)
        request.state.form = form
        if path_of(request) == LOGIN_PATH:
            return None
        if viewer is None:
            return RedirectResponse(LOGIN_PATH, 303)
        token = (form.get(TOKEN_FIELD) or [""])[0]
        if not hmac.compare_digest(token.encode(), viewer.change_token.encode()):
            return PlainTextResponse("The form is out of date: go back and reload the page.", 403)
        if not self._allow_changes and path_of(request) != "/logout":
            text = "This page only shows. Start it with --allow-changes to change something."
            return PlainTextResponse(text, 403)
        is_forwarded = any(name in request.headers for name in _FORWARDED)
        if is_forwarded and not self._has_proxies and self._viewers.is_anonymous(viewer):
            # Without logins only the loopback address protects the page. A proxy on this machine
            # would open it to others.
            text = "Nobody logged in, and the request came through a proxy. Name it with --proxy."
            return PlainTextResponse(text, 403)
        return None


def cookie_name(request: Request) -> str:
    """Return the name of the login cookie, with the port.

    Browsers send a cookie to all ports of a host. Two dashboards on one machine would overwrite
    each other's cookie if it had one name.
    """
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


def path_of(request: Request) -> str:
    """Return the path by which a request is routed.

    Older versions of Starlette build ``request.url`` from the Host header, with which a peer could
    forge another path.
    """
    path: str = request.scope["path"]
    return path


def _same_origin(origin: str | None, host: str) -> bool:
    """Return whether the Origin header names this host; True without one (old browsers)."""
    if origin is None:
        return True
    # A proxy may serve this page with TLS, so the scheme is not compared.
    return origin.partition("://")[2].lower() == host.lower()


async def _form(request: Request) -> dict[str, list[str]] | None:
    """Return the values of a form by field name; None if it has too many bytes or fields."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            return None
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(
            body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX
        )
    except ValueError:
        return None
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found
