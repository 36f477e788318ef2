"""Make the plan of the next turn, only for a reason, and only over data on disk."""

from __future__ import annotations

from collections.abc import Callable

from wheelmq.broker.turns.pace import TurnPace
from wheelmq.delay.blocks.turns import BlockTurns
from wheelmq.delay.timer.planning import make_plan
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import TurnPlan
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach


class PlanMaker:
    def __init__(
        self,
        store: Store,
        timer: Timer,
        block_turns: BlockTurns,
        pace: TurnPace,
        broker_name: str,
        want_flush: Callable[[], None],
    ) -> None:
        """`want_flush` requests a flush of the commit log."""
        self._store = store
        self._timer = timer
        self._block_turns = block_turns
        self._pace = pace
        self._broker_name = broker_name
        self._want_flush = want_flush
        self._plan_from: LogPosition | None = None
        """The log's end when a plan was found due. The plan is made once the log is on disk up to here."""

    def next_plan(self, wall_ms: Millis, now_ms: int) -> TurnPlan | None:
        """Return a new plan. None without a reason, before its data is on disk, or if it would have no work."""
        if not self._pace.is_due(wall_ms, now_ms):
            return None
        log = self._store.log
        if self._plan_from is None:
            self._plan_from = log.end
        if log.synced < self._plan_from:
            self._want_flush()
            return None
        reach("plan.before")
        window = self._block_turns.window(wall_ms)
        plan = make_plan(self._timer, self._broker_name, wall_ms, log.synced, window)
        self._plan_from = None
        if plan is None:
            return None
        self._pace.note_plan(now_ms)
        reach("plan.made")
        return plan
