"""The dashboard over HTTP: its pages, and the rejection of other requests."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from compat.certificates import Authority
from tests.unit.net.secure import client_context, server_tls
from wheelmq.dashboard import server
from wheelmq.dashboard.due_counts import Ask
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.metrics import BrokerMetrics
from wheelmq.dashboard.server import Dashboard
from wheelmq.dashboard.sessions import Sessions
from wheelmq.formats.wire.frame import Command
from wheelmq.system.tls import TlsMode
from wheelmq.testing.harness import BrokerHarness

R = TypeVar("R")


def make_dashboard(harness: BrokerHarness, ask: Ask, sessions: Sessions | None = None) -> Dashboard:
    """Return a dashboard that asks a broker by `ask`."""
    clock = harness.clock
    return Dashboard(DashboardFigures(ask, clock), BrokerMetrics(ask, clock), clock, sessions)


def run_with_dashboard(harness: BrokerHarness, work: Callable[[int], Awaitable[R]]) -> R:
    """Run `work` with the port of a dashboard of the broker. Returns its result."""

    async def ask(command: Command) -> Command:
        return harness.ask(command)

    async def run() -> R:
        dashboard = make_dashboard(harness, ask)
        url = await dashboard.start(0)
        try:
            return await asyncio.wait_for(work(int(url.rstrip("/").rpartition(":")[2])), 30)
        finally:
            await dashboard.stop()

    return asyncio.run(run())


async def exchange(port: int, request: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send a request, by HTTPS with `tls`. Returns all bytes that come back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def get_answer(harness: BrokerHarness, request: str) -> tuple[str, dict[str, str], bytes]:
    """Send a request in which | marks the end of a line. Returns status, headers in lower case and body."""
    raw = run_with_dashboard(harness, lambda port: exchange(port, request.replace("|", "\r\n").encode()))
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status.removeprefix("HTTP/1.1 "), dict(line.lower().split(": ", 1) for line in lines), body


HOST = "Host: 127.0.0.1:1|"


def test_the_page_allows_only_its_own_script_and_style(harness: BrokerHarness) -> None:
    status, headers, body = get_answer(harness, f"GET / HTTP/1.1|{HOST}|")
    assert (status, headers["content-type"]) == ("200 OK", "text/html; charset=utf-8")
    assert int(headers["content-length"]) == len(body)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    for directive in ("script-src 'self'", "style-src 'self'", "form-action 'none'", "frame-ancestors 'none'"):
        assert directive in policy
    assert not re.search(rb"<style|<script>|https?:", body)
    assert headers["referrer-policy"] == "same-origin" and headers["cache-control"] == "no-store"
    assert not headers.keys() & {"access-control-allow-origin", "server"}


@pytest.mark.parametrize("path", ["/style.css", "/refresh.js", "/icon.svg"])
def test_the_files_of_the_page_are_served_with_their_types(harness: BrokerHarness, path: str) -> None:
    status, headers, body = get_answer(harness, f"GET {path} HTTP/1.1|{HOST}|")
    assert status == "200 OK" and len(body) > 100 and headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"].split(";")[0] in ("text/css", "text/javascript", "image/svg+xml")


def test_readiness_follows_the_broker(harness: BrokerHarness) -> None:
    request = f"GET /readyz HTTP/1.1|{HOST}|"
    assert get_answer(harness, request)[::2] == ("200 OK", b"ready\n")
    harness.broker.parts.health.reject_sends("a secret of the store")
    status, _, body = get_answer(harness, request)
    assert status == "503 Service Unavailable" and body == b"not ready: the broker rejects sends\n"
    assert get_answer(harness, f"GET /healthz HTTP/1.1|{HOST}|")[::2] == ("200 OK", b"ok\n")


@pytest.mark.parametrize(("query", "is_refreshed"), [("30", True), ("10", True), ("1", False), ("x'><i>", False)])
def test_a_link_asks_for_a_refresh_without_a_script(harness: BrokerHarness, query: str, is_refreshed: bool) -> None:
    status, _, body = get_answer(harness, f"GET /?refresh={query} HTTP/1.1|{HOST}|")
    assert status == "200 OK" and (b'http-equiv="refresh"' in body) is is_refreshed and b"<i>" not in body


def test_a_proxy_header_changes_nothing(harness: BrokerHarness) -> None:
    found = get_answer(harness, f"GET /figures.json HTTP/1.1|{HOST}X-Forwarded-Host: evil.example|X-Forwarded-For: 1||")
    assert found[0] == "200 OK"


def test_the_server_returns_the_figures_as_json(harness: BrokerHarness) -> None:
    harness.send("T", delay_ms=9000)
    status, headers, body = get_answer(harness, "GET /figures.json?x=1 HTTP/1.1|Host: localhost:8080|Accept: */*||")
    assert (status, headers["content-type"]) == ("200 OK", "application/json")
    found = msgspec.json.decode(body)
    assert found["problem"] == "" and found["figures"]["overview"]["waiting"]["timer"] == 1
    assert {"title", "rows", "columns", "note"} == set(found["sections"][0])


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (f"GET /etc/passwd HTTP/1.1|{HOST}|", "404 Not Found"),
        (f"GET //figures.json HTTP/1.1|{HOST}|", "404 Not Found"),
        (f"POST / HTTP/1.1|{HOST}Content-Length: 1||x", "405 Method Not Allowed"),
        ("GET / HTTP/1.1|Host: evil.example:80||", "421 Misdirected Request"),
        ("GET / HTTP/1.1|Host: 127.0.0.1.evil.example||", "421 Misdirected Request"),
        ("GET / HTTP/1.0||", "421 Misdirected Request"),
        (f"GET /login HTTP/1.1|{HOST}|", "404 Not Found"),
        (f"GET /figures.json/ HTTP/1.1|{HOST}|", "404 Not Found"),
    ],
)
def test_the_server_rejects_other_requests(harness: BrokerHarness, request_text: str, status: str) -> None:
    found, headers, body = get_answer(harness, request_text)
    assert found == status and len(body) < 100
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/1.1||",
        f"GET / HTTP/1.1|{HOST}Host: evil.example||",
        "nonsense||",
        f"GET / HTTP/2|{HOST}|",
        "||",
        f"GET / HTTP/1.1|{HOST}X: {'x' * 13_000}||",
    ],
)
def test_the_server_rejects_requests_that_are_no_http(harness: BrokerHarness, request_text: str) -> None:
    found, headers, body = get_answer(harness, request_text)
    assert found == "400 Bad Request" and len(body) < 100 and headers["content-type"].startswith("text/plain")


def test_the_server_closes_a_request_without_an_end(harness: BrokerHarness) -> None:
    found, _, body = get_answer(harness, f"GET / HTTP/1.1|{HOST}X: {'x' * 1_000_000}||")
    assert found in ("", "400 Bad Request") and len(body) < 100


def test_a_head_request_returns_no_body(harness: BrokerHarness) -> None:
    status, headers, body = get_answer(harness, f"HEAD / HTTP/1.1|{HOST}|")
    assert (status, body) == ("200 OK", b"") and int(headers["content-length"]) > 1000


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("HEAD / HTTP/1.1|Host: evil.example||", "421 Misdirected Request"),
        (f"HEAD /x HTTP/1.1|{HOST}|", "404 Not Found"),
    ],
)
def test_a_rejected_head_request_returns_no_body(harness: BrokerHarness, request_text: str, status: str) -> None:
    found, headers, body = get_answer(harness, request_text)
    assert (found, body) == (status, b"") and int(headers["content-length"]) > 10


def test_silent_connections_are_closed_and_limited(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)

    async def crowd(port: int) -> tuple[list[bytes], bytes]:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        ended = await asyncio.gather(*(reader.read() for reader, _ in opened), return_exceptions=True)
        for _, writer in opened:
            writer.close()
        later = await exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return [one if isinstance(one, bytes) else b"" for one in ended], later

    ended, later = run_with_dashboard(harness, crowd)
    assert ended == [b""] * 6
    assert later.startswith(b"HTTP/1.1 200 OK")


def test_silent_clients_do_not_block_others(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 20.0)
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)

    async def crowd(port: int) -> list[bytes]:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        found = [await exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(8)]
        for _, writer in silent:
            writer.close()
        return found

    assert all(one.startswith(b"HTTP/1.1 200 OK") for one in run_with_dashboard(harness, crowd))


@pytest.mark.parametrize("header", ["Host : evil|", " Host: evil|", ": evil|", "Accept : x|", "no colon|"])
def test_a_header_with_an_invalid_name_is_rejected(harness: BrokerHarness, header: str) -> None:
    status, _, _ = get_answer(harness, f"GET / HTTP/1.1|{header}{HOST}|")
    assert status == "400 Bad Request"


def test_a_port_in_use_raises_an_error(harness: BrokerHarness) -> None:
    async def again(port: int) -> None:
        with pytest.raises(OSError, match="in use"):
            await make_dashboard(harness, lambda command: asyncio.sleep(0, command)).start(port)

    run_with_dashboard(harness, again)


@pytest.mark.parametrize("mode", TlsMode)
def test_the_mode_decides_about_http_and_https(harness: BrokerHarness, tmp_path: Path, mode: TlsMode) -> None:
    authority = Authority(tmp_path / "authority")
    tls = server_tls(authority.issue(), mode)
    context = client_context(authority)

    async def ask(command: Command) -> Command:
        return harness.ask(command)

    async def is_served(port: int, context: ssl.SSLContext | None) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"GET /figures.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            found = await reader.read()
            writer.close()
        except OSError:
            return False
        return found.startswith(b"HTTP/1.1 200 OK\r\n")

    async def run() -> None:
        dashboard = make_dashboard(harness, ask)
        url = await dashboard.start(0, tls)
        scheme, _, rest = url.partition("://127.0.0.1:")
        assert scheme == ("https" if mode is TlsMode.ENFORCING else "http")
        port = int(rest.rstrip("/"))
        found = [await is_served(port, one) for one in (None, context)]
        assert found == [mode is not TlsMode.ENFORCING, mode is not TlsMode.DISABLED]
        await dashboard.stop()

    asyncio.run(asyncio.wait_for(run(), 30))
