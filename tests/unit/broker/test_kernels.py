"""Kernels that are not compiled at the start of a broker, in the process of the test."""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests.unit.broker.test_listening import run, send, send_over
from tests.unit.client.conftest import until
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.fast.warm import warm
from wheelmq.broker.kernel_use import KernelState, KernelUse
from wheelmq.broker.kernels import Kernels
from wheelmq.formats.kernels import cache, jit
from wheelmq.system.clock import SystemClock
from wheelmq.system.workers import ThreadWorker

COMPILED: Path = cache.cache_folder()
"""The cache of the test run."""
LIMIT_S = 120.0
"""Time for the end of a compiler on a machine under load."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, for this process and for the compiler. Kernels are loaded in the background."""
    with monkeypatch.context() as patch:
        patch.setattr(jit, "MODE", jit.COMPILED)
        warm(print)
    folder = tmp_path / "wheelmq" / "kernels" / COMPILED.name
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "cache_folder", lambda: folder)
    monkeypatch.setattr(jit, "MODE", jit.BACKGROUND)
    yield folder
    jit.put_to_use()


def hold(folder: Path) -> IO[str]:
    """Let compilers wait until the file is closed."""
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def state_of(app: BrokerApp) -> KernelState:
    assert app.broker is not None
    return app.broker.parts.metric_sources.kernel_use.state


def test_sends_use_the_kernels_from_the_tick_that_follows_their_load(tmp_path: Path, machine: Path) -> None:
    lock = hold(machine)

    async def play(app: BrokerApp) -> None:
        assert app.broker is not None
        parts, port = app.broker.parts, app.settings.broker.listen_port
        assert state_of(app) is KernelState.COMPILING
        assert await send_over(port) == await send_over(port) == 0  # the first one creates the topic
        assert parts.fast_send is None and not jit.available()
        filled(machine)
        lock.close()
        await until(lambda: state_of(app) is KernelState.IN_USE)
        assert jit.available() and parts.fast_send is not None and parts.fast_send.served == 0
        quick = send(i="UNIQ_KEY\x01K\x02")
        assert await send_over(port, quick) == await send_over(port, quick) == 0
        assert parts.fast_send.served == 2, "the kernel served them"
        assert parts.store.dispatched_to == parts.store.log.end

    run(tmp_path / "store", play)


def filled(folder: Path) -> None:
    """Provide all compiled code in `folder`, as another process does."""
    shutil.copytree(COMPILED, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock"))


class Loader:
    """The kernels of a process whose loop is the test."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.use = KernelUse()
        self.kernels = Kernels(self.use, SystemClock(), lambda: ThreadWorker("kernels", self.events.put))
        self.uses = 0
        """Number of times that the kernels were put to use."""

    def end(self) -> None:
        """Wait for the end of the compilation, as the loop gets it."""
        self.events.get(timeout=LIMIT_S)()

    def poll(self) -> None:
        def count() -> None:
            self.uses += 1

        self.kernels.poll(count)


@pytest.fixture
def loader() -> Iterator[Loader]:
    loader = Loader()
    yield loader
    loader.kernels.stop()


class TestLoad:
    def test_a_complete_cache_is_loaded_at_once(self, machine: Path, loader: Loader) -> None:
        filled(machine)
        loader.kernels.begin()
        assert loader.use.state is KernelState.IN_USE and jit.available()
        assert loader.kernels.compiler_pid is None

    @pytest.mark.parametrize(("mode", "state"), [(jit.PLAIN, KernelState.OFF), (jit.COMPILED, KernelState.IN_USE)])
    def test_the_other_modes_start_no_compiler(
        self, machine: Path, monkeypatch: pytest.MonkeyPatch, mode: str, state: KernelState
    ) -> None:
        """With `compiled`, the start waits for the compilation, which finds all kernels in the memory of this test."""
        monkeypatch.setattr(jit, "MODE", mode)
        loader = Loader()
        loader.kernels.begin()
        assert (loader.use.state, loader.kernels.compiler_pid) == (state, None)
        assert jit.available() == (mode != jit.PLAIN)

    def test_a_tick_puts_kernels_to_use_once_the_broker_serves(self, machine: Path, loader: Loader) -> None:
        lock = hold(machine)
        loader.kernels.begin()
        loader.kernels.begin_to_serve()
        assert loader.use.state is KernelState.COMPILING and loader.kernels.compiler_pid is not None
        filled(machine)
        lock.close()
        loader.end()
        assert not jit.available(), "no thread switches in the middle of a round"
        loader.poll()
        loader.poll()
        assert jit.available() and loader.uses == 1 and loader.use.state is KernelState.IN_USE

    def test_a_recovery_goes_on_with_kernels(self, machine: Path, loader: Loader) -> None:
        """A recovery of a long log can take longer than the compilation, and serves no round."""
        lock = hold(machine)
        loader.kernels.begin()
        assert not jit.available()
        filled(machine)
        lock.close()
        loader.end()
        assert jit.available()
        loader.kernels.begin_to_serve()
        loader.poll()
        assert loader.uses == 1, "the parts that existed before get them too"


class TestFailure:
    def warnings(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    def test_a_failing_compiler_leaves_the_plain_code_with_one_warning(
        self, machine: Path, loader: Loader, caplog: pytest.LogCaptureFixture
    ) -> None:
        (machine / "lock").mkdir()
        loader.kernels.begin()
        loader.end()
        loader.poll()
        assert loader.use.state is KernelState.FAILED and not jit.available() and loader.uses == 0
        [warning] = self.warnings(caplog)
        assert "the compiler ended with code 1: IsADirectoryError" in warning and "next start" in warning
        assert loader.use.problem.startswith("the compiler ended with code 1")
        (machine / "lock").rmdir()
        filled(machine)
        again = Loader()
        again.kernels.begin()
        assert again.use.state is KernelState.IN_USE and jit.available()

    def test_a_killed_compiler_leaves_the_plain_code(self, machine: Path, loader: Loader) -> None:
        with hold(machine):
            loader.kernels.begin()
            assert loader.kernels.compiler_pid is not None
            os.kill(loader.kernels.compiler_pid, signal.SIGKILL)
            loader.end()
        assert loader.use.state is KernelState.FAILED and loader.use.problem.startswith("signal 9 ended the compiler")

    def test_a_compiler_that_cannot_start_leaves_the_plain_code(
        self, machine: Path, loader: Loader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
        loader.kernels.begin()
        assert loader.use.state is KernelState.FAILED and "no python" in loader.use.problem and not jit.available()

    def test_code_that_cannot_be_loaded_is_compiled_again_by_the_next_start(
        self, machine: Path, loader: Loader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The sizes fit, and Numba raises at the first file."""
        filled(machine)

        def damaged() -> None:
            with cache.loading("broker", "formats"):
                raise EOFError

        monkeypatch.setattr("wheelmq.broker.kernels.load", damaged)
        monkeypatch.setattr("wheelmq.broker.kernels.COMPILER", ("-c", ""))
        loader.kernels.begin()
        assert not list(machine.glob("**/*.nbc")) and "compiles its kernels again" in self.warnings(caplog)[0]
        assert loader.use.state is KernelState.COMPILING
        loader.end()
        assert loader.use.state is KernelState.FAILED and "is not complete" in loader.use.problem

    def test_a_stop_ends_the_compiler_without_a_warning(
        self, machine: Path, loader: Loader, caplog: pytest.LogCaptureFixture
    ) -> None:
        with hold(machine):
            loader.kernels.begin()
            assert loader.kernels.compiler_pid is not None
            compiler = psutil.Process(loader.kernels.compiler_pid)
            loader.kernels.stop()
            assert not compiler.is_running()
            loader.end()
        assert self.warnings(caplog) == []

    def test_a_start_that_fails_ends_the_compiler(self, tmp_path: Path, machine: Path) -> None:
        (tmp_path / "store").write_text("no folder")
        with hold(machine), pytest.raises(OSError):
            run(tmp_path / "store", fail)
        assert [one for one in psutil.Process().children() if "kernel_compiler" in " ".join(one.cmdline())] == []


async def fail(app: BrokerApp) -> None:
    pytest.fail("the broker has no store")


def test_two_compilers_compile_once(tmp_path: Path) -> None:
    """Two processes with a kernel of their own list start together."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "WHEELMQ_KERNELS": "compiled"}
    command = (sys.executable, "-m", "tests.unit.broker.tiny_compiler")
    root = Path(__file__).parents[3]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=root) for _ in range(2)]
    printed = [process.communicate(timeout=LIMIT_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "".join(printed).count("kernels compiled in") == 1
    assert sorted("misses=1" in text for text in printed) == [False, True]
