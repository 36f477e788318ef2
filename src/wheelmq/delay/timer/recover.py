"""Recovery of the timer from the files alone, without Spark.

While the store walks its log, this collects what was parked and what was settled. Then: cut the timer log at T, hang
its units into an empty wheel, and stage what fires within the lead. What is indexed is found by its unit; what is
not, by its place in the timer queue at or behind E. A message that is in neither is armed all the same, and told.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.cancel import append_cancel
from wheelmq.delay.refs import Refs
from wheelmq.delay.timer.mark import Mark, load_check
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import Turns
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import INDEX_BITS
from wheelmq.formats.disk.parked import due_of, due_text
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL, slot_time
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.recovery import InternedNames, Rows
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

_INDEX, _DUE, _POSITION, _SIZE, _STORE, _KEY, _REAL_QUEUE, _FOREIGN_DELETE = range(8)
INDEX_MASK = (1 << INDEX_BITS) - 1


class TimerRecovery:
    """Meets the rows of every record of the log, then makes the timer ready."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._chunks: list[npt.NDArray[np.int64]] = []

    def meet(self, rows: Rows, names: InternedNames) -> None:
        """Note what the records park and what they settle; of what is parked keep what is pending so far."""
        done = self._timer.done
        settled = rows[:, col.SETTLES]
        done.update(settled[settled != 0] & INDEX_MASK)
        dispatched = (rows[:, col.FLAGS] & col.FLAG_DISPATCHED) != 0
        parked = rows[dispatched & (rows[:, col.DUE_MS] != 0)]
        decided = (parked[:, col.FLAGS] & col.FLAG_DECIDED) != 0
        done.update(parked[decided, col.QUEUE_OFFSET])
        parked = parked[~decided]
        if len(parked):
            kept = np.empty((len(parked), 8), np.int64)
            kept[:, _INDEX] = parked[:, col.QUEUE_OFFSET]
            kept[:, _DUE] = parked[:, col.DUE_MS]
            kept[:, _POSITION] = parked[:, col.POSITION]
            kept[:, _SIZE] = parked[:, col.SIZE]
            kept[:, _STORE] = parked[:, col.STORE_MS]
            kept[:, _KEY] = parked[:, col.KEY_HASH]
            kept[:, _REAL_QUEUE] = self._timer.store.queue_rows(
                parked[:, col.REAL_TOPIC], parked[:, col.REAL_QUEUE_ID], names
            )
            kept[:, _FOREIGN_DELETE] = (parked[:, col.FLAGS] & col.FLAG_DELETES) != 0
            self._chunks.append(kept)
        self._chunks = [pending for chunk in self._chunks if len(pending := chunk[~done.get(chunk[:, _INDEX])])]

    def finish(self) -> None:
        """Make the timer ready: bits, wheel, armed references, notes, keys, counts."""
        timer = self._timer
        timer.done.raise_floor(timer.queue.start)
        pending = np.concatenate([np.empty((0, 8), np.int64), *self._chunks])
        pending = pending[pending[:, _INDEX] < timer.queue.end]
        mark = timer.mark_file.load()
        if mark is None:
            pending = self._adopt(pending)
            mark = Mark(queue_offset=timer.queue.start)
        timer.turns = Turns(mark.epoch + 1, mark.turn)
        timer.indexed_to = max(mark.queue_offset, timer.queue.start)
        timer.log.rebuild(timer.wheel, max(mark.timer_log_position, timer.log.files.start))
        reach("recover.rebuilt")
        timer.walked_through_ms = timer.floor_slot(timer.store.clock.now_ms() + timer.settings.lead_ms)
        deletes = pending[:, _FOREIGN_DELETE] != 0
        timer.done.update(pending[deletes, _INDEX])
        self._count_and_key(pending[~deletes])
        self._stage(pending[~deletes])
        self._obey(pending[deletes, _POSITION])
        reach("recover.staged")

    def _adopt(self, pending: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """A store that we never marked: what Apache's timercheck says is out counts as settled."""
        timer = self._timer
        check = load_check(timer.store.disk, timer.store.paths)
        if check is None or not len(pending):
            return pending
        slots = np.array([slot_time(due, timer.settings.precision_ms) for due in pending[:, _DUE].tolist()])
        out = (slots < check.last_read_ms) & (pending[:, _INDEX] < check.queue_offset)
        timer.done.update(pending[out, _INDEX])
        return pending[~out]

    def _obey(self, positions: npt.NDArray[np.int64]) -> None:
        """Act on the cancels that Apache RocketMQ wrote: those whose message is pending are written again as ours."""
        timer = self._timer
        for position in positions.tolist():
            record = timer.store.log.record_at(LogPosition(position))
            assert record is not None, position
            message = record.message
            if timer.find_parked(message.properties[props.TIMER_DEL_UNIQKEY])[0]:
                message.properties[props.WMQ_DUE] = due_text(due_of(message.properties, record.store_ms))
                append_cancel(timer.store, timer, message)

    def _count_and_key(self, pending: npt.NDArray[np.int64]) -> None:
        timer = self._timer
        timer.count_pending(pending[:, _REAL_QUEUE])
        timer.keys.add(pending[:, _KEY], pending[:, _INDEX], timer.done)

    def _stage(self, pending: npt.NDArray[np.int64]) -> None:
        timer = self._timer
        refs = _refs(pending)
        indexed = pending[:, _INDEX] < timer.indexed_to
        timer.notes.add(refs[~indexed], timer.store.clock.now_ms())
        units = self._units_walked()
        found, rolls = _match(pending[:, _POSITION], units)
        horizon = timer.walked_through_ms + timer.settings.precision_ms
        due = indexed & (refs[:, ref.FIRE_MS] <= horizon)
        rolling = indexed & found & rolls & ~due
        refs[rolling, ref.FIRE_MS] = timer.walked_through_ms
        refs[rolling, ref.FLAGS] |= ref.FLAG_ROLL
        timer.arm_recovered(ref.by_fire_time(refs[due | rolling]))
        lost = int(np.count_nonzero(due & ~found))
        if lost:
            log.error("timer: %d pending messages have no unit in the timer log; armed from the log alone", lost)

    def _units_walked(self) -> npt.NDArray[Any]:
        """The units of the timer log in slots up to S."""
        timer = self._timer
        kept = []
        for _, units in timer.log.chunks(timer.log.files.start, timer.log.end):
            slots_ms = units["write_ms"] + units["delay_ms"]
            kept.append(units[(slots_ms <= timer.walked_through_ms) & (units["magic"] & MAGIC_DELETE == 0)])
        return np.concatenate(kept) if kept else np.empty(0, [("record_position", ">i8"), ("magic", ">i4")])


def _refs(pending: npt.NDArray[np.int64]) -> Refs:
    made = ref.make(len(pending))
    made[:, ref.FIRE_MS] = pending[:, _DUE]
    made[:, ref.INDEX] = pending[:, _INDEX]
    made[:, ref.POSITION] = pending[:, _POSITION]
    made[:, ref.SIZE] = pending[:, _SIZE]
    long = pending[:, _DUE] - pending[:, _STORE] > ref.LONG_DELAY_MS
    made[:, ref.FLAGS] = np.where(long, ref.FLAG_LONG, 0)
    return made


def _match(
    positions: npt.NDArray[np.int64], units: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For each record position: whether it has a unit among `units`, and whether its newest one rolls."""
    if not len(units):
        nothing = np.zeros(len(positions), np.bool_)
        return nothing, nothing
    order = np.argsort(units["record_position"], kind="stable")
    known = units["record_position"][order].astype(np.int64)
    at = np.searchsorted(known, positions, "right") - 1
    found = (at >= 0) & (known[np.maximum(at, 0)] == positions)
    rolls = units["magic"][order][np.maximum(at, 0)] & MAGIC_ROLL != 0
    return found, found & rolls
