"""The acts of the demonstration with a small burst, a broker in this process, and another process as the JVM."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.conftest import Servers, Start
from wheelmq.cli import demo_run
from wheelmq.cli.demo_messages import DemoKind, DemoMessage
from wheelmq.cli.demo_report import report
from wheelmq.cli.demo_run import DemoRun
from wheelmq.cli.stack import Stack, StackFailed, StackSettings
from wheelmq.client.producer import Producer
from wheelmq.client.results import CancelResult
from wheelmq.pipeline.supervisor import PipelineState
from wheelmq.system.clock import SystemClock

BURST = 40
CANCELS = 10


class StackOfServers(Stack):
    """The servers of the test. The pipeline has died, and turns again, once the process `jvm` has ended."""

    def __init__(self, home: Path, servers: Servers, jvm: Process) -> None:
        super().__init__(StackSettings(home=home), clock=SystemClock(), tell=lambda text: None)
        self.namesrv_address = servers.namesrv
        self._jvm = jvm
        assert self.pipeline is not None
        self.pipeline.jvm_pid = jvm.pid
        self.pipeline.state = PipelineState.TURNING

    async def metrics(self) -> dict[str, Any] | None:
        assert self.pipeline is not None
        has_ended = self._jvm.returncode is not None
        self.pipeline.child.deaths = int(has_ended)
        return {"pipeline": {"turn": 7 if has_ended else 5}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the acts small and short."""
    for name, value in {
        "CANCELS": CANCELS,
        "GREETINGS": 10,
        "AHEAD_S": 0.5,
        "KILL_BEFORE_S": 0.3,
        "STREAM_DELAYS_MS": range(20, 120, 40),
        "AFTERWARDS_S": 0.1,
        "LOOK_S": 0.01,
    }.items():
        monkeypatch.setattr(demo_run, name, value)


def performed(servers: Start, home: Path, said: list[str]) -> tuple[DemoRun, int | None]:
    """Return the run after all acts, and the exit code of the process in place of the JVM."""

    async def scenario() -> tuple[DemoRun, int | None]:
        async with servers() as running:
            jvm = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=PIPE)
            run = DemoRun(StackOfServers(home, running, jvm), SystemClock(), said.append, burst=BURST)
            try:
                await run.perform()
            finally:
                if jvm.returncode is None:
                    jvm.kill()
                await jvm.wait()
            return run, jvm.returncode

    return asyncio.run(scenario())


def test_a_run_delivers_cancels_and_kills(servers: Start, tmp_path: Path) -> None:
    said: list[str] = []
    run, code = performed(servers, tmp_path, said)
    assert run.problems() == []
    assert code == -signal.SIGKILL
    assert len(run.messages.delivered(DemoKind.BURST)) == BURST - CANCELS
    assert len(run.messages.cancelled()) == CANCELS
    assert run.burst_kept == BURST - CANCELS
    assert len({one.due_ms for one in run.messages.of(DemoKind.BURST)}) == 1
    stream = run.messages.delivered(DemoKind.STREAM)
    assert sum(run.messages.histogram) == len(stream) > 1
    assert run.turns == 2
    events = ["Sent 40 messages", "A stream starts", "Cancelled 5", "KILLED", "Without the pipeline, cancelled 5"]
    events += ["The burst of 30 was due", "The pipeline makes turns again"]
    assert [text.startswith(event) for text, event in zip(said, events, strict=True)] == [True] * len(events)
    assert report(run, [], [])[1].startswith(f"RESULT: {BURST - CANCELS + len(stream)} messages arrived")


async def _cancel_nothing(*_: object) -> CancelResult:
    return CancelResult.CANCELLED


def test_a_cancel_without_an_effect_fails_the_run(
    servers: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Producer, "cancel", _cancel_nothing)
    run, _ = performed(servers, tmp_path, [])
    assert run.problems() == ["10 messages arrived although cancelled, such as number 0 of the burst"]


async def _fail(*_: object) -> None:
    raise StackFailed("the broker cannot run")


def test_a_machine_that_is_too_slow_for_the_burst_ends_the_run(
    servers: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "AHEAD_S", -2.0)
    with pytest.raises(StackFailed, match="this machine is too busy"):
        performed(servers, tmp_path, [])


def test_an_error_ends_all_acts(servers: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DemoRun, "kill", _fail)
    with pytest.raises(StackFailed, match="the broker cannot run"):
        performed(servers, tmp_path, [])


def test_a_lost_send_ends_the_run(servers: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(run: DemoRun, producer: Producer, one: DemoMessage) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr(DemoRun, "_send", lose)
    with pytest.raises(ConnectionError, match="no answer"):
        performed(servers, tmp_path, [])
