"""What a clean stop does for Apache RocketMQ, should it get the store next (RocketMQ: TimerMessageStore).

Apache knows no done bits. It indexes the timer queue from timercheck's offset on, and delivers every unit of the slots
that timercheck does not call out. So a stop indexes what no turn has indexed yet, and turns the units of messages that
are out, in slots that Apache will still read, into deletes of nothing: those it passes over. Our own mark does not
tell of it: we go on from where the turns had come.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from wheelmq.delay.timer import staging
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import Proposal, TurnPlan
from wheelmq.delay.timer.view import TIMER_QUEUE, Positions, StoreUnreadable, View, units_at
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, TIMER_UNIT
from wheelmq.formats.wire.portions import FileKind
from wheelmq.store.mapped import MappedSequence

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 10.0
"""For how long a stop may index: a million messages take about a second."""
_MAGIC: Final = TIMER_UNIT.position_of("magic")


class _LiveView:
    """The store as a task sees it, in the files that the broker has open."""

    def __init__(self, timer: Timer) -> None:
        self._timer_queue = timer.queue.files
        self.log = timer.store.log.files
        self.timer_log = timer.log.files
        self.slots = timer.wheel.table

    def queue(self, name: str) -> MappedSequence:
        """The timer queue, which is all that is asked for."""
        assert name == TIMER_QUEUE
        return self._timer_queue

    def block_queue(self, name: str) -> MappedSequence:
        """Another broker knows nothing of blocks."""
        raise AssertionError(name)

    def need(self, kind: FileKind, positions: Positions, sizes: Positions, name: str = "") -> None:
        """All of it is here."""

    def look_again(self) -> None:
        """Nothing expires while the broker stops."""


def prepare(timer: Timer, last_read_ms: int) -> None:
    """Index the rest and hide what is out from `last_read_ms` on, before which timercheck will call all slots out.

    The log must be on disk whole, no turn may come any more.

    What cannot be done is told: Apache would then deliver some of what is out once more. Raises OSError of the sync.
    """
    view = _LiveView(timer)
    timer.turns.take_back()
    try:
        _index_rest(timer, view)
        _hide_settled(timer, view, last_read_ms)
    except (StoreUnreadable, OSError) as error:
        log.warning("what is out is not marked for another broker that gets the store: %s", error)


def _index_rest(timer: Timer, view: View) -> None:
    """Hang every message of the timer queue into the wheel that no turn has."""
    store, settings = timer.store, timer.settings
    stop_s = store.clock.monotonic() + SECONDS_MAX
    while timer.indexed_to < timer.queue.end:
        if store.clock.monotonic() > stop_s or not timer.wheel_has_room(store.clock.now_ms()):
            log.warning("%d messages of the timer queue are not indexed", timer.queue.end - timer.indexed_to)
            return
        plan = TurnPlan(
            broker="",
            epoch=timer.turns.epoch,
            turn=timer.turns.turn + 1,
            write_ms=timer.floor_slot(store.clock.now_ms()),
            index_from=timer.indexed_to,
            index_to=timer.durable_queue_end(store.log.synced),
            walk_after_ms=timer.walked_through_ms,
            walk_through_ms=timer.walked_through_ms,
            walk_rows=0,
            timer_log_end=timer.log.synced,
        )
        if plan.index_to == plan.index_from:
            return
        rows = staging.read_index(view, plan.index_from, plan.index_to, write_ms=plan.write_ms, turn=plan.turn)
        made = staging.decide(rows, settings.roll_window_slots * settings.precision_ms, settings.precision_ms)
        timer.turns.begin(plan)
        timer.apply(Proposal(plan, [made], [], []))


def _hide_settled(timer: Timer, view: View, last_read_ms: int) -> None:
    """Have the units of messages that are out passed over, in the slots from timercheck's to the present one."""
    precision_ms = timer.settings.precision_ms
    after_ms = last_read_ms - precision_ms
    through_ms = timer.floor_slot(timer.store.clock.now_ms())
    log_end = timer.log.end
    rows = staging.read_walk(view, after_ms, through_ms, log_end=log_end, precision_ms=precision_ms, write_ms=0, turn=0)
    out = rows["position"][timer.done.get(rows["origin"])]
    positions = staging.units_of_slots(view, after_ms // precision_ms, through_ms // precision_ms, log_end)
    hidden = positions[np.isin(units_at(view.timer_log, positions)["record_position"], out)].tolist()
    if not hidden:
        return
    for position in hidden:
        at = position % timer.log.files.file_bytes + _MAGIC
        timer.log.files.file_at(position).view[at : at + 4] = (MAGIC_DEFAULT | MAGIC_DELETE).to_bytes(4, "big")
    timer.log.files.sync_job(min(hidden), timer.log.end)()
