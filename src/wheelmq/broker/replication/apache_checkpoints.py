"""Apache's checkpoint files on a slave of Apache RocketMQ (RocketMQ: SlaveSynchronize).

Timercheck and delayOffset.json say which messages the master has delivered. The log of the slave may not have the last
of these deliveries yet. So the slave writes a checkpoint only once it has the log that the master had at the time of
the checkpoint. Otherwise a promotion would lose messages. Deliveries after the checkpoint are in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from wheelmq.delay.levels.offsets import DelayOffsetsBody
from wheelmq.delay.timer.mark import TimerCheck
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_CHECK, TIMER_CHECK_FILE_BYTES
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, TimerMetrics
from wheelmq.store.commit_log import CommitLog
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)


class ApacheCheckpoint(NamedTuple):
    """The progress of a master of Apache RocketMQ."""

    timer_check: bytes
    """The answer to GET_TIMER_CHECK_POINT; empty if the master has no timer."""
    timer_metrics: bytes
    delay_offsets: bytes
    log_end: LogPosition
    """End of the master's log when it had given the rest."""
    log_start: LogPosition

    def check(self) -> None:
        """Check that the bodies can be read. Raises BodyError."""
        if self.timer_check and len(self.timer_check) < TIMER_CHECK.size:
            raise BodyError(f"a timercheck of {len(self.timer_check)} bytes: {TIMER_CHECK.size} were expected")
        bodies.read(self.delay_offsets, DelayOffsetsBody)
        if self.timer_metrics:
            bodies.read(self.timer_metrics, TimerMetrics)


class ApacheCheckpoints:
    """Writes the checkpoints of the master, each once the log is on disk as far as it needs."""

    def __init__(self, disk: Disk, paths: StorePaths, commit_log: CommitLog, background: Worker) -> None:
        self._disk = disk
        self._paths = paths
        self._log = commit_log
        self._flight = SingleFlight(background)
        self._noted: ApacheCheckpoint | None = None
        self.log_start = LogPosition(0)
        """The first position that the master still has. The slave deletes no file after it."""

    def note(self, checkpoint: ApacheCheckpoint) -> None:
        """Note a checkpoint, unless an earlier one still waits. Raises BodyError."""
        checkpoint.check()
        self.log_start = checkpoint.log_start
        if self._noted is None:
            self._noted = checkpoint

    def poll(self) -> None:
        """Start to write the noted checkpoint, if it may be written. Runs in every tick."""
        if self._noted is None or self._flight.is_running or self._log.synced < self._noted.log_end:
            return
        checkpoint, self._noted = self._noted, None
        self._flight.submit(self._job(checkpoint), failed=_log_failure)

    def _job(self, checkpoint: ApacheCheckpoint) -> Callable[[], None]:
        """Return the job that writes the files in Apache's format. A start then takes the store for Apache's."""

        def job() -> None:
            reach("apache_checkpoint.before")
            files = {"delayOffset.json": checkpoint.delay_offsets, "timermetrics": checkpoint.timer_metrics}
            for name, raw in files.items():
                if raw:
                    self._disk.replace(self._paths.config_file(name), raw, keep_previous=True)
            if checkpoint.timer_check:
                raw = _of_slave(checkpoint.timer_check).ljust(TIMER_CHECK_FILE_BYTES, b"\0")
                self._disk.replace(self._paths.config_file("timercheck"), raw)
            reach("apache_checkpoint.written")

        return job


def _of_slave(raw: bytes) -> bytes:
    """Return the fields of timercheck for a slave that has no timer log: only the master has indexed messages."""
    check = TimerCheck(*TIMER_CHECK.unpack(raw).values())
    return check._replace(log_flush_position=0, queue_offset=0).pack()


def _log_failure(error: Exception) -> None:
    log.error("the broker could not write the checkpoint files of its master: %s", error)
