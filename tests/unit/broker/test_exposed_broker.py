"""A broker that other machines can reach starts only with users, or with a word of the operator."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.test_listening import run, send_over
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.settings import BrokerSettings, MetricsExporter
from wheelmq.config.errors import ConfigError
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.system.attempt_limit import FAILURES_MAX
from wheelmq.testing.harness import SMALL

ROOT = AccessKey("root", "the secret of root")
INIT = json.dumps({"username": ROOT.name, "password": ROOT.secret})


def start(folder: Path, **chosen: Any) -> None:
    async def nothing(app: BrokerApp) -> None:
        assert app.broker is not None

    run(folder, nothing, **chosen)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.parametrize("chosen", [{}, {"authentication_enabled": True}])
def test_it_does_not_start_without_users(tmp_path: Path, host: str, chosen: dict[str, Any]) -> None:
    settings = BrokerSettings.of(store_path=tmp_path, listen_port=10911, listen_host=host, **SMALL, **chosen)

    async def starts() -> None:
        app = BrokerApp(settings, owns_process=False)
        with pytest.raises(ConfigError, match="where other machines can reach it") as rejected:
            await app.start()
        assert "allow_unauthenticated=true" in str(rejected.value)
        assert app._server is None
        await app.stop()

    asyncio.run(starts())


def test_it_starts_with_users(tmp_path: Path) -> None:
    async def play(app: BrokerApp) -> None:
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
        assert await send_over(app.settings.broker.listen_port, command) == ResponseCode.NO_PERMISSION
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
        ROOT.sign(command)
        assert await send_over(app.settings.broker.listen_port, command) == 0

    run(tmp_path, play, listen_host="0.0.0.0", authentication_enabled=True, init_authentication_user=INIT)


def test_it_starts_if_the_operator_allows_it(tmp_path: Path) -> None:
    start(tmp_path, listen_host="0.0.0.0", allow_unauthenticated=True)


def test_a_fresh_broker_needs_no_password_on_this_machine(tmp_path: Path) -> None:
    start(tmp_path)


def test_metrics_for_other_machines_need_a_token(tmp_path: Path) -> None:
    exported = {"metrics_exporter_type": MetricsExporter.PROM, "metrics_prom_exporter_port": 0}
    with pytest.raises(ConfigError, match="metrics_prom_exporter_token_file"):
        start(tmp_path, metrics_prom_exporter_host="0.0.0.0", **exported)
    start(tmp_path, metrics_prom_exporter_host="0.0.0.0", allow_unauthenticated=True, **exported)


def test_metrics_with_a_token_are_served_to_its_owner_alone(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-prometheus\n")
    token.chmod(0o600)

    def fetch(port: int, header: str | None) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
        if header is not None:
            request.add_header("Authorization", header)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert b"rocketmq_storage_size" in answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            assert b"rocketmq" not in error.read()
            return error.code

    async def play(app: BrokerApp) -> None:
        assert app.exporter is not None
        port = app.exporter.port

        async def status(header: str | None) -> int:
            return await asyncio.to_thread(fetch, port, header)

        assert await status("Bearer a-token-of-prometheus") == 200
        for wrong in (None, "Bearer x", "Basic a-token-of-prometheus", "Bearer a-token-of-prometheus2", "bearer ü"):
            assert await status(wrong) == 401
        assert FAILURES_MAX == 5
        assert await status("Bearer a-token-of-prometheus") == 429, "after five failures in a row"

    run(
        tmp_path / "store",
        play,
        metrics_exporter_type=MetricsExporter.PROM,
        metrics_prom_exporter_port=0,
        metrics_prom_exporter_token_file=str(token),
    )


def test_a_token_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-prometheus\n")
    token.chmod(0o644)
    chosen = {"metrics_exporter_type": MetricsExporter.PROM, "metrics_prom_exporter_port": 0}
    with pytest.raises(ConfigError, match="chmod 600"):
        start(tmp_path / "store", metrics_prom_exporter_token_file=str(token), **chosen)
    token.chmod(0o600)
    token.write_text("short")
    with pytest.raises(ConfigError, match="holds no token"):
        start(tmp_path / "store", metrics_prom_exporter_token_file=str(token), **chosen)


def test_the_audit_log_is_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.log"

    async def play(app: BrokerApp) -> None:
        for _ in range(2):
            assert await send_over(app.settings.broker.listen_port, Command(code=RequestCode.CLEAN_UNUSED_TOPIC)) == 0

    run(tmp_path / "store", play, audit_file=str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["request"] for line in lines] == ["CLEAN_UNUSED_TOPIC"] * 2
    assert all(line["address"].startswith("127.0.0.1:") for line in lines)
    assert path.stat().st_mode & 0o777 == 0o600
