"""Plan turns over the timer queue, the wheel and the levels, and apply them.

A plan names only data on disk. A turn has no effect before `apply_turn`, which runs in one tick.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.timer.rows import near_refs, units_of
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import BlockWindow, Proposal, TurnPlan
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.system.failpoint import reach


def make_plan(
    timer: Timer, broker: str, now_ms: Millis, durable: LogPosition, blocks: BlockWindow | None = None
) -> TurnPlan | None:
    """Create the plan of the next turn over the log up to `durable`, which is on disk; None for an empty plan.

    The scan begins where the broker's own scan ended, if that is later than S.
    """
    walk = timer.scans.next_walk(now_ms)
    indexes = timer.wheel_has_room(now_ms) and not timer.settings.stop_enqueue
    timer.skip_blanks()
    index_to = timer.durable_queue_end(durable) if indexes else timer.indexed_to
    queues = timer.pending.levels.ranges(now_ms, timer.scans.lead_end_ms(now_ms), durable)
    if index_to == timer.indexed_to and not walk.rows and not queues and blocks is None:
        return None
    plan = TurnPlan(
        broker=broker,
        epoch=timer.turns.epoch,
        turn=timer.turns.turn + 1,
        write_ms=timer.wheel.floor_slot(now_ms),
        index_from=timer.indexed_to,
        index_to=index_to,
        walk_after_ms=timer.scans.walked_through_ms,
        walk_through_ms=walk.through_ms,
        walk_rows=walk.rows,
        timer_log_end=timer.log.synced,
        now_ms=now_ms,
        queues=queues,
        blocks=blocks,
    )
    assert timer.log.synced == timer.log.end and timer.log.files.synced(plan.timer_log_end)
    timer.turns.begin(plan)
    return plan


def walk_units(timer: Timer, plan: TurnPlan) -> npt.NDArray[np.int32]:
    return timer.wheel.units_between(plan.walk_after_ms, plan.walk_through_ms)


def apply_turn(timer: Timer, proposal: Proposal, *, by: str = "pipeline") -> None:
    """Commit a checked turn in one tick: units and slots first, then arm, then E, S, levels and turn.

    `by` names the counter of the armed messages. Raises DiskFull with nothing changed.
    """
    plan, pending = proposal.plan, timer.pending
    reach("commit.before")
    timer.log.make_room(sum(map(len, proposal.index_parts)))
    for rows in proposal.index_parts:
        timer.log.append(*units_of(rows, plan.write_ms), timer.wheel)
    reach("commit.units")
    timer.scans.walk_to(plan.walk_through_ms)
    through_ms = max(plan.walk_through_ms, timer.scans.scanning_through_ms)
    for rows in (*proposal.walk_parts, *proposal.index_parts):
        near = near_refs(rows, through_ms + timer.settings.precision_ms, through_ms, timer.wheel)
        shifted = rows[rows["shift_ms"] != 0]
        near = ref.by_fire_time(near) if len(shifted) else near
        armed = pending.arm(near, enqueue_ms=plan.write_ms, by=by)
        if len(shifted):
            timer.shifts.note(shifted[np.isin(shifted["origin"], armed[:, ref.ORIGIN])])
    for rows in proposal.queue_parts:
        pending.arm(near_refs(rows, ref.FAR_MS, through_ms, timer.wheel), enqueue_ms=plan.write_ms, by=by)
    pending.levels.advance(plan.queues)
    timer.note_indexed(plan.index_to)
    timer.turns.finish()
    reach("commit.armed")
