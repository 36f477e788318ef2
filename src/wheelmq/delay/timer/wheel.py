"""The timer wheel: a file of slots, each the head of a chain of timer log units (RocketMQ: TimerWheel)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.timer import SLOTS, TIMER_SLOT
from wheelmq.formats.units import Millis
from wheelmq.system.disk import Disk


class TimerWheel:
    """The slots, mapped. `units` counts the units in each slot's chain (the file's own count is less by deletes)."""

    def __init__(self, disk: Disk, path: Path, precision_ms: int, slots: int = SLOTS) -> None:
        self.precision_ms = precision_ms
        self.slots = slots * 2
        size = self.slots * TIMER_SLOT.size
        try:
            self._file = disk.map(path, size)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise OSError(
                    errno.EINVAL,
                    f"{error.strerror}; the wheel of another slot count? Remove it: it is rebuilt",
                    str(path),
                ) from None
            raise
        self.bytes: npt.NDArray[np.uint8] = self._file.array
        self.table: npt.NDArray[Any] = self._file.array.view(TIMER_SLOT.dtype)
        self.units: npt.NDArray[np.int32] = np.zeros(self.slots, np.int32)

    def index(self, slot_ms: int) -> int:
        """Place of the slot of time `slot_ms`."""
        return slot_ms // self.precision_ms % self.slots

    def last_position(self, slot_ms: int) -> int:
        """Timer log position of the newest unit of a slot; -1 when it has none."""
        slot = self.table[self.index(slot_ms)]
        return int(slot["last_position"]) if slot["time"] == slot_ms // self.precision_ms else -1

    def units_between(self, after_ms: int, through_ms: int) -> npt.NDArray[np.int32]:
        """Units in each slot later than `after_ms` up to `through_ms`."""
        times = np.arange(after_ms // self.precision_ms + 1, through_ms // self.precision_ms + 1)
        places = times % self.slots
        return np.where(self.table["time"][places] == times, self.units[places], 0).astype(np.int32)

    def messages_in(self, first_ms: int, slots: int) -> npt.NDArray[np.int32]:
        """Messages in each of so many slots from that of `first_ms` on, as the file counts them (RocketMQ: Slot.num): a
        unit that cancels takes one away."""
        times = first_ms // self.precision_ms + np.arange(slots)
        held = self.table[times % self.slots]
        return np.where(held["time"] == times, held["count"], 0).astype(np.int32)

    def first_filled(self, after_ms: int, through_ms: int) -> int | None:
        """The time of the first slot later than `after_ms` up to `through_ms` that has units; None when none has.

        What it costs goes by how far off that is: it is asked for often, and the span may be days.
        """
        count = 64
        while after_ms < through_ms:
            stop_ms = min(through_ms, after_ms + count * self.precision_ms)
            filled = np.flatnonzero(self.units_between(after_ms, stop_ms))
            if len(filled):
                return after_ms + (int(filled[0]) + 1) * self.precision_ms
            after_ms = stop_ms
            count = min(2 * count, 1 << 16)
        return None

    def first_position_after(self, slot_ms: Millis) -> int | None:
        """Timer log position of the oldest unit in any slot later than `slot_ms`; None when those are empty."""
        later = self.table["first_position"][self.table["time"] > slot_ms // self.precision_ms]
        return int(later.min()) if len(later) else None

    def holds(self, slots_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each of these slots has its place. One that has not will be met by no walk."""
        times = slots_ms // self.precision_ms
        held: npt.NDArray[np.bool_] = self.table["time"][times % self.slots] == times
        return held

    def put(self, slot_ms: int, position: int, *, deletes: bool) -> int:
        """Hang the unit at `position` into its slot; the position of the unit it hangs before, -1 for none.

        A place goes to the later of two times, so that what waits is not lost to a walk. A unit of the earlier one is
        left out of the wheel.
        """
        place = self.index(slot_ms)
        time = slot_ms // self.precision_ms
        slot = self.table[place]
        if slot["time"] > time:
            return -1
        if slot["time"] == time:
            previous = int(slot["last_position"])
            slot["last_position"] = position
            slot["count"] += -1 if deletes else 1
            self.units[place] += 1
            return previous
        self.table[place] = (time, position, position, -1 if deletes else 1, 0)
        self.units[place] = 1
        return -1

    def clear(self) -> None:
        """Empty every slot."""
        self._file.array[:] = 0
        self.units[:] = 0

    def sync(self) -> None:
        """Bring the wheel to disk. Safe off the loop."""
        self._file.sync(self._file.size)
