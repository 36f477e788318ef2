"""Serve the pipeline: open its lease, give it plans, commit its turns. Do its work while it is away.

At most one turn runs at a time. The next plan waits until the last commit is durable (`mark_writer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wheelmq.broker.holds import Holds
from wheelmq.broker.steps import Steps
from wheelmq.broker.turns.committer import Committer
from wheelmq.broker.turns.fallback import Fallback
from wheelmq.broker.turns.figures import TurnFigures
from wheelmq.broker.turns.lease import PipelineLease
from wheelmq.broker.turns.mark_writer import MarkWriter
from wheelmq.broker.turns.pace import TurnPace
from wheelmq.broker.turns.plan_maker import PlanMaker
from wheelmq.delay.timer.portions import PortionReader
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import Holder, Part, Stale, TurnPlan
from wheelmq.formats.units import Millis
from wheelmq.system.clock import Clock

LOOK_MS: Final = 50
"""Interval of the checks whether a turn is due."""


class TurnCoordinator:
    """Runs the turns of one broker by its parts. It is the key of the requests that are held until a plan is due."""

    def __init__(
        self,
        timer: Timer,
        clock: Clock,
        holds: Holds,
        steps: Steps,
        *,
        lease: PipelineLease,
        pace: TurnPace,
        plan_maker: PlanMaker,
        committer: Committer,
        marks: MarkWriter,
        fallback: Fallback,
        figures: TurnFigures,
        reader: PortionReader,
    ) -> None:
        self._timer = timer
        self.turns = timer.turns
        self._clock = clock
        self._holds = holds
        self._steps = steps
        self.lease = lease
        self.pace = pace
        self._plan_maker = plan_maker
        self.committer = committer
        self._marks = marks
        self.fallback = fallback
        self.figures = figures
        self.reader = reader
        """For tasks that cannot map the store."""
        self._look_ms = 0

    def open(self, holder: Holder, check_holder: Callable[[], None], done: Callable[[int, str], None]) -> None:
        """Open a lease. `done` gets its epoch and token once the epoch is durable. Raises LeaseHeld, Stale.

        `check_holder` raises PeerError once the user of `holder` has lost the right to the lease.
        """
        epoch = self.lease.open(holder, check_holder)
        token = self.lease.token
        self.pace.restart()
        self.fallback.note_lease(self.lease.progress_ms)
        self._marks.save(lambda: done(epoch, token))

    def next_plan(self, epoch: int) -> TurnPlan | None:
        """Return the plan to work on now, or None while there is no reason for one. Raises Stale."""
        self.lease.renew(epoch)
        self.lease.note_asked()
        plan = self.turns.plan
        if plan is not None:
            return plan
        if self._marks.is_saving():
            return None
        return self._plan_maker.next_plan(self._clock.now_ms(), self._clock.monotonic_ms())

    def commit(self, epoch: int, turn: int, winners: list[Part]) -> None:
        """Commit a turn. A repeated commit has no effect. Raises Stale, TurnRejected."""
        self.lease.renew(epoch)
        turns = self.turns
        if turns.plan is None and turn == turns.turn:
            return
        if turns.plan is None:
            raise Stale(f"no turn is running; turn {turns.turn} is committed")
        self.committer.commit(turns.plan, epoch, turn, winners, self.pace.planned_ms)
        self._marks.save()
        self.fallback.note_commit(self.lease.progress_ms)

    def tick(self, wall_ms: Millis, now_ms: int) -> None:
        """Run the fallback, keep S ahead over empty slots, and check every LOOK_MS whether a held plan is due."""
        self._marks.poll()
        is_turning = self.lease.is_turning(now_ms)
        self._steps.run("fallback", self.fallback.poll, wall_ms, now_ms, is_turning=is_turning)
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        self.lease.poll(now_ms)
        if self.turns.plan is None:
            self._timer.scans.advance_over_empty_slots(wall_ms)
        self.pace.poll(wall_ms, now_ms)
        self._holds.wake(self)
        if self.fallback.is_active:
            self._marks.refresh_check(now_ms)

    def next_ms(self, now_ms: int) -> int | None:
        fallback_ms = self.fallback.next_ms(self._clock.now_ms(), now_ms)
        if not self._holds.has(self):
            return fallback_ms
        return self._look_ms if fallback_ms is None else min(self._look_ms, fallback_ms)

    def close(self) -> None:
        """Stop cleanly: write everything of the timer to disk, prepared for Apache's broker."""
        self._marks.close()
