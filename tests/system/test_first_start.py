"""The first start on a machine: a broker without compiled kernels serves at once, and uses them when they exist.

Each test has a cache folder of its own. It holds the lock of that folder, so that the compiler waits. Then it copies
compiled code into the folder, as another process would. Only one test compiles, and only the first kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.running import COMMAND_DEADLINE_S, SMALL, START_DEADLINE_S, STOP_DEADLINE_S, Up, up, wheelmq
from wheelmq.broker.fast.warm import warm
from wheelmq.client.sync import SyncProducer
from wheelmq.formats.kernels import cache

TIMERS = 100
TIMERS_MS = 6000
"""The timers are due over this time, during which the kernels are loaded."""
PAUSE_S = 0.1
WARNING = "WARNING wheelmq.broker.kernels"
"""Part of the line in the log about a failure. Other warnings are about the small files of the test."""


class Machine:
    """A machine without compiled kernels: an empty cache folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "wheelmq" / "kernels" / cache.cache_folder().name
        self.cache.mkdir(parents=True)
        self._lock: IO[str] | None = None
        self._compiled: set[Path] = set()

    def hold_compilers(self) -> None:
        """Let compilers wait."""
        self._lock = (self.cache / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def release_compilers(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def compile(self) -> None:
        """Provide all compiled code, as another process does that has the lock."""
        shutil.copytree(cache.cache_folder(), self.cache, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock"))
        self._compiled = self.code()

    def code(self) -> set[Path]:
        """Return the files with compiled code. A process that compiles a kernel adds one."""
        return set(self.cache.glob("**/*.nbc"))

    def has_only_its_code(self) -> bool:
        """Return whether no process has compiled a kernel after `compile`, for arguments of other types."""
        return self.code() == self._compiled


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    warm(print)
    new = Machine(tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(new.folder))
    monkeypatch.delenv("WHEELMQ_KERNELS", raising=False)
    yield new
    new.release_compilers()


def figures(running: Up) -> dict[str, Any]:
    with urllib.request.urlopen(running.found["dashboard"] + "figures.json", timeout=COMMAND_DEADLINE_S) as answer:
        found: dict[str, Any] = json.load(answer)["figures"]
    return found


def state_of(running: Up) -> str:
    """Return the state of the broker's kernels, or an empty text while it does not answer."""
    return str(figures(running).get("kernels", {}).get("state", ""))


def wait_until(condition: Callable[[], object], deadline_s: float = START_DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)


def compilers_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


@pytest.mark.timeout(START_DEADLINE_S + 120)
def test_a_broker_serves_before_its_kernels_exist_and_puts_them_to_use(tmp_path: Path, machine: Machine) -> None:
    machine.hold_compilers()
    with up(tmp_path / "home", "--no-pipeline") as running:
        assert state_of(running) == "compiling"
        broker = running.found["pids"]["broker"]
        [compiler] = compilers_of(broker)
        running.command("send", "T", "soon", "--delay", "1s")
        assert "soon" in running.command("consume", "T", "--group", "g", "--count", "1")
        assert state_of(running) == "compiling" and compiler.nice() > psutil.Process(broker).nice()

        with SyncProducer(running.found["namesrv"]) as producer:
            for number in range(TIMERS):
                producer.send("Around", b"%d" % number, delay_ms=(number + 1) * TIMERS_MS // TIMERS)
            machine.compile()
            machine.release_compilers()
            wait_until(lambda: state_of(running) == "in_use")
            for number in range(TIMERS, 2 * TIMERS):
                producer.send("Around", b"%d" % number, delay_ms=number % 100 + 1)
        got = running.command("consume", "Around", "--group", "g", "--count", f"{2 * TIMERS}", "--json")
        messages = [json.loads(line) for line in got.splitlines()]
        assert sorted(int(message["body"]) for message in messages) == list(range(2 * TIMERS))
        assert min(message["lateness_ms"] for message in messages) >= 0
        wait_until(lambda: figures(running)["timers"]["pending"] == 0)
        wait_until(lambda: figures(running)["timers"]["released"]["released"] >= 2 * TIMERS + 1)
        assert figures(running)["timers"]["released"]["released"] == 2 * TIMERS + 1, "each once"
        psutil.wait_procs([compiler], timeout=STOP_DEADLINE_S)
        assert compilers_of(running.found["pids"]["broker"]) == []
        assert running.stop() == 0
    log = (tmp_path / "home" / "logs" / "broker.log").read_text()
    assert "the kernels are in use" in log and WARNING not in log
    assert machine.has_only_its_code(), "a compilation in the broker's loop would stop all clients for seconds"


@pytest.mark.timeout(START_DEADLINE_S + 120)
def test_a_broker_whose_compiler_is_killed_serves_and_tries_again_at_its_next_start(
    tmp_path: Path, machine: Machine
) -> None:
    machine.hold_compilers()
    log = tmp_path / "home" / "logs" / "broker.log"
    with up(tmp_path / "home", "--no-pipeline") as running:
        broker = running.found["pids"]["broker"]
        [compiler] = compilers_of(broker)
        compiler.kill()
        wait_until(lambda: state_of(running) == "failed")
        assert figures(running)["kernels"]["problem"].startswith("signal 9 ended the compiler")
        [line] = [line for line in log.read_text().splitlines() if WARNING in line]
        assert "the kernels could not be compiled: signal 9 ended the compiler" in line
        running.command("send", "T", "soon", "--delay", "1s")
        assert "soon" in running.command("consume", "T", "--group", "g", "--count", "1")

        machine.compile()
        machine.release_compilers()
        psutil.Process(broker).kill()
        wait_until(lambda: state_of(running) == "in_use")
        assert running.stop() == 0


@contextlib.contextmanager
def broker(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Start `wheelmq broker`. Yields the process once it listens."""
    options = ("--json", "--port", "0", "--home", str(home), *SMALL)
    with (home.parent / f"{home.name}.log").open("w") as log:
        process = subprocess.Popen(wheelmq("broker", *options), stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "listening"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(START_DEADLINE_S + 120)
def test_two_brokers_that_start_together_use_one_compilation(tmp_path: Path, machine: Machine) -> None:
    machine.hold_compilers()
    with broker(tmp_path / "a") as one, broker(tmp_path / "b") as other:
        assert [len(compilers_of(process.pid)) for process in (one, other)] == [1, 1]
        machine.compile()
        machine.release_compilers()
        logs = [tmp_path / f"{name}.log" for name in "ab"]
        wait_until(lambda: all("the kernels are in use" in log.read_text() for log in logs))
        for process in (one, other):
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_DEADLINE_S) == 0


@pytest.mark.timeout(START_DEADLINE_S + 120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_compiler_ends_with_its_broker(tmp_path: Path, machine: Machine, number: signal.Signals) -> None:
    if number == signal.SIGKILL:
        machine.hold_compilers()
    with broker(tmp_path / "home") as process:
        [compiler] = compilers_of(process.pid)
        if number == signal.SIGTERM:
            wait_until(lambda: list(machine.cache.glob("**/*.nbc")))  # it compiles
        process.send_signal(number)
        assert process.wait(STOP_DEADLINE_S) == (0 if number == signal.SIGTERM else -number)
        _, left = psutil.wait_procs([compiler], timeout=STOP_DEADLINE_S)
        assert left == []
    assert WARNING not in (tmp_path / "home.log").read_text()
