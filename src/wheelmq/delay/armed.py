"""The armed references, in memory: what fires within the lead.

References arrive in chunks sorted by fire time. A heap of chunks by their next fire time makes taking what is due
cost what is taken, whatever else waits.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from wheelmq.delay.done import DoneBits, Flags, Origins
from wheelmq.delay.refs import FIRE_MS, ORIGIN, SIZE, Refs
from wheelmq.formats.disk.origin import INDEX_BITS, Origin, Stream, by_stream
from wheelmq.formats.units import Millis

_NEVER: Final = 1 << 62

FEW: Final = 32
"""A chunk of so many goes into the heap one by one: each is taken once, where a chunk is cut with each that leaves."""


PART_COST: Final = 500
"""References of a chunk that fire at one millisecond are a part; to take one costs as much as so many references."""


def cost_of(refs: Refs) -> int:
    """What it costs to take `refs`, sorted by fire time, apart by millisecond: in references, some 10 ns each."""
    span = int(refs[-1, FIRE_MS] - refs[0, FIRE_MS]) + 1
    return len(refs) + PART_COST * min(len(refs), span)


class Armed:
    """References by fire time. One message is armed once, however often it is offered.

    References of origins from `held_from` on wait, due or not, until `release_held` is called.
    """

    def __init__(self, held_from: Origin | None = None) -> None:
        self._held_from = held_from
        self._held: list[Refs] = []
        self._held_ms = _NEVER
        self._heap: list[tuple[int, int, Refs]] = []
        self._serial = 0
        self._staged = DoneBits()
        self.count = 0
        self.bytes = 0
        """Of the parked records: about as much as will be appended when they fire."""

    def arm(self, refs: Refs) -> Refs:
        """Stage `refs`, sorted by fire time; those that were not staged before are returned."""
        staged = self._staged.get(refs[:, ORIGIN])
        fresh = refs[~staged] if staged.any() else refs
        if len(fresh):
            self._add(fresh)  # first: after an error the caller offers all of them again, and a release is done once
            self._staged.update(fresh[:, ORIGIN])
        return fresh

    def was_armed(self, origins: Origins) -> Flags:
        """Which of `origins` were staged since the start."""
        return self._staged.get(origins)

    def forget_settled(self, done: DoneBits) -> None:
        """What lies below the floor of a stream in `done` will not be offered again."""
        for stream in self._staged.streams():
            self._staged.of(stream).raise_floor(done.of(stream).floor)

    def forget(self, stream: Stream) -> None:
        """Nothing of a stream will be offered again."""
        self._staged.forget(stream)

    def requeue(self, refs: Refs) -> None:
        """Put references back that were taken and could not be acted on."""
        if len(refs):
            self._add(refs)

    def first_by_stream(self) -> dict[Stream, int]:
        """The least fire time of each stream, of what is not held; it looks at all that is armed."""
        first: dict[Stream, int] = {}
        for _, _, refs in self._heap:
            for stream, mine in by_stream(refs[:, ORIGIN]):
                first[stream] = min(first.get(stream, _NEVER), int(refs[mine, FIRE_MS].min()))
        return first

    def bring_forward(self, stream: Stream, fire_ms: Millis) -> None:
        """All that is armed of `stream` fires at `fire_ms`, which is no later than any of it did."""
        left: list[tuple[int, int, Refs]] = []
        brought: list[Refs] = []
        for _, serial, refs in self._heap:
            is_mine = refs[:, ORIGIN] >> INDEX_BITS == stream
            brought.append(refs[is_mine])
            rest = refs[~is_mine]
            if len(rest):
                left.append((int(rest[0, FIRE_MS]), serial, rest))
        heapq.heapify(left)
        mine = np.concatenate(brought)
        mine = mine[np.argsort(mine[:, ORIGIN], kind="stable")]
        mine[:, FIRE_MS] = fire_ms
        self._heap = left
        if len(mine):
            self._push(mine)

    def hold(self, held_from: Origin) -> None:
        """Hold back all references of origins from `held_from` on, and those that come later."""
        chunks, self._heap, self._held_from = self._heap, [], held_from
        for _, _, refs in sorted(chunks, key=lambda chunk: chunk[1]):
            self._push(refs)

    def release_held(self) -> None:
        """Hold back nothing any more."""
        held, self._held, self._held_from, self._held_ms = self._held, [], None, _NEVER
        for refs in held:
            self._push(refs)

    def next_fire_ms(self) -> Millis | None:
        """When the next reference fires that is not held; None when none is armed."""
        return Millis(self._heap[0][0]) if self._heap else None

    def earliest_ms(self) -> Millis | None:
        """The least fire time, also of what is held; None when nothing is armed."""
        earliest_ms = min(self._held_ms, self._heap[0][0] if self._heap else _NEVER)
        return Millis(earliest_ms) if earliest_ms < _NEVER else None

    def firing(self, after_ms: int, until_ms: int) -> list[Refs]:
        """What fires later than `after_ms` and by `until_ms`, in no order; it stays armed."""
        found = []
        for first_ms, _, refs in self._heap:
            if first_ms <= until_ms:
                fire_ms = refs[:, FIRE_MS]
                mine = refs[np.searchsorted(fire_ms, after_ms, "right") : np.searchsorted(fire_ms, until_ms, "right")]
                if len(mine):
                    found.append(mine)
        return found

    def take_due(self, now_ms: Millis, cost_max: int) -> list[Refs]:
        """Take references that fire at or before `now_ms`: earliest chunks first, at most about what `cost_max` allows,
        as `cost_of` counts."""
        taken: list[Refs] = []
        left = cost_max
        while left > 0 and self._heap and self._heap[0][0] <= now_ms:
            _, serial, refs = heapq.heappop(self._heap)
            if len(refs) == 1:
                taken.append(refs)
                left -= cost_of(refs)
                continue
            due = int(np.searchsorted(refs[:, FIRE_MS], now_ms, "right"))
            cost = cost_of(refs[:due])
            if cost > left:
                due = max(1, due * left // cost)
            taken.append(refs[:due])
            if due < len(refs):
                rest = refs[due:]
                heapq.heappush(self._heap, (int(rest[0, FIRE_MS]), serial, rest))  # its turn among equals stays
            left -= cost
        for refs in taken:
            self.count -= len(refs)
            self.bytes -= int(refs[:, SIZE].sum())
        return taken

    def _add(self, refs: Refs) -> None:
        self.count += len(refs)
        self.bytes += int(refs[:, SIZE].sum())
        self._push(refs)

    def _push(self, refs: Refs) -> None:
        if self._held_from is not None:
            is_held = refs[:, ORIGIN] >= self._held_from
            if is_held.any():
                self._held.append(refs[is_held])
                self._held_ms = min(self._held_ms, int(self._held[-1][0, FIRE_MS]))
                refs = refs[~is_held]
        if len(refs) <= FEW:
            for i, fire_ms in enumerate(refs[:, FIRE_MS].tolist()):
                self._serial += 1
                heapq.heappush(self._heap, (fire_ms, self._serial, refs[i : i + 1]))
            return
        self._serial += 1
        heapq.heappush(self._heap, (int(refs[0, FIRE_MS]), self._serial, refs))
