"""Resume from the snapshot, and read later the records that it did not need at first."""

from __future__ import annotations

import errno
import logging

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.levels import offsets as level_offsets
from wheelmq.delay.refs import Integers, ParkedRows
from wheelmq.delay.timer import pending_units, unread_records
from wheelmq.delay.timer.mark import check_is_apaches
from wheelmq.delay.timer.recovery.state import Recovery
from wheelmq.delay.timer.rows import out_of_reach
from wheelmq.formats.disk.origin import KIND_BLOCK, Stream, stream_kind, timer_origin
from wheelmq.formats.disk.snapshot import Snapshot
from wheelmq.formats.units import LogPosition
from wheelmq.store.recovery import LogDamaged, log_damaged
from wheelmq.store.snapshot import disagreement, load_snapshot

log = logging.getLogger(__name__)


class SnapshotWrong(LogDamaged):
    """The records contradict the snapshot, which is removed. Open the store again, which scans the whole log."""


def resume(state: Recovery) -> Snapshot | None:
    """Load the snapshot from whose position the log scan begins, or return None. Raises OSError.

    Needs the open queues of the store. Leaves `records`, `unread`, `waiting`, `believed` and `blocks_gone`.
    """
    timer, store = state.timer, state.timer.store
    snapshot = load_snapshot(store.disk, store.paths)
    if snapshot is None:
        return None
    is_apaches = check_is_apaches(store.disk, store.paths) or level_offsets.is_apaches(store.disk, store.paths)
    why = "Apache RocketMQ has used the store since then" if is_apaches else disagreement(store, snapshot)
    if why is None:
        done = timer.pending.done.copy()
        timer.pending.done.add_packed(snapshot.done)
        try:
            damaged = _read_pending(state, snapshot)
            store.log.damaged = damaged | set(snapshot.damaged)
            for position in snapshot.damaged:
                log_damaged(position)
            state.blocks_gone = snapshot.blocks_gone
            return snapshot
        except LogDamaged as error:
            timer.pending.done.restore(done)
            state.records.chunks, state.unread, state.believed = [], pending_units.NO_UNITS, None
            why = str(error)
    log.warning("recovery deletes the snapshot and reads the whole log: %s", why)
    store.disk.remove(store.paths.snapshot)
    return None


def _read_pending(state: Recovery, snapshot: Snapshot) -> frozenset[LogPosition]:
    """Process the pending records of `snapshot`, except those that need not be read.

    Returns the positions of damaged records. Raises LogDamaged when a record is not where its unit says.
    """
    timer, ends = state.timer, _ends_in_log(snapshot)
    units = pending_units.pending_in(timer, ends)
    if (units[1:, ref.POSITION] < units[:-1, ref.POSITION]).any():
        units = units[np.argsort(units[:, ref.POSITION], kind="stable")]
    places = units[:, ref.POSITION], units[:, ref.SIZE]
    if not pending_units.can_be_records(*places, timer.store.log.files, snapshot.position):
        raise LogDamaged(errno.EIO, "units of parked messages do not point to records")
    if not unread_records.is_of_use(timer, snapshot):
        return state.records.read(units)
    why = unread_records.disagreement(timer, snapshot, len(units))
    if why is not None:
        log.warning("timer: recovery reads the records of all %d pending messages: %s", len(units), why)
        return state.records.read(units)
    state.believed = snapshot.timers
    state.unread, is_unread = unread_records.not_to_be_read(timer, snapshot, units)
    damaged = state.records.read(units[~is_unread])
    _count_unread(state, snapshot.waiting)
    return damaged


def _ends_in_log(snapshot: Snapshot) -> dict[Stream, int]:
    return {one.stream: one.end_index for one in snapshot.done if stream_kind(one.stream) != KIND_BLOCK}


def _count_unread(state: Recovery, waiting: dict[tuple[str, int], int]) -> None:
    """Count unread messages per queue: `waiting`, less the read ones. Raises LogDamaged when the counts do not fit."""
    rows = [state.timer.store.queues.row(*key) for key in waiting]
    last = max((*rows, *(int(chunk[:, ref.REAL_QUEUE].max()) for chunk in state.records.chunks)), default=-1)
    state.waiting = np.zeros(last + 1, np.int64)
    state.waiting[rows] = list(waiting.values())
    for chunk in state.records.chunks:
        _discount(state.waiting, chunk)


def _discount(waiting: Integers, read: ParkedRows) -> None:
    """Subtract the messages of `read` from the counts. Raises LogDamaged when the counts are too small."""
    queues = read[:, ref.REAL_QUEUE]
    np.subtract.at(waiting, queues[(queues >= 0) & (queues < len(waiting))], 1)
    if (waiting < 0).any() or (queues >= len(waiting)).any():
        raise LogDamaged(errno.EIO, "more messages are pending for a queue than the snapshot counts")


def read_near_records(state: Recovery) -> None:
    """Read those unread messages that are to be armed or noted, or whose key the message index does not have.

    Needs the rebuilt wheel and the time up to which it is scanned. Only counts the other messages. Leaves the read
    messages that are pending in `pending`. Raises SnapshotWrong.
    """
    if not len(state.unread):
        return
    timer, unread = state.timer, state.unread
    origins, slots_ms = unread[:, ref.ORIGIN], unread[:, pending_units.SLOT_MS]
    horizon_ms = timer.scans.walked_through_ms + timer.settings.precision_ms
    is_near = (slots_ms <= horizon_ms) | out_of_reach(slots_ms, timer.scans.walked_through_ms, timer.wheel)
    is_near |= unread[:, ref.POSITION] >= (0 if state.index is None else state.index.indexed_to)
    is_near |= (origins >= timer_origin(timer.indexed_to)) | (not state.is_believed)
    settled = timer.pending.done.get(origins)  # settled after the snapshot: read to learn its real queue
    try:
        damaged = state.records.read(unread[is_near | settled])
        read = state.records.take_all()
        _discount(state.waiting, read)
    except LogDamaged as error:
        timer.store.disk.remove(timer.store.paths.snapshot)
        raise SnapshotWrong(errno.EIO, str(error.strerror)) from None
    timer.store.log.damaged |= damaged
    timer.pending.done.update(read[np.isin(read[:, ref.POSITION], list(damaged)), ref.ORIGIN])
    timer.pending.counts.add_numbers(state.waiting)
    joined = np.concatenate((state.pending, read[~timer.pending.done.get(read[:, ref.ORIGIN])]))
    state.pending = joined[np.argsort(joined[:, ref.ORIGIN], kind="stable")]
