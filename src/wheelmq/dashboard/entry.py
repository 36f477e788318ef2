"""The pages for users: login, logout, operations. Each form is checked against requests that a foreign page sends."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wheelmq.dashboard import page
from wheelmq.dashboard.page import Account, AccountForm
from wheelmq.dashboard.sessions import LoginRejected, Operation, Sessions, UserRole, UserSession

LOGIN, LOGOUT, OPERATE = "/login", "/logout", "/operate"
FORM: Final = "application/x-www-form-urlencoded"
BODY_BYTES_MAX: Final = 4096
"""Greatest length of a form."""
HTML: Final = "text/html; charset=utf-8"
_LABELS: Final = {
    Operation.STOP_RELEASES: "Stop the release of timers",
    Operation.RESUME_RELEASES: "Resume the release of timers",
}


class UserPages:
    """Serves login, logout and operations, and finds the session of other requests."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def session_of(self, request: Request) -> UserSession | None:
        """Return the session of a request; None without one."""
        cookie = _cookie_of(request)
        return await self._sessions.find(cookie) if cookie else None

    def account(self, session: UserSession) -> Account:
        """Return the user of a session, with the buttons of its role."""
        forms = [AccountForm(LOGOUT, "Log out")]
        if session.role is UserRole.OPERATE:
            forms += [AccountForm(OPERATE, label, operation) for operation, label in _LABELS.items()]
        return Account(session.key.name, session.role, session.form_token, tuple(forms))

    async def login(self, request: Request) -> Response:
        """Show the form of the login, or log a user in. Raises HTTPException."""
        if request.method != "POST":
            return _login_page(200, "")
        form = await _read_own_form(request)
        address = request.client.host if request.client is not None else ""
        try:
            cookie = await self._sessions.log_in(form.get("name", ""), form.get("secret", ""), address)
        except LoginRejected as rejected:
            return _login_page(rejected.status, str(rejected))
        return _to("/", _set_cookie(request, cookie))

    async def log_out(self, request: Request) -> Response:
        """End the session. Raises HTTPException."""
        if await self._session_of_form(request, await _read_own_form(request)) is not None:
            self._sessions.log_out(_cookie_of(request))
            return _to(LOGIN, _set_cookie(request, "", "; Max-Age=0"))
        return _to(LOGIN)

    async def operate(self, request: Request) -> Response:
        """Send an operation of the user to the broker. Raises HTTPException."""
        form = await _read_own_form(request)
        session = await self._session_of_form(request, form)
        if session is None:
            return _to(LOGIN)
        asked = form.get("operation", "")
        if asked not in tuple(Operation):
            raise HTTPException(400, f"The operations are {', '.join(Operation)}.")
        if session.role is not UserRole.OPERATE:
            raise HTTPException(403, "Your role is read: an operation needs Update on the cluster.")
        operation = Operation(asked)
        text = await self._sessions.operate(session, operation)
        return Response(page.render("result.html", title=_LABELS[operation], text=text), media_type=HTML)

    async def _session_of_form(self, request: Request, form: dict[str, str]) -> UserSession | None:
        """Return the session of a form; None without one. Raises HTTPException if the form is not of that session."""
        session = await self.session_of(request)
        if session is not None and not session.owns(form.get("form_token", "")):
            raise HTTPException(403, "The form is old or forged: load the page again.")
        return session


async def _read_own_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that this page sent. Raises HTTPException."""
    if _header(request, "origin") != f"{request.url.scheme}://{_header(request, 'host')}":
        raise HTTPException(403, "The form of another page is not accepted.")
    length = _header(request, "content-length")
    if not length.isdigit() or "transfer-encoding" in request.headers:
        raise HTTPException(411, "A form needs a Content-Length.")
    if int(length) > BODY_BYTES_MAX:
        raise HTTPException(413, f"A form has at most {BODY_BYTES_MAX} bytes.")
    if _header(request, "content-type").partition(";")[0].strip().lower() != FORM:
        raise HTTPException(415, f"A form has the type {FORM}.")
    raw = await request.body()
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))


def _header(request: Request, name: str) -> str:
    """Return the only value of a header; empty if there is none, or more than one."""
    values = request.headers.getlist(name)
    return values[0] if len(values) == 1 else ""


def _cookie_of(request: Request) -> str:
    """Return the value of the page's cookie; empty without one."""
    name = _cookie_name(request)
    for pair in _header(request, "cookie").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""


def _set_cookie(request: Request, value: str, more: str = "") -> str:
    """Return the header that sets the cookie of the page."""
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{_cookie_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{more}"


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie, with the port, because browsers share cookies between the ports of a host.

    A name with `__Host-` is only accepted from a page with HTTPS, so no plain page can set this cookie.
    """
    port = _header(request, "host").rpartition(":")[2]
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}wheelmq_{port}" if port.isdigit() else f"{prefix}wheelmq"


def _to(path: str, cookie: str | None = None) -> Response:
    answer = PlainTextResponse(f"See {path}\n", 303, {"Location": path})
    if cookie is not None:
        answer.headers["Set-Cookie"] = cookie
    return answer


def _login_page(status: int, problem: str) -> Response:
    return Response(page.render("login.html", problem=problem), status, media_type=HTML)
