"""Notes: what is parked and not yet indexed by the pipeline, and the near lane that arms the most urgent of it.

Each parked message is noted as it is appended. A note goes when the pipeline has indexed its message. What is due
within a second and still noted is armed by the broker itself: so a delay of 50 ms is exact, and what is sent while
Spark is away is not late. Past the bound only what is due within the lead is noted; the rest is found again by
the pipeline, which reads the timer queue from its index mark on.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay.refs import FIRE_MS, INDEX, Refs, by_fire_time
from wheelmq.formats.units import Millis

NEAR_MS: Final = 1000
NOTES_MAX: Final = 1 << 20
_CHUNK_ROWS: Final = 4096
_NEVER: Final = 1 << 62


class Notes:
    """References of un-indexed messages in queue order, in chunks; those that were near when they came are apart."""

    def __init__(self, lead_ms: int) -> None:
        self._lead_ms = lead_ms
        self._near: list[Refs] = []
        self._chunks: list[Refs] = []
        self._chunk_min_ms: list[int] = []
        self.count = 0
        self.next_fire_ms = _NEVER
        """The least fire time among the notes."""

    def add(self, refs: Refs, now_ms: Millis) -> None:
        """Note `refs`, in queue order."""
        if self.count + len(refs) > NOTES_MAX:
            refs = refs[refs[:, FIRE_MS] <= now_ms + self._lead_ms]
        near = refs[:, FIRE_MS] <= now_ms + NEAR_MS
        if near.any():
            self._note_near(refs[near])
            refs = refs[~near]
        if not len(refs):
            return
        least = int(refs[:, FIRE_MS].min())
        if self._chunks and len(self._chunks[-1]) + len(refs) <= _CHUNK_ROWS:
            self._chunks[-1] = np.concatenate((self._chunks[-1], refs))
            self._chunk_min_ms[-1] = min(self._chunk_min_ms[-1], least)
        else:
            self._chunks.append(refs.copy())
            self._chunk_min_ms.append(least)
        self.count += len(refs)
        self.next_fire_ms = min(self.next_fire_ms, least)

    def _note_near(self, refs: Refs) -> None:
        self._near.append(refs)
        self.count += len(refs)
        self.next_fire_ms = min(self.next_fire_ms, int(refs[:, FIRE_MS].min()))

    def take_near(self, now_ms: Millis) -> Refs | None:
        """Take the notes that fire within NEAR_MS, by fire time; None when there are none."""
        horizon = now_ms + NEAR_MS
        if self.next_fire_ms > horizon:
            return None
        near, self._near = self._near, []
        self.count -= sum(map(len, near))
        for i, chunk in enumerate(self._chunks):
            if self._chunk_min_ms[i] <= horizon:
                mine = chunk[:, FIRE_MS] <= horizon
                near.append(chunk[mine])
                self._replace(i, chunk[~mine])
        self._tidy()
        return by_fire_time(np.concatenate(near))

    def drop_below(self, index: int) -> None:
        """Drop the notes of messages that are indexed: those below queue offset `index`."""
        near, self._near = self._near, []
        self.count -= sum(map(len, near))
        for refs in near:
            left = refs[np.searchsorted(refs[:, INDEX], index) :]
            if len(left):
                self._note_near(left)
        for i, chunk in enumerate(self._chunks):
            if not len(chunk) or int(chunk[0, INDEX]) >= index:
                break
            self._replace(i, chunk[np.searchsorted(chunk[:, INDEX], index) :])
        self._tidy()

    def _replace(self, i: int, chunk: Refs) -> None:
        self.count -= len(self._chunks[i]) - len(chunk)
        self._chunks[i] = chunk
        self._chunk_min_ms[i] = int(chunk[:, FIRE_MS].min()) if len(chunk) else _NEVER

    def _tidy(self) -> None:
        kept = [i for i, chunk in enumerate(self._chunks) if len(chunk)]
        self._chunks = [self._chunks[i] for i in kept]
        self._chunk_min_ms = [self._chunk_min_ms[i] for i in kept]
        near_ms = min((int(refs[:, FIRE_MS].min()) for refs in self._near), default=_NEVER)
        self.next_fire_ms = min([near_ms, *self._chunk_min_ms])
