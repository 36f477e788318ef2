"""Run a shipper: steps at an interval, errors of the target, events and status."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from random import SystemRandom
from typing import Final

from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.shipper import Shipper, ShipStep
from wheelmq.backup.source import Source
from wheelmq.backup.target import Target, TargetTaken
from wheelmq.cli.tables import counted
from wheelmq.cli.targets import error_text
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.store.ship_status import ShipStatus, ShipStatusFile, public_name
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk, ReadOnlyDisk
from wheelmq.system.workers import ThreadWorker

LAG_MS: Final = 1000
"""Age of the last complete copy at which the shipper reports a lag."""
REPORT_MS: Final = 10_000
"""Time between two reports of the same kind."""
RETRY_S_MAX: Final = 5.0
"""Longest pause after an error."""
FAILURES_MAX: Final = 5
"""Errors in a row after which a single copy gives up."""

Tell = Callable[..., None]
"""Prints an event: its name, a text, and fields."""


class _Result(Enum):
    """The result of a step: all is shipped, there is more, a log is damaged, or the target or the store failed."""

    COMPLETE = auto()
    MORE = auto()
    STUCK = auto()
    FAILED = auto()


@dataclass
class _Totals:
    captures: int = 0
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    def add(self, step: ShipStep) -> None:
        self.captures += 1 if step.capture else 0
        self.records += step.records
        self.raw_bytes += step.raw_bytes
        self.stored_bytes += step.stored_bytes


class ShipRun:
    """One run of a shipper. `stop` may be called by a signal handler."""

    def __init__(
        self,
        store: Path,
        name: str,
        target: Target,
        settings: ShipSettings,
        interval_s: float,
        clock: Clock,
        tell: Tell,
        *,
        once: bool = False,
    ) -> None:
        """With `once`, the run ends when everything is shipped."""
        self._url = name
        self._name = public_name(name)
        self._interval_s = interval_s
        self._clock = clock
        self._tell = tell
        self._once = once
        self._is_continuous = not once
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._worker = ThreadWorker("merging", self._events.put)
        paths = StorePaths(store)
        self._status_file = ShipStatusFile(Disk(), paths, name)
        self.shipper = Shipper(
            Source(ReadOnlyDisk(), paths, settings.piece_bytes),
            target,
            clock,
            settings,
            self._worker,
            SystemRandom(),
            self._run_callback,
        )
        self._store = store
        self._problem = ""
        self._failures = 0
        self._was_lagging = True
        self._reported_ms: dict[str, int] = {}
        self.totals = _Totals()

    def stop(self) -> None:
        """End the run after one more step."""
        self._is_stopping = True
        self._events.put(None)

    def open(self) -> None:
        """Read the target. Raises OSError."""
        known = self._status_file.read()
        self._is_continuous |= known is not None and known.is_continuous
        self.shipper.open(None if known is None else known.history)
        self._write_status()
        end = self.shipper.history.end("log").position
        self._tell(
            "shipping",
            f"shipping {self._store} to {self._name}; the target has the log up to position {end}",
            store=str(self._store),
            target=self._name,
            log_end=end,
        )

    def run(self) -> None:
        """Ship until `stop`, or until everything is shipped once. Raises TargetTaken, and OSError with `once`."""
        failures = 0
        while True:
            began_s = self._clock.monotonic()
            is_last = self._is_stopping
            result = self._step()
            failures = failures + 1 if result is _Result.FAILED else 0
            if self._once and (result is _Result.STUCK or failures == FAILURES_MAX):
                raise OSError(self._problem)
            if is_last or (self._once and result is _Result.COMPLETE):
                break
            if result is not _Result.MORE:
                pause_s = self._interval_s * 2**failures
                self._rest(began_s + min(pause_s, max(RETRY_S_MAX, self._interval_s)))
        self.shipper.housekeeping.wait()
        self._worker.close()
        end, text = self._log_end(), f"stopped: {self._totals_text()}"
        self._tell("stopped", text, **vars(self.totals), log_end=end, problem=self._problem)

    def _step(self) -> _Result:
        """Ship once. Raises TargetTaken."""
        try:
            step = self.shipper.step()
        except TargetTaken:
            raise
        except OSError as error:
            self._failed(error_text(error, self._url))
            return _Result.FAILED
        self.totals.add(step)
        self._problem = "; ".join(step.problems) or self.shipper.housekeeping.problem or ""
        if step.problems:
            self._report("problem", self._problem, problem=self._problem)
        self._note_age(step)
        self._write_status()
        if step.problems and not step.raw_bytes:
            return _Result.STUCK
        return _Result.COMPLETE if step.is_complete else _Result.MORE

    def _failed(self, text: str) -> None:
        self._problem = text
        self._failures += 1
        self._report("failed", f"shipping failed, and is tried again: {text}", problem=text)
        self._note_age(None)
        self._write_status()

    def _note_age(self, step: ShipStep | None) -> None:
        """Report when the target lags, when it has caught up, and the totals now and then."""
        complete_ms = self.shipper.complete_ms
        age_ms = None if complete_ms is None else self._clock.now_ms() - complete_ms
        if age_ms is None or age_ms > LAG_MS:
            self._was_lagging = True
            lag = "the first copy is not complete yet" if age_ms is None else f"the target lags by {age_ms} ms"
            self._report("lagging", f"{lag}: {self._totals_text()}", age_ms=age_ms, log_end=self._log_end())
        elif self._was_lagging:
            self._was_lagging = False
            self._tell("complete", f"the target has everything: {self._totals_text()}", log_end=self._log_end())
        elif step is not None and step.capture:
            self._report("shipped", self._totals_text(), age_ms=age_ms, log_end=self._log_end(), **vars(self.totals))

    def _report(self, event: str, text: str, **fields: object) -> None:
        """Print an event, but not more often than every REPORT_MS."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._reported_ms.get(event, -REPORT_MS) >= REPORT_MS:
            self._reported_ms[event] = now_ms
            self._tell(event, text, **fields)

    def _totals_text(self) -> str:
        totals = self.totals
        return (
            f"{counted(totals.records, 'record')} in {counted(totals.captures, 'capture')}, "
            f"{counted(totals.raw_bytes, 'byte')} stored as "
            f"{totals.stored_bytes:,}"
        )

    def _log_end(self) -> int:
        return self.shipper.history.end("log").position

    def _write_status(self) -> None:
        status = ShipStatus(
            target=self._name,
            history=self.shipper.identity.history,
            pid=os.getpid(),
            made_ms=self._clock.now_ms(),
            complete_ms=self.shipper.complete_ms or 0,
            log_end=self._log_end(),
            is_continuous=self._is_continuous,
            failures=self._failures + self.shipper.housekeeping.failures,
            problem=self._problem,
        )
        try:
            self._status_file.write(status)
        except OSError as error:
            self._report("failed", f"the status cannot be written: {error_text(error, self._url)}", problem=str(error))

    def _rest(self, until_s: float) -> None:
        """Wait until a monotonic time or a signal, and run the callbacks of the worker meanwhile."""
        while not self._is_stopping:
            left_s = until_s - self._clock.monotonic()
            if left_s <= 0:
                return
            try:
                callback = self._events.get(timeout=left_s)
            except queue.Empty:
                return
            if callback is not None:
                callback()

    def _run_callback(self) -> None:
        callback = self._events.get()
        if callback is not None:
            callback()
