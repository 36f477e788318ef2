"""The start of a stack: the address of its dashboard, its errors, and its lines while it waits."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import START_DEADLINE_S
from wheelmq.cli import stack as stacks
from wheelmq.cli.disk_use import DiskUse
from wheelmq.cli.ports import free_port
from wheelmq.cli.stack import Stack, StackFailed, StackSettings
from wheelmq.cli.up import ready_text
from wheelmq.client.routes import RouteCache
from wheelmq.net.managed_process import ManagedProcess
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


class StartingStack(Stack):
    """A stack of parts that run, and of a broker that rejects messages until the stack has printed a line."""

    def __init__(self, home: Path, refusal: str, notes: list[str]) -> None:
        settings = StackSettings(home=home, dashboard_port=None, with_pipeline=False)
        super().__init__(settings, clock=SystemClock(), tell=notes.append)
        self._refusal, self._notes = refusal, notes
        for part, address in ((self.namesrv, self.namesrv_address), (self.broker, self.broker_address)):
            part.came_up()
            self._note_listener(part.name, {"address": address})

    async def metrics(self) -> dict[str, Any] | None:
        return {"takes_sends": bool(self._notes), "refusal": None if self._notes else self._refusal}


def note_of_start(home: Path, refusal: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the line in which a start with a rejecting broker says what it waits for."""
    notes: list[str] = []
    stack = StartingStack(home, refusal, notes)

    async def brokers(routes: RouteCache) -> dict[str, str]:
        return {"broker-a": stack.broker_address}

    async def start() -> None:
        async with asyncio.timeout(START_DEADLINE_S):
            await stack.start()
        await stack.stop()

    monkeypatch.setattr(stacks, "PATIENCE_S", 0.0)
    monkeypatch.setattr(stacks, "LOOK_S", 0.0)
    monkeypatch.setattr(ManagedProcess, "start", lambda part: None)
    monkeypatch.setattr(RouteCache, "brokers", brokers)
    asyncio.run(start())
    return notes[0]


def test_a_waiting_start_names_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: DiskUse(1000 << 30, 920 << 30, 80 << 30))
    note = note_of_start(tmp_path, "the disk is 92 % full", monkeypatch)
    assert f"the broker, which rejects messages: the disk of {tmp_path / 'store'} is 92 % full" in note
    assert "above 90 % (disk_space_warning_level_ratio); free space there, or choose another --home" in note


def test_a_waiting_start_gives_the_reason_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "rejects messages: not enough replicas" in note_of_start(tmp_path, "not enough replicas", monkeypatch)


def test_the_state_names_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker accepts sends until it creates its first files."""
    stack = stack_at(tmp_path, dashboard_port=None)
    assert ready_text(stack, stack.disk_rejection()).startswith("WheelMQ is up.\n  name server")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: DiskUse(60 << 20, 20 << 20, 40 << 20))
    lines = ready_text(stack, stack.disk_rejection()).splitlines()
    assert lines[0] == "WheelMQ is up, but the broker rejects messages until its disk has room."
    assert "40 MiB free, and a new store takes" in lines[1] and lines[1].endswith("or choose another --home")
    assert not any(line.startswith("Try: ") for line in lines)


class HastyClock(SystemClock):
    """A clock on which a second passes with each look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1
        return self.now_s


class SlowStack(Stack):
    """A stack whose broker listens after 200 s."""

    def __init__(self, home: Path, clock: HastyClock) -> None:
        self.notes: list[tuple[float, str]] = []
        settings = StackSettings(home=home, dashboard_port=None, with_pipeline=False)
        super().__init__(settings, clock=clock, tell=lambda text: self.notes.append((clock.now_s, text)))
        self._hasty = clock
        for part, address in ((self.namesrv, self.namesrv_address), (self.broker, self.broker_address)):
            self._note_listener(part.name, {"address": address})

    async def _is_ready(self) -> bool:
        return self._hasty.now_s > 200


@pytest.mark.parametrize(("mode", "reason"), [("compiled", "compiles kernels"), ("", "after a crash it reads")])
def test_a_long_start_names_the_work_of_the_broker_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, reason: str
) -> None:
    monkeypatch.setenv("WHEELMQ_KERNELS", mode)
    monkeypatch.setattr(stacks, "LOOK_S", 0.0)
    monkeypatch.setattr(ManagedProcess, "start", lambda part: None)
    stack = SlowStack(tmp_path, HastyClock())

    async def start() -> None:
        await stack.start()
        await stack.stop()

    asyncio.run(start())
    notes = [(at_s, text) for at_s, text in stack.notes if text.startswith("still starting: broker (")]
    assert len(notes) == 4 and all(reason in text for _, text in notes)


def test_only_a_running_dashboard_imports_the_web_framework() -> None:
    parts = "wheelmq.cli.up, wheelmq.cli.stack, wheelmq.nameserver.app, wheelmq.broker.app, wheelmq.client"
    check = f"import sys, {parts}; print(sys.modules.keys() & {{'starlette', 'uvicorn', 'jinja2', 'h11', 'anyio'}})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
