"""delayOffset.json: the queue offset of the first pending message of each level (RocketMQ: ScheduleMessageService).

The broker itself uses the log. The file is for Apache RocketMQ, and its offsets depend only on records that are on
disk. The broker adds a mark that Apache leaves out. A file without the mark shows that Apache used the store last. Then
the file's offsets count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.bodies import Body, DataVersion
from wheelmq.store import config_file
from wheelmq.store.store import Store
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

Table = dict[int, int]
"""The queue offset of the first pending message, by level."""


class DelayOffsetsBody(Body):
    data_version: DataVersion = DataVersion()
    offset_table: Table = {}
    wheelmq: bool = False
    """Whether a WheelMQ broker wrote the file last."""


def load(disk: Disk, paths: StorePaths) -> DelayOffsetsBody | None:
    """Load the file. Returns None when there is none. Raises BodyError."""
    return config_file.load(disk, paths.config_file("delayOffset.json"), DelayOffsetsBody)


def is_apaches(disk: Disk, paths: StorePaths) -> bool:
    """Return whether Apache RocketMQ wrote the file last. Raises BodyError."""
    body = load(disk, paths)
    return body is not None and not body.wheelmq


def save(disk: Disk, paths: StorePaths, offsets: Table, version: DataVersion) -> None:
    body = DelayOffsetsBody(data_version=version, offset_table=offsets, wheelmq=True)
    config_file.save(disk, paths.config_file("delayOffset.json"), body)


class DelayOffsets:
    """Writes the file every `interval_ms` if the offsets changed, once their records are on disk."""

    def __init__(self, store: Store, offsets: Callable[[], Table], background: Worker, interval_ms: int) -> None:
        self._store = store
        self._offsets = offsets
        self._flight = SingleFlight(background)
        self._interval_ms = interval_ms
        self._next_ms = store.clock.monotonic_ms() + interval_ms
        known = load(store.disk, store.paths)
        self._saved = known.offset_table if known is not None and known.wheelmq else None
        self._counter = 0 if known is None else known.data_version.counter
        self._noted: tuple[LogPosition, Table] | None = None

    def poll(self, monotonic_ms: int) -> None:
        """Note the offsets when it is time, and write them when their records are on disk. Runs in every tick."""
        if monotonic_ms >= self._next_ms:
            self._next_ms = monotonic_ms + self._interval_ms
            offsets = self._offsets()
            if offsets != self._saved:
                self._noted = self._store.log.end, offsets
        if self._noted is not None and not self._flight.is_running and self._store.log.synced >= self._noted[0]:
            job, self._noted = self._job(self._noted[1]), None
            self._flight.submit(job, failed=_log_failure)

    def close(self) -> None:
        """Write the offsets for the last time. The log must be on disk, and no job may run any more."""
        offsets = self._offsets()
        if offsets != self._saved:
            try:
                self._job(offsets)()
            except OSError as error:
                _log_failure(error)

    def _job(self, offsets: Table) -> Callable[[], None]:
        self._counter += 1
        version = DataVersion(timestamp=self._store.clock.now_ms(), counter=self._counter)

        def job() -> None:
            reach("delay_offsets.before")
            save(self._store.disk, self._store.paths, offsets, version)
            self._saved = offsets
            reach("delay_offsets.written")

        return job


def _log_failure(error: Exception) -> None:
    log.error("the broker could not write delayOffset.json: %s", error)
