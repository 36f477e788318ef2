"""Notes: references of parked messages that the pipeline has not indexed yet.

Each parked message is noted as it is appended. Its note is dropped when the pipeline has indexed the message. The near
lane of the broker arms the noted messages that are due within a second. So a delay of 50 ms is exact, and a message
that is sent while Spark is down is not late.

Above NOTES_MAX, the broker notes only messages due within the lead. From a large batch, it also notes the soonest up to
the limit. An index step finds the others in the timer queue.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.refs import FIRE_MS, ORIGIN, Refs, by_fire_time, make
from wheelmq.formats.disk.origin import Origin, Stream, by_stream, origin_stream
from wheelmq.formats.units import NEVER_MS, Millis

log = logging.getLogger(__name__)

NEAR_MS: Final = 1000
NOTES_MAX: Final = 1 << 20
_CHUNK_ROWS: Final = 4096


class Notes:
    """References of messages that are not indexed, by stream. Notes of the stream `held` are not taken."""

    def __init__(self, lead_ms: int, held: Stream | None = None) -> None:
        self._lead_ms = lead_ms
        self._held = held
        self._streams: dict[Stream, _StreamNotes] = {}
        self.count = 0
        self.next_fire_ms: int = NEVER_MS
        """The least fire time among the notes."""
        self.next_near_ms: int = NEVER_MS
        """The least fire time among the notes of all streams except `held`."""
        self.passed_over = 0
        """Messages since the start that were not noted because the buffer was full."""

    def add(self, refs: Refs, now_ms: Millis) -> None:
        """Note `refs`. The references of one stream are in queue order."""
        if self.count + len(refs) > NOTES_MAX:
            kept = refs[:, FIRE_MS] <= now_ms + self._lead_ms
            kept[np.argsort(refs[:, FIRE_MS], kind="stable")[: max(0, NOTES_MAX - self.count)]] = True
            self._pass_over(int(np.count_nonzero(~kept)))
            refs = refs[kept]
        for stream, mine in by_stream(refs[:, ORIGIN]):
            self._streams.setdefault(stream, _StreamNotes()).add(refs[mine], now_ms)
        self._count()

    def _pass_over(self, count: int) -> None:
        if count and not self.passed_over:
            log.error(
                "timer: %d messages are not indexed, and the notes are full: the broker arms messages due in more "
                "than %d s only after they are indexed",
                self.count,
                self._lead_ms // 1000,
            )
        self.passed_over += count

    def fire_times(self, first: Origin, count: int) -> npt.NDArray[np.int64]:
        """Return the fire times of `count` origins of one stream from `first` on. Origins without a note have 0."""
        found = np.zeros(count, np.int64)
        notes = self._streams.get(origin_stream(first))
        for refs in notes.parts() if notes is not None else ():
            places = refs[:, ORIGIN] - first
            mine = (places >= 0) & (places < count)
            found[places[mine]] = refs[mine, FIRE_MS]
        return found

    def take_near(self, now_ms: Millis) -> Refs | None:
        """Take the notes that fire within NEAR_MS, by fire time. Returns None when there are none."""
        horizon_ms = now_ms + NEAR_MS
        if self.next_near_ms > horizon_ms:
            return None
        near: list[Refs] = []
        for stream, notes in self._streams.items():
            if stream != self._held and notes.next_fire_ms <= horizon_ms:
                near += notes.take_until(horizon_ms)
        self._count()
        return by_fire_time(np.concatenate(near)) if len(near) > 1 else by_fire_time(near[0])

    def hold(self, held: Stream | None) -> None:
        """Stop taking notes of the stream `held`, or of none."""
        self._held = held
        self._count()

    def drop_below(self, origin: Origin) -> None:
        """Drop the notes of indexed messages: those of the stream of `origin` that are below it."""
        notes = self._streams.get(origin_stream(origin))
        if notes is not None:
            notes.drop_below(origin)
            self._count()

    def _count(self) -> None:
        self.count = sum(notes.count for notes in self._streams.values())
        self.next_fire_ms = min((notes.next_fire_ms for notes in self._streams.values()), default=NEVER_MS)
        self.next_near_ms = self.next_fire_ms
        if self._held is not None:
            taken = (notes for stream, notes in self._streams.items() if stream != self._held)
            self.next_near_ms = min((notes.next_fire_ms for notes in taken), default=NEVER_MS)


class _Chunk:
    """Room for notes in queue order. The rows from `_start` to `_stop` are in use."""

    def __init__(self) -> None:
        self._rows = make(_CHUNK_ROWS)
        self._start = self._stop = 0
        self.least_ms: int = NEVER_MS

    @property
    def refs(self) -> Refs:
        return self._rows[self._start : self._stop]

    def __len__(self) -> int:
        return self._stop - self._start

    def add(self, refs: Refs) -> int:
        """Copy references from the front of `refs` as far as there is room. Returns their number."""
        count = min(len(refs), len(self._rows) - self._stop)
        if count == 0:
            return 0
        self._rows[self._stop : self._stop + count] = refs[:count]
        self._stop += count
        self.least_ms = min(self.least_ms, int(refs[:count, FIRE_MS].min()))
        return count

    def take_until(self, horizon_ms: int) -> Refs:
        refs = self.refs
        mine = refs[:, FIRE_MS] <= horizon_ms
        taken, left = refs[mine], refs[~mine]
        self._rows[: len(left)] = left
        self._start, self._stop = 0, len(left)
        self._find_least()
        return taken

    def drop_below(self, origin: int) -> None:
        """Drop the notes with origins below `origin`. All notes are of its stream."""
        self._start += int(np.searchsorted(self.refs[:, ORIGIN], origin))
        self._find_least()

    def _find_least(self) -> None:
        self.least_ms = int(self.refs[:, FIRE_MS].min()) if len(self) else NEVER_MS


class _StreamNotes:
    """The notes of one stream in queue order, in chunks. Notes that were near when they were added are separate."""

    def __init__(self) -> None:
        self._near: list[Refs] = []
        self._chunks: list[_Chunk] = []
        self.count = 0
        self.next_fire_ms: int = NEVER_MS

    def add(self, refs: Refs, now_ms: Millis) -> None:
        near = refs[:, FIRE_MS] <= now_ms + NEAR_MS
        if near.any():
            self._note_near(refs[near])
            refs = refs[~near]
        if not len(refs):
            return
        self.count += len(refs)
        added = self._chunks[-1].add(refs) if self._chunks else 0
        while added < len(refs):
            self._chunks.append(_Chunk())
            added += self._chunks[-1].add(refs[added:])
        self.next_fire_ms = min(self.next_fire_ms, int(refs[:, FIRE_MS].min()))

    def _note_near(self, refs: Refs) -> None:
        self._near.append(refs)
        self.count += len(refs)
        self.next_fire_ms = min(self.next_fire_ms, int(refs[:, FIRE_MS].min()))

    def parts(self) -> list[Refs]:
        return [*self._near, *(chunk.refs for chunk in self._chunks)]

    def take_until(self, horizon_ms: int) -> list[Refs]:
        """Take the notes that fire by `horizon_ms`. There is at least one."""
        near, self._near = self._near, []
        near += [chunk.take_until(horizon_ms) for chunk in self._chunks if chunk.least_ms <= horizon_ms]
        self.count -= sum(map(len, near))
        self._tidy()
        return near

    def drop_below(self, origin: int) -> None:
        near, self._near = self._near, []
        self.count -= sum(map(len, near))
        for refs in near:
            left = refs[np.searchsorted(refs[:, ORIGIN], origin) :]
            if len(left):
                self._note_near(left)
        for chunk in self._chunks:
            before = len(chunk)
            if before and int(chunk.refs[0, ORIGIN]) >= origin:
                break
            chunk.drop_below(origin)
            self.count -= before - len(chunk)
        self._tidy()

    def _tidy(self) -> None:
        self._chunks = [chunk for chunk in self._chunks if len(chunk)]
        near_ms = min((int(refs[:, FIRE_MS].min()) for refs in self._near), default=NEVER_MS)
        self.next_fire_ms = min(near_ms, min((chunk.least_ms for chunk in self._chunks), default=NEVER_MS))
