"""The timer's mark, in two slots written in turn, and Apache's timercheck.

Recovery trusts the mark: each queue offset of the timer queue below E has its unit in the timer log below T. So it is
written only after the timer log is on disk up to T. Timercheck says the same to Apache, and which messages are settled.
So it is written only after the commit log, too, is on disk up to its end at that time.
"""

from __future__ import annotations

import logging
import zlib
from typing import NamedTuple

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import (
    TIMER_CHECK,
    TIMER_CHECK_COPY_AT,
    TIMER_CHECK_FILE_BYTES,
    TIMER_MARK,
    TIMER_MARK_MAGIC,
    TIMER_MARK_SLOT_BYTES,
)
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)


class Mark(NamedTuple):
    """E, T, epoch, turn and P, as named in docs/formats/timer.md."""

    queue_offset: int = 0
    timer_log_position: int = 0
    epoch: int = 0
    turn: int = 0
    done_position: int = 0


class MarkFile:
    """The mark's file, with two slots. The valid slot with the higher sequence counts."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._file = disk.map(paths.timer_mark, 2 * TIMER_MARK_SLOT_BYTES)
        self._sequence = 0
        self.last: Mark | None = None
        """The mark that counts on disk; None without one, or before `load`."""

    def load(self) -> Mark | None:
        """Return the last mark that was written completely; None in a new store."""
        found: Mark | None = None
        for slot in (0, 1):
            value = TIMER_MARK.unpack(self._file.view, slot * TIMER_MARK_SLOT_BYTES)
            fields = list(value.values())
            if value["magic"] != TIMER_MARK_MAGIC or value["crc"] != _crc(fields[2:]):
                continue
            if value["sequence"] >= self._sequence:
                self._sequence = value["sequence"]
                found = Mark(*fields[3:])
        self.last = found
        return found

    def write(self, mark: Mark) -> None:
        """Write `mark` into the older slot, and sync it. Safe off the loop."""
        self._sequence += 1
        fields = [self._sequence, *mark]
        at = self._sequence % 2 * TIMER_MARK_SLOT_BYTES
        self._file.view[at : at + TIMER_MARK.size] = TIMER_MARK.pack(TIMER_MARK_MAGIC, _crc(fields), *fields)
        self._file.sync(self._file.size)
        self.last = mark
        reach("mark.written")


def _crc(fields: list[int]) -> int:
    return zlib.crc32(b"".join(field.to_bytes(8, "big", signed=True) for field in fields))


class TimerCheck(NamedTuple):
    """Apache's timercheck (and the body of GET_TIMER_CHECK_POINT)."""

    last_read_ms: int = 0
    log_flush_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    version_counter: int = 0

    def pack(self) -> bytes:
        return TIMER_CHECK.pack(*self)


def load_check(disk: Disk, paths: StorePaths) -> TimerCheck | None:
    raw = disk.read(paths.config_file("timercheck"))
    return TimerCheck(*TIMER_CHECK.unpack(raw).values()) if raw and len(raw) >= TIMER_CHECK.size else None


def save_check(disk: Disk, paths: StorePaths, check: TimerCheck) -> None:
    """Replace the timercheck, and add the copy that distinguishes it from Apache's. Safe off the loop."""
    twice = check.pack().ljust(TIMER_CHECK_COPY_AT, b"\0") + check.pack()
    disk.replace(paths.config_file("timercheck"), twice.ljust(TIMER_CHECK_FILE_BYTES, b"\0"))


def check_is_apaches(disk: Disk, paths: StorePaths) -> bool:
    """Return whether Apache RocketMQ wrote the timercheck last: it writes only the fields, and not our copy."""
    raw = disk.read(paths.config_file("timercheck"))
    if raw is None or len(raw) < TIMER_CHECK.size:
        return False
    return raw[: TIMER_CHECK.size] != raw[TIMER_CHECK_COPY_AT : TIMER_CHECK_COPY_AT + TIMER_CHECK.size]


class CheckFile:
    """Writes the last noted timercheck, once the commit log is on disk up to its end at the time of the note."""

    def __init__(self, store: Store, background: Worker) -> None:
        self._store = store
        self._flight = SingleFlight(background)
        self._noted: tuple[LogPosition, TimerCheck] | None = None

    def note(self, check: TimerCheck) -> None:
        """Note `check`, which holds for the log up to its present end. The timer log is on disk as far as it says."""
        self._noted = self._store.log.end, check

    def poll(self) -> None:
        """Start to write the noted check, if it may be written. Called in every tick."""
        if self._noted is None or self._flight.is_running or self._store.log.synced < self._noted[0]:
            return
        check, self._noted = self._noted[1], None
        self._flight.submit(lambda: self.write(check), failed=_log_failure)

    def write(self, check: TimerCheck) -> None:
        """Write `check`, which holds for the part of the log on disk. Raises OSError."""
        save_check(self._store.disk, self._store.paths, check)


def _log_failure(error: Exception) -> None:
    log.error("the broker could not write timercheck: %s", error)
