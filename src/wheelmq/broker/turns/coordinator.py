"""Serve the pipeline: find when a turn is due, give its plan, and check and commit its proposal.

A plan is made only for a reason, and only over data on disk. The next plan waits until the last commit is durable
(`mark_writer`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.turns.committer import Committer
from wheelmq.broker.turns.fallback import Fallback
from wheelmq.broker.turns.figures import TurnFigures
from wheelmq.broker.turns.lease_watch import LeaseWatch
from wheelmq.broker.turns.mark_writer import MarkWriter
from wheelmq.broker.turns.pace import TurnPace
from wheelmq.broker.turns.plan_maker import PlanMaker
from wheelmq.delay.timer.mark import CheckFile
from wheelmq.delay.timer.portions import PortionReader
from wheelmq.delay.timer.turns import Holder, LeaseHeld, Part, Stale, TurnPlan
from wheelmq.delay.timer.view import StoreSizes
from wheelmq.formats.units import Millis

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

EPOCHS_FROM: Final = 1 << 20
"""The epochs of each store count from a random multiple of this, so that two stores share no epoch. A request for one
store is STALE at another that has taken its address."""
LOOK_MS: Final = 50
"""Interval of the checks whether a turn is due."""


def store_sizes(settings: BrokerSettings) -> StoreSizes:
    return StoreSizes(
        settings.log_file_bytes,
        settings.queue_file_bytes,
        settings.timer_log_file_bytes,
        settings.timer_slots,
        settings.block_queue_file_bytes,
    )


class TurnCoordinator:
    """Paces turns, and makes their commits durable. Times are monotonic milliseconds unless stated otherwise."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timer = broker.timer
        self._look_ms = 0
        self.pace = TurnPace(broker.timer, broker.block_scheduler, broker.settings, broker.releaser.has_burst)
        self._plan_maker = PlanMaker(
            broker.store,
            broker.timer,
            broker.block_scheduler,
            self.pace,
            broker.settings.broker_name,
            broker.flush.want,
        )
        self.figures = TurnFigures()
        self.reader = PortionReader(broker.paths.root, store_sizes(broker.settings))
        """For tasks that cannot map the store."""
        self._progress_ms = 0
        """When a pipeline last opened a lease, asked for a plan, or worked on a turn."""
        self.asked_epoch = 0
        """Epoch of the last lease under which a plan was requested: only then does its pipeline turn."""
        self._marks = MarkWriter(
            broker.store,
            broker.timer,
            CheckFile(broker.store, broker.workers.background),
            broker.workers.flushing,
            broker.health,
            broker.releaser.earliest_in_hand_ms,
        )
        self.lease_watch = LeaseWatch(broker.clock.monotonic)
        self.committer = Committer(broker.timer, broker.block_scheduler, self.lease_watch, self.figures, broker.clock)
        self.fallback = Fallback(
            broker.timer,
            broker.workers.timers,
            broker.clock.monotonic_ms(),
            save=self._marks.save,
            is_saving=self._marks.is_saving,
            want_flush=broker.flush.want,
        )

    # Leases and turns ----------------------------------------------------------------------------------------------

    def open(self, holder: Holder, done: Callable[[int], None]) -> None:
        """Open a lease. `done` gets its epoch once that is durable. Raises LeaseHeld, Stale."""
        self._must_go_on()
        turns = self._timer.turns
        if turns.epoch < EPOCHS_FROM:
            turns.epoch = self._broker.randomness.randrange(1, 1 << 30) * EPOCHS_FROM
        try:
            epoch = turns.open(holder, self._broker.clock.monotonic_ms())
        except LeaseHeld as held:
            self.lease_watch.note_rejected(holder, held)
            raise
        self.lease_watch.note_opened(holder)
        log.info("pipeline %s at %s has the lease, epoch %d", holder.name, holder.address, epoch)
        self.pace.restart()
        self.note_progress()
        self.fallback.note_lease(self._progress_ms)
        self._marks.save(lambda: done(epoch))

    def note_progress(self) -> None:
        """Note that the pipeline with the lease worked on a turn."""
        self._progress_ms = self._broker.clock.monotonic_ms()

    def is_turning(self, now_ms: int) -> bool:
        """Return whether a pipeline keeps the lease and asked for a plan under it."""
        turns = self._timer.turns
        return turns.is_held(now_ms) and self.asked_epoch == turns.epoch

    def quiet_ms(self) -> int:
        """Return the milliseconds since the pipeline last worked. Between turns it requests a plan every second."""
        return self._broker.clock.monotonic_ms() - self._progress_ms

    def next_plan(self, epoch: int) -> TurnPlan | None:
        """Return the plan to work on now, or None while there is no reason for one. Raises Stale."""
        self._must_go_on()
        turns = self._timer.turns
        now_ms = self._broker.clock.monotonic_ms()
        turns.renew(epoch, now_ms)
        self.note_progress()
        self.asked_epoch = epoch
        if turns.plan is not None:
            return turns.plan
        if self._marks.is_saving():
            return None
        return self._plan_maker.next_plan(self._broker.clock.now_ms(), now_ms)

    def commit(self, epoch: int, turn: int, winners: list[Part]) -> None:
        """Commit a turn. A repeated commit has no effect. Raises Stale, TurnRejected."""
        self._must_go_on()
        turns = self._timer.turns
        turns.renew(epoch, self._broker.clock.monotonic_ms())
        self.note_progress()
        if turns.plan is None and turn == turns.turn:
            return
        if turns.plan is None:
            raise Stale(f"no turn is running; turn {turns.turn} is committed")
        self.committer.commit(turns.plan, epoch, turn, winners, self.pace.planned_ms)
        self._marks.save()
        self.fallback.note_commit(self._progress_ms)

    def _must_go_on(self) -> None:
        """Raise Stale once the broker has failed: a sync that succeeds after a failed one proves nothing."""
        if self._broker.health.failure is not None:
            raise Stale("the broker is stopping because its disk failed; open a lease after it has started again")

    # The tick ------------------------------------------------------------------------------------------------------

    def tick(self, wall_ms: Millis, now_ms: int) -> None:
        """Run the fallback, and keep S ahead over empty slots.

        Every LOOK_MS, check whether a waiting pipeline can get its plan. Write timercheck while the fallback is
        active.
        """
        self._marks.poll()
        is_turning = self.is_turning(now_ms)
        self._broker.steps.run("fallback", self.fallback.poll, wall_ms, now_ms, is_turning=is_turning)
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        timer = self._timer
        self.lease_watch.poll(timer.turns, now_ms)
        if timer.turns.plan is None:
            timer.scans.advance_over_empty_slots(wall_ms)
        self.pace.poll(wall_ms, now_ms)
        self._broker.holds.wake(self)
        if self.fallback.is_active:
            self._marks.refresh_check(now_ms)

    def next_ms(self, now_ms: int) -> int | None:
        """Return when a waiting pipeline or the broker's own lanes need a tick; None when neither does."""
        fallback_ms = self.fallback.next_ms(self._broker.clock.now_ms(), now_ms)
        if not self._broker.holds.has(self):
            return fallback_ms
        return self._look_ms if fallback_ms is None else min(self._look_ms, fallback_ms)

    def close(self) -> None:
        """Stop cleanly: write everything of the timer to disk, prepared for Apache's broker."""
        self._marks.close()
