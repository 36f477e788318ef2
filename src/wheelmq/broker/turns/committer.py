"""Commit a turn: check the proposal of the pipeline completely, then apply it."""

from __future__ import annotations

import numpy as np

from wheelmq.broker.turns.figures import TurnDone, TurnFigures
from wheelmq.broker.turns.lease_watch import LeaseWatch
from wheelmq.delay.blocks.turns import BlockTurns
from wheelmq.delay.timer.planning import apply_turn, walk_units
from wheelmq.delay.timer.row_check import RowCheck
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import Part, Proposal, TurnPlan, TurnRejected
from wheelmq.system.clock import Clock


class Committer:
    def __init__(
        self, timer: Timer, block_turns: BlockTurns, watch: LeaseWatch, figures: TurnFigures, clock: Clock
    ) -> None:
        self._timer = timer
        self._block_turns = block_turns
        self._row_check = RowCheck(timer)
        self._watch = watch
        self._figures = figures
        self._clock = clock

    def commit(self, plan: TurnPlan, epoch: int, turn: int, winners: list[Part], planned_ms: int) -> None:
        """Commit the turn of `plan`, which was made at `planned_ms`, monotonic. Raises Stale, TurnRejected."""
        began_s = self._clock.monotonic()
        try:
            proposal = self.checked(plan, epoch, turn, winners)
        except TurnRejected as rejected:
            self._watch.note_wrong(turn, rejected)
            raise
        timer = self._timer
        armed = timer.pending.armed_by["pipeline"]
        slots_walked = int(np.count_nonzero(walk_units(timer, plan)))
        apply_turn(timer, proposal)
        self._block_turns.commit(plan.blocks, proposal.block_parts, plan.write_ms)
        self._watch.note_committed()
        now_s = self._clock.monotonic()
        done = TurnDone(
            turn=plan.turn,
            indexed=sum(map(len, proposal.index_parts)),
            walked=sum(map(len, (*proposal.walk_parts, *proposal.block_parts, *proposal.queue_parts))),
            armed=timer.pending.armed_by["pipeline"] - armed,
            seconds=now_s - planned_ms / 1000,
            commit_seconds=now_s - began_s,
        )
        self._figures.note(done, slots_walked)

    def checked(self, plan: TurnPlan, epoch: int, turn: int, winners: list[Part]) -> Proposal:
        """Check the uploads of `winners` completely. Returns the proposal. Raises Stale, TurnRejected."""
        timer = self._timer
        proposal = timer.turns.check(epoch, turn, winners, walk_units(timer, plan), timer.settings.precision_ms)
        self._row_check.check(proposal)
        self._block_turns.check(plan.blocks, proposal.block_parts)
        return proposal
