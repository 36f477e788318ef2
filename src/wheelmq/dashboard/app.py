"""The routes of the dashboard, as a Starlette application. Without users it has no forms and reads only.

A page of its own, such as a search for single timers, is a template and a route in `make_app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wheelmq.dashboard import page
from wheelmq.dashboard.basic_access import BasicAccess
from wheelmq.dashboard.entry import LOGIN, LOGOUT, OPERATE, UserPages
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.metrics import BrokerMetrics, MetricsUnavailable
from wheelmq.dashboard.page import Account
from wheelmq.dashboard.sessions import Sessions
from wheelmq.system.clock import Clock

HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
"""Names in the Host header that are accepted.

A foreign page whose name was pointed to this server has another one.
"""
COMMON: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),  # with no-referrer, browsers send the forms of this page with Origin: null
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
)
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
FORMS_POLICY: Final = POLICY.replace("form-action 'none'", "form-action 'self'")
"""The policy of pages with forms."""
ASSETS: Final = {
    "style.css": "text/css; charset=utf-8",
    "refresh.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Files that each page may load, with their types. They have no figures, so they need no login."""

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(figures: DashboardFigures, metrics: BrokerMetrics, clock: Clock, sessions: Sessions | None) -> ASGIApp:
    """Return the application. With `sessions`, only users who are logged in see figures."""
    users = None if sessions is None else UserPages(sessions)
    pages = _Pages(figures, clock, users)
    for_programs = _MetricsPage(metrics, users, None if sessions is None else BasicAccess(sessions))
    routes = [
        Route("/", pages.show),
        Route("/figures.json", pages.figures),
        Route("/metrics", for_programs.show),
        Route("/healthz", _health),
        Route("/readyz", pages.readiness),
        *(Route(f"/{name}", _asset_endpoint(name, kind)) for name, kind in ASSETS.items()),
    ]
    if users is not None:
        routes += [
            Route(LOGIN, users.login, methods=["GET", "POST"]),
            Route(LOGOUT, users.log_out, methods=["POST"]),
            Route(OPERATE, users.operate, methods=["POST"]),
        ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _rejected})
    app.router.redirect_slashes = False
    return Guard(app, POLICY if users is None else FORMS_POLICY)


class Guard:
    """Rejects foreign hosts, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in COMMON:
                    headers[name] = value
                headers["Content-Security-Policy"] = self._policy
            await send(message)

        app = self._app
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or _host(hosts[0]) not in HOSTS:
            app = PlainTextResponse("Use the host name 127.0.0.1 or localhost.\n", 421)
        await app(scope, receive, send_guarded)


class _Pages:
    """The endpoints with figures."""

    def __init__(self, figures: DashboardFigures, clock: Clock, users: UserPages | None) -> None:
        self._figures = figures
        self._clock = clock
        self._users = users

    async def show(self, request: Request) -> Response:
        """Serve the page. A request without a session goes to the login."""
        account: Account | None = None
        if self._users is not None:
            session = await self._users.session_of(request)
            if session is None:
                return RedirectResponse(LOGIN, 303)
            account = self._users.account(session)
        asked = request.query_params.get("refresh", "")
        refresh_s = int(asked) if asked in map(str, page.REFRESH_S) else 0
        figures = await self._figures.get()
        body = page.html(figures, self._figures.history, self._clock.now_ms(), account, refresh_s)
        return Response(body, media_type="text/html; charset=utf-8")

    async def figures(self, request: Request) -> Response:
        """Serve the figures as JSON. A request without a session is rejected."""
        if self._users is not None and await self._users.session_of(request) is None:
            return PlainTextResponse(f"Log in at {LOGIN} first.\n", 401)
        figures = await self._figures.get()
        body = page.json(figures, self._figures.history, self._clock.now_ms())
        return Response(body, media_type="application/json")

    async def readiness(self, request: Request) -> Response:
        """Say whether the broker answers and accepts sends. The answer has no figures, so it needs no login."""
        figures = await self._figures.state()
        if "problem" in figures:
            return PlainTextResponse("not ready: the broker does not answer\n", 503)
        if figures["is_master"] and not figures["takes_sends"]:
            return PlainTextResponse("not ready: the broker rejects sends\n", 503)
        return PlainTextResponse("ready\n")


class _MetricsPage:
    """The endpoint for Prometheus. It takes the session of a user, and basic authentication."""

    def __init__(self, metrics: BrokerMetrics, users: UserPages | None, access: BasicAccess | None) -> None:
        self._metrics = metrics
        self._users = users
        self._access = access

    async def show(self, request: Request) -> Response:
        """Serve the metrics of the broker, in a format that the request accepts."""
        if self._users is not None and self._access is not None and await self._users.session_of(request) is None:
            rejection = await self._access.rejection(request)
            if rejection is not None:
                return rejection
        try:
            found = await self._metrics.text(request.headers.get("accept", ""))
        except MetricsUnavailable as error:
            return PlainTextResponse(f"There are no metrics: {error}\n", 503)
        return Response(found.body, headers={"Content-Type": found.media_type})


async def _health(request: Request) -> Response:
    """Say that the dashboard runs."""
    return PlainTextResponse("ok\n")


def _asset_endpoint(name: str, kind: str) -> Endpoint:
    async def serve(request: Request) -> Response:
        return Response(page.asset(name), media_type=kind)

    return serve


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "There is no such page. The dashboard is /, and its metrics are /metrics."}
    text[405] = "This page does not accept such a request."
    return PlainTextResponse(f"{text.get(error.status_code, error.detail)}\n", error.status_code, error.headers)


def _host(name: str) -> str:
    """Return a Host header's name without the port, which may differ because of a port forwarding."""
    return name if name.endswith("]") else name.rpartition(":")[0] or name
