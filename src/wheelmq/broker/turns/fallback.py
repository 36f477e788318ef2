"""The broker does the work of the pipeline while the pipeline is away.

The wheel lane arms indexed messages, the index lane indexes parked ones. Both do nothing while turns come in time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from wheelmq.delay.notes import NOTES_MAX
from wheelmq.delay.timer.index_lane import ROWS_MAX, IndexLane
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.wheel_lane import WheelLane
from wheelmq.formats.units import Millis
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

AWAY_MS: Final = 60_000
"""The broker indexes when no pipeline held the lease for this time."""
HUNG_MS: Final = 120_000
"""The broker indexes when a pipeline holds the lease, but has committed nothing for this time."""
CROWDED: Final = NOTES_MAX * 3 // 4
"""With this number of notes, there is soon no room to note parked messages, and the broker waits less."""
CROWDED_AWAY_MS: Final = 10_000
CROWDED_HUNG_MS: Final = 30_000
STEP_MS: Final = 1000
"""Steps that index fewer messages than a full one are this far apart."""


class Fallback:
    """Decides when the broker does the pipeline's work, and logs it. Times are monotonic milliseconds.

    `save` makes an applied step durable. `want_flush` requests a flush of the commit log.
    """

    def __init__(
        self,
        timer: Timer,
        worker: Worker,
        now_ms: int,
        *,
        save: Callable[[], None],
        is_saving: Callable[[], bool],
        want_flush: Callable[[], None],
    ) -> None:
        self._timer = timer
        self._save, self._is_saving, self._want_flush = save, is_saving, want_flush
        self.wheel_lane = WheelLane(timer, worker)
        self.index_lane = IndexLane(timer, worker)
        self.indexed = 0
        """Messages that the broker indexed in place of the pipeline, since the start."""
        self._held_ms = now_ms
        """When a pipeline last held the lease; the start of the broker before that."""
        self._trust_ms = now_ms
        """When a pipeline last committed, got time for its first turn, or had the lease taken back."""
        self._is_second_lease = False
        """Whether a pipeline has opened a lease since the last commit."""
        self._unindexed_ms: int | None = None
        """Time since which messages wait to be indexed; None when none do."""
        self._is_overriding = False
        """Whether the broker took the lease back from a pipeline that commits nothing."""
        self._must_commit = False
        """Whether only a commit of the pipeline ends the fallback."""
        self._step_ms = self._look_ms = now_ms
        self._has_more = False
        self._began_ms: int | None = None
        self._idle_ms: int | None = None
        """Time since which a pipeline turns without work, during a fallback."""
        self._before: Counter[str] = Counter()
        self._log_start()

    @property
    def is_active(self) -> bool:
        return self._began_ms is not None

    def note_lease(self, now_ms: int) -> None:
        """Note that a pipeline has got the lease.

        It has time for its first turn after an absence, and once after each commit. A pipeline that only opens leases
        and never commits gets no more time: the broker indexes in its place.
        """
        if not self._is_second_lease or now_ms - self._held_ms >= AWAY_MS:
            self._trust_ms = now_ms
        self._is_second_lease = True
        self._held_ms = now_ms

    def note_commit(self, now_ms: int) -> None:
        self._trust_ms = self._held_ms = now_ms
        self._is_overriding = self._must_commit = self._is_second_lease = False
        self._end(now_ms)

    def poll(self, wall_ms: Millis, now_ms: int, *, is_turning: bool) -> None:
        """Run both lanes, and log changes. `is_turning`: a pipeline has the lease and requests plans."""
        is_working = self.wheel_lane.poll(wall_ms, now_ms)
        if self.index_lane.has_result:
            self._take(now_ms)
        if now_ms >= self._look_ms or self._has_more:
            self._look_ms = now_ms + STEP_MS // 4
            is_working |= self._index(wall_ms, now_ms)
            is_idle_and_away = now_ms - self._held_ms >= AWAY_MS and bool(self._timer.pending.counts.by_queue.sum() > 0)
            if is_working or is_idle_and_away:
                self._begin(now_ms)
            self._end_when_idle(wall_ms, now_ms, is_idle=is_turning and not is_working)
        elif is_working:
            self._begin(now_ms)

    def next_ms(self, wall_ms: Millis, now_ms: int) -> int | None:
        if self.index_lane.has_result or (self._has_more and not self.index_lane.is_busy and not self._is_saving()):
            return now_ms
        next_ms = self.wheel_lane.next_ms(wall_ms, now_ms)
        return None if next_ms is None else now_ms + next_ms - wall_ms

    def _end_when_idle(self, wall_ms: Millis, now_ms: int, *, is_idle: bool) -> None:
        """End the fallback when a pipeline that turns had no work for a whole lead. A plan alone ends nothing."""
        if self._began_ms is None:
            return
        timer = self._timer
        is_idle = is_idle and not self._must_commit and timer.turns.plan is None
        if not is_idle or timer.queue.end > timer.indexed_to or timer.scans.has_units_to_walk(wall_ms):
            self._idle_ms = None
        elif self._idle_ms is None:
            self._idle_ms = now_ms
        elif now_ms - self._idle_ms >= timer.settings.lead_ms:
            self._end(now_ms)

    # Indexing ------------------------------------------------------------------------------------------------------

    def _index(self, wall_ms: Millis, now_ms: int) -> bool:
        """Start a step if one is due. Returns whether one was started."""
        timer, self._has_more = self._timer, False
        if timer.turns.is_held(now_ms):
            self._held_ms = now_ms
        if not self.index_lane.has_work(wall_ms):
            self._unindexed_ms, self._is_overriding = None, False
            return False
        if self._unindexed_ms is None:
            self._unindexed_ms = now_ms
        if self.index_lane.is_busy or self._is_saving() or not self._is_index_due(now_ms, self._unindexed_ms):
            return False
        unindexed = timer.queue.end - timer.indexed_to
        if unindexed < ROWS_MAX and now_ms < self._step_ms:
            return False
        self._step_ms = now_ms + STEP_MS
        self._take_lease(now_ms)
        try:
            started = self.index_lane.start(wall_ms, timer.store.log.synced)
        except Exception as error:
            self._failed(error, now_ms)
            return False
        if not started:
            self._want_flush()
        elif self.index_lane.has_result:
            self._take(now_ms)
        return started

    def _is_index_due(self, now_ms: int, unindexed_ms: int) -> bool:
        if self._is_overriding:
            return True
        is_crowded = self._timer.pending.notes.count >= CROWDED
        hung_ms, away_ms = (CROWDED_HUNG_MS, CROWDED_AWAY_MS) if is_crowded else (HUNG_MS, AWAY_MS)
        if now_ms - max(self._trust_ms, unindexed_ms) >= hung_ms:  # the lease may lapse and be reopened repeatedly
            return True
        return not self._timer.turns.is_held(now_ms) and now_ms - self._held_ms >= away_ms

    def _take_lease(self, now_ms: int) -> None:
        """End the pipeline's lease and plan, so that its late commit is rejected as stale."""
        turns = self._timer.turns
        if turns.holder is None and turns.plan is None:
            return
        if turns.is_held(now_ms):
            log.warning(
                "pipeline %s has the lease and has not committed a turn for %d s: the broker ends the lease",
                turns.holder,
                (now_ms - self._trust_ms) // 1000,
            )
            self._is_overriding = self._must_commit = True
        turns.take_back()

    def _take(self, now_ms: int) -> None:
        """Apply the step that ended, and make it durable."""
        try:
            count = self.index_lane.take()
        except Exception as error:
            self._failed(error, now_ms)
            self._step_ms = now_ms + STEP_MS
            return
        if count:
            self.indexed += count
            self._has_more = self._timer.queue.end - self._timer.indexed_to >= ROWS_MAX
            self._save()
            if self._is_overriding and not self._has_more:
                self._is_overriding, self._trust_ms = False, now_ms

    def _failed(self, error: Exception, now_ms: int) -> None:
        """Log the error of a step. If the broker had taken the lease back, the next try is the pipeline's."""
        if self._is_overriding:
            self._is_overriding, self._trust_ms = False, now_ms
        log.error(
            "timer: the broker failed to index messages itself, and tries again later: %s: %s",
            type(error).__name__,
            error,
        )

    # Log -----------------------------------------------------------------------------------------------------------

    def _log_start(self) -> None:
        """Log at the start the number of units in the wheel, because no pipeline has the lease yet."""
        timer = self._timer
        later = timer.wheel.table["time"] > timer.scans.walked_through_ms // timer.settings.precision_ms
        units = int(timer.wheel.units[later].sum())
        if units:
            log.info(
                "timer: the wheel has %d units and no pipeline has the lease yet; until a pipeline has it, the "
                "broker arms due messages itself",
                units,
            )

    def _begin(self, now_ms: int) -> None:
        if self._began_ms is not None:
            return
        self._began_ms, self._before = now_ms, self._figures()
        turns = self._timer.turns
        is_held = turns.is_held(now_ms)
        log.warning(
            "pipeline: no turn came in time (%s). Until the next turn, the broker arms and indexes messages "
            "itself, and releases them on time",
            f"pipeline {turns.holder} has the lease" if is_held else "no pipeline has the lease",
        )

    def _end(self, now_ms: int) -> None:
        if self._began_ms is None:
            return
        done = self._figures() - self._before
        log.info(
            "pipeline: turns run again. For %d s the broker did the pipeline's work: %d messages armed, %d "
            "messages indexed",
            (now_ms - self._began_ms) // 1000,
            done["armed"],
            done["indexed"],
        )
        self._began_ms = self._idle_ms = None

    def _figures(self) -> Counter[str]:
        by = self._timer.pending.armed_by
        return Counter(armed=by["wheel_lane"] + by["index_lane"], indexed=self.indexed)
