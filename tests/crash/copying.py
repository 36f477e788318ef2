"""The parts of a run that copies a topic: the Spark application with its processes, its progress, and the sender."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tests.crash.parts import Role, is_gone, role_of
from wheelmq.client import Producer, ProducerSettings, TopicUnknown
from wheelmq.net.errors import CallError, Refused

STOP_DEADLINE_S: Final = 60.0
LEAVE_DEADLINE_S: Final = 20.0
LOOK_S: Final = 0.005
SINK_RUNNER: Final = "pyspark.sql.worker.python_streaming_sink_runner"
FOUND_S: Final = 30.0
"""Time for a process to begin its work."""
WORK_S_MAX: Final = 0.3
"""The longest wait from the start of the work of a task or a commit to the kill. If it is over, the wait is halved."""
REPEAT_S: Final = 0.1
"""Wait before a send is repeated."""
BODY_BYTES_MAX: Final = 600


class Victim(StrEnum):
    """A process of the application that a run kills."""

    TASK = "task"
    """A Python worker."""
    SOURCE = "source"
    """The process that plans the batches of the source."""
    COMMIT = "commit"
    """The process that commits a batch of the sink."""
    DRIVER = "driver"
    """The driver and its JVM."""


class CopierProcess:
    """`python -m tests.crash.copier`, which is started again after each end until `stop`."""

    def __init__(self, home: Path, namesrv: str, source: str, sink: str, guarantee: str) -> None:
        self.checkpoint = home / "checkpoint"
        self._events, self._log = home / "copier.jsonl", home / "copier.log"
        self._command = [sys.executable, "-P", "-m", "tests.crash.copier", namesrv, source, sink]
        self._command += [str(self.checkpoint), guarantee, str(home / "spark")]
        self._process: Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._killed: set[int] = set()
        self._seen: dict[int, psutil.Process] = {}
        """All processes that were found below the drivers."""
        self.unexpected_ends: list[int] = []
        """Exit codes of drivers that were not killed."""

    def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        environment = {**os.environ, "WHEELMQ_JAVA_CACHE": "use"}
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        while not self._is_stopping:
            with self._events.open("ab") as events, self._log.open("ab") as log:
                process = self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=PIPE, stdout=events, stderr=log, env=environment, process_group=0
                )
            code = await process.wait()
            if process.pid not in self._killed and not self._is_stopping:
                self.unexpected_ends.append(code)

    async def stop(self) -> int | None:
        """Stop it cleanly. Returns its exit code; None if it was never started."""
        self._is_stopping = True
        process = self._process
        if process is None:
            return None
        self.processes()
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                return await process.wait()
        except TimeoutError:
            for one in self.left_over():
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            return await process.wait()
        finally:
            if self._keeping is not None:
                await self._keeping

    def left_over(self) -> list[psutil.Process]:
        """Return the running processes that are or were below a driver."""
        return [one for one in self._seen.values() if one.is_running() and not is_gone(one.pid)]

    def events(self) -> Counter[str]:
        """Return the number of events by name."""
        lines = self._events.read_text().splitlines() if self._events.exists() else []
        return Counter(json.loads(line)["event"] for line in lines if line.endswith("}"))

    # Kills ---------------------------------------------------------------------------------------------------------

    async def kill(self, victim: Victim, chance: random.Random) -> int | None:
        """Kill a process. Returns its id, or None if there was none.

        Spark reuses the processes of tasks and commits. So this waits until one of them is connected to a server, and
        kills it during its work.
        """
        match victim:
            case Victim.DRIVER:
                return self._kill_driver()
            case Victim.SOURCE:
                found = self._of(victim)
                return found[0] if found and _kill(found[0]) else None
        pause_s = chance.uniform(0, WORK_S_MAX)
        stop = time.monotonic() + FOUND_S
        while time.monotonic() < stop:
            working = [pid for pid in self._of(victim) if _is_connected(pid)]
            if working:
                pid = chance.choice(working)
                await asyncio.sleep(pause_s)
                if _is_connected(pid) and _kill(pid):
                    return pid
                pause_s /= 2  # its work took less time
            await asyncio.sleep(LOOK_S)
        return None

    def _of(self, victim: Victim) -> list[int]:
        """Return the ids of the processes of a kind, without the daemons that fork them."""
        if victim is Victim.COMMIT:
            return [one.pid for one in self.processes() if _is_of_sink(one) and not _is_daemon(one)]
        role = Role.TASK if victim is Victim.TASK else Role.SOURCE
        return [one.pid for one in self.processes() if role_of(one) is role]

    def _kill_driver(self) -> int | None:
        process = self._process
        if process is None or process.returncode is not None:
            return None
        jvms = [one.pid for one in self.processes() if role_of(one) is Role.JVM]
        if not jvms:
            return None
        self._killed.add(process.pid)
        for pid in (*jvms, process.pid):
            _kill(pid)
        return process.pid

    def processes(self) -> list[psutil.Process]:
        """Return the driver and the processes below it."""
        if self._process is None:
            return []
        try:
            driver = psutil.Process(self._process.pid)
            found = [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        self._seen |= {one.pid: one for one in found}
        return found


def _is_daemon(process: psutil.Process) -> bool:
    """Return whether a process of the sink was started by the JVM. It forks the others."""
    try:
        parent = process.parent()
        return parent is not None and parent.name() == "java"
    except psutil.NoSuchProcess:
        return True  # it must not be killed


def _is_of_sink(process: psutil.Process) -> bool:
    try:
        return SINK_RUNNER in process.cmdline()
    except psutil.Error:
        return False


def _is_connected(pid: int) -> bool:
    """Return whether a Python worker has a socket besides that to the JVM. Source and sink connect for each batch."""
    sockets = set()
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                sockets.add(os.readlink(file))
    return sum(name.startswith("socket:") for name in sockets) > 1


def _kill(pid: int) -> bool:
    """Kill a process. Returns False if it has ended."""
    if is_gone(pid):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# Progress -------------------------------------------------------------------------------------------------------------


class CopyProgress(NamedTuple):
    """The progress of a query in its checkpoint."""

    committed: int
    """Number of the last committed batch; -1 before the first one."""
    begun: int
    """Number of the last batch that has begun."""
    offsets: dict[str, int]
    """The next queue offset in each queue of the source after the last committed batch, by BROKER/QUEUE."""

    @property
    def rows(self) -> int:
        return sum(self.offsets.values())


NO_PROGRESS: Final = CopyProgress(-1, -1, {})


def read_progress(checkpoint: Path) -> CopyProgress:
    """Return the progress of a query. Spark changes the files meanwhile, and removes old ones."""
    committed, begun = (max(_numbers(checkpoint / name), default=-1) for name in ("commits", "offsets"))
    if committed < 0:
        return CopyProgress(-1, begun, {})
    try:
        *_, line = (checkpoint / "offsets" / str(committed)).read_text().splitlines()
    except FileNotFoundError:  # removed since
        return read_progress(checkpoint)
    tree: dict[str, dict[str, dict[str, int]]] = json.loads(line)["queues"]
    return CopyProgress(
        committed,
        begun,
        {
            f"{broker}/{queue}": offset
            for brokers in tree.values()
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        },
    )


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return []


# Sends ----------------------------------------------------------------------------------------------------------------


class Feeder:
    """Sends numbered messages, each until it is acknowledged, and stays at most `backlog_max` ahead of the query.

    A repeated send may store a message twice. The topic then has two messages, and each has a copy of its own.
    """

    def __init__(self, namesrv: str, topic: str, seed: int, copied_rows: Callable[[], int], backlog_max: int) -> None:
        self._namesrv, self._topic = namesrv, topic
        self._copied_rows, self._backlog_max = copied_rows, backlog_max
        self._random = random.Random(seed)
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        """Number of acknowledged messages. They have the numbers from 0 on."""
        self.repeats = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End once the present message is acknowledged."""
        self._is_stopping = True
        if self._task is not None:
            await self._task

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with Producer(self._namesrv, ProducerSettings(timeout_ms=2000, keep_alive_ms=1000)) as producer:
            while not self._is_stopping:
                if self.sent - self._copied_rows() >= self._backlog_max:
                    await asyncio.sleep(LOOK_S)
                    continue
                filling = self._random.randbytes(self._random.randrange(BODY_BYTES_MAX))
                await self._send(producer, b"%d " % self.sent + filling)
                self.sent += 1

    async def _send(self, producer: Producer, body: bytes) -> None:
        while True:
            try:
                await producer.send(self._topic, body)
                return
            except (CallError, Refused, TopicUnknown):
                self.repeats += 1
                await asyncio.sleep(REPEAT_S)
