"""Pages for login and logout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse
from starlette.routing import Route

from cometmq.dashboard.accounts import LoginRefused
from cometmq.dashboard.guard import cookie_name
from cometmq.dashboard.rendering import field, render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.dashboard.accounts import Viewers


async def log_in(request: Request) -> Response:
    """Show the login form (GET), or try the entered keys (POST) and set the cookie."""
    viewers: Viewers = request.app.state.viewers
    problem = ""
    access_key = field(request, "access_key") if request.method == "POST" else ""
    if request.method == "POST":
        # Not field(), which strips: a secret may begin or end with a space.
        secret_key = (request.state.form.get("secret_key") or [""])[0]
        address = request.client.host if request.client is not None else ""
        try:
            viewer = await viewers.log_in(access_key, secret_key, address)
        except LoginRefused as error:
            problem = str(error)
        else:
            response = RedirectResponse("/", 303)
            response.set_cookie(
                cookie_name(request), viewer.token, httponly=True, samesite="strict", path="/",
                secure=request.url.scheme == "https",
            )  # fmt: skip
            return response
    elif request.state.viewer is not None:
        return RedirectResponse("/", 303)
    request.state.viewer = None
    status = 401 if problem else 200
    return render(
        request, "login.html", status, title="Log in", problem=problem, access_key=access_key
    )


async def log_out(request: Request) -> Response:
    """End the login of this browser."""
    viewers: Viewers = request.app.state.viewers
    await viewers.log_out(request.cookies.get(cookie_name(request), ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(cookie_name(request), path="/", httponly=True, samesite="strict")
    return response


ROUTES = [
    Route("/login", log_in, methods=["GET", "POST"]),
    Route("/logout", log_out, methods=["POST"]),
]
