"""A child process that is kept running: started, watched, restarted after a death, and stopped in order.

A child writes events as JSON lines to its standard output. Its log file gets all other output. Its standard input is a
pipe whose other end only the parent holds, so it can end with the parent. Each child has a process group of its own, so
Ctrl-C at the terminal reaches only the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wheelmq.system.clock import Clock
from wheelmq.system.log_files import bound

CANNOT_START: Final = 78
"""Exit code of a child that would fail again after a restart: a port is taken, or a setting is wrong (EX_CONFIG)."""

LOG_LOOK_S: Final = 5.0
"""Seconds between two checks of the log file's size."""
BACKOFF_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Pauses in seconds before a restart, by the number of deaths in a row. The last one is for all further deaths."""
STEADY_S: Final = 30.0
"""The death of a child that lived for this many seconds has a new cause, so the count of deaths starts again."""
DEATHS_MAX: Final = 5
"""Deaths in a row after which a child that never came up is not restarted."""
LINE_BYTES_MAX: Final = 1 << 20
LAST_WORDS_S: Final = 1.0

Event = dict[str, Any]


class ManagedProcess:
    """One process and its successors. `on_event` receives its events; `on_death` its end and the next pause."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        *,
        clock: Clock,
        on_event: Callable[[Event], None],
        on_death: Callable[[str, float], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log_path = log_path
        self.deaths = 0
        self.is_up = False
        """Whether one of its processes ever came up, as reported by `came_up`."""
        self.failure: str | None = None
        """The reason for no further restart; None while the process is kept running."""
        self.failed = asyncio.Event()
        self.log_start = 0
        """Byte of the log at which the output of the current process begins."""
        self._clock = clock
        self._on_event = on_event
        self._on_death = on_death
        self._environment = dict(environment or {})
        """Environment variables of the child in addition to the inherited ones."""
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._last_words = ""
        self._started_s = 0.0
        self._in_a_row = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._keep())

    def came_up(self) -> None:
        """Record that the child does its work. From now on it is always restarted."""
        self.is_up = True

    async def stop(self, deadline_s: float) -> bool:
        """End the process by SIGTERM, or by SIGKILL after `deadline_s`. Return whether it ended well.

        Returns False if it needed SIGKILL, failed, or was dead before. A process that cannot handle SIGTERM yet has
        nothing to clean up, so its end counts as good.
        """
        if self._task is None:
            return True
        task, self._task = self._task, None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        process = self._process
        if process is None:
            return self.failure is None
        if process.returncode is not None:
            return process.returncode == 0
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(deadline_s):
                return await process.wait() in (0, -signal.SIGTERM)
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()
            return False

    def kill(self) -> None:
        """Kill the process at once without a restart, for a caller that cannot wait. `stop` must still be awaited."""
        if self._task is not None:
            self._task.cancel()
        if self._process is not None:
            _signal(self._process, signal.SIGKILL)

    def end_process(self, why: str) -> None:
        """End a hanging process by SIGKILL. It is restarted as after a death."""
        if self._process is not None:
            self._last_words = why
            _signal(self._process, signal.SIGKILL)
        self.note(f"WARNING {why}")

    def note(self, text: str) -> None:
        """Write a line to the child's log. The line is lost if the disk is full."""
        self._log(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.name}: {text}\n".encode())

    def _log(self, line: bytes) -> None:
        with contextlib.suppress(OSError), self.log_path.open("ab") as log:
            log.write(line)

    async def _keep(self) -> None:
        while True:
            self._started_s = self._clock.monotonic()
            try:
                self._process = await self._spawn()
            except OSError as error:
                self.failure = f"{error.strerror}: {error.filename}"
                self.failed.set()
                return
            self._listening = asyncio.create_task(self._listen(self._process))
            bounding = asyncio.create_task(self._bound_log())
            try:
                code = await self._process.wait()
            finally:
                bounding.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._listening
            pause_s = self._count_death(code)
            if pause_s is None:
                return
            await asyncio.sleep(pause_s)

    async def _spawn(self) -> Process:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._last_words = ""
        with self.log_path.open("ab") as log:
            self.log_start = log.tell()
            return await asyncio.create_subprocess_exec(
                *self.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                process_group=0,
                limit=LINE_BYTES_MAX,
                env={**os.environ, **self._environment},
            )

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                self._log(line)
                continue
            if "why" in event:
                self._last_words = str(event["why"])
            with contextlib.suppress(OSError):  # the terminal is a file on a full disk, or is gone
                self._on_event(event)

    async def _bound_log(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(bound, self.log_path)
            await asyncio.sleep(LOG_LOOK_S)

    def _count_death(self, code: int) -> float | None:
        """Count a death. Return the pause before the restart in seconds, or None for no restart."""
        self.deaths += 1
        if self._clock.monotonic() - self._started_s >= STEADY_S:
            self._in_a_row = 0
        self._in_a_row += 1
        how = end_text(code) + (f": {self._last_words}" if self._last_words else "")
        if not self.is_up and (code == CANNOT_START or self._in_a_row >= DEATHS_MAX):
            self.failure = self._last_words if code == CANNOT_START and self._last_words else how
            self.failed.set()
            return None
        pause_s = BACKOFF_S[min(self._in_a_row - 1, len(BACKOFF_S) - 1)]
        with contextlib.suppress(OSError):  # the terminal is a file on a full disk, or is gone
            self._on_death(how, pause_s)
        return pause_s


def end_text(code: int) -> str:
    if code >= 0:
        return f"it ended with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


__all__ = ["CANNOT_START", "Event", "ManagedProcess", "end_text"]
