"""Records brought into memory before a tick reads them, so that it waits for no disk.

Of timers and levels what fires soon, where it is wanted (RocketMQ: timerWarmEnable). Of blocks always, when a walk arms
them: nobody has read those records since they were put, it may be months ago.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.scheduler import BlockScheduler
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import KIND_BLOCK, KIND_SHIFT
from wheelmq.formats.units import Millis
from wheelmq.store.mapped import HeldFiles, MappedSequence
from wheelmq.system.disk import MappedFile
from wheelmq.system.workers import Worker

AHEAD_MS: Final = 3000
"""What fires within this is brought in (RocketMQ: three slots)."""
STEP_MS: Final = 1000
NEAR_BYTES: Final = 4096
"""What lies so near is brought in together with what lies between."""
AT_ONCE: Final = 256
"""So many places are read from disk at once."""

Integers = npt.NDArray[np.int64]
Spans = list[tuple[MappedFile, int, int]]
"""Bytes of files, from and to."""


def spans_of(files: MappedSequence | HeldFiles, positions: Integers, sizes: Integers) -> Spans:
    """Where records stand, those near each other together; what is not in the files any more is left out."""
    is_there = (positions >= files.start) & (positions + sizes <= files.end) & (sizes > 0)
    order = np.argsort(positions[is_there], kind="stable")
    positions, ends = positions[is_there][order], (positions + sizes)[is_there][order]
    if not len(positions):
        return []
    begins = positions[1:] - ends[:-1] > NEAR_BYTES
    begins |= positions[1:] // files.file_bytes != positions[:-1] // files.file_bytes
    first = np.concatenate(([0], np.flatnonzero(begins) + 1))
    last = np.concatenate((first[1:] - 1, [len(positions) - 1]))
    found = []
    for start, stop in zip(positions[first].tolist(), ends[last].tolist(), strict=True):
        at = start % files.file_bytes
        found.append((files.file_at(start), at, min(at + stop - start, files.file_bytes)))
    return found


def bring_in(spans: Spans) -> None:
    """Read what is not in memory yet. Safe off the loop."""
    for first in range(0, len(spans), AT_ONCE):
        some = spans[first : first + AT_ONCE]
        for file, start, stop in some:
            file.read_ahead(start, stop)
        for file, start, stop in some:
            file.populate(start, stop)


class BlockPrefetcher:
    """Brings in what walks of blocks armed. `look` is called in every tick, and is cheap when there is nothing."""

    def __init__(self, lane: BlockScheduler, worker: Worker) -> None:
        self._lane = lane
        self._worker = worker
        self._is_busy = False

    def poll(self) -> None:
        """Have read what was armed since the last time, if that is done."""
        if self._lane.walked and not self._is_busy:
            walked, self._lane.walked = self._lane.walked, []
            self._is_busy = True

            def job() -> None:
                for records in walked:
                    bring_in(spans_of(*records))

            self._worker.submit(job, self._done)

    def _done(self, result: Any) -> None:
        """Whatever came of it: the release reads what is not there itself."""
        self._is_busy = False


class Prefetcher:
    """Brings in what is armed of timers and levels and fires soon.

    `look` is called in every tick, and is cheap when there is nothing.
    """

    def __init__(self, timer: Timer, worker: Worker) -> None:
        self._timer = timer
        self._worker = worker
        self._warmed_to_ms = 0
        self._is_busy = False

    def poll(self, now_ms: Millis) -> None:
        """Begin with the next step if it is time."""
        until_ms = now_ms + AHEAD_MS
        if self._is_busy or until_ms - self._warmed_to_ms < STEP_MS:
            return
        parts = self._timer.armed.firing(max(self._warmed_to_ms, now_ms), until_ms)
        self._warmed_to_ms = until_ms
        spans = self._spans(np.concatenate(parts)) if parts else []
        if spans:
            self._is_busy = True
            self._worker.submit(lambda: bring_in(spans), self._done)

    def _spans(self, refs: ref.Refs) -> Spans:
        refs = refs[refs[:, ref.ORIGIN] >> KIND_SHIFT != KIND_BLOCK]
        return spans_of(self._timer.store.log.files, refs[:, ref.POSITION], refs[:, ref.SIZE])

    def _done(self, result: Any) -> None:
        """Whatever came of it: the release reads what is not there itself."""
        self._is_busy = False
