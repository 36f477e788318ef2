"""/metrics on the dashboard's port: for everyone without users, and with users for those with the role read."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.dashboard.test_login import BOB, EVE, Browser, run, secured
from tests.unit.dashboard.test_server import HOST, exchange, get_answer, make_dashboard
from wheelmq.dashboard.metrics import KEPT_S
from wheelmq.dashboard.sessions import CHECK_S
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError
from wheelmq.system.attempt_limit import FAILURES_MAX, WAIT_S
from wheelmq.testing.harness import BrokerHarness

__all__ = ["secured"]

GET = f"GET /metrics HTTP/1.1|{HOST}"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4,*/*;q=0.1"
)
"""The header Accept of Prometheus 3."""


def test_the_metrics_of_the_broker_are_served_as_text(harness: BrokerHarness) -> None:
    harness.send("T", b"now")
    harness.send("T", delay_ms=9000)
    status, headers, body = get_answer(harness, f"{GET}|")
    assert (status, headers["content-type"]) == ("200 OK", "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    counts = {sample.labels["topic"]: sample.value for sample in families["rocketmq_messages_in"].samples}
    assert counts == {"T": 1, "rmq_sys_wheel_timer": 1}
    assert families["wheelmq_release_lateness_milliseconds"].type == "histogram"
    assert families["process_resident_memory_bytes"].samples[0].value > 0


def test_prometheus_3_gets_openmetrics(harness: BrokerHarness) -> None:
    harness.send("T")
    status, headers, body = get_answer(harness, f"{GET}Accept: {PROMETHEUS}||")
    assert status == "200 OK" and headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert len(list(openmetrics_families(body.decode()))) > 50 and body.endswith(b"# EOF\n")


def test_a_head_request_and_other_methods(harness: BrokerHarness) -> None:
    status, headers, body = get_answer(harness, f"HEAD /metrics HTTP/1.1|{HOST}|")
    assert (status, body) == ("200 OK", b"") and int(headers["content-length"]) > 5000
    assert get_answer(harness, f"POST /metrics HTTP/1.1|{HOST}Content-Length: 1||x")[0] == "405 Method Not Allowed"
    assert get_answer(harness, "GET /metrics HTTP/1.1|Host: evil.example||")[0] == "421 Misdirected Request"


def serve(harness: BrokerHarness, work: Callable[[int], Awaitable[None]], codes: list[int] | None = None) -> None:
    """Run `work` with the port of a dashboard. Its requests of metrics are noted in `codes`; None refuses them."""

    async def ask(command: Command) -> Command:
        if command.code != RequestCode.WMQ_METRIC_FAMILIES:
            return harness.ask(command)
        if codes is None:
            raise CallError("127.0.0.1:1: connection refused")
        codes.append(command.code)
        return harness.ask(command)

    async def play() -> None:
        dashboard = make_dashboard(harness, ask)
        url = await dashboard.start(0)
        try:
            await asyncio.wait_for(work(int(url.rstrip("/").rpartition(":")[2])), 30)
        finally:
            await dashboard.stop()

    asyncio.run(play())


def test_many_fetches_cost_the_broker_one_request_per_second(harness: BrokerHarness) -> None:
    codes: list[int] = []

    async def work(port: int) -> None:
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        in_openmetrics = request.replace(b"\r\n\r\n", f"\r\nAccept: {PROMETHEUS}\r\n\r\n".encode())
        found = await asyncio.gather(*(exchange(port, one) for one in (request, in_openmetrics) * 8))
        assert all(one.startswith(b"HTTP/1.1 200 OK") for one in found) and len(codes) == 1
        assert [one.endswith(b"# EOF\n") for one in found] == [False, True] * 8
        harness.clock.advance(int(KEPT_S * 1000))
        await exchange(port, request)
        assert len(codes) == 2

    serve(harness, work, codes)


def test_a_broker_that_does_not_answer_has_no_metrics(harness: BrokerHarness) -> None:
    async def work(port: int) -> None:
        raw = await exchange(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 503 ") and b"the broker does not answer" in raw and b"rocketmq_" not in raw

    serve(harness, work)


async def fetch(browser: Browser, name: str, secret: str, scheme: str = "Basic") -> tuple[int, str]:
    credentials = base64.b64encode(f"{name}:{secret}".encode()).decode()
    return await browser.send("GET", "/metrics", Authorization=f"{scheme} {credentials}")


def test_users_with_the_role_read_fetch_by_basic_authentication(secured: BrokerHarness, tmp_path: Path) -> None:
    secured.broker.parts.topics.create_for_group("%RETRY%secret-topic", 1)

    async def work(browser: Browser) -> None:
        status, answer = await browser.send("GET", "/metrics")
        assert status == 401 and "rocketmq_" not in answer
        assert 'www-authenticate: Basic realm="WheelMQ"' in answer
        for _ in range(20):
            status, answer = await fetch(browser, BOB.name, BOB.secret)
            assert status == 200 and "rocketmq_topic_number" in answer and BOB.secret not in answer
            secured.advance(int(CHECK_S * 1000))
        assert "set-cookie" not in answer
        assert (await browser.send("GET", "/figures.json"))[0] == 401, "it is no session"

    lines = run(secured, tmp_path / "audit.log", work)
    assert [(line["user"], line["outcome"]) for line in lines] == [("bob", "done")], "one line for all fetches"


def test_a_session_of_a_browser_fetches_too(secured: BrokerHarness, tmp_path: Path) -> None:
    async def work(browser: Browser) -> None:
        assert await browser.log_in(BOB) == 303
        status, answer = await browser.send("GET", "/metrics")
        assert status == 200 and "rocketmq_topic_number" in answer

    run(secured, tmp_path / "audit.log", work)


@pytest.mark.parametrize("key", [AccessKey("bob", "a wrong secret"), AccessKey("nobody", BOB.secret), EVE])
def test_a_wrong_secret_or_a_user_without_rights_gets_nothing(
    secured: BrokerHarness, tmp_path: Path, key: AccessKey
) -> None:
    async def work(browser: Browser) -> None:
        status, answer = await fetch(browser, key.name, key.secret)
        assert status == 401 and "www-authenticate: Basic" in answer and "rocketmq_" not in answer
        assert key.secret not in answer

    lines = run(secured, tmp_path / "audit.log", work)
    assert [(line["user"], line["outcome"]) for line in lines] == [(key.name, "rejected")]


@pytest.mark.parametrize(
    "header",
    ["Basic", "Basic !!!", "Basic Ym9i", "Basic /w==", "Bearer Ym9iOng=", "Basic Ym9iOng=\r\nAuthorization: x"],
)
def test_another_header_is_no_attempt(secured: BrokerHarness, tmp_path: Path, header: str) -> None:
    async def work(browser: Browser) -> None:
        status, answer = await browser.send("GET", "/metrics", Authorization=header)
        assert status == 401 and "rocketmq_" not in answer

    assert run(secured, tmp_path / "audit.log", work) == []


def test_failures_are_limited(secured: BrokerHarness, tmp_path: Path) -> None:
    async def work(browser: Browser) -> None:
        found = [(await fetch(browser, "bob", f"wrong {number}"))[0] for number in range(FAILURES_MAX)]
        assert found == [401] * FAILURES_MAX
        assert (await fetch(browser, BOB.name, BOB.secret))[0] == 429, "even with the right secret"
        secured.advance(int(WAIT_S * 1000))
        assert (await fetch(browser, BOB.name, BOB.secret))[0] == 200

    run(secured, tmp_path / "audit.log", work)


def test_a_user_who_loses_the_role_gets_nothing_more(secured: BrokerHarness, tmp_path: Path) -> None:
    tables = secured.broker.parts.access.tables

    async def work(browser: Browser) -> None:
        assert (await fetch(browser, BOB.name, BOB.secret))[0] == 200
        tables.change_acl("bob", None)
        tables.change_user("bob", None)
        secured.advance(int(CHECK_S * 1000))
        assert (await fetch(browser, BOB.name, BOB.secret))[0] == 401

    run(secured, tmp_path / "audit.log", work)


@pytest.mark.parametrize(("path", "text"), [("/healthz", "ok\n"), ("/readyz", "ready\n")])
def test_health_and_readiness_need_no_login_and_reveal_a_state_only(
    secured: BrokerHarness, tmp_path: Path, path: str, text: str
) -> None:
    async def work(browser: Browser) -> None:
        status, answer = await browser.send("GET", path)
        assert status == 200 and answer.partition("\r\n\r\n")[2] == text
        secured.broker.parts.health.reject_sends("a secret of the store")
        secured.clock.advance(int(KEPT_S * 1000))  # a tick would try the disk again
        status, answer = await browser.send("GET", path)
        body = answer.partition("\r\n\r\n")[2]
        assert (status, body) == ((200, text) if path == "/healthz" else (503, "not ready: the broker rejects sends\n"))

    run(secured, tmp_path / "audit.log", work)
