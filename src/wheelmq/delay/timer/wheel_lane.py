"""The wheel lane: the broker arms indexed messages itself when no turn has scanned their slots in time.

A job off the loop reads the slots with the code of the pipeline's tasks (`staging`), and a tick arms its rows. Lease,
mark, E, S and a plan under way stay as they are. A late turn proposes the same messages again, which is harmless,
because `armed` takes each origin once.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.timer import skipped, staging
from wheelmq.delay.timer.live_view import LiveView
from wheelmq.delay.timer.rows import TurnRows, near_refs
from wheelmq.delay.timer.skipped import SkippedSlot
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.view import StoreUnreadable
from wheelmq.formats.units import Millis
from wheelmq.system.failpoint import reach
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

GUARD_MS: Final = 5000
"""The broker scans slots itself when they are as near as this and no turn has scanned them."""
GUARD_SHARE: Final = 3
"""With a short lead, the guard is at most the lead divided by this."""
ROWS_MAX: Final = 200_000
"""Maximum number of units per job, unless a single slot has more."""
SLOTS_MAX: Final = 3600
"""Maximum number of slots per job."""
DAMAGED_LOGGED_MAX: Final = 10
"""Maximum number of log positions of damaged records in one log line."""
RETRY_MS: Final = 1000
TRIES: Final = 3
"""Tries before an unreadable slot is skipped, so that later slots are in time."""
DISK_TRIES: Final = 10
"""The same for errors of the operating system, which often end by themselves."""


class _Scan(NamedTuple):
    after_ms: int
    through_ms: int
    slots: int
    """Slots of the range that have units."""
    units: int
    """Units of these slots."""
    write_ms: int
    is_retry: bool = False
    """Whether the range is a skipped slot."""


class WheelLane:
    """Scans slots that no turn has scanned in time. One job at a time."""

    def __init__(self, timer: Timer, worker: Worker) -> None:
        self._timer = timer
        self._worker = worker
        self._scan: _Scan | None = None
        self._result: TurnRows | BaseException | None = None
        self._damaged: list[int] | None = None
        """Log positions of the records that the job could not read; None when it reads only intact slots."""
        self._slots_max = SLOTS_MAX
        self._retry_ms = 0
        self._tries = 0
        self.guard_ms = min(GUARD_MS, timer.settings.lead_ms // GUARD_SHARE)
        self.slots_walked = 0
        """Slots with units that this lane scanned since the start."""

    def poll(self, now_ms: Millis, monotonic_ms: int) -> bool:
        """Arm the rows of the last job, and start the next job if slots are near that no turn has scanned.

        Retries skipped slots when no other slots are near. Returns whether a job for other slots was started.
        """
        self._take_result(monotonic_ms)
        started = False
        while self._scan is None and monotonic_ms >= self._retry_ms:
            scan = self._next_scan(now_ms) or self._next_retry(now_ms, monotonic_ms)
            if scan is None:
                break
            self._start(scan, monotonic_ms)
            started |= not scan.is_retry
            self._take_result(monotonic_ms)  # an inline worker has the result already
        return started

    def next_ms(self, now_ms: Millis, monotonic_ms: int) -> int | None:
        """Return the wall time at which `poll` has work, or None while a job runs."""
        if self._result is not None:
            return now_ms
        if self._scan is not None:
            return None
        if self._retry_ms > monotonic_ms:
            return now_ms + self._retry_ms - monotonic_ms
        timer, retry_ms = self._timer, self._timer.scans.skipped.next_retry_ms()
        next_ms = timer.scans.covered_through_ms + timer.settings.precision_ms - self.guard_ms
        return next_ms if retry_ms is None else min(next_ms, now_ms + max(0, retry_ms - monotonic_ms))

    def is_behind(self, now_ms: Millis) -> bool:
        return self._timer.scans.covered_through_ms < self._timer.wheel.floor_slot(now_ms + self.guard_ms)

    def _next_scan(self, now_ms: Millis) -> _Scan | None:
        """Choose the next slots to scan, and move A over empty ones. Returns None when none are due.

        A scan reaches twice the guard ahead, so each slot is armed a whole guard before its time.
        """
        if not self.is_behind(now_ms):
            return None
        timer, precision_ms = self._timer, self._timer.settings.precision_ms
        covered_ms, reach_ms = timer.scans.covered_through_ms, timer.wheel.floor_slot(now_ms + 2 * self.guard_ms)
        filled_ms = timer.wheel.first_filled(covered_ms, reach_ms)
        if filled_ms is None or filled_ms - precision_ms > covered_ms:
            covered_ms = reach_ms if filled_ms is None else filled_ms - precision_ms
            timer.scans.note_scanned(covered_ms)
            timer.scans.note_scanning(covered_ms)
        if filled_ms is None or not self.is_behind(now_ms):
            return None
        stop_ms = min(reach_ms, covered_ms + self._slots_max * precision_ms)
        units = timer.wheel.units_between(covered_ms, stop_ms)
        count = max(1, int(np.searchsorted(np.cumsum(units), ROWS_MAX, "right")))
        units = units[:count]
        through_ms, write_ms = covered_ms + count * precision_ms, timer.wheel.floor_slot(now_ms)
        return _Scan(covered_ms, through_ms, int(np.count_nonzero(units)), int(units.sum()), write_ms)

    def _next_retry(self, now_ms: Millis, monotonic_ms: int) -> _Scan | None:
        timer = self._timer
        slot = timer.scans.skipped.to_retry(monotonic_ms)
        if slot is None:
            return None
        after_ms = slot.slot_ms - timer.settings.precision_ms
        units = int(timer.wheel.units_between(after_ms, slot.slot_ms).sum())
        if units < slot.units:  # a later slot has its place in the wheel: the next start reads its messages
            timer.scans.skipped.postpone(slot.slot_ms, monotonic_ms)
            return None
        return _Scan(after_ms, slot.slot_ms, 1, units, timer.wheel.floor_slot(now_ms), is_retry=True)

    def _start(self, scan: _Scan, monotonic_ms: int) -> None:
        timer = self._timer
        log_end, settings = timer.log.end, timer.settings
        damaged: list[int] | None = [] if self._slots_max == 1 or scan.is_retry else None
        try:
            view = LiveView.of_slots(timer, scan.after_ms, scan.through_ms)
        except Exception as error:
            self._failed(scan, error, monotonic_ms)
            return

        def job() -> TurnRows:
            rows = staging.read_walk(
                view,
                scan.after_ms,
                scan.through_ms,
                log_end=log_end,
                precision_ms=settings.precision_ms,
                write_ms=scan.write_ms,
                turn=0,
                damaged=damaged,
            )
            if len(rows) != scan.units:
                raise StoreUnreadable(f"the chains have {len(rows)} units, but their slots have {scan.units}")
            return staging.decide(rows, settings.roll_window_slots * settings.precision_ms, settings.precision_ms)

        self._scan, self._damaged = scan, damaged
        timer.scans.note_scanning(scan.through_ms)
        reach("lane.scan")
        self._worker.submit(job, self._done)

    def _done(self, result: Any) -> None:
        self._result = result

    def _take_result(self, monotonic_ms: int) -> None:
        scan, result, timer = self._scan, self._result, self._timer
        if scan is None or result is None:
            return
        self._scan = self._result = None
        if isinstance(result, BaseException):
            self._failed(scan, result, monotonic_ms)
            return
        refs = near_refs(result, ref.FAR_MS, ref.FAR_MS, timer.wheel)
        if len(refs):
            timer.pending.arm(refs, enqueue_ms=scan.write_ms, by="wheel_lane")
        self.slots_walked += scan.slots
        if self._damaged:
            log.critical(
                "timer: %d messages of slot %d are set aside until the next start: their records at log positions "
                "%s cannot be read",
                len(self._damaged),
                scan.through_ms,
                self._damaged[:DAMAGED_LOGGED_MAX],
            )
        if scan.is_retry:
            timer.scans.skipped.drop(scan.through_ms)
            log.warning("timer: the broker can read the skipped slot %d again, and arms its messages", scan.through_ms)
        else:
            timer.scans.note_scanned(scan.through_ms)
            self._slots_max, self._tries = SLOTS_MAX, 0
        reach("lane.armed")

    def _failed(self, scan: _Scan, error: BaseException, monotonic_ms: int) -> None:
        """Log the error, and retry after a pause with a single slot. Skip a slot that fails repeatedly."""
        timer = self._timer
        if scan.is_retry:
            timer.scans.skipped.postpone(scan.through_ms, monotonic_ms)
            return
        self._tries += scan.through_ms - scan.after_ms <= timer.settings.precision_ms
        if self._tries >= (DISK_TRIES if isinstance(error, OSError) else TRIES):
            messages = max(0, int(timer.wheel.messages_in(scan.through_ms, 1).sum()))
            timer.scans.skipped.add(SkippedSlot(scan.through_ms, scan.units, messages), monotonic_ms)
            log.critical(
                "timer: slot %d is damaged and skipped. Its %d messages stay parked until the broker can read the "
                "slot, which it tries every %d s, or until its next start: %s: %s",
                scan.through_ms,
                messages,
                skipped.RETRY_MS // 1000,
                type(error).__name__,
                error,
            )
            timer.scans.note_scanned(scan.through_ms)
            self._slots_max, self._tries = SLOTS_MAX, 0
            return
        self._retry_ms = monotonic_ms + RETRY_MS
        self._slots_max = 1
        log.error(
            "timer: the broker cannot scan the slots after %d up to %d, and tries again in %d ms: %s: %s",
            scan.after_ms,
            scan.through_ms,
            RETRY_MS,
            type(error).__name__,
            error,
        )
