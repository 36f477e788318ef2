"""Views of the store over the files that the broker has open, for staging without a pipeline.

A job off the loop reads only held files, below their ends at the time of the view, and a copy of its slots.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.view import TIMER_QUEUE, Files, FileView, Positions
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import TIMER_SLOT
from wheelmq.formats.units import QueueOffset
from wheelmq.formats.wire.portions import FileKind
from wheelmq.store.mapped import HeldFiles

Slots = npt.NDArray[Any]

_NO_SLOTS: Slots = np.zeros(1, TIMER_SLOT.dtype)


class LiveView(FileView):
    """The store as a task sees it (`view.ReadView`), in files that the broker has open."""

    def __init__(self, log: Files, timer_log: Files, slots: Slots, timer_queue: Files) -> None:
        super().__init__(slots)
        self.log = log
        self.timer_log = timer_log
        self._timer_queue = timer_queue

    @classmethod
    def on_loop(cls, timer: Timer) -> Self:
        """Return a view of the whole store. Only the loop may read it."""
        return cls(timer.store.log.files, timer.log.files, timer.wheel.table, timer.queue.files)

    @classmethod
    def of_slots(cls, timer: Timer, after_ms: int, through_ms: int) -> Self:
        """Return a view for a scan of the slots after `after_ms` up to `through_ms`, off the loop. Raises OSError.

        Slots are copied, because the loop writes them.
        """
        wheel, precision_ms = timer.wheel, timer.settings.precision_ms
        times = np.arange(after_ms // precision_ms + 1, through_ms // precision_ms + 1)
        chosen = wheel.table[times % wheel.slots]
        slots = np.zeros(len(times), TIMER_SLOT.dtype)
        slots[times % len(times)] = chosen  # consecutive times have different remainders
        filled = chosen["time"] == times
        oldest = int(chosen["first_position"][filled].min()) if filled.any() else timer.log.end
        timer_log = HeldFiles(timer.log.files, oldest, timer.log.end - 1)
        log = timer.store.log
        return cls(HeldFiles(log.files, log.start, log.end - 1), timer_log, slots, _none_of(timer))

    @classmethod
    def of_queue(cls, timer: Timer, first: int, end: int) -> Self:
        """Return a view for indexing the queue offsets from `first` to `end`, off the loop. Raises OSError."""
        queue, log = timer.queue.files, timer.store.log
        units = timer.queue.read(QueueOffset(first), end - first)
        oldest, newest = int(units["position"].min()), int(units["position"].max())
        files = HeldFiles(queue, first * QUEUE_UNIT.size, end * QUEUE_UNIT.size - 1)
        return cls(HeldFiles(log.files, oldest, newest), _none_of(timer), _NO_SLOTS, files)

    def queue(self, name: str) -> Files:
        assert name == TIMER_QUEUE, name
        return self._timer_queue

    def block_queue(self, name: str) -> Files:
        raise AssertionError(name)

    def need(self, kind: FileKind, positions: Positions, sizes: Positions, name: str = "") -> None:
        """Do nothing, because the view has all of its bytes."""

    def refresh(self) -> None:
        """Do nothing, because the view keeps its files open even when they expire."""


def _none_of(timer: Timer) -> HeldFiles:
    return HeldFiles(timer.log.files, 0, -1)
