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
    """The slots, mapped. `units` counts the units of each slot. The count in the file is lower because of deletes."""

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
                    f"{error.strerror}; the file may be of a wheel with another number of slots: remove it, and "
                    "the next start writes it again",
                    str(path),
                ) from None
            raise
        self.bytes: npt.NDArray[np.uint8] = self._file.array
        self.table: npt.NDArray[Any] = self._file.array.view(TIMER_SLOT.dtype)
        self.units: npt.NDArray[np.int32] = np.zeros(self.slots, np.int32)

    def floor_slot(self, time_ms: int) -> int:
        return time_ms // self.precision_ms * self.precision_ms

    def index(self, slot_ms: int) -> int:
        return slot_ms // self.precision_ms % self.slots

    def last_position(self, slot_ms: int) -> int:
        slot = self.table[self.index(slot_ms)]
        return int(slot["last_position"]) if slot["time"] == slot_ms // self.precision_ms else -1

    def units_between(self, after_ms: int, through_ms: int) -> npt.NDArray[np.int32]:
        times = np.arange(after_ms // self.precision_ms + 1, through_ms // self.precision_ms + 1)
        places = times % self.slots
        return np.where(self.table["time"][places] == times, self.units[places], 0).astype(np.int32)

    def messages_in(self, first_ms: int, slots: int) -> npt.NDArray[np.int32]:
        """Return the number of messages in `slots` slots from `first_ms` on, less cancels (RocketMQ: Slot.num)."""
        first, found, done = first_ms // self.precision_ms, np.zeros(slots, np.int32), 0
        while done < slots:
            place = (first + done) % self.slots
            held = self.table[place : place + slots - done]  # up to the end of the table: a view, without a copy
            stop = done + len(held)
            found[done:stop] = np.where(held["time"] == np.arange(first + done, first + stop), held["count"], 0)
            done = stop
        return found

    def first_filled(self, after_ms: int, through_ms: int) -> int | None:
        """Return the time of the first slot with units after `after_ms` up to `through_ms`, or None.

        Callers ask often, and the span may be days. So the cost grows only with the distance to that slot.
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
        """Return the timer log position of the oldest unit in any slot later than `slot_ms`; None without one."""
        later = self.table["first_position"][self.table["time"] > slot_ms // self.precision_ms]
        return int(later.min()) if len(later) else None

    def holds(self, slots_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of these slots have a place in the wheel. No scan reads a slot without one."""
        times = slots_ms // self.precision_ms
        held: npt.NDArray[np.bool_] = self.table["time"][times % self.slots] == times
        return held

    def put(self, slot_ms: int, position: int, *, deletes: bool) -> int:
        """Link the unit at `position` into its slot. Return the position of the previous unit; -1 for none.

        When two times share a place, the later one has it, so that no scan misses its pending messages.
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
        self._file.array[:] = 0
        self.units[:] = 0

    def sync(self) -> None:
        """Sync the wheel. Safe off the loop."""
        self._file.sync(self._file.size)
