"""The dashboard of a stack: its address, and its errors."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from wheelmq.cli.ports import free_port
from wheelmq.cli.stack import Stack, StackFailed, StackSettings
from wheelmq.system.clock import SystemClock


def stack_at(home: Path, **ports: int | None) -> Stack:
    settings = StackSettings(home=home, with_pipeline=False, **ports)  # type: ignore[arg-type]
    return Stack(settings, clock=SystemClock(), tell=lambda text: None)


def start_problem(stack: Stack) -> str:
    """Return the reason why a stack does not start. It has started no part then."""

    async def start() -> str:
        with pytest.raises(StackFailed) as failed:
            await stack.start()
        assert [child.pid for child in stack.children] == [None, None]
        await stack.stop()
        return str(failed.value)

    return asyncio.run(start())


def test_the_error_names_a_dashboard_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = start_problem(stack_at(tmp_path, dashboard_port=port))
    assert f"port {port} is taken" in told and "--dashboard-port" in told
    port = free_port()
    assert "a port of its own" in start_problem(stack_at(tmp_path, broker_port=port, dashboard_port=port))


def test_only_a_running_dashboard_imports_the_web_framework() -> None:
    parts = "wheelmq.cli.up, wheelmq.cli.stack, wheelmq.nameserver.app, wheelmq.broker.app, wheelmq.client"
    check = f"import sys, {parts}; print(sys.modules.keys() & {{'starlette', 'uvicorn', 'jinja2', 'h11', 'anyio'}})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
