"""The armed references, in memory: those of messages that fire within the lead.

A heap orders sorted chunks by their next fire time, so taking due references costs nothing for the others.
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
"""Chunks up to this size enter the heap as single references, so no chunk is cut for each reference that leaves."""


PART_COST: Final = 500
"""Cost of taking one part, in references. A part is the references of a chunk that fire at one millisecond."""


def cost_of(refs: Refs) -> int:
    """Return the cost of splitting `refs`, sorted by fire time, into milliseconds: in references of about 10 ns."""
    span = int(refs[-1, FIRE_MS] - refs[0, FIRE_MS]) + 1
    return len(refs) + PART_COST * min(len(refs), span)


class Armed:
    """References by fire time. A message is armed only once. References from `held_from` on wait for `release_held`."""

    def __init__(self, held_from: Origin | None = None) -> None:
        self._held_from = held_from
        self._held: list[Refs] = []
        self._held_ms = _NEVER
        self._heap: list[tuple[int, int, Refs]] = []
        self._serial = 0
        self._was_armed = DoneBits()
        self.count = 0
        self.bytes = 0
        """Bytes of the parked records. About this number of bytes is appended when the references fire."""

    def arm(self, refs: Refs) -> Refs:
        """Arm `refs`, sorted by fire time. Returns those that were not armed before."""
        earlier = self._was_armed.get(refs[:, ORIGIN])
        fresh = refs[~earlier] if earlier.any() else refs
        if len(fresh):
            self._add(fresh)  # first: after an error the caller offers all again, and each is released only once
            self._was_armed.update(fresh[:, ORIGIN])
        return fresh

    def was_armed(self, origins: Origins) -> Flags:
        return self._was_armed.get(origins)

    def forget_settled(self, done: DoneBits) -> None:
        """Count the messages below each floor in `done` as armed, and free the memory of their bits."""
        for stream in self._was_armed.streams():
            self._was_armed.of(stream).raise_floor(done.of(stream).floor)

    def forget(self, stream: Stream) -> None:
        """Count no message of the stream as armed. None of them is offered again."""
        self._was_armed.forget(stream)

    def requeue(self, refs: Refs) -> None:
        if len(refs):
            self._add(refs)

    def first_by_stream(self) -> dict[Stream, int]:
        """Return the least fire time of each stream, without held references. This reads all armed references."""
        first: dict[Stream, int] = {}
        for _, _, refs in self._heap:
            for stream, mine in by_stream(refs[:, ORIGIN]):
                first[stream] = min(first.get(stream, _NEVER), int(refs[mine, FIRE_MS].min()))
        return first

    def bring_forward(self, stream: Stream, fire_ms: Millis) -> None:
        """Set the fire time of all references of `stream` to `fire_ms`, which is not later than any of theirs."""
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
        """Hold back all references with origins from `held_from` on, now and later."""
        chunks, self._heap, self._held_from = self._heap, [], held_from
        for _, _, refs in sorted(chunks, key=lambda chunk: chunk[1]):
            self._push(refs)

    def release_held(self) -> None:
        held, self._held, self._held_from, self._held_ms = self._held, [], None, _NEVER
        for refs in held:
            self._push(refs)

    def next_fire_ms(self) -> Millis | None:
        """Return the least fire time, without held references. Returns None when none is armed."""
        return Millis(self._heap[0][0]) if self._heap else None

    def earliest_ms(self) -> Millis | None:
        """Return the least fire time, with held references. Returns None when none is armed."""
        earliest_ms = min(self._held_ms, self._heap[0][0] if self._heap else _NEVER)
        return Millis(earliest_ms) if earliest_ms < _NEVER else None

    def firing(self, after_ms: int, until_ms: int) -> list[Refs]:
        """Return the references that fire after `after_ms` and by `until_ms`, in no order. They stay armed."""
        found = []
        for first_ms, _, refs in self._heap:
            if first_ms <= until_ms:
                fire_ms = refs[:, FIRE_MS]
                mine = refs[np.searchsorted(fire_ms, after_ms, "right") : np.searchsorted(fire_ms, until_ms, "right")]
                if len(mine):
                    found.append(mine)
        return found

    def take_due(self, now_ms: Millis, cost_max: int) -> list[Refs]:
        """Take references that fire by `now_ms`, earliest chunks first, up to a `cost_of` of about `cost_max`."""
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
                heapq.heappush(self._heap, (int(rest[0, FIRE_MS]), serial, rest))  # keeps its order among equals
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
