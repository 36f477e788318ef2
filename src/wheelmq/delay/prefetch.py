"""Prefetch: read records into memory before a tick needs them, so that the tick waits for no disk.

Timers and levels: shortly before they fire, if enabled (RocketMQ: timerWarmEnable). Blocks, whose records may be months
old: when a scan arms them. Failures are ignored: the release itself reads the missing records.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.walked import WalkedBuffer
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import KIND_BLOCK, KIND_SHIFT
from wheelmq.formats.units import Millis
from wheelmq.store.mapped import HeldFiles, MappedSequence
from wheelmq.store.spans import joined
from wheelmq.system.mapped_file import MappedFile
from wheelmq.system.single_flight import SingleFlight, ignore
from wheelmq.system.workers import Worker

AHEAD_MS: Final = 3000
"""Records of messages that fire within this time are prefetched (RocketMQ: three slots)."""
STEP_MS: Final = 1000
AT_ONCE: Final = 256
"""Spans that are read from disk together."""

Integers = npt.NDArray[np.int64]
Spans = list[tuple[MappedFile, int, int]]
"""Byte ranges of files: file, start, stop."""


def spans_of(files: MappedSequence | HeldFiles, positions: Integers, sizes: Integers) -> Spans:
    """Return the spans of records, joined where they are near. Records that are not in the files are left out."""
    is_there = (positions >= files.start) & (positions + sizes <= files.end) & (sizes > 0)
    order = np.argsort(positions[is_there], kind="stable")
    positions, ends = positions[is_there][order], (positions + sizes)[is_there][order]
    found = []
    for start, stop in joined(positions, ends, files.file_bytes):
        at = start % files.file_bytes
        found.append((files.file_at(start), at, min(at + stop - start, files.file_bytes)))
    return found


def bring_in(spans: Spans) -> None:
    """Read the bytes that are not in memory yet. Safe off the event loop."""
    for first in range(0, len(spans), AT_ONCE):
        some = spans[first : first + AT_ONCE]
        for file, start, stop in some:
            file.read_ahead(start, stop)
        for file, start, stop in some:
            file.populate(start, stop)


class BlockPrefetcher:
    """Prefetches the records that scans of blocks armed. `poll` runs in every tick, cheaply if idle."""

    def __init__(self, walked: WalkedBuffer, worker: Worker) -> None:
        self._walked = walked
        self._flight = SingleFlight(worker)

    def poll(self) -> None:
        """Start to prefetch the records armed since the last call, unless a prefetch is running."""
        if self._walked and not self._flight.is_running:
            walked = self._walked.take()

            def job() -> None:
                for records in walked:
                    bring_in(spans_of(*records))

            self._flight.submit(job, failed=ignore)


class Prefetcher:
    """Prefetches records of armed timers and levels that fire soon. `poll` runs in every tick, cheaply if idle."""

    def __init__(self, timer: Timer, worker: Worker) -> None:
        self._timer = timer
        self._flight = SingleFlight(worker)
        self._warmed_to_ms = 0

    def poll(self, now_ms: Millis) -> None:
        until_ms = now_ms + AHEAD_MS
        if self._flight.is_running or until_ms - self._warmed_to_ms < STEP_MS:
            return
        parts = self._timer.pending.armed.firing(max(self._warmed_to_ms, now_ms), until_ms)
        self._warmed_to_ms = until_ms
        spans = self._spans(np.concatenate(parts)) if parts else []
        if spans:
            self._flight.submit(lambda: bring_in(spans), failed=ignore)

    def _spans(self, refs: ref.Refs) -> Spans:
        refs = refs[refs[:, ref.ORIGIN] >> KIND_SHIFT != KIND_BLOCK]
        return spans_of(self._timer.store.log.files, refs[:, ref.POSITION], refs[:, ref.SIZE])
