"""The pending messages of all generations: their done bits, references, delete keys and counts.

A parked message is in its level's queue or in the `notes`, until the pipeline has indexed or staged it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from wheelmq.delay import intake
from wheelmq.delay import refs as ref
from wheelmq.delay.armed import Armed
from wheelmq.delay.done import DoneBits
from wheelmq.delay.keys import ParkedKeys
from wheelmq.delay.levels.queues import LevelQueues
from wheelmq.delay.notes import NEAR_MS, Notes
from wheelmq.delay.pending_counts import PendingCounts
from wheelmq.delay.refs import Refs
from wheelmq.formats.disk.origin import Origin, Stream
from wheelmq.formats.units import Millis
from wheelmq.store.journal import Rows
from wheelmq.store.store import Store

NEAR_ROWS_MAX = 50_000
"""Maximum number of messages of a level that one tick arms."""


class PendingTable:
    """The messages that are parked and not settled. Timer, levels and blocks share it."""

    def __init__(self, store: Store, armed: Armed, notes: Notes) -> None:
        self._store = store
        self.armed = armed
        self.notes = notes
        self.done = DoneBits()
        self.levels = LevelQueues(store, self.done)
        self.keys = ParkedKeys()
        self.counts = PendingCounts(store.queues)
        self.armed_by: Counter[str] = Counter()
        """Number of armed references by cause. Those with a long delay are counted again under `<cause>_long`."""

    # Park and settle -----------------------------------------------------------------------------------------------

    def take_journal(self, rows: Rows) -> bool:
        """Process the appended rows, which park and settle messages. Return whether any message is settled."""
        taken = intake.take(rows, self.counts.grown_table())
        if taken.settled:
            self.armed.forget_settled(self.done)
            self.keys.drop_settled(taken.settled, self.done)
        if len(taken.deletes):
            self.done.update(taken.deletes)
        if len(taken.refs):
            self.keys.add(taken.key_hashes, taken.refs[:, ref.ORIGIN], self.done, self._store.dispatched_to)
            self.notes.add(self.levels.note(taken.refs), self._store.clock.now_ms())
        return taken.settled > 0

    def settle(self, origin: Origin) -> None:
        """Set the done bit of `origin`. This tick appends the record that carries it."""
        fresh = self.done.add(origin)
        assert fresh, f"{origin:#x} is settled twice"

    def begin_stream(self, stream: Stream) -> None:
        """Forget all messages of a block that had the number of a new block."""
        self.done.forget(stream)
        self.armed.forget(stream)

    def end_stream(self, stream: Stream) -> None:
        """Settle all messages of a block that is gone. An armed reference to one of them is not released."""
        self.armed.forget(stream)
        self.done.end_stream(stream)

    # Arm -----------------------------------------------------------------------------------------------------------

    def arm(self, refs: Refs, *, enqueue_ms: int, by: str) -> Refs:
        """Arm the pending messages of `refs`, which are sorted by fire time. Returns those that were not armed."""
        settled = self.done.get(refs[:, ref.ORIGIN])
        if settled.any():
            refs = refs[~settled]
        refs[:, ref.ENQUEUE_MS] = enqueue_ms
        fresh = self.armed.arm(refs)
        self.armed_by[by] += len(fresh)
        self.armed_by[f"{by}_long"] += int(np.count_nonzero(fresh[:, ref.FLAGS] & ref.FLAG_LONG))
        return fresh

    def arm_near(self, now_ms: Millis) -> None:
        """Arm messages that are due within a second and not indexed yet. This is the near lane."""
        self.levels.follow_clock(now_ms, self.armed)
        self._arm_taken(self.levels.take_due(now_ms, now_ms + NEAR_MS, NEAR_ROWS_MAX), now_ms)
        self._arm_taken(self.notes.take_near(now_ms), now_ms)

    def _arm_taken(self, refs: Refs | None, now_ms: Millis) -> None:
        """Arm references that were taken from their only place. After an error, note them for the next tick."""
        if refs is None:
            return
        try:
            self.arm(refs, enqueue_ms=ref.NO_ENQUEUE_MS, by="near_lane")
        except BaseException:
            self.notes.add(refs[np.argsort(refs[:, ref.ORIGIN])], now_ms)
            raise

    def next_near_ms(self) -> int | None:
        """Return the wall time at which the next message enters the near lane; None without one."""
        level_ms, next_ms = self.levels.next_ms(), self.notes.next_near_ms
        if level_ms < next_ms:
            next_ms = level_ms
        return next_ms - NEAR_MS if next_ms < ref.FAR_MS else None
