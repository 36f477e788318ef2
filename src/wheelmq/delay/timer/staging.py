"""Staging: what the tasks of a turn compute, over a read-only view of the store.

    index   queue offsets [E, E') -> a row for each, read from its record
    walk    slots (S, S'] -> a row for each unit of their chains, the exact due time read from its record
    decide  which slot a row belongs in; whether it rolls; when it fires

Pure of Spark. The pipeline runs `decide` as DataFrame operations; the one here is its twin, and the oracle of tests.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import RecordError, decode_record
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TIMER_SLOT, TIMER_TOPIC, TIMER_UNIT
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.java import java_hash, java_long
from wheelmq.formats.kernels import jit, scan, timer
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.disk import ReadOnlyDisk

STAGED_ROW: Final = np.dtype(
    [
        ("walked", "?"),  # from a slot, not from the queue
        ("queue_offset", "<i8"),  # in the timer queue
        ("due_ms", "<i8"),  # exact
        ("out_ms", "<i8"),  # TIMER_OUT_MS; of a walked row the time of its slot
        ("store_ms", "<i8"),
        ("position", "<i8"),  # log position of the record
        ("size", "<i4"),
        ("topic_hash", "<i4"),  # Java hash of the real topic
        ("magic", "<i4"),  # 1, 4 deletes; of a walked row as its unit has it
        ("write_ms", "<i8"),  # the turn's
        ("turn", "<i8"),
    ]
)
"""What the source of the pipeline yields. No body: bodies stay where they are."""

StagedRows = npt.NDArray[Any]


class StoreView:
    """The files of a store that a task reads. Made anew for each task: files come and go."""

    def __init__(
        self, root: Path, *, log_file_bytes: int, queue_file_bytes: int, timer_log_file_bytes: int, timer_slots: int
    ) -> None:
        disk = ReadOnlyDisk()
        paths = StorePaths(root)
        self._list_log = partial(MappedSequence, disk, paths.commit_log, log_file_bytes)
        self.log = self._list_log()
        self.queue = MappedSequence(disk, paths.consume_queue(TIMER_TOPIC, 0), queue_file_bytes)
        self.timer_log = MappedSequence(disk, paths.timer_log, timer_log_file_bytes)
        wheel_bytes = timer_slots * 2 * TIMER_SLOT.size
        self._wheel_file = disk.map(paths.timer_wheel, wheel_bytes)
        self.slots = self._wheel_file.array.view(TIMER_SLOT.dtype)

    def look_again(self) -> None:
        """See which files of the log are still there."""
        self.log = self._list_log()


class StoreUnreadable(RuntimeError):
    """What the plan names is not in the files: the view is not the broker's store, or the files are damaged."""


def read_index(view: StoreView, first: int, end: int, *, write_ms: int, turn: int) -> StagedRows:
    """Rows for the queue offsets from `first` to `end`."""
    rows = np.zeros(end - first, STAGED_ROW)
    done = 0
    for _, file, at, stop in view.queue.pieces(first * QUEUE_UNIT.size, end * QUEUE_UNIT.size):
        units = np.frombuffer(file.view, QUEUE_UNIT.dtype, (stop - at) // QUEUE_UNIT.size, at)
        piece = rows[done : done + len(units)]
        piece["position"] = units["position"]
        piece["size"] = units["size"]
        done += len(units)
    rows["queue_offset"] = np.arange(first, end)
    rows["write_ms"] = write_ms
    rows["turn"] = turn
    _read_records(view, rows)
    return rows


def read_walk(
    view: StoreView, after_ms: int, through_ms: int, *, log_end: int, precision_ms: int, write_ms: int, turn: int
) -> StagedRows:
    """Rows for the units, below timer log position `log_end`, of the slots later than `after_ms` up to `through_ms`."""
    positions: list[int] = []
    for time in range(after_ms // precision_ms + 1, through_ms // precision_ms + 1):
        slot = view.slots[time % len(view.slots)]
        if slot["time"] == time:
            positions.extend(_chain(view, int(slot["last_position"]), log_end))
    rows = np.zeros(len(positions), STAGED_ROW)
    if positions:
        found = _units(view, np.array(positions, np.int64))
        rows["walked"] = True
        rows["out_ms"] = found["write_ms"] + found["delay_ms"]
        rows["position"] = found["record_position"]
        rows["size"] = found["record_size"]
        rows["magic"] = found["magic"]
        rows["write_ms"] = write_ms
        rows["turn"] = turn
        order = np.argsort(rows["position"], kind="stable")
        rows = rows[order]
        _read_records(view, rows)
    return rows


def _chain(view: StoreView, position: int, log_end: int) -> list[int]:
    """Timer log positions of the units of a chain, newest first; those at or behind `log_end` are passed over."""
    found: list[int] = []
    scratch = np.zeros(65_536, np.int64)
    while position >= 0:
        here = position
        file = view.timer_log.file_at(here)
        base = here - here % view.timer_log.file_bytes
        if jit.available():
            position = int(timer.chain_in_file(file.array, base, here, log_end, scratch))
            found.extend(scratch[: int(scratch[-1])].tolist())
        else:
            unit = TIMER_UNIT.unpack(file.view, here - base)
            position = unit["previous_position"] if unit["size"] == TIMER_UNIT.size else timer.BROKEN
            if here < log_end:
                found.append(here)
        if position == timer.BROKEN:
            raise StoreUnreadable(f"the chain through timer log position {here} is broken")
    return found


def _units(view: StoreView, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The units at `positions`, in their order."""
    units = np.zeros(len(positions), TIMER_UNIT.dtype)
    raw = units.view(np.uint8).reshape(-1, TIMER_UNIT.size)
    for base in np.unique(positions - positions % view.timer_log.file_bytes).tolist():
        here = np.flatnonzero((positions >= base) & (positions < base + view.timer_log.file_bytes))
        starts = positions[here] - base
        raw[here] = view.timer_log.file_at(base).array[starts[:, None] + np.arange(TIMER_UNIT.size)]
    return units


def _read_records(view: StoreView, rows: StagedRows) -> None:
    """Fill in what stands in the records, which `rows` name in log order."""
    done = _pass_over_gone(view, rows)
    while done < len(rows):
        try:
            done += _read_some(view, rows[done:])
        except FileNotFoundError:  # a file has expired since the folder was listed
            view.look_again()
            gone = _pass_over_gone(view, rows[done:])
            if not gone:
                raise
            done += gone


def _pass_over_gone(view: StoreView, rows: StagedRows) -> int:
    """Fill in the rows at the front whose records have expired; how many that are.

    A walk may meet such units, of messages that were settled long ago: they get an index that is done.
    """
    count = int(np.searchsorted(rows["position"], view.log.start))
    if not rows["walked"][:count].all():
        raise StoreUnreadable(
            f"log position {rows['position'][0]} lies before the log, which begins at {view.log.start}"
        )
    gone = rows[:count]
    gone["due_ms"] = gone["store_ms"] = gone["out_ms"]
    gone["queue_offset"] = -1
    return count


def _read_some(view: StoreView, rows: StagedRows) -> int:
    """Fill in some rows at the front; how many, at least one."""
    count = _read_many(view, rows) if jit.available() else 0
    if count == 0:
        _read_one(view, rows[0])
        return 1
    return count


def _read_many(view: StoreView, rows: StagedRows) -> int:
    """Fill in the rows at the front whose records stand in one log file; how many that are."""
    file_bytes = view.log.file_bytes
    base = int(rows["position"][0]) // file_bytes * file_bytes
    if not view.log.start <= base < view.log.end:
        return 0
    count = int(np.searchsorted(rows["position"], base + file_bytes))
    rows = rows[:count]
    read = {name: np.zeros(count, np.int64) for name in _READ}
    positions, sizes = rows["position"].astype(np.int64), rows["size"].astype(np.int64)
    done = int(scan.read_parked(view.log.file_at(base).array, base, positions, sizes, *read.values()))
    walked = rows["walked"][:done]
    for name, values in read.items():
        if name in ("out_ms", "magic"):  # a walked row has its slot's time and its unit's magic
            rows[name][:done] = np.where(walked, rows[name][:done], values[:done])
        else:
            rows[name][:done] = values[:done]
    return done


_READ: Final = ("due_ms", "out_ms", "store_ms", "queue_offset", "topic_hash", "magic")
"""What `read_parked` reads, in the order of its arrays."""


def _read_one(view: StoreView, row: Any) -> None:
    position, size = int(row["position"]), int(row["size"])
    files = view.log
    if not files.start <= position < files.end or not 0 < size <= files.file_bytes - position % files.file_bytes:
        raise StoreUnreadable(f"{size} bytes at log position {position}, which the timer queue names, are no record")
    try:
        record = decode_record(files.read(position, size))
    except RecordError as error:
        raise StoreUnreadable(f"log position {position} holds no record: {error}") from None
    if record.position != position or record.message.topic != TIMER_TOPIC:
        raise StoreUnreadable(f"log position {position} holds another record than the timer queue says")
    properties = record.message.properties
    row["due_ms"] = due_of(properties, record.store_ms)
    row["store_ms"] = record.store_ms
    row["queue_offset"] = record.queue_offset
    row["topic_hash"] = java_hash(properties.get(props.REAL_TOPIC, ""))
    if not row["walked"]:
        out_ms = java_long(properties.get(props.TIMER_OUT_MS, ""))
        row["out_ms"] = row["due_ms"] if out_ms is None else out_ms
        row["magic"] = MAGIC_DEFAULT | (MAGIC_DELETE if props.TIMER_DEL_UNIQKEY in properties else 0)


def decide(rows: StagedRows, roll_window_ms: int, precision_ms: int) -> npt.NDArray[Any]:
    """Turn rows, sorted by fire time and queue offset, for staged rows (RocketMQ: TimerMessageStore.doEnqueue)."""
    third_ms = roll_window_ms // precision_ms // 3 * precision_ms
    half_ms = roll_window_ms // precision_ms // 2 * precision_ms
    beyond = rows["out_ms"] - rows["write_ms"] - roll_window_ms
    rolls = ~rows["walked"] & (beyond >= 0)
    made = np.zeros(len(rows), TURN_ROW)
    rolled_slot = rows["write_ms"] + np.where(beyond < third_ms, half_ms, roll_window_ms)
    made["slot_ms"] = np.where(rolls, rolled_slot, rows["out_ms"])
    made["magic"] = rows["magic"] | np.where(rolls, MAGIC_ROLL, 0)
    made["fire_ms"] = np.where((made["magic"] & MAGIC_ROLL) != 0, made["slot_ms"] + 1, rows["due_ms"])
    made["queue_offset"] = rows["queue_offset"]
    made["position"] = rows["position"]
    made["size"] = rows["size"]
    made["topic_hash"] = rows["topic_hash"]
    made["delay_ms"] = rows["due_ms"] - rows["store_ms"]
    made = made[np.lexsort((made["queue_offset"], made["fire_ms"]))]
    made["order"] = np.argsort(made["queue_offset"], kind="stable")
    return made
