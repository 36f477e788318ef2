"""The processes of a run: the broker, and the pipeline under its supervisor, with the roles of Spark's processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.pipeline.supervisor import PipelineSupervisor
from wheelmq.system.clock import SystemClock
from wheelmq.system.credentials import variables_of

POINTS_VARIABLE: Final = "WHEELMQ_FAILPOINTS"
LOG_VARIABLE: Final = "WHEELMQ_FAILPOINT_LOG"
PIPELINE_NAME: Final = "crash"
INNER_KEY: Final = AccessKey("crash", "the access key of all processes of a run")
STOP_DEADLINE_S: Final = 60.0
ASK_TIMEOUT_S: Final = 2.0


class Role(StrEnum):
    BROKER = "broker"
    DRIVER = "driver"
    JVM = "jvm"
    SOURCE = "source"
    DAEMON = "daemon"
    TASK = "task"
    OTHER = "other"


class BrokerProcess:
    """A broker on a store folder. Only the test restarts it after a death."""

    def __init__(
        self,
        home: Path,
        port: int,
        flush: str,
        settings: dict[str, Any],
        failpoint_log: Path,
        *options: str,
        host: str = "127.0.0.1",
    ) -> None:
        self.address = f"{host}:{port}"
        self.store = home / "store"
        self.starts = 0
        self.armed: tuple[str, int] | None = None
        self._log_path = home / "broker.log"
        self.failpoint_log = failpoint_log
        self._command = [sys.executable, "-P", "-m", "wheelmq", "broker", "--home", str(home), "--port", str(port)]
        self._command += ["--flush", flush, "--json", *options]
        if not settings.get("broker_id"):  # a slave cannot have this option
            self._command.append("--ends-with-stdin")
        for name, value in settings.items():
            self._command += ["--set", f"{name}={value}"]
        self._process: Process | None = None
        self._caller = RpcClient(self.address)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def state(self) -> str:
        """Whether it lives, or its exit code and the end of its log."""
        if self._process is None:
            return "never started"
        if self.is_alive:
            return "lives"
        return f"exit code {self._process.returncode}; its log ends with {self._log_path.read_text()[-500:]!r}"

    async def start(self, armed: tuple[str, int] | None = None) -> None:
        """Start the process. `armed` is a failpoint and the passage at which it fires."""
        assert not self.is_alive
        environment = {**os.environ, **variables_of(INNER_KEY)}
        environment |= {LOG_VARIABLE: str(self.failpoint_log), POINTS_VARIABLE: ""}
        self.armed = armed
        if armed is not None:
            environment[POINTS_VARIABLE] = f"{armed[0]}={armed[1]}"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=log, stderr=log, env=environment, process_group=0
            )
        self.starts += 1

    async def wait_dead(self, deadline_s: float = 30.0) -> int:
        """Wait for its end, and return the exit code."""
        assert self._process is not None
        async with asyncio.timeout(deadline_s):
            return await self._process.wait()

    async def metrics(self) -> dict[str, Any] | None:
        """Return its metrics; None while it does not answer."""
        try:
            answer = await self._caller.ask(Command(code=RequestCode.WMQ_METRICS), ASK_TIMEOUT_S)
        except (CallError, Refused):
            return None
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        return found

    async def stop(self) -> int:
        """Stop it cleanly, and return its exit code."""
        await self._caller.close()
        if self.is_alive:
            os.kill(self.pid, signal.SIGTERM)
        try:
            return await self.wait_dead(STOP_DEADLINE_S)
        except TimeoutError:
            self.kill()
            return await self.wait_dead()

    def kill(self) -> None:
        if self.is_alive:
            os.kill(self.pid, signal.SIGKILL)


class Pipeline:
    """The driver under the supervisor of `wheelmq pipeline`, and the processes below it.

    A driver inherits its failpoints from this process's environment when the supervisor starts it. So the failpoints
    of later drivers are in a queue, which moves up when the supervisor reports a death.
    """

    def __init__(
        self,
        brokers: Sequence[str],
        log_dir: Path,
        failpoint_log: Path,
        tell: Callable[[str], None],
        *,
        name: str = PIPELINE_NAME,
        **options: Any,
    ) -> None:
        os.environ[LOG_VARIABLE] = str(failpoint_log)
        os.environ.setdefault("WHEELMQ_JAVA_CACHE", "use")
        self.supervisor = PipelineSupervisor(
            brokers,
            log_dir,
            clock=SystemClock(),
            on_change=self._on_supervisor_text,
            name=name,
            access_key=INNER_KEY,
            **options,
        )
        self.armed: tuple[str, int] | None = None
        """The failpoint of the running driver."""
        self._tell = tell
        self._line: deque[tuple[str, int] | None] = deque()
        self._deaths = 0
        self.roles: dict[int, Role] = {}
        """The roles of all processes seen so far, by process id."""
        self._processes: dict[int, psutil.Process] = {}

    def _on_supervisor_text(self, text: str) -> None:
        if self.supervisor.child.deaths > self._deaths:
            self._deaths = self.supervisor.child.deaths
            self.arm(self._line.popleft() if self._line else None)
        self._tell(text)

    def queue(self, *arms: tuple[str, int] | None) -> None:
        """Set the failpoints of the next drivers, in order."""
        self._line = deque(arms)

    def arm(self, arms: tuple[str, int] | None) -> None:
        """Set the failpoint of drivers that start from now on, and of their child processes."""
        self.armed = arms
        os.environ[POINTS_VARIABLE] = "" if arms is None else f"{arms[0]}={arms[1]}"

    @property
    def driver_pid(self) -> int | None:
        return self.supervisor.child.pid

    def start(self) -> None:
        self.supervisor.start()

    async def stop(self) -> bool:
        """Stop it cleanly. Returns False if it had to be killed."""
        stopped = await self.supervisor.stop()
        self.arm(None)
        return stopped

    async def kill(self) -> None:
        """Kill all its processes. It stays away until `start`."""
        self.find_processes()
        self.supervisor.child.kill()
        for pid in self.left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.supervisor.stop()

    def find_processes(self) -> dict[Role, list[int]]:
        """Return the running processes, by role."""
        found: dict[Role, list[int]] = {role: [] for role in Role}
        pid = self.driver_pid
        family: list[psutil.Process] = []
        if pid is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                driver = psutil.Process(pid)
                family = [driver, *driver.children(recursive=True)]
                for process in family:
                    self._processes.setdefault(process.pid, process)
        for process in list(self._processes.values()):
            if is_gone(process.pid) or not process.is_running():
                del self._processes[process.pid]
                continue
            role = Role.DRIVER if process.pid == pid else role_of(process)
            found[role].append(process.pid)
            if self.roles.get(process.pid, Role.OTHER) is Role.OTHER:
                self.roles[process.pid] = role
        return found

    def left_over(self) -> list[int]:
        """Return the running processes that are or were below a driver."""
        return [pid for pids in self.find_processes().values() for pid in pids]


def role_of(process: psutil.Process) -> Role:
    """Return the role of a process below the driver, from its command line and its parent's.

    A task worker outlives its daemon.
    """
    try:
        words = process.cmdline()
        if process.name() == "java":
            return Role.JVM
        if "pyspark.sql.streaming.python_streaming_source_runner" in words:
            return Role.SOURCE
        if "wheelmq.pipeline.daemon" in words:
            parent = process.parent()
            return Role.DAEMON if parent is not None and parent.name() == "java" else Role.TASK
    except psutil.Error:
        pass
    return Role.OTHER


def check_role(pid: int, role: Role) -> bool:
    """Return whether the process `pid` runs and has this role. It is checked right before a kill."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        words = process.cmdline()
    except psutil.Error:
        return False
    match role:
        case Role.BROKER:
            return "wheelmq" in words and "broker" in words
        case Role.DRIVER:
            return "wheelmq" in words and "pipeline" in words and "--driver" in words
    return role_of(process) is role


def fired(failpoint_log: Path) -> list[tuple[int, str]]:
    """Return the failpoints that have fired: process id and name, in order."""
    if not failpoint_log.exists():
        return []
    pairs = (line.split() for line in failpoint_log.read_text().splitlines())
    return [(int(pid), name) for pid, name in pairs]


def is_gone(pid: int) -> bool:
    """Return whether the process has ended. A zombie has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class Event:
    """A log of events with times, for the analysis of a run."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def __call__(self, text: str, **fields: Any) -> None:
        self._file.write(json.dumps({"at_ms": time.time_ns() // 1_000_000, "text": text, **fields}) + "\n")

    def close(self) -> None:
        self._file.close()


__all__ = ["BrokerProcess", "Event", "Pipeline", "Role", "check_role", "fired", "is_gone", "role_of"]
