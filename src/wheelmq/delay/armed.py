"""The armed references, in memory: what fires within the lead.

References arrive in chunks sorted by fire time. A heap of chunks by their next fire time makes taking what is due
cost what is taken, whatever else waits.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from wheelmq.delay.done import DoneBits, Flags, Origins
from wheelmq.delay.refs import FIRE_MS, ORIGIN, Refs
from wheelmq.formats.units import Millis

FEW: Final = 32
"""A chunk of so many goes into the heap one by one: each is taken once, where a chunk is cut with each that leaves."""


class Armed:
    """References by fire time. One message is armed once, however often it is offered."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Refs]] = []
        self._serial = 0
        self._staged = DoneBits()
        self.count = 0

    def arm(self, refs: Refs) -> Refs:
        """Stage `refs`, sorted by fire time; those that were not staged before are returned."""
        staged = self._staged.get(refs[:, ORIGIN])
        fresh = refs[~staged] if staged.any() else refs
        if len(fresh):
            self._staged.update(fresh[:, ORIGIN])
            self.count += len(fresh)
            self._push(fresh)
        return fresh

    def was_armed(self, origins: Origins) -> Flags:
        """Which of `origins` were staged since the start."""
        return self._staged.get(origins)

    def forget_settled(self, done: DoneBits) -> None:
        """What lies below the floor of a stream in `done` will not be offered again."""
        for stream in self._staged.streams():
            self._staged.of(stream).raise_floor(done.of(stream).floor)

    def give_back(self, refs: Refs) -> None:
        """Put references back that were taken and could not be acted on."""
        if len(refs):
            self.count += len(refs)
            self._push(refs)

    def next_fire_ms(self) -> Millis | None:
        """When the next reference fires; None when none is armed."""
        return Millis(self._heap[0][0]) if self._heap else None

    def take_due(self, now_ms: Millis, count_max: int) -> list[Refs]:
        """Take references that fire at or before `now_ms`: earliest chunks first, at most about `count_max`."""
        taken: list[Refs] = []
        left = count_max
        while left > 0 and self._heap and self._heap[0][0] <= now_ms:
            _, serial, refs = heapq.heappop(self._heap)
            if len(refs) == 1:
                taken.append(refs)
                left -= 1
                self.count -= 1
                continue
            due = min(int(np.searchsorted(refs[:, FIRE_MS], now_ms, "right")), left)
            taken.append(refs[:due])
            if due < len(refs):
                rest = refs[due:]
                heapq.heappush(self._heap, (int(rest[0, FIRE_MS]), serial, rest))  # its turn among equals stays
            left -= due
            self.count -= due
        return taken

    def _push(self, refs: Refs) -> None:
        if len(refs) <= FEW:
            for i, fire_ms in enumerate(refs[:, FIRE_MS].tolist()):
                self._serial += 1
                heapq.heappush(self._heap, (fire_ms, self._serial, refs[i : i + 1]))
            return
        self._serial += 1
        heapq.heappush(self._heap, (int(refs[0, FIRE_MS]), self._serial, refs))
