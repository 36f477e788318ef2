"""The pages for users: login, logout, operations. Each form is checked against requests that a foreign page sends."""

from __future__ import annotations

from html import escape
from typing import Final

from wheelmq.dashboard.http import HttpAnswer, HttpRequest, text_answer
from wheelmq.dashboard.page import STYLE, TITLE
from wheelmq.dashboard.sessions import LoginRejected, Operation, Sessions, UserRole, UserSession

LOGIN, LOGOUT, OPERATE = "/login", "/logout", "/operate"
PATHS: Final = frozenset((LOGIN, LOGOUT, OPERATE))
_LABELS: Final = {
    Operation.STOP_RELEASES: "Stop the release of timers",
    Operation.RESUME_RELEASES: "Resume the release of timers",
}


class UserPages:
    """Serves the paths of PATHS, and finds the session of other requests."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def session_of(self, request: HttpRequest) -> UserSession | None:
        """Return the session of a request."""
        cookie = request.cookie(_cookie_name(request))
        return await self._sessions.find(cookie) if cookie else None

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request for a path of PATHS."""
        if request.path == LOGIN and request.method in ("GET", "HEAD"):
            return _login_page("200 OK", "")
        if request.method != "POST":
            return text_answer("405 Method Not Allowed", "Use POST.", ("Allow", "POST"))
        scheme = "https" if request.is_encrypted else "http"
        if request.header("origin") != f"{scheme}://{request.header('host')}":
            return text_answer("403 Forbidden", "The form of another page is not accepted.")
        if request.path == LOGIN:
            return await self._log_in(request)
        session = await self.session_of(request)
        if session is None:
            return _to(LOGIN)
        if not session.owns(request.form.get("form_token", "")):
            return text_answer("403 Forbidden", "The form is old or forged: load the page again.")
        if request.path == LOGOUT:
            self._sessions.log_out(request.cookie(_cookie_name(request)))
            return _to(LOGIN, _cookie(request, "", "; Max-Age=0"))
        return await self._operate(request, session)

    async def _log_in(self, request: HttpRequest) -> HttpAnswer:
        try:
            cookie = await self._sessions.log_in(
                request.form.get("name", ""), request.form.get("secret", ""), request.address
            )
        except LoginRejected as rejected:
            return _login_page(rejected.status, str(rejected))
        return _to("/", _cookie(request, cookie))

    async def _operate(self, request: HttpRequest, session: UserSession) -> HttpAnswer:
        asked = request.form.get("operation", "")
        if asked not in tuple(Operation):
            return text_answer("400 Bad Request", f"The operations are {', '.join(Operation)}.")
        if session.role is not UserRole.OPERATE:
            return text_answer("403 Forbidden", "Your role is read: an operation needs Update on the cluster.")
        return text_answer("200 OK", await self._sessions.operate(session, Operation(asked)))


def account_html(session: UserSession) -> str:
    """Return the part of the page that names the user, with the forms of its role."""
    token = f'<input type="hidden" name="form_token" value="{session.form_token}">'
    forms = f'<form method="post" action="{LOGOUT}">{token}<button>Log out</button></form>'
    if session.role is UserRole.OPERATE:
        for operation, label in _LABELS.items():
            value = f'<button name="operation" value="{operation}">{label}</button>'
            forms += f'<form method="post" action="{OPERATE}">{token}{value}</form>'
    return f"<p>{escape(session.key.name)}, role {session.role}</p>{forms}"


def _cookie(request: HttpRequest, value: str, more: str = "") -> tuple[str, str]:
    """Return the header that sets the cookie of the page."""
    secure = "; Secure" if request.is_encrypted else ""
    return "Set-Cookie", f"{_cookie_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{more}"


def _cookie_name(request: HttpRequest) -> str:
    """Browsers share cookies between the ports of a host, so the name has the port.

    A name with `__Host-` is only accepted from a page with HTTPS, so no plain page can set this cookie.
    """
    port = request.header("host").rpartition(":")[2]
    prefix = "__Host-" if request.is_encrypted else ""
    return f"{prefix}wheelmq_{port}" if port.isdigit() else f"{prefix}wheelmq"


def _to(path: str, *headers: tuple[str, str]) -> HttpAnswer:
    return text_answer("303 See Other", f"See {path}", ("Location", path), *headers)


def _login_page(status: str, problem: str) -> HttpAnswer:
    body = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{TITLE}</h1>"
        f'<p id="state">{escape(problem)}</p>\n<form method="post" action="{LOGIN}">'
        '<p><label>User <input name="name" autocomplete="username" required></label></p>'
        '<p><label>Secret <input name="secret" type="password" autocomplete="current-password" required></label></p>'
        "<button>Log in</button></form></body></html>\n"
    )
    return HttpAnswer(status, "text/html; charset=utf-8", body.encode())
