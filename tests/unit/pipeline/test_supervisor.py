"""The supervisor replaces a driver that hangs, and leaves one that makes progress."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.unit.client.conftest import until
from wheelmq.broker.handlers.metrics import pipeline_metrics
from wheelmq.formats.wire.frame import Command
from wheelmq.pipeline import progress as limits
from wheelmq.pipeline import supervisor as module
from wheelmq.pipeline.progress import (
    DOUBLINGS_MAX,
    GAP_S,
    LAPSED_S,
    LOOK_S,
    ONE_OF_MANY,
    OPENING_S,
    QUIET_S,
    START_S,
    Progress,
    TurnProgress,
    answer_of,
)
from wheelmq.pipeline.supervisor import PipelineSupervisor
from wheelmq.system.clock import SystemClock
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

HELD = TurnProgress(is_held=True, holder="p", quiet_ms=0, turn=1)
LAPSED = HELD._replace(is_held=False)


class ProgressCheck:
    """Checks a driver every LOOK_S seconds."""

    def __init__(self, turning: tuple[str, ...] = ("a",)) -> None:
        self.progress = Progress("p")
        self.now_s = 1000.0
        self.turning = set(turning)
        self.has_session = True

    def hangs_after(self, most_s: float, **answers: TurnProgress | None) -> float | None:
        """Return the seconds of these answers after which the driver hangs; None if it does not within `most_s`."""
        began_s = self.now_s
        while self.now_s - began_s <= most_s:
            self.now_s += LOOK_S
            if self.progress.problem(self.now_s, answers, turning=self.turning, has_session=self.has_session):
                return self.now_s - began_s
        return None


class TestProgress:
    def test_a_renewed_lease_is_progress(self) -> None:
        assert ProgressCheck().hangs_after(3600, a=HELD) is None

    def test_a_driver_whose_lease_lapses_hangs(self) -> None:
        look = ProgressCheck()
        assert look.hangs_after(30, a=HELD) is None
        after_s = look.hangs_after(60, a=LAPSED)
        assert after_s is not None and LAPSED_S < after_s <= LAPSED_S + 2 * LOOK_S

    def test_a_driver_that_starts_its_query_has_more_time(self) -> None:
        look = ProgressCheck(turning=())
        assert look.hangs_after(OPENING_S - LOOK_S, a=LAPSED) is None
        assert look.hangs_after(3 * LOOK_S, a=LAPSED) is not None

    def test_a_query_that_has_just_started_has_the_full_time(self) -> None:
        """The driver did not renew while Spark planned the query. That time does not count."""
        look = ProgressCheck(turning=())
        assert look.hangs_after(OPENING_S - LOOK_S, a=LAPSED) is None
        look.turning = {"a"}
        after_s = look.hangs_after(60, a=LAPSED)
        assert after_s is not None and after_s > LAPSED_S

    def test_a_moment_without_a_lease_is_no_hanging_driver(self) -> None:
        look = ProgressCheck()
        for _ in range(20):
            assert look.hangs_after(LAPSED_S - 2 * LOOK_S, a=LAPSED) is None
            assert look.hangs_after(LOOK_S, a=HELD) is None

    def test_a_broker_without_an_answer_is_no_hanging_driver(self) -> None:
        look = ProgressCheck()
        assert look.hangs_after(3600, a=None) is None
        for _ in range(20):
            assert look.hangs_after(LAPSED_S - 2 * LOOK_S, a=LAPSED) is None
            assert look.hangs_after(LOOK_S, a=None) is None

    def test_a_lease_of_another_pipeline_is_no_hanging_driver(self) -> None:
        assert ProgressCheck(turning=()).hangs_after(3600, a=HELD._replace(holder="other", quiet_ms=10**9)) is None

    def test_a_driver_whose_turns_make_no_progress_hangs(self) -> None:
        look = ProgressCheck()
        assert look.hangs_after(10, a=HELD._replace(quiet_ms=int(QUIET_S * 1000))) is None
        assert look.hangs_after(10, a=HELD._replace(quiet_ms=int(QUIET_S * 1000) + 1)) == LOOK_S

    def test_a_driver_without_a_spark_session_hangs(self) -> None:
        look = ProgressCheck(turning=())
        look.has_session = False
        after_s = look.hangs_after(2 * START_S, a=LAPSED)
        assert after_s is not None and START_S < after_s <= START_S + 2 * LOOK_S

    def test_a_suspended_machine_ends_no_driver(self) -> None:
        """After a suspension the driver has the full time, whatever the brokers answer."""
        look = ProgressCheck()
        assert look.hangs_after(LAPSED_S - LOOK_S, a=LAPSED) is None
        for pause_s in (GAP_S + 1, 3600, 86_400 * 30):
            look.now_s += pause_s
            assert look.hangs_after(LAPSED_S - LOOK_S, a=LAPSED) is None
            assert look.hangs_after(LOOK_S, a=HELD) is None

    def test_the_limit_doubles_with_each_hang_until_a_turn_is_committed(self) -> None:
        look = ProgressCheck()
        times = []
        for _ in range(DOUBLINGS_MAX + 3):
            after_s = look.hangs_after(10_000, a=LAPSED)
            assert after_s is not None
            times.append(after_s)
            look.progress.note_hung()
        assert times == sorted(times) and times[-1] > LAPSED_S * (1 << DOUBLINGS_MAX) and times[-1] == times[-2]
        assert look.hangs_after(10, a=HELD._replace(turn=2)) is None
        assert look.hangs_after(10_000, a=LAPSED) == times[0]

    def test_one_broker_of_many_has_more_time(self) -> None:
        look = ProgressCheck(turning=("a", "b"))
        assert look.hangs_after(ONE_OF_MANY * LAPSED_S - LOOK_S, a=LAPSED, b=HELD) is None
        assert look.hangs_after(3 * LOOK_S, a=LAPSED, b=HELD) is not None

    def test_the_answer_of_a_broker_is_parsed(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness, "p")
        model.open()
        harness.advance(300)
        assert answer_of(pipeline_metrics(harness.broker.parts.metric_sources)) == TurnProgress(True, "p", 300, 0)
        harness.advance(10_000)
        assert answer_of(pipeline_metrics(harness.broker.parts.metric_sources)) == TurnProgress(False, "p", 10_300, 0)


DRIVER = """
import json, os, pathlib, subprocess, sys, time
jvm = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
print(json.dumps({"event": "session", "jvm": jvm.pid}), flush=True)
print(json.dumps({"event": "turning", "broker": "b", "epoch": 1}), flush=True)
while True:
    pathlib.Path(sys.argv[1]).touch()  # renew the lease
    time.sleep(0.01)
"""
"""A driver with a child in a process group of its own, like the JVM."""


@asynccontextmanager
async def watched_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_change: Callable[[str], None]
) -> AsyncIterator[PipelineSupervisor]:
    """A supervisor with short limits, and DRIVER as its driver."""
    lease, script = tmp_path / "lease", tmp_path / "driver.py"
    script.write_text(DRIVER)
    for name, value in (("LAPSED_S", 0.2), ("GAP_S", 5.0)):
        monkeypatch.setattr(limits, name, value)
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "driver_command", lambda *_, **__: [sys.executable, str(script), str(lease)])
    answers = Watched(lease)
    supervisor = PipelineSupervisor(["b"], tmp_path / "logs", clock=SystemClock(), on_change=on_change)
    answers.name = supervisor.name
    monkeypatch.setattr(supervisor, "_ask", answers.ask)
    supervisor.start()
    try:
        await until(lambda: supervisor.jvm_pid is not None and lease.exists())
        yield supervisor
    finally:
        await supervisor.stop()
        if supervisor.jvm_pid is not None and psutil.pid_exists(supervisor.jvm_pid):
            os.kill(supervisor.jvm_pid, signal.SIGKILL)


@pytest.mark.parametrize("stopped", ["driver", "driver and JVM"])
def test_a_stopped_driver_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: str) -> None:
    """SIGSTOP makes a process hang: it is alive, and only SIGKILL ends it."""
    told = list[str]()

    async def scenario() -> None:
        async with watched_driver(tmp_path, monkeypatch, told.append) as supervisor:
            await until(lambda: len(told) == 2)
            old, jvm = supervisor.child.pid, supervisor.jvm_pid
            assert old is not None and jvm is not None
            await asyncio.sleep(0.4)  # longer than the limit
            assert supervisor.child.pid == old, "a driver that renews is left alone"
            if stopped == "driver and JVM":
                os.kill(jvm, signal.SIGSTOP)
            os.kill(old, signal.SIGSTOP)
            await until(lambda: supervisor.child.pid not in (None, old) and len(told) == 5)
            await until(lambda: not psutil.pid_exists(jvm))
            assert await supervisor.stop()
            log = (tmp_path / "logs" / "pipeline.log").read_text()
            assert log.count("WARNING the pipeline hangs: no pipeline has renewed the lease of b") == 1

    asyncio.run(scenario())
    (line,) = (text for text in told if "WARNING" in text)
    assert line.startswith("WARNING: it hangs (no pipeline has renewed the lease of b for")
    assert line.endswith("killed, it is started again at once")
    assert not any(text.startswith("died") for text in told)


class Watched:
    """Answers for a broker whose lease is renewed by touching a file."""

    def __init__(self, lease: Path) -> None:
        self._lease = lease
        self.name = ""

    async def ask(self, broker: str) -> TurnProgress | None:
        if not self._lease.exists():
            return None
        is_held = time.time() - self._lease.stat().st_mtime < 0.3
        return TurnProgress(is_held, self.name, 0, 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file on a full disk")
def test_a_stopped_driver_is_replaced_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "pipeline.log").symlink_to("/dev/full")
    told = list[str]()

    def fail_to_print(text: str) -> None:
        told.append(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        async with watched_driver(tmp_path, monkeypatch, fail_to_print) as supervisor:
            await until(lambda: len(told) == 2)
            old = supervisor.child.pid
            assert old is not None
            os.kill(old, signal.SIGSTOP)
            await until(lambda: supervisor.child.pid not in (None, old) and len(told) == 5)

    asyncio.run(scenario())
    assert told[2].startswith("WARNING: it hangs (no pipeline has renewed the lease of b for")


def test_a_failed_check_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, failures = list[str](), list[int]()

    async def scenario() -> None:
        async with watched_driver(tmp_path, monkeypatch, told.append) as supervisor:
            problem = supervisor._progress.problem

            def fail(*_: object, **__: object) -> str | None:
                failures.append(1)
                raise KeyError("quiet_ms")

            monkeypatch.setattr(supervisor._progress, "problem", fail)
            await until(lambda: len(failures) == 3)
            monkeypatch.setattr(supervisor._progress, "problem", problem)
            old = supervisor.child.pid
            assert old is not None
            os.kill(old, signal.SIGSTOP)
            await until(lambda: supervisor.child.pid not in (None, old))

    asyncio.run(scenario())
    failed = [text for text in told if "a check of the pipeline failed: KeyError: 'quiet_ms'" in text]
    assert len(failed) == 1, "the same problem is printed once"
    assert any(text.startswith("WARNING: it hangs") for text in told)


def test_a_new_driver_is_not_judged_by_the_age_of_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies between two checks may be replaced before the second one."""
    clock, hung = ManualClock(), list[str]()
    supervisor = PipelineSupervisor(["b"], tmp_path, clock=clock, on_change=lambda text: None)

    async def ask(broker: str) -> TurnProgress | None:
        return None

    async def note_hung(pid: int, why: str) -> None:
        hung.append(why)

    monkeypatch.setattr(supervisor, "_ask", ask)
    monkeypatch.setattr(supervisor, "_end_hung", note_hung)
    monkeypatch.setattr(module.ManagedProcess, "pid", os.getpid())

    def check_for(seconds: float) -> None:
        for _ in range(int(seconds / LOOK_S)):
            clock.advance(int(LOOK_S * 1000))
            asyncio.run(supervisor._check_progress())

    supervisor._heard({"event": "session", "jvm": os.getpid()})
    check_for(2 * START_S)
    supervisor._died("it was ended by SIGKILL", 0.0)
    check_for(START_S)
    assert hung == []
    check_for(2 * LOOK_S)
    assert hung == [f"Spark is not up after {START_S + LOOK_S:.0f} s"]


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"pipeline": {}}', b'{"pipeline": {"is_held": 1, "holder": 2}'])
def test_an_unexpected_answer_of_a_broker_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    told = list[str]()
    supervisor = PipelineSupervisor(["b:1"], tmp_path, clock=SystemClock(), on_change=told.append)

    async def ask(*_: object) -> Command:
        return Command(code=0, body=body)

    monkeypatch.setattr(module.RpcClient, "ask", ask)
    for _ in range(3):
        assert asyncio.run(supervisor._ask("b:1")) is None
    (text,) = told
    assert text.startswith("WARNING: b:1 does not report the state of the pipeline: ")
    assert text.removeprefix("WARNING: ") in (tmp_path / "pipeline.log").read_text()


def test_a_broker_that_does_not_listen_gives_no_answer(tmp_path: Path) -> None:
    supervisor = PipelineSupervisor(["127.0.0.1:1"], tmp_path, clock=SystemClock(), on_change=lambda text: None)

    async def ask() -> TurnProgress | None:
        try:
            return await supervisor._ask("127.0.0.1:1")
        finally:
            await supervisor.stop()

    assert asyncio.run(ask()) is None
