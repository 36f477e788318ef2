"""Staging: compute the rows of a turn from a read-only view of the store (view.ReadView).

    index   queue offsets [E, E') -> a row for each, read from its record
    walk    slots (S, S'] -> a row for each unit of their chains, with the due time of its detail or of its record
    queue   queue offsets of a level -> a row for each, with the due time of its unit
    decide  the slot of a row; whether it rolls; when it fires

This module does not use Spark. The pipeline runs `decide` as DataFrame operations, and the function here is its twin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.refs import store_ms_of
from wheelmq.delay.timer.view import TIMER_QUEUE, ReadView, StoreUnreadable, level_queue
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import RecordError, decode_record
from wheelmq.formats.disk.origin import (
    NO_ORIGIN,
    Origin,
    Stream,
    level_origin,
    origin_index,
    origin_of,
    stream_number,
    timer_origin,
)
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TIMER_SLOT, TIMER_TOPIC
from wheelmq.formats.disk.timer_detail import read_details
from wheelmq.formats.disk.turn_row import INDEX, QUEUE, STAGED_ROW, TURN_ROW, WALK
from wheelmq.formats.java import java_hash, java_long
from wheelmq.formats.kernels import jit, scan
from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.wire.portions import FileKind

StagedRows = npt.NDArray[Any]
"""An array of STAGED_ROW."""

RECORDS_AT_ONCE: Final = 10_000
"""Maximum number of records per `need`. It limits the memory of a view that fetches them."""
RECORD_BYTES_AT_ONCE: Final = 64 << 20
"""Maximum size of these records together, with their bodies, unless one record is larger."""

Piece = tuple[int, int, int]
"""Part of a queue: stream, first queue offset, end."""


def read_index(view: ReadView, first: int, end: int, *, write_ms: int, turn: int) -> StagedRows:
    rows, _ = _rows_of(view, TIMER_QUEUE, timer_origin(first), end - first)
    rows["write_ms"] = write_ms
    rows["turn"] = turn
    read_records(view, rows)
    return rows


def read_units(view: ReadView, queue: str, first: int, end: int) -> npt.NDArray[Any]:
    """Return the units of the consume queue TOPIC/ID from queue offset `first` to `end`."""
    start, stop = first * QUEUE_UNIT.size, end * QUEUE_UNIT.size
    view.need(FileKind.QUEUE, np.array([start]), np.array([stop - start]), queue)
    files = view.queue(queue)
    units = np.zeros(end - first, QUEUE_UNIT.dtype)
    while start < stop:
        size = min(stop - start, files.file_bytes - start % files.file_bytes)
        done = start // QUEUE_UNIT.size - first
        units[done : done + size // QUEUE_UNIT.size] = np.frombuffer(files.read(start, size), QUEUE_UNIT.dtype)
        start += size
    return units


def read_queues(
    view: ReadView, ranges: Iterable[Piece], *, now_ms: int, levels_ms: Sequence[int], turn: int
) -> StagedRows:
    """Return the rows for the queue offsets of level queues that `ranges` name.

    A message that is due later than `now_ms`, the time of the plan, plus its level's delay is due at `now_ms`.
    """
    parts = [np.zeros(0, STAGED_ROW)]
    for number, first, end in ranges:
        stream = Stream(number)
        rows, tags = _rows_of(view, level_queue(stream_number(stream)), origin_of(stream, first), end - first)
        delay_ms = levels_ms[min(stream_number(stream), len(levels_ms)) - 1]
        rows["kind"] = QUEUE
        rows["due_ms"] = rows["out_ms"] = np.where(tags > now_ms + delay_ms, now_ms, tags)
        rows["magic"] = MAGIC_DEFAULT
        rows["turn"] = turn
        origins = rows["origin"].copy()
        read_records(view, rows)
        if not np.array_equal(rows["origin"], origins):
            raise StoreUnreadable(f"the queue of level {stream_number(stream)} points to records of other queues")
        parts.append(rows)
    return np.concatenate(parts)


def pieces(queues: Sequence[Sequence[int]], first: int, end: int) -> list[Piece]:
    """Return the part of a plan's queues with the messages from number `first` to before `end`, over all queues."""
    found, at = [], 0
    for stream, start, stop in queues:
        piece = (stream, max(start, start + first - at), min(stop, start + end - at))
        if piece[1] < piece[2]:
            found.append(piece)
        at += stop - start
    return found


def _rows_of(view: ReadView, queue: str, first: Origin, count: int) -> tuple[StagedRows, npt.NDArray[np.int64]]:
    """Return rows with origin, position and size for `count` units of a queue from `first` on, and the tag codes."""
    index = origin_index(first)
    units = read_units(view, queue, index, index + count)
    rows = np.zeros(count, STAGED_ROW)
    rows["position"] = units["position"]
    rows["size"] = units["size"]
    rows["origin"] = np.arange(first, first + count)
    return rows, units["tag_code"].astype(np.int64)


def read_walk(
    view: ReadView,
    after_ms: int,
    through_ms: int,
    *,
    log_end: int,
    precision_ms: int,
    write_ms: int,
    turn: int,
    damaged: list[int] | None = None,
) -> StagedRows:
    """Return a row for each unit, below position `log_end`, of the slots after `after_ms` up to `through_ms`.

    Reads a record only for a unit without a detail. Adds the log positions of unreadable records to `damaged`, and
    leaves their rows without an origin. Without that list, the first such record raises StoreUnreadable.
    """
    positions = units_of_slots(view, after_ms // precision_ms, through_ms // precision_ms, log_end)
    rows = np.zeros(len(positions), STAGED_ROW)
    if len(positions):
        found = view.timer_units(positions)
        rows["kind"] = WALK
        rows["out_ms"] = found["write_ms"] + found["delay_ms"]
        rows["position"] = found["record_position"]
        rows["size"] = found["record_size"]
        rows["magic"] = found["magic"]
        rows["write_ms"] = write_ms
        rows["turn"] = turn
        order = np.argsort(rows["position"], kind="stable")
        rows = rows[order]
        is_complete = _take_details(rows, found[order])
        is_complete[: _pass_over_gone(view, rows)] = True
        if not is_complete.all():
            left = rows[~is_complete]
            if damaged is None:
                read_records(view, left)
            else:
                damaged += _read_intact(view, left)
            rows[~is_complete] = left
    return rows


def _read_intact(view: ReadView, rows: StagedRows) -> list[int]:
    """Fill in the rows whose records can be read. Returns the log positions of the others, which get no origin."""
    read = rows.copy()
    try:
        read_records(view, read)
    except StoreUnreadable:
        if len(rows) == 1:
            rows["due_ms"] = rows["store_ms"] = rows["out_ms"]
            rows["origin"] = NO_ORIGIN
            return [int(rows["position"][0])]
        middle = len(rows) // 2
        return _read_intact(view, rows[:middle]) + _read_intact(view, rows[middle:])
    rows[:] = read
    return []


def _take_details(rows: StagedRows, units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Fill in the rows of `units` that have a detail. Return which rows are complete."""
    details = read_details(units)
    rolls = (units["magic"] & MAGIC_ROLL) != 0
    is_complete: npt.NDArray[np.bool_] = details.is_known & (rolls | (details.due_ms > 0))
    due_ms = np.where(rolls, rows["out_ms"] + 1, details.due_ms)  # a roll fires at its slot, not at the due time
    taken = rows[is_complete]
    taken["origin"] = timer_origin(0) + details.queue_offsets[is_complete]
    taken["due_ms"] = due_ms[is_complete]
    taken["store_ms"] = store_ms_of(taken["due_ms"], details.is_long[is_complete])
    taken["topic_hash"] = units["topic_hash"][is_complete]
    rows[is_complete] = taken
    return is_complete


def units_of_slots(view: ReadView, after: int, through: int, log_end: int) -> npt.NDArray[np.int64]:
    """Return the positions of the units below `log_end` in the slots later than time `after` up to `through`."""
    newest = _newest_units(view, after, through)
    view.need(FileKind.CHAIN, newest, np.zeros(len(newest), np.int64))
    chains = [view.chain(position, log_end) for position in newest.tolist()]
    return np.concatenate(chains) if chains else np.empty(0, np.int64)


def _newest_units(view: ReadView, after: int, through: int) -> npt.NDArray[np.int64]:
    """Return the position of the newest unit of each non-empty slot later than time `after` up to `through`."""
    times = np.arange(after + 1, through + 1)
    places = times % view.slot_count
    view.need(FileKind.WHEEL, places * TIMER_SLOT.size, np.full(len(places), TIMER_SLOT.size))
    slots = view.slots(places)
    newest: npt.NDArray[np.int64] = slots["last_position"][slots["time"] == times].astype(np.int64)
    return newest


def read_records(view: ReadView, rows: StagedRows) -> None:
    """Fill in the fields that come from the records. `rows` name the records in log order."""
    done = _pass_over_gone(view, rows)
    ready = done
    while done < len(rows):
        try:
            if done == ready:
                some = _some_of(rows[done:])
                view.need(FileKind.RECORD, some["position"], some["size"].astype(np.int64))
                ready = done + len(some)
            done += _read_some(view, rows[done:ready])
        except FileNotFoundError:  # a file has expired since the folder was listed
            view.refresh()
            gone = _pass_over_gone(view, rows[done:])
            if not gone:
                raise
            done += gone
            ready = max(done, ready)


def _some_of(rows: StagedRows) -> StagedRows:
    """Return the rows at the front whose records are read together, at least one."""
    some = rows[:RECORDS_AT_ONCE]
    count = int(np.searchsorted(np.cumsum(some["size"], dtype=np.int64), RECORD_BYTES_AT_ONCE, "right"))
    return some[: max(1, count)]


def _pass_over_gone(view: ReadView, rows: StagedRows) -> int:
    """Fill in the rows at the front with expired records, and return their number. NO_ORIGIN means settled."""
    count = int(np.searchsorted(rows["position"], view.log.start))
    if not (rows["kind"][:count] == WALK).all():
        raise StoreUnreadable(f"log position {rows['position'][0]} is before the start of the log, {view.log.start}")
    gone = rows[:count]
    gone["due_ms"] = gone["store_ms"] = gone["out_ms"]
    gone["origin"] = NO_ORIGIN
    return count


def _read_some(view: ReadView, rows: StagedRows) -> int:
    """Fill in some rows at the front, at least one, and return their number."""
    count = _read_many(view, rows) if jit.available() else 0
    if count == 0:
        _read_one(view, rows[0])
        return 1
    return count


def _read_many(view: ReadView, rows: StagedRows) -> int:
    """Fill in the rows at the front whose records are in one array, and return their number."""
    data, starts = view.records(rows["position"].astype(np.int64))
    count = len(starts)
    rows = rows[:count]
    read = {name: np.zeros(count, np.int64) for name in _READ}
    read["due_ms"][:] = rows["due_ms"]
    positions, sizes = rows["position"].astype(np.int64), rows["size"].astype(np.int64)
    done = int(scan.read_parked(read_only(data), starts, positions, sizes, *read.values()))
    kept = rows["kind"][:done] != INDEX
    for name, values in read.items():
        if name in ("out_ms", "magic"):  # other rows keep the slot's time and the unit's magic
            rows[name][:done] = np.where(kept, rows[name][:done], values[:done])
        else:
            rows[name][:done] = values[:done]
    return done


_READ: Final = ("due_ms", "out_ms", "store_ms", "origin", "topic_hash", "magic")
"""The fields that `read_parked` reads, in the order of its arrays."""


def _read_one(view: ReadView, row: Any) -> None:
    position, size = int(row["position"]), int(row["size"])
    files = view.log
    if not files.start <= position < files.end or not 0 < size <= files.file_bytes - position % files.file_bytes:
        raise StoreUnreadable(f"{size} bytes at log position {position}, which a queue points to, are not a record")
    try:
        record = decode_record(files.read(position, size))
    except RecordError as error:
        raise StoreUnreadable(f"log position {position} has no record: {error}") from None
    topic = SCHEDULE_TOPIC if row["kind"] == QUEUE else TIMER_TOPIC
    if record.position != position or record.message.topic != topic:
        raise StoreUnreadable(f"log position {position} has another record than its queue unit says")
    properties = record.message.properties
    row["store_ms"] = record.store_ms
    if row["kind"] != QUEUE:
        row["due_ms"] = due_of(properties, record.store_ms)
    if not record.offset_is_possible:  # the message is set aside under its queue's origin
        row["origin"] = NO_ORIGIN if row["kind"] == WALK else row["origin"]
    elif row["kind"] == QUEUE:
        row["origin"] = level_origin(record.message.queue_id + 1, record.queue_offset)
    else:
        row["origin"] = timer_origin(record.queue_offset)
    row["topic_hash"] = java_hash(properties.get(props.REAL_TOPIC, ""))
    if row["kind"] == INDEX:
        out_ms = java_long(properties.get(props.TIMER_OUT_MS, ""))
        row["out_ms"] = row["due_ms"] if out_ms is None else out_ms
        row["magic"] = MAGIC_DEFAULT | (MAGIC_DELETE if props.TIMER_DEL_UNIQKEY in properties else 0)


def decide(rows: StagedRows, roll_window_ms: int, precision_ms: int) -> npt.NDArray[Any]:
    """Return turn rows for staged rows, sorted by fire time and origin (RocketMQ: TimerMessageStore.doEnqueue)."""
    made = place(rows, roll_window_ms, precision_ms)
    made = made[np.lexsort((made["origin"], made["fire_ms"]))]
    made["order"] = np.argsort(made["origin"], kind="stable")
    return made


def place(rows: StagedRows, roll_window_ms: int, precision_ms: int) -> npt.NDArray[Any]:
    """Return turn rows for staged rows, in the same order."""
    third_ms = roll_window_ms // precision_ms // 3 * precision_ms
    half_ms = roll_window_ms // precision_ms // 2 * precision_ms
    beyond = rows["out_ms"] - rows["write_ms"] - roll_window_ms
    rolls = (rows["kind"] == INDEX) & (beyond >= 0)
    made = np.zeros(len(rows), TURN_ROW)
    rolled_slot = rows["write_ms"] + np.where(beyond < third_ms, half_ms, roll_window_ms)
    made["slot_ms"] = np.where(rolls, rolled_slot, rows["out_ms"])
    made["magic"] = rows["magic"] | np.where(rolls, MAGIC_ROLL, 0)
    made["fire_ms"] = np.where((made["magic"] & MAGIC_ROLL) != 0, made["slot_ms"] + 1, rows["due_ms"])
    made["origin"] = rows["origin"]
    made["position"] = rows["position"]
    made["size"] = rows["size"]
    made["topic_hash"] = rows["topic_hash"]
    made["delay_ms"] = rows["due_ms"] - rows["store_ms"]
    return made
