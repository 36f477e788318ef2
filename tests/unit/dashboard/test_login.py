"""The dashboard of a broker with users: login, roles, forged forms, limited failures. The broker decides."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from compat.certificates import Authority
from tests.unit.broker.sample_requests import ROOT
from tests.unit.dashboard.test_server import exchange, make_dashboard
from tests.unit.net.secure import client_context, server_tls
from wheelmq.auth.policies import AccessList, AclEntry, Action, Decision, Resource
from wheelmq.cli.dashboard_access import UserRequests, login_notes
from wheelmq.dashboard.sessions import CHECK_S, IDLE_S, SESSIONS_MAX, Sessions
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.attempt_limit import FAILURES_MAX, WAIT_S
from wheelmq.system.tls import TlsMode
from wheelmq.testing.harness import BrokerHarness

BOB = AccessKey("bob", "the secret of bob")
"""May read."""
EVE = AccessKey("eve", "the secret of eve")
"""May neither read nor operate."""


class Browser:
    """Sends requests as a browser does, and keeps the cookie."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.tls: ssl.SSLContext | None = None
        """Send requests by HTTPS."""

    async def send(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> tuple[int, str]:
        """Send a request with a cookie and an origin. Returns status and the whole answer."""
        body = urlencode(form or {})
        host = f"127.0.0.1:{self.port}"
        origin = f"http://{host}" if self.tls is None else f"https://{host}"
        sent = {"Host": host, "Origin": origin, "Cookie": self.cookie}
        if form is not None:
            sent |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value)
        raw = (await exchange(self.port, f"{method} {path} HTTP/1.1\r\n{lines}\r\n{body}".encode(), self.tls)).decode()
        if found := re.search(r"set-cookie: ([^;]*);", raw):
            self.cookie = found[1]
        return int(raw.split(" ", 2)[1]) if raw else 0, raw

    async def log_in(self, key: AccessKey) -> int:
        return (await self.send("POST", "/login", {"name": key.name, "secret": key.secret}))[0]

    async def form_token(self) -> str:
        _, page = await self.send("GET", "/")
        found = re.search(r'name="form_token" value="([^"]+)"', page)
        assert found is not None, page
        return found[1]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[BrokerHarness]:
    init = json.dumps({"username": ROOT.name, "password": ROOT.secret})
    users = {"authentication_enabled": True, "authorization_enabled": True, "init_authentication_user": init}
    with BrokerHarness(tmp_path / "store", block_length_seconds=3600, **users) as harness:
        tables = harness.broker.parts.access.tables
        for key in (BOB, EVE):
            tables.change_user(key.name, tables.users.make(key.name, key.secret))
        right = AclEntry(Resource.parse("Cluster:DefaultCluster"), frozenset({Action.GET}), Decision.ALLOW)
        tables.change_acl("bob", AccessList(custom=[right]))
        yield harness


def run(
    harness: BrokerHarness, log: Path, work: Callable[[Browser], Awaitable[None]], tls: ServerTls | None = None
) -> list[dict[str, str]]:
    """Run `work` with a browser at a dashboard. Returns the lines of its audit log."""

    async def ask(key: AccessKey, command: Command) -> Command:
        key.sign(command)
        return harness.ask(command)

    async def ask_as_root(command: Command) -> Command:
        return await ask(ROOT, command)

    async def play() -> None:
        sessions = Sessions(UserRequests(ask), harness.clock, login_notes(log, harness.clock))
        dashboard = make_dashboard(harness, ask_as_root, sessions)
        url = await dashboard.start(0, tls)
        try:
            await asyncio.wait_for(work(Browser(int(url.rstrip("/").rpartition(":")[2]))), 30)
        finally:
            await dashboard.stop()

    asyncio.run(play())
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_nothing_is_shown_without_a_login(secured: BrokerHarness, tmp_path: Path) -> None:
    async def work(browser: Browser) -> None:
        status, answer = await browser.send("GET", "/")
        assert status == 303 and "location: /login" in answer and "DefaultCluster" not in answer
        assert (await browser.send("GET", "/figures.json"))[0] == 401
        for forged in ("x", "wheelmq", f"wheelmq_{browser.port}=", f"wheelmq_{browser.port}={'x' * 43}"):
            browser.cookie = forged
            assert (await browser.send("GET", "/figures.json"))[0] == 401
        assert (await browser.send("POST", "/operate", {"operation": "stop-releases"}))[0] == 303
        assert not secured.broker.parts.settings.timer.stop_dequeue

    run(secured, tmp_path / "audit.log", work)


def test_a_login_shows_the_page_without_any_secret(secured: BrokerHarness, tmp_path: Path) -> None:
    async def work(browser: Browser) -> None:
        status, page = await browser.send("GET", "/login")
        assert status == 200 and "form-action 'self'" in page
        status, answer = await browser.send("POST", "/login", {"name": BOB.name, "secret": BOB.secret})
        assert status == 303
        assert re.search(r"set-cookie: wheelmq_\d+=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict\r", answer)
        status, page = await browser.send("GET", "/")
        assert status == 200 and "bob, role read" in page and "Broker broker-a" in page and "Log out" in page
        status, figures = await browser.send("GET", "/figures.json")
        assert status == 200
        for text in (page, figures, answer):
            assert BOB.secret not in text and "secret+of" not in text

    lines = run(secured, tmp_path / "audit.log", work)
    assert [(line["request"], line["user"], line["outcome"]) for line in lines] == [("DASHBOARD_LOGIN", "bob", "done")]
    assert lines[0]["address"] == "127.0.0.1"


@pytest.mark.parametrize("key", [AccessKey("bob", "a wrong secret"), AccessKey("nobody", BOB.secret), EVE])
def test_a_wrong_secret_or_a_user_without_rights_is_rejected(
    secured: BrokerHarness, tmp_path: Path, key: AccessKey
) -> None:
    async def work(browser: Browser) -> None:
        status, answer = await browser.send("POST", "/login", {"name": key.name, "secret": key.secret})
        assert status == 403 and "set-cookie" not in answer and key.secret not in answer
        assert "Wrong name or secret, or no right" in answer

    lines = run(secured, tmp_path / "audit.log", work)
    assert [(line["user"], line["outcome"]) for line in lines] == [(key.name, "rejected")]


def test_failures_are_limited(secured: BrokerHarness, tmp_path: Path) -> None:
    async def work(browser: Browser) -> None:
        wrong = AccessKey("bob", "a wrong secret")
        assert [await browser.log_in(wrong) for _ in range(FAILURES_MAX)] == [403] * FAILURES_MAX
        assert await browser.log_in(BOB) == 429, "even with the right secret"
        assert await browser.log_in(ROOT) == 303, "another user"
        secured.advance(int(WAIT_S * 1000))
        assert await browser.log_in(BOB) == 303

    lines = run(secured, tmp_path / "audit.log", work)
    assert [line["outcome"] for line in lines] == ["rejected"] * (FAILURES_MAX + 1) + ["done"] * 2


def test_attempts_at_the_same_time_count_too(secured: BrokerHarness, tmp_path: Path) -> None:
    async def work(browser: Browser) -> None:
        wrong = AccessKey("bob", "a wrong secret")
        found = await asyncio.gather(*(browser.log_in(wrong) for _ in range(20)))
        assert sorted(found) == [403] * FAILURES_MAX + [429] * (20 - FAILURES_MAX)

    run(secured, tmp_path / "audit.log", work)


def test_only_the_role_operate_may_operate(secured: BrokerHarness, tmp_path: Path) -> None:
    timer = secured.broker.parts.settings.timer

    async def work(browser: Browser) -> None:
        await browser.log_in(BOB)
        form = {"operation": "stop-releases", "form_token": await browser.form_token()}
        status, answer = await browser.send("POST", "/operate", form)
        assert status == 403 and "Your role is read" in answer and not timer.stop_dequeue
        await browser.log_in(ROOT)
        token = await browser.form_token()
        status, answer = await browser.send("POST", "/operate", {"operation": "stop-releases", "form_token": token})
        assert status == 200 and "Done." in answer and timer.stop_dequeue
        status, answer = await browser.send("POST", "/operate", {"operation": "resume-releases", "form_token": token})
        assert status == 200 and not timer.stop_dequeue
        assert (await browser.send("POST", "/operate", {"operation": "drop", "form_token": token}))[0] == 400

    run(secured, tmp_path / "audit.log", work)


def test_a_login_by_https_has_a_cookie_that_no_plain_page_can_set(secured: BrokerHarness, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")

    async def work(browser: Browser) -> None:
        login = {"name": BOB.name, "secret": BOB.secret}
        _, answer = await browser.send("POST", "/login", login)
        assert re.search(r"set-cookie: wheelmq_\d+=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict\r", answer)
        plain, browser.tls = browser.cookie, client_context(authority)
        assert (await browser.send("GET", "/figures.json"))[0] == 401
        _, answer = await browser.send("POST", "/login", login)
        assert re.search(
            r"set-cookie: __Host-wheelmq_\d+=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict; Secure\r", answer
        )
        assert (await browser.send("GET", "/figures.json"))[0] == 200
        assert (await browser.send("POST", "/login", login, Origin=f"http://127.0.0.1:{browser.port}"))[0] == 403
        assert (await browser.send("POST", "/logout", {"form_token": await browser.form_token()}))[0] == 303
        assert browser.cookie.startswith("__Host-") and (await browser.send("GET", "/figures.json"))[0] == 401
        browser.tls, browser.cookie = None, plain
        assert (await browser.send("GET", "/figures.json"))[0] == 200

    run(secured, tmp_path / "audit.log", work, server_tls(authority.issue(), TlsMode.PERMISSIVE))


def test_a_form_of_another_page_changes_nothing(secured: BrokerHarness, tmp_path: Path) -> None:
    timer = secured.broker.parts.settings.timer

    async def work(browser: Browser) -> None:
        await browser.log_in(ROOT)
        token = await browser.form_token()
        form = {"operation": "stop-releases", "form_token": token}
        for origin in ("http://evil.example", "null", "", f"https://127.0.0.1:{browser.port}"):
            assert (await browser.send("POST", "/operate", form, Origin=origin))[0] == 403
            login = {"name": BOB.name, "secret": BOB.secret}
            assert (await browser.send("POST", "/login", login, Origin=origin))[0] == 403
        for wrong in ("", "x", token[:-1], "ü"):
            assert (await browser.send("POST", "/operate", {**form, "form_token": wrong}))[0] == 403
        assert (await browser.send("POST", "/logout", {"form_token": "x"}))[0] == 403
        assert (await browser.send("GET", "/operate?operation=stop-releases"))[0] == 405
        assert not timer.stop_dequeue

    run(secured, tmp_path / "audit.log", work)


def test_a_form_token_of_another_session_does_not_count(secured: BrokerHarness, tmp_path: Path) -> None:
    async def work(browser: Browser) -> None:
        other = Browser(browser.port)
        await browser.log_in(ROOT)
        await other.log_in(BOB)
        form = {"operation": "stop-releases", "form_token": await other.form_token()}
        assert (await browser.send("POST", "/operate", form))[0] == 403

    run(secured, tmp_path / "audit.log", work)


def test_a_session_ends(secured: BrokerHarness, tmp_path: Path) -> None:
    tables = secured.broker.parts.access.tables

    async def work(browser: Browser) -> None:
        await browser.log_in(ROOT)
        cookie, token = browser.cookie, await browser.form_token()
        assert (await browser.send("POST", "/logout", {"form_token": token}))[0] == 303
        browser.cookie = cookie
        assert (await browser.send("GET", "/figures.json"))[0] == 401, "after a logout"
        await browser.log_in(ROOT)
        secured.advance(int(IDLE_S * 1000))
        assert (await browser.send("GET", "/figures.json"))[0] == 401, "after half an hour without a request"
        await browser.log_in(BOB)
        tables.change_acl("bob", None)
        tables.change_user("bob", None)
        secured.advance(int(CHECK_S * 1000))
        assert (await browser.send("GET", "/figures.json"))[0] == 401, "after its user is gone"
        first = Browser(browser.port)
        await first.log_in(ROOT)
        for _ in range(SESSIONS_MAX):
            await browser.log_in(ROOT)
        assert (await first.send("GET", "/figures.json"))[0] == 401, "after many others"

    run(secured, tmp_path / "audit.log", work)


def test_a_defect_writes_no_secret_into_the_log(
    secured: BrokerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(requests: UserRequests, key: AccessKey) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(UserRequests, "role_of", fail)

    async def work(browser: Browser) -> None:
        status, answer = await browser.send("POST", "/login", {"name": BOB.name, "secret": BOB.secret})
        assert status == 500 and "defect" not in answer

    run(secured, tmp_path / "audit.log", work)
    assert "a defect" in caplog.text and BOB.secret not in caplog.text and "secret+of" not in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": ""}, 411),
        ({"Content-Length": "-1"}, 400),
        ({"Content-Length": "99999999999999999999"}, 413),
        ({"Content-Length": "9999999999999999999999"}, 400),
        ({"Content-Length": "5000"}, 413),
        ({"Content-Type": "text/plain"}, 415),
        ({"Transfer-Encoding": "chunked"}, 411),
    ],
)
def test_a_form_with_an_invalid_head_is_rejected(
    secured: BrokerHarness, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async def work(browser: Browser) -> None:
        form = {"name": BOB.name, "secret": BOB.secret}
        assert (await browser.send("POST", "/login", form, **headers))[0] == status

    run(secured, tmp_path / "audit.log", work)
