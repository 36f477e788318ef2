"""Serve the pipeline: find when a turn is due, give its plan, and check and commit its proposal.

A plan is made only for a reason, and only over data on disk. After a commit, a worker syncs the timer log and writes
the mark. The next plan waits for that. Apache's timercheck follows the mark.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from wheelmq.broker.fallback import Fallback
from wheelmq.broker.lease_watch import LeaseWatch
from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.timer import apache_export
from wheelmq.delay.timer.mark import CheckFile, Mark
from wheelmq.delay.timer.planning import apply_turn, make_plan, walk_units
from wheelmq.delay.timer.portions import PortionReader
from wheelmq.delay.timer.row_check import RowCheck
from wheelmq.delay.timer.turns import Holder, LeaseHeld, Part, Proposal, Stale, TurnPlan, TurnRejected
from wheelmq.delay.timer.view import StoreSizes
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.observe.histogram import Histogram
from wheelmq.system.failpoint import reach

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

EPOCHS_FROM: Final = 1 << 20
"""The epochs of each store count from a random multiple of this, so that two stores share no epoch. A request for one
store is STALE at another that has taken its address."""
ROWS_AT_ONCE: Final = 50_000
"""Un-indexed messages that are reason for a turn whatever the pace."""
BURST_PACES: Final = 3
"""Factor of the pace while a burst is released: rarer turns leave it the processors. Messages due soon are armed
already, or by the near lane."""
AGE_MS: Final = 3000
"""Maximum time that an un-indexed message waits for a turn."""
LOOK_MS: Final = 50
"""Interval of the checks whether a turn is due."""
CHECK_MS: Final = 1000
"""While the fallback is active, timercheck is written at this interval, so that Apache does not read slots whose
messages are settled."""
URGENT_MS: Final = 5000
"""An un-indexed message that is due within this time is reason for a turn at the next pace."""


def store_sizes(settings: BrokerSettings) -> StoreSizes:
    return StoreSizes(
        settings.log_file_bytes,
        settings.queue_file_bytes,
        settings.timer_log_file_bytes,
        settings.timer_slots,
        settings.block_queue_file_bytes,
    )


class TurnDone(msgspec.Struct, frozen=True):
    """The results and times of a turn."""

    turn: int
    indexed: int
    walked: int
    armed: int
    """Messages that the turn armed, of those that it indexed or scanned."""
    seconds: float
    """From plan to commit, including the pipeline's work."""
    commit_seconds: float
    """The part of it that the broker needed for the commit."""


class TurnCoordinator:
    """Paces turns, and makes their commits durable. Times are monotonic milliseconds unless stated otherwise."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timer = broker.timer
        self._planned_ms = 0
        self._oldest_ms: int | None = None
        self._saves = 0
        self._look_ms = 0
        self._plan_from: LogPosition | None = None
        """The log's end when a plan was found due. The plan is made once the log is on disk up to here."""
        self.last_turn: TurnDone | None = None
        self.turn_rows: Counter[str] = Counter()
        """Rows indexed, walked and armed by turns since the start."""
        self.turn_seconds = Histogram(least=0.001)
        """From plan to commit."""
        self.reader = PortionReader(broker.paths.root, store_sizes(broker.settings))
        """For tasks that cannot map the store."""
        self._progress_ms = 0
        """When a pipeline last opened a lease, asked for a plan, or worked on a turn."""
        self.asked_epoch = 0
        """Epoch of the last lease under which a plan was requested: only then does its pipeline turn."""
        self._check_ms = 0
        self._check_file = CheckFile(broker.store, broker.workers.background)
        self._row_check = RowCheck(self._timer)
        self.lease_watch = LeaseWatch(broker.clock.monotonic)
        self.slots_walked = 0
        """Slots with units that turns scanned since the start."""
        self.fallback = Fallback(
            broker.timer,
            broker.workers.timers,
            broker.now_monotonic_ms(),
            save=lambda: self._save(None),
            is_saving=lambda: self._saves > 0,
            want_flush=broker.flush.want,
        )

    # Leases and turns ----------------------------------------------------------------------------------------------

    def open(self, holder: Holder, done: Callable[[int], None]) -> None:
        """Open a lease. `done` gets its epoch once that is durable. Raises LeaseHeld, Stale."""
        self._must_go_on()
        turns = self._timer.turns
        if turns.epoch < EPOCHS_FROM:
            turns.resume(self._broker.randomness.randrange(1, 1 << 30) * EPOCHS_FROM, turns.turn)
        try:
            epoch = turns.open(holder, self._broker.now_monotonic_ms())
        except LeaseHeld as held:
            self.lease_watch.note_rejected(holder, held)
            raise
        self.lease_watch.note_opened(holder)
        log.info("pipeline %s at %s has the lease, epoch %d", holder.name, holder.address, epoch)
        self._planned_ms = 0
        self.note_progress()
        self.fallback.note_lease(self._progress_ms)
        self._save(lambda: done(epoch))

    def note_progress(self) -> None:
        """Note that the pipeline with the lease worked on a turn."""
        self._progress_ms = self._broker.now_monotonic_ms()

    def is_turning(self, now_ms: int) -> bool:
        """Return whether a pipeline keeps the lease and asked for a plan under it."""
        turns = self._timer.turns
        return turns.is_held(now_ms) and self.asked_epoch == turns.epoch

    def quiet_ms(self) -> int:
        """Return the milliseconds since the pipeline last worked. Between turns it requests a plan every second."""
        return self._broker.now_monotonic_ms() - self._progress_ms

    def next_plan(self, epoch: int) -> TurnPlan | None:
        """Return the plan to work on now, or None while there is no reason for one. Raises Stale."""
        self._must_go_on()
        turns = self._timer.turns
        now_ms = self._broker.now_monotonic_ms()
        turns.renew(epoch, now_ms)
        self.note_progress()
        self.asked_epoch = epoch
        if turns.plan is not None:
            return turns.plan
        wall_ms = self._broker.clock.now_ms()
        if self._saves or not self._is_due(wall_ms, now_ms):
            return None
        store = self._broker.store
        if self._plan_from is None:
            self._plan_from = store.log.end
        if store.log.synced < self._plan_from:
            self._broker.flush.want()
            return None
        reach("plan.before")
        window = self._broker.block_scheduler.window(wall_ms)
        plan = make_plan(self._timer, self._broker.settings.broker_name, wall_ms, store.log.synced, window)
        self._plan_from = None
        if plan is None:
            return None
        self._planned_ms = now_ms
        self._oldest_ms = None
        reach("plan.made")
        return plan

    def commit(self, epoch: int, turn: int, winners: list[Part]) -> None:
        """Commit a turn. A repeated commit has no effect. Raises Stale, TurnRejected."""
        self._must_go_on()
        turns = self._timer.turns
        turns.renew(epoch, self._broker.now_monotonic_ms())
        self.note_progress()
        if turns.plan is None and turn == turns.turn:
            return
        if turns.plan is None:
            raise Stale(f"no turn is running; turn {turns.turn} is committed")
        began_s = self._broker.clock.monotonic()
        try:
            proposal = self.checked(turns.plan, epoch, turn, winners)
        except TurnRejected as refused:
            self.lease_watch.note_wrong(turn, refused)
            raise
        lane, window = self._broker.block_scheduler, proposal.plan.blocks
        armed = self._timer.pending.armed_by["pipeline"]
        self.slots_walked += int(np.count_nonzero(walk_units(self._timer, proposal.plan)))
        apply_turn(self._timer, proposal)
        lane.commit(window, proposal.block_parts, proposal.plan.write_ms)
        self._log_commit(proposal, self._timer.pending.armed_by["pipeline"] - armed, began_s)
        self._save(None)
        self.fallback.note_commit(self._progress_ms)

    def checked(self, plan: TurnPlan, epoch: int, turn: int, winners: list[Part]) -> Proposal:
        """Check the uploads of `winners` completely. Returns the proposal. Raises Stale, TurnRejected."""
        timer = self._timer
        proposal = timer.turns.check(epoch, turn, winners, walk_units(timer, plan), timer.settings.precision_ms)
        self._row_check.check(proposal)
        self._broker.block_scheduler.check(plan.blocks, proposal.block_parts)
        return proposal

    def _log_commit(self, proposal: Proposal, armed: int, began_s: float) -> None:
        """Count and log the results and times of the turn that was just committed."""
        self.lease_watch.note_committed()
        now_s = self._broker.clock.monotonic()
        done = TurnDone(
            turn=proposal.plan.turn,
            indexed=sum(map(len, proposal.index_parts)),
            walked=sum(map(len, (*proposal.walk_parts, *proposal.block_parts, *proposal.queue_parts))),
            armed=armed,
            seconds=now_s - self._planned_ms / 1000,
            commit_seconds=now_s - began_s,
        )
        self.last_turn = done
        self.turn_rows.update(indexed=done.indexed, walked=done.walked, armed=done.armed)
        self.turn_seconds.add(done.seconds)
        log.info(
            "turn %d: %d indexed, %d walked, %d armed; %.0f ms from plan to commit, %.1f ms of them the commit",
            done.turn,
            done.indexed,
            done.walked,
            done.armed,
            1000 * done.seconds,
            1000 * done.commit_seconds,
        )

    def _must_go_on(self) -> None:
        """Raise Stale once the broker has failed: a sync that succeeds after a failed one proves nothing."""
        if self._broker.failure is not None:
            raise Stale("the broker is stopping because its disk failed; open a lease after it has started again")

    def _is_due(self, wall_ms: Millis, now_ms: int) -> bool:
        timer = self._timer
        unindexed = 0 if timer.settings.stops_enqueue else timer.queue.end - timer.indexed_to
        if unindexed >= ROWS_AT_ONCE:
            return True
        paces = BURST_PACES if self._broker.releaser.has_burst() else 1
        if now_ms - self._planned_ms < paces * self._broker.settings.pipeline_pace_ms:
            return False
        aged = self._oldest_ms is not None and now_ms - self._oldest_ms >= AGE_MS
        if unindexed:
            urgent = timer.pending.notes.count and timer.pending.notes.next_fire_ms <= wall_ms + URGENT_MS
            if urgent or aged or unindexed >= 1000:
                return True
        lead_end_ms = timer.scans.lead_end_ms(wall_ms)
        if timer.pending.levels.have_due(wall_ms, lead_end_ms):
            urgent = timer.pending.levels.next_ms() <= wall_ms + URGENT_MS
            if urgent or aged or timer.pending.levels.count_due(wall_ms, lead_end_ms) >= 1000:
                return True
        return timer.scans.run_short(wall_ms) or self._broker.block_scheduler.runs_short(wall_ms)

    # The tick ------------------------------------------------------------------------------------------------------

    def tick(self, wall_ms: Millis, now_ms: int) -> None:
        """Run the fallback, and keep S ahead over empty slots.

        Every LOOK_MS, check whether a waiting pipeline can get its plan. Write timercheck while the fallback is
        active.
        """
        self._check_file.poll()
        is_turning = self.is_turning(now_ms)
        self._broker.steps.run("fallback", self.fallback.poll, wall_ms, now_ms, is_turning=is_turning)
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        timer = self._timer
        self.lease_watch.poll(timer.turns, now_ms)
        if timer.turns.plan is None:
            timer.scans.advance_over_empty_slots(wall_ms)
        lead_end_ms = timer.scans.lead_end_ms(wall_ms)
        if timer.queue.end == timer.indexed_to and not timer.pending.levels.have_due(wall_ms, lead_end_ms):
            self._oldest_ms = None
        elif self._oldest_ms is None:
            self._oldest_ms = now_ms
        self._broker.holds.wake(self)
        if self.fallback.is_active and now_ms >= self._check_ms and not self._saves:
            self._check_ms = now_ms + CHECK_MS
            self._note_check()

    def oldest_unindexed_ms(self) -> int:
        """Return the milliseconds that the oldest un-indexed message has waited; 0 if none waits."""
        return 0 if self._oldest_ms is None else self._broker.now_monotonic_ms() - self._oldest_ms

    def next_ms(self, now_ms: int) -> int | None:
        """Return when a waiting pipeline or the broker's own lanes need a tick; None when neither does."""
        fallback_ms = self.fallback.next_ms(self._broker.clock.now_ms(), now_ms)
        if not self._broker.holds.has(self):
            return fallback_ms
        return self._look_ms if fallback_ms is None else min(self._look_ms, fallback_ms)

    # Durability ----------------------------------------------------------------------------------------------------

    def _save(self, done: Callable[[], None] | None) -> None:
        """Sync the timer log, then write the mark for it, on a worker. These jobs run one at a time."""
        timer = self._timer
        self._saves += 1
        upto, sync = timer.log.sync_job()
        mark = timer.mark()

        def job() -> None:
            sync()
            reach("mark.before")
            self._write(mark)

        self._broker.workers.flushing.submit(job, lambda result: self._saved(upto, done, result))

    def _write(self, mark: Mark) -> None:
        assert self._timer.log.files.synced(mark.timer_log_position)
        self._timer.mark_file.write(mark)

    def _saved(self, upto: int, done: Callable[[], None] | None, result: Any) -> None:
        self._saves -= 1
        if isinstance(result, BaseException):
            log.critical("a flush of the timer log failed: %s", result)
            self._broker.fail(result)
            return
        timer = self._timer
        timer.log.note_synced(upto)
        self._note_check()
        if done is not None:
            done()

    def _note_check(self) -> None:
        """Have timercheck written for the present state if the timer log is on disk."""
        timer = self._timer
        if timer.log.synced == timer.log.end:
            self._check_file.note(timer.check(self._broker.releaser.earliest_in_hand_ms()))

    def close(self) -> None:
        """Stop cleanly: write timer log, wheel, mark and timercheck to disk, prepared for Apache's broker."""
        timer = self._timer
        self._broker.store.flush()
        self._sync_timer_log()
        mark = timer.mark()
        in_hand_ms = self._broker.releaser.earliest_in_hand_ms()
        last_read_ms = timer.check(in_hand_ms).last_read_ms
        apache_export.prepare(timer, last_read_ms)
        self._sync_timer_log()
        timer.wheel.sync()
        timer.mark_file.write(mark)
        self._check_file.write(timer.check(in_hand_ms)._replace(last_read_ms=last_read_ms))

    def _sync_timer_log(self) -> None:
        upto, sync = self._timer.log.sync_job()
        sync()
        self._timer.log.note_synced(upto)
