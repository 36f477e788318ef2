"""One interface for Apache RocketMQ and WheelMQ: start in a new folder, ask, stop, delete.

Both keep their log in files of 1 GiB and flush in the background. Only one runs at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import msgspec

from bench.machine import Processor, family, parts_of
from compat.apache.apache import ApacheBroker, ApacheNameServer
from compat.apache.maven import java_and_maven_found
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

READY_DEADLINE_S: Final = 120.0
STOP_DEADLINE_S: Final = 60.0
APACHE_HEAP: Final = "2g"
PREPARE_DEADLINE_S: Final = 600.0
INDEX_LOOK_S: Final = 0.1
QUEUES: Final = 4


class NotReady(Exception):
    """A part did not start. The text ends with its output."""


class Target(ABC):
    """One broker with its other parts, in a new folder below `parent` that is deleted with it."""

    name: ClassVar[str]
    namesrv: str
    broker: str
    store: Path
    pids: dict[str, int]

    def __init__(self, parent: Path | None = None, settings: Mapping[str, object] | None = None) -> None:
        self._parent = parent
        self._settings = dict(settings or {})
        self._stack = ExitStack()
        self._link: SyncConnection | None = None

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix=f"bench-{self.name.lower()}-", dir=self._parent))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            self._start(stack)
            self._link = SyncConnection(self.broker, timeout_s=10.0)
            stack.callback(self._link.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def _start(self, stack: ExitStack) -> None:
        """Start all parts, and register their cleanup on the stack."""

    @abstractmethod
    def end(self) -> None:
        """End the processes, and keep the folder for reading."""

    def heads(self) -> list[int]:
        """Return the processes that started all others of this target."""
        return list(self.pids.values())

    def ask(self, code: int, **ext: object) -> Command:
        """Return the broker's answer. Raises Refused, CallError."""
        assert self._link is not None
        return self._link.ask(Command(code=code, ext={name: str(value) for name, value in ext.items()}))

    def runtime(self) -> dict[str, str]:
        """Return the broker's runtime information, by Apache's names (code 28)."""
        table: dict[str, str] = msgspec.json.decode(self.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
        return table

    def log_bytes(self) -> int:
        """Return the end of the commit log."""
        return int(self.runtime()["commitLogMaxOffset"])

    def unindexed(self) -> int:
        """Return the number of parked messages that are not in the timer's index yet."""
        return int(self.runtime()["timerOffsetBehind"])

    def await_indexed(self, deadline_s: float) -> None:
        """Wait until all parked messages are in the timer's index. Raises RuntimeError after the deadline."""
        end_s = time.monotonic() + deadline_s
        while count := self.unindexed():
            if time.monotonic() > end_s:
                raise RuntimeError(f"{count:,} timers are not indexed in time: this machine is too busy")
            time.sleep(INDEX_LOOK_S)

    def stored(self, topic: str) -> int:
        """Return the number of messages in the topic's queues."""
        code = RequestCode.GET_MAX_OFFSET
        return sum(int(self.ask(code, topic=topic, queueId=i).ext["offset"]) for i in range(QUEUES))

    def processor(self) -> Processor:
        """Return a processor meter of all its processes, which starts now."""
        return Processor(lambda: parts_of(self.pids))


class Apache(Target):
    """Apache RocketMQ 5.3.3."""

    name = "Apache"

    def _start(self, stack: ExitStack) -> None:
        namesrv = stack.enter_context(ApacheNameServer(self.home))
        self._broker = ApacheBroker(self.home, namesrv.address, config=self._settings, heap=APACHE_HEAP)
        stack.enter_context(self._broker)
        self.namesrv, self.broker, self.store = namesrv.address, self._broker.address, self._broker.store_dir
        self.pids = {"broker": self._broker.pid, "namesrv": namesrv.pid}

    def end(self) -> None:
        self._broker.kill()  # mapped data stays in the files


class WheelMQ(Target):
    """Name server, broker and pipeline under `wheelmq up`."""

    name = "WheelMQ"
    words: ClassVar[tuple[str, ...]] = ()
    """More options of `wheelmq up`."""

    def _start(self, stack: ExitStack) -> None:
        ports = ("--namesrv-port", "0", "--broker-port", "0")
        self._up = Part(["up", *self.words, *flags(self._settings), *ports], self.home)
        stack.callback(self._up.end)
        ready = self._up.until("ready")
        self.namesrv, self.broker, self.store = ready["namesrv"], ready["broker"], Path(ready["store"])
        self.pids = {name: pid for name, pid in ready["pids"].items() if pid is not None}
        self.log_dir = Path(ready["logs"])

    def end(self) -> None:
        self._up.end()

    def heads(self) -> list[int]:
        return [self._up.process.pid]

    def metrics(self) -> dict[str, Any]:
        """Return the broker's metrics of itself, its timer and the pipeline."""
        found: dict[str, Any] = msgspec.json.decode(self.ask(RequestCode.WMQ_METRICS).body)
        return found

    def armed_in_place(self) -> int:
        """Return the number of messages that the broker armed in place of turns; 0 with a live pipeline."""
        by = self.metrics()["timers"]["armed_by"]
        return int(by.get("wheel_lane", 0) + by.get("index_lane", 0))


class WheelMQWithoutPipeline(WheelMQ):
    """WheelMQ without Spark and Java."""

    name: ClassVar[str] = "no pipeline"
    words: ClassVar[tuple[str, ...]] = ("--no-pipeline",)


class Part:
    """One `wheelmq` command as a process that prints events as JSON lines.

    It is ended with all its child processes.
    """

    def __init__(self, words: Sequence[str], home: Path, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-P", "-m", "wheelmq", *words, "--home", str(home), "--json"]
        self.log_path = home / f"{words[0]}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={
                    **os.environ,
                    "WHEELMQ_JAVA_CACHE": "use",
                    "PYTHONDONTWRITEBYTECODE": "",  # as for a user, Python may store bytecode
                    **(environment or {}),
                },
                process_group=0,  # a Ctrl-C goes to this process, which ends the command cleanly
            )
        self._said = b""

    def until(self, event: str, deadline_s: float = READY_DEADLINE_S) -> dict[str, Any]:
        """Return the fields of `event`. Raises NotReady if the process ends before or exceeds the deadline."""
        assert self.process.stdout is not None
        end_s = time.monotonic() + deadline_s
        while True:
            line, found, self._said = self._said.partition(b"\n")
            if found:
                said: dict[str, Any] = json.loads(line)
                if said.get("event") == event:
                    return said
                continue
            self._said = line
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, end_s - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 1 << 16) if readable else b""
            if not chunk:
                tail = self.log_path.read_text(errors="replace")[-2000:]
                raise NotReady(f"{self.process.args}: no {event!r} in {deadline_s:.0f} s; its log ends:\n{tail}")
            self._said += chunk

    def end(self) -> None:
        """Stop the process cleanly, or kill it after the deadline. Kill its remaining child processes."""
        below = family(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in below:
            with contextlib.suppress(OSError, LookupError):
                if process.is_running():  # the same process, not another with its id
                    process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


def prepare() -> None:
    """Do the one-time work of a machine, which no run must measure: compile kernels, create the JVM's cache."""
    lines = (
        "from wheelmq.broker.fast.warm import warm",
        "from wheelmq.pipeline.training import make_startup_cache",
        "warm(print)",
        "make_startup_cache()",
    )
    subprocess.run(
        [sys.executable, "-P", "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=True,
        timeout=PREPARE_DEADLINE_S,
    )


def flags(settings: Mapping[str, object]) -> list[str]:
    """Return broker settings as options of the command line."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def rivals() -> tuple[list[type[Target]], str | None]:
    """Return the targets, Apache first, and the reason if Apache is left out."""
    why = java_and_maven_found()
    return ([WheelMQ], f"without Apache: {why}") if why else ([Apache, WheelMQ], None)
