"""Check the rows of a turn against the files and the memory of the broker, before the broker applies them.

`Turns.check` counts the rows of a proposal. This check compares the fields of each row:

    index   position and size with the timer queue; slot and fire time with the note of the message, or its record
    walk    position, size, slot and magic with the units of the slot chains; origin and fire time with the detail of
            the unit, or with the timer queue and the record
    all     shift: at most Timer.shift_max_ms; 0 in rows of queues and blocks, and of messages that roll or cancel
    queue   position, size and fire time with the queue of the level

Units of Apache and of older stores have no detail. Among their rows, the fire time of EXACT_ROWS rows is compared with
the record. A wrong fire time of another row delays its message by one slot at most, and never makes it early, because a
release reads the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.live_view import LiveView
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.staging import place, read_records
from wheelmq.delay.timer.turns import Proposal, TurnPlan, TurnRejected
from wheelmq.delay.timer.view import Positions, StoreUnreadable, chain
from wheelmq.formats.disk.origin import (
    INDEX_BITS,
    INDEX_MASK,
    NO_ORIGIN,
    TIMER_STREAM,
    Stream,
    timer_origin,
)
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT
from wheelmq.formats.disk.timer_detail import read_details
from wheelmq.formats.disk.turn_row import (
    INDEX,
    KIND_BLOCKS,
    KIND_INDEX,
    KIND_QUEUE,
    KIND_WALK,
    STAGED_ROW,
    TURN_ROW,
    WALK,
)
from wheelmq.formats.units import QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.mapped import MappedSequence

if TYPE_CHECKING:
    from wheelmq.delay.timer.timer import Timer

EXACT_ROWS: Final = 1000
"""Number of walk rows without a detail whose record is read, spread over the turn. It takes half a millisecond."""
MAGIC_BITS: Final = MAGIC_DEFAULT | MAGIC_ROLL | MAGIC_DELETE

Flags = npt.NDArray[np.bool_]
Units = npt.NDArray[Any]
"""An array of queue units, of a consume queue or of a block."""


class _TimerUnits(NamedTuple):
    positions: Positions
    sizes: Positions
    slots_ms: Positions
    magics: Positions
    origins: Positions
    """Origin of the message according to the detail; NO_ORIGIN without a detail that says its due time."""
    fires_ms: Positions
    """Fire time according to the detail; 0 without one."""


class RowCheck:
    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._log = timer.store.log.files
        self._precision_ms = timer.settings.precision_ms
        self._window_ms = timer.settings.roll_window_slots * timer.settings.precision_ms

    def check(self, proposal: Proposal) -> None:
        """Check all rows, but of those of blocks only the shifts. Raises TurnRejected, with nothing changed."""
        plan = proposal.plan
        for kind, parts in (
            (KIND_INDEX, proposal.index_parts),
            (KIND_WALK, proposal.walk_parts),
            (KIND_QUEUE, proposal.queue_parts),
        ):
            for rows in parts:
                check_order(rows, kind)
                self._check_shifts(rows, kind)
        for rows in proposal.block_parts:
            self._check_shifts(rows, KIND_BLOCKS)
        first = plan.index_from
        for rows in proposal.index_parts:
            if len(rows):
                self._check_index(rows[rows["order"]], first, plan)
            first += len(rows)
        self._check_walk(proposal.walk_parts, plan)
        self._check_queues(proposal.queue_parts, plan)

    def _check_shifts(self, rows: TurnRows, kind: str) -> None:
        shifts_ms = rows["shift_ms"]
        if not shifts_ms.any():
            return
        may_shift = (rows["magic"] == MAGIC_DEFAULT) if kind in (KIND_INDEX, KIND_WALK) else np.zeros(1, np.bool_)
        _reject(kind, rows, (shifts_ms != 0) & ~may_shift, "a shift, but it is no timer, or it rolls or cancels")
        _reject(kind, rows, shifts_ms < 0, "a negative shift: its delivery would be early")
        limit_ms = self._timer.shift_max_ms
        _reject(kind, rows, shifts_ms > limit_ms, f"a shift of more than {limit_ms} ms")

    # Index ---------------------------------------------------------------------------------------------------------

    def _check_index(self, rows: TurnRows, first: int, plan: TurnPlan) -> None:
        _must_agree(rows, _range_of(self._timer.queue, first, len(rows)), KIND_INDEX)
        magic, slots, fires = rows["magic"], rows["slot_ms"], rows["fire_ms"]
        _reject(KIND_INDEX, rows, (magic & ~MAGIC_BITS != 0) | (magic & MAGIC_DEFAULT == 0), "an invalid magic")
        is_known = magic == MAGIC_DEFAULT
        is_known &= self._is_in_slot(slots, fires) & (slots - plan.write_ms < self._window_ms)
        noted = self._timer.pending.notes.fire_times(timer_origin(first), len(rows))
        is_known &= (noted == fires) | self._timer.pending.done.get(rows["origin"])
        self._compare_with_records(rows[~is_known], KIND_INDEX, plan)

    def _is_in_slot(self, slots_ms: Positions, fires_ms: Positions) -> Flags:
        in_slot: Flags = (slots_ms % self._precision_ms == 0) & (slots_ms < fires_ms)
        in_slot &= fires_ms - slots_ms <= self._precision_ms
        return in_slot

    # Walk ----------------------------------------------------------------------------------------------------------

    def _check_walk(self, parts: list[TurnRows], plan: TurnPlan) -> None:
        if not plan.walk_rows:
            return
        rows = np.concatenate([np.empty(0, TURN_ROW), *parts])
        units = self._units_of_slots(plan)
        if len(rows) != len(units.positions):
            raise TurnRejected(
                f"{KIND_WALK}: received {len(rows)} rows, but the slots have {len(units.positions)} units"
            )
        of_rows = _by_position(rows["position"], rows["slot_ms"])
        of_units = _by_position(units.positions, units.slots_ms)
        differs = np.zeros(len(rows), np.bool_)
        for name, known in zip(("position", "size", "slot_ms", "magic"), units[:4], strict=True):
            differs[of_rows] |= rows[name][of_rows] != known[of_units]
        _reject(KIND_WALK, rows, differs, "no such unit in its slot")
        origins, fires_ms = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        origins[of_rows], fires_ms[of_rows] = units.origins[of_units], units.fires_ms[of_units]
        is_expired = self._is_expired(rows)
        is_exact = (origins == rows["origin"]) & (fires_ms == rows["fire_ms"])
        has_detail = origins != NO_ORIGIN
        _reject(KIND_WALK, rows, has_detail & ~is_exact & ~is_expired, "another origin or fire time than its unit")
        self._check_without_detail(rows[~has_detail & ~is_expired], plan)

    def _is_expired(self, rows: TurnRows) -> Flags:
        """Return which rows belong to settled messages whose records have expired. Such rows arm nothing."""
        is_expired: Flags = rows["position"] < self._log.start
        is_expired &= (rows["origin"] == NO_ORIGIN) | self._timer.pending.done.get(rows["origin"])
        return is_expired

    def _check_without_detail(self, rows: TurnRows, plan: TurnPlan) -> None:
        slots_ms, fires_ms = rows["slot_ms"], rows["fire_ms"]
        rolls = rows["magic"] & MAGIC_ROLL != 0
        is_known = np.where(rolls, fires_ms == slots_ms + 1, self._is_in_slot(slots_ms, fires_ms))
        is_known &= self._has_its_origin(rows)
        is_known[:: max(1, -(-len(rows) // EXACT_ROWS))] = False
        self._compare_with_records(rows[~is_known], KIND_WALK, plan)

    def _units_of_slots(self, plan: TurnPlan) -> _TimerUnits:
        wheel, files = self._timer.wheel, self._timer.log.files
        times = np.arange(plan.walk_after_ms // self._precision_ms + 1, plan.walk_through_ms // self._precision_ms + 1)
        slots = wheel.table[times % wheel.slots]
        newest = slots["last_position"][slots["time"] == times].tolist()
        try:
            found = [chain(files, int(position), plan.timer_log_end)[0] for position in newest]
        except StoreUnreadable as error:
            raise TurnRejected(f"{KIND_WALK}: {error}") from None
        return _units_at(files, np.concatenate([np.empty(0, np.int64), *found]))

    def _has_its_origin(self, rows: TurnRows) -> Flags:
        queue, origins = self._timer.queue, rows["origin"]
        is_there: Flags = origins >> INDEX_BITS == TIMER_STREAM
        indices = origins & INDEX_MASK
        is_there &= (indices >= queue.start) & (indices < queue.end)
        named = np.flatnonzero(is_there)
        named = named[np.argsort(indices[named], kind="stable")]
        units = gather(lambda index, count: queue.read(QueueOffset(index), count), indices[named])
        is_there[named] = (units["position"] == rows["position"][named]) & (units["size"] == rows["size"][named])
        return is_there

    # Levels --------------------------------------------------------------------------------------------------------

    def _check_queues(self, parts: list[TurnRows], plan: TurnPlan) -> None:
        rows = np.concatenate([np.empty(0, TURN_ROW), *(part[part["order"]] for part in parts)])
        at = 0
        for stream, first, end in plan.queues:
            level = self._timer.pending.levels.of(Stream(stream))
            mine = rows[at : at + end - first]
            units = _range_of(level.queue, first, end - first)
            _must_agree(mine, units, KIND_QUEUE)
            tags = units["tag_code"].astype(np.int64)
            dues_ms = np.where(tags > plan.now_ms + level.delay_ms, plan.now_ms, tags)
            _reject(KIND_QUEUE, mine, mine["fire_ms"] != dues_ms, "another fire time than its queue unit")
            _reject(KIND_QUEUE, mine, mine["slot_ms"] != dues_ms, "another slot than its due time")
            _reject(KIND_QUEUE, mine, mine["magic"] != MAGIC_DEFAULT, "a magic that is invalid for a level")
            at += end - first

    # Records -------------------------------------------------------------------------------------------------------

    def _compare_with_records(self, rows: TurnRows, kind: str, plan: TurnPlan) -> None:
        """Stage `rows` again from their records, and compare. Raises TurnRejected."""
        if not len(rows):
            return
        rows = rows[np.argsort(rows["position"], kind="stable")]
        staged = np.zeros(len(rows), STAGED_ROW)
        staged["kind"] = INDEX if kind == KIND_INDEX else WALK
        staged["position"], staged["size"] = rows["position"], rows["size"]
        staged["origin"], staged["write_ms"] = rows["origin"], plan.write_ms
        staged["out_ms"], staged["magic"] = rows["slot_ms"], rows["magic"]
        try:
            read_records(LiveView.on_loop(self._timer), staged)
        except (StoreUnreadable, FileNotFoundError) as error:
            raise TurnRejected(f"{kind}: {error}") from None
        expected = place(staged, self._window_ms, self._precision_ms)
        differs = np.zeros(len(rows), np.bool_)
        for name in ("origin", "fire_ms", "slot_ms", "magic"):
            differs |= rows[name] != expected[name]
        _reject(kind, rows, differs, "another origin, slot, fire time or magic than its record")


def check_order(rows: TurnRows, kind: str) -> None:
    fires = rows["fire_ms"]
    if len(fires) > 1 and (fires[1:] < fires[:-1]).any():
        raise TurnRejected(f"{kind}: rows are not in the order of their fire times")


def gather(read: Callable[[int, int], Units], indices: Positions) -> Units:
    """Return the units at `indices`, which are sorted. `read` returns the units of one file from an index on."""
    found: list[Units] = [read(int(indices[0]), 1)[:0]] if len(indices) else []
    at = 0
    while at < len(indices):
        first = int(indices[at])
        units = read(first, int(indices[-1]) - first + 1)
        stop = int(np.searchsorted(indices, first + len(units)))
        found.append(units[indices[at:stop] - first])
        at = stop
    return np.concatenate(found) if found else np.empty(0, _NO_UNITS)


_NO_UNITS: Final = np.dtype([("position", np.int64), ("size", np.int32), ("tag_code", np.int64)])


def _range_of(queue: ConsumeQueue, first: int, count: int) -> Units:
    return gather(lambda index, most: queue.read(QueueOffset(index), most), np.arange(first, first + count))


def _must_agree(rows: TurnRows, units: Units, kind: str) -> None:
    differs = (rows["position"] != units["position"]) | (rows["size"] != units["size"])
    _reject(kind, rows, differs, "another record than its queue unit")


def _reject(kind: str, rows: TurnRows, is_wrong: Flags, why: str) -> None:
    if not is_wrong.any():
        return
    row = rows[int(np.argmax(is_wrong))]
    raise TurnRejected(
        f"{kind}: the row of origin {int(row['origin']):#x} (position {row['position']}, size {row['size']}, slot "
        f"{row['slot_ms']}, fire {row['fire_ms']}, magic {row['magic']}) has {why}"
    )


def _units_at(files: MappedSequence, positions: Positions) -> _TimerUnits:
    found = _TimerUnits(*(np.empty(len(positions), np.int64) for _ in _TimerUnits._fields))
    bases = positions - positions % files.file_bytes
    count = files.file_bytes // TIMER_UNIT.size
    for base in np.unique(bases).tolist():
        mine = np.flatnonzero(bases == base)
        places = (positions[mine] - base) // TIMER_UNIT.size  # the units of a file lie end to end from its start
        units = np.frombuffer(files.file_at(base).view, TIMER_UNIT.dtype, count)
        found.positions[mine] = units["record_position"][places]
        found.sizes[mine] = units["record_size"][places]
        found.slots_ms[mine] = units["write_ms"][places] + units["delay_ms"][places]
        found.magics[mine] = units["magic"][places]
        details = read_details(units[places])
        rolls = found.magics[mine] & MAGIC_ROLL != 0
        is_exact = details.is_known & (rolls | (details.due_ms > 0))
        found.origins[mine] = np.where(is_exact, timer_origin(0) + details.queue_offsets, NO_ORIGIN)
        found.fires_ms[mine] = np.where(is_exact, np.where(rolls, found.slots_ms[mine] + 1, details.due_ms), 0)
    return found


def _by_position(positions: Positions, slots_ms: Positions) -> Positions:
    """Return the order by position, then by slot, because a message may have units in several slots."""
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    return np.lexsort((slots_ms, positions)) if (ordered[1:] == ordered[:-1]).any() else order
