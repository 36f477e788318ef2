"""A turn that the broker commits itself: it indexes part of the timer queue without the pipeline."""

from __future__ import annotations

from wheelmq.delay.timer import staging
from wheelmq.delay.timer.planning import apply_turn
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import Proposal, TurnPlan
from wheelmq.delay.timer.view import ReadView


def index_plan(timer: Timer, first: int, end: int, write_ms: int) -> TurnPlan:
    """Return the plan of the next turn, which only indexes the queue offsets from `first` to `end`."""
    return TurnPlan(
        broker="",
        epoch=timer.turns.epoch,
        turn=timer.turns.turn + 1,
        write_ms=write_ms,
        index_from=first,
        index_to=end,
        walk_after_ms=timer.scans.walked_through_ms,
        walk_through_ms=timer.scans.walked_through_ms,
        walk_rows=0,
        timer_log_end=timer.log.synced,
    )


def index_rows(view: ReadView, plan: TurnPlan, roll_window_ms: int, precision_ms: int) -> TurnRows:
    rows = staging.read_index(view, plan.index_from, plan.index_to, write_ms=plan.write_ms, turn=plan.turn)
    return staging.decide(rows, roll_window_ms, precision_ms)


def apply_index(timer: Timer, plan: TurnPlan, rows: TurnRows, *, by: str = "pipeline") -> None:
    """Commit the rows as a turn. `by` names the counter of armed messages. Raises DiskFull with nothing changed."""
    timer.turns.begin(plan)
    apply_turn(timer, Proposal(plan, [rows], []), by=by)
