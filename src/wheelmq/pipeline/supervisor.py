"""The supervisor of the pipeline. It restarts a dead driver at once, with the same holder id.

With that id, the new driver does not wait until the lease of the dead one lapses. The broker's armed references cover
the seconds that Spark needs to start. A driver that hangs does not die. The supervisor asks the brokers every two
seconds whether it makes progress (`progress`), and kills a driver that makes none, with its JVM and workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.managed_process import Event, ManagedProcess
from wheelmq.net.rpc_client import RpcClient
from wheelmq.pipeline.processes import family, kill
from wheelmq.pipeline.progress import LOOK_S, Progress, TurnProgress, answer_of
from wheelmq.pipeline.session_options import SessionOptions
from wheelmq.system.clock import Clock
from wheelmq.system.credentials import variables_of
from wheelmq.system.tls_client import TlsOptions, client_tls

HOLDER_VARIABLE: Final = "WHEELMQ_HOLDER_ID"
"""Name of the environment variable with the driver's holder id, which other users of the machine cannot read."""
ANSWER_S: Final = 1.0
STOP_DEADLINE_S: Final = 30.0
"""Time limit to stop a driver with its queries, Spark, the JVM and the workers. A busy machine needs some seconds."""


class PipelineState(StrEnum):
    STARTING = "starting"
    """Spark's JVM starts."""
    WAITING = "waiting"
    """Spark is up, and a broker does not give the lease."""
    TURNING = "turning"
    DOWN = "down"


class PipelineSupervisor:
    """Keeps one driver running, for `brokers` and those registered at the name servers `namesrv` at the moment.

    Calls `on_change` with a text when the driver's state has changed.
    """

    def __init__(
        self,
        brokers: Sequence[str],
        log_dir: Path,
        *,
        clock: Clock,
        on_change: Callable[[str], None],
        namesrv: Sequence[str] = (),
        master: str | None = None,
        name: str | None = None,
        over_the_wire: bool = False,
        groups: int | None = None,
        session_options: SessionOptions | None = None,
        tls: TlsOptions | None = None,
        access_key: AccessKey | None = None,
    ) -> None:
        """`access_key` signs the requests to the brokers. The driver gets it through its environment."""
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.state = PipelineState.DOWN
        self.jvm_pid: int | None = None
        self._on_change = on_change
        self._brokers = set(brokers)
        self._turning: set[str] = set()
        self._clock = clock
        self._progress = Progress(self.name)
        self._tls = client_tls(tls)
        self._sign = None if access_key is None else access_key.sign
        self._callers: dict[str, RpcClient] = {}
        self._hung: str | None = None
        """Reason to kill the last driver; None for a driver that died by itself."""
        self._problems: dict[str, str] = {}
        """Problems of the last check, by broker, and "look" for an unexpected error."""
        self._watching: asyncio.Task[None] | None = None
        command = driver_command(
            brokers,
            namesrv,
            name=self.name,
            master=master,
            log_dir=log_dir,
            over_the_wire=over_the_wire,
            groups=groups,
            session_options=session_options,
            tls=tls,
        )
        self.child = ManagedProcess(
            "pipeline",
            command,
            log_dir / "pipeline.log",
            clock=clock,
            on_event=self._heard,
            on_death=self._died,
            environment={HOLDER_VARIABLE: secrets.token_hex(16), **variables_of(access_key)},
        )

    def start(self) -> None:
        self.state = PipelineState.STARTING
        self.child.start()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> bool:
        """Stop the driver and Spark. Returns False if they had to be killed."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await asyncio.gather(*(caller.close() for caller in self._callers.values()))
        stopped = await self.child.stop(STOP_DEADLINE_S)
        self.state = PipelineState.DOWN
        return stopped

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._check_progress()
            except Exception as error:  # the next check may find a driver that hangs
                self._note_problem("look", f"a check of the pipeline failed: {_error_text(error)}")
            else:
                self._problems.pop("look", None)

    async def _check_progress(self) -> None:
        brokers = sorted(self._brokers)
        answers = dict(zip(brokers, await asyncio.gather(*map(self._ask, brokers)), strict=True))
        pid = self.child.pid
        if pid is None:
            self._progress.begin()
            return
        now_s, has_session = self._clock.monotonic(), self.jvm_pid is not None
        why = self._progress.problem(now_s, answers, turning=self._turning, has_session=has_session)
        if why is not None:
            await self._end_hung(pid, why)

    async def _ask(self, broker: str) -> TurnProgress | None:
        caller = self._callers.get(broker)
        if caller is None:
            caller = self._callers[broker] = RpcClient(broker, sign=self._sign, tls=self._tls)
        try:
            answer = await caller.ask(Command(code=RequestCode.WMQ_METRICS), ANSWER_S)
        except (CallError, Refused):
            return None
        try:
            found = answer_of(msgspec.json.decode(answer.body)["pipeline"])
        except Exception as error:  # a broker of another version
            self._note_problem(broker, f"{broker} does not report the state of the pipeline: {_error_text(error)}")
            return None
        self._problems.pop(broker, None)
        return found

    def _note_problem(self, key: str, text: str) -> None:
        """Log why a driver that hangs may not be found. Logs the same text once."""
        if self._problems.get(key) == text:
            return
        self._problems[key] = text
        text = f"{text}. The supervisor may not notice a driver that hangs"
        self.child.note(f"WARNING {text}")
        with contextlib.suppress(OSError):  # the terminal is a file on a full disk, or is gone
            self._on_change(f"WARNING: {text}")

    async def _end_hung(self, pid: int, why: str) -> None:
        """Kill the driver with all processes that it started, including stopped ones."""
        self._hung = why
        rest = [process for process in family(pid) if process.pid != pid]
        self.child.end_process(f"the pipeline hangs: {why}; driver {pid}, JVM {self.jvm_pid} and workers are killed")
        self._progress.note_hung()
        await asyncio.to_thread(kill, rest)

    def _heard(self, event: Event) -> None:
        broker = str(event.get("broker", ""))
        match event.get("event"):
            case "session":
                self.jvm_pid = event.get("jvm")
                ui = event.get("ui")
                self._on_change(f"Spark is up (JVM {self.jvm_pid})" + (f", its UI is {ui}" if ui else ""))
            case "serving":
                before, self._brokers = self._brokers, set(map(str, event.get("brokers", ())))
                self._turning &= self._brokers
                self._see_state()
                if self._brokers != before:
                    self._on_change(f"serves {', '.join(sorted(self._brokers)) or 'no broker'}")
            case "name servers":
                why = event.get("why")
                no_answer = f"no name server returns the list of brokers: {why}"
                self._on_change("a name server answers again" if why is None else no_answer)
            case "turning":
                self._turning.add(broker)
                self._see_state()
                self.child.came_up()
                self._on_change(f"has the lease of {broker}, epoch {event.get('epoch')}")
            case "waiting":
                self._wait(broker)
                self._on_change(f"waits for {broker}: {str(event.get('why')).removeprefix(f'{broker}: ')}")
            case "query ended":
                self._wait(broker)
                self._on_change(f"starts again with {broker}: {event.get('why') or 'its query ended'}")

    def _wait(self, broker: str) -> None:
        self._turning.discard(broker)
        self._see_state()

    def _see_state(self) -> None:
        turning = bool(self._brokers) and self._turning >= self._brokers
        self.state = PipelineState.TURNING if turning else PipelineState.WAITING

    def _died(self, how: str, pause_s: float) -> None:
        self._progress.begin()  # the next driver may have started before the next check
        self.state = PipelineState.STARTING
        self.jvm_pid = None
        self._turning.clear()
        hung, self._hung = self._hung, None
        again = f"it is started again {'at once' if not pause_s else f'in {pause_s:g} s'}"
        self._on_change(f"died ({how}); {again}" if hung is None else f"WARNING: it hangs ({hung}); killed, {again}")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def driver_command(
    brokers: Sequence[str],
    namesrv: Sequence[str] = (),
    *,
    name: str,
    master: str | None,
    log_dir: Path,
    over_the_wire: bool = False,
    groups: int | None = None,
    session_options: SessionOptions | None = None,
    tls: TlsOptions | None = None,
) -> list[str]:
    """Return the command of a driver that ends with this process."""
    command = [sys.executable, "-P", "-m", "wheelmq", "pipeline", "--driver", "--ends-with-stdin", "--name", name]
    for broker in brokers:
        command += ["--broker", broker]
    if namesrv:
        command += ["--namesrv", ";".join(namesrv)]
    if master is not None:
        command += ["--master", master]
    if over_the_wire:
        command.append("--over-the-wire")
    if groups is not None:
        command += ["--groups", str(groups)]
    if session_options is not None:
        command += session_options.words()
    if tls is not None:
        command += ["--tls-options", tls.to_json()]
    return [*command, "--log-dir", str(log_dir)]
