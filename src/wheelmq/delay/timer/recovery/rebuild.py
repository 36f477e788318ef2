"""Rebuild the timer wheel from the timer log, and go back to the messages whose units are lost."""

from __future__ import annotations

import logging

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.timer.mark import Mark
from wheelmq.delay.timer.recovery.state import TIMER_FIRST, Recovery
from wheelmq.delay.timer.unread_records import RecordUnits
from wheelmq.formats.disk.origin import Origin, origin_index, timer_origin
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)


def rebuild_wheel(state: Recovery) -> None:
    """Continue at the mark: cut the timer log there, and link its units into an empty wheel.

    Needs `known`, `is_adopted` and `believed`. Leaves E, T, epoch and turn.
    """
    timer, mark = state.timer, _start_from(state)
    timer.turns.resume(mark.epoch + 1, mark.turn)
    timer.index_from(mark.queue_offset)
    timer.log.rebuild(timer.wheel, mark.timer_log_position)
    if not _is_sound(state):
        log.error(
            "timer: the timer log has units of messages that are not in the timer queue: all messages are indexed again"
        )
        timer.index_from(timer.queue.skip_blanks(timer.queue.start))
        timer.log.rebuild(timer.wheel, timer.log.files.start)
    reach("recover.rebuilt")


def _start_from(state: Recovery) -> Mark:
    """Return the mark if it is ours and its positions exist; else one from which all are indexed again."""
    timer, mark = state.timer, state.known
    first = timer.queue.skip_blanks(timer.queue.start)
    anew = Mark(queue_offset=first, timer_log_position=timer.log.files.start)
    if mark is None:
        return anew
    if state.is_adopted:
        log.warning("timer: Apache RocketMQ has used the store: all messages are indexed again")
        return anew._replace(epoch=mark.epoch, turn=mark.turn)
    if mark.queue_offset > timer.queue.end or mark.timer_log_position > timer.log.files.end:
        log.error(
            "timer: queue offset %d or timer log position %d of the mark does not exist: all messages are "
            "indexed again",
            mark.queue_offset,
            mark.timer_log_position,
        )
        return anew._replace(epoch=mark.epoch, turn=mark.turn)
    return mark._replace(
        queue_offset=max(mark.queue_offset, anew.queue_offset),
        timer_log_position=max(mark.timer_log_position, anew.timer_log_position),
    )


def _is_sound(state: Recovery) -> bool:
    """Scan all units but those that the snapshot proves. Return whether each names a timer's or an expired record."""
    timer, believed = state.timer, state.believed
    log_start, unit_from, queue_from = timer.store.log.start, timer.log.files.start, timer.queue.start
    if believed is not None and state.is_believed:
        unit_from = max(unit_from, believed.log_position)
        queue_from = max(queue_from, believed.queue_offset)
    queued = list(timer.queue.chunks(queue_from, ahead=True))
    positions = np.concatenate([np.array([-1]), *(units["position"].astype(np.int64) for units in queued)])
    sizes = np.concatenate([np.array([0]), *(units["size"].astype(np.int64) for units in queued)])
    for _, units in timer.log.chunks(unit_from, timer.log.end):
        named = units["record_position"].astype(np.int64)
        rows = np.searchsorted(positions, named, "right") - 1
        known = (positions[rows] == named) & (sizes[rows] == units["record_size"])
        if not (known | ((named >= 0) & (named < log_start))).all():
            return False
    return True


def scan_to_lead(state: Recovery) -> None:
    """Count the slots up to the end of the lead as scanned. Needs the rebuilt wheel."""
    scans = state.timer.scans
    scans.walk_to(scans.lead_end_ms(state.timer.store.clock.now_ms()))


def go_back_to_lost(state: Recovery) -> None:
    """Set E back to the first message of `pending` that should have a unit and has none."""
    timer, pending = state.timer, state.pending
    origins = pending[:, ref.ORIGIN]
    is_indexed = (origins >= TIMER_FIRST) & (origins < timer_origin(timer.indexed_to))
    pending = pending[is_indexed & ((pending[:, ref.FLAGS] & ref.FLAG_DELETE) == 0)]
    units = RecordUnits.of(timer.log, np.sort(pending[:, ref.POSITION]), timer.log.end)
    lost = ~units.newest_of(pending[:, ref.POSITION])[1]
    if lost.any():
        timer.index_from(origin_index(Origin(int(pending[lost, ref.ORIGIN].min()))))
        log.error(
            "timer: %d pending messages have no unit in the timer log: messages from queue offset %d on are "
            "indexed again",
            np.count_nonzero(lost),
            timer.indexed_to,
        )


def go_back_to_lost_near(state: Recovery) -> None:
    """Set E back for messages without a unit that `resume.read_near_records` has added to `pending`."""
    if len(state.unread):
        go_back_to_lost(state)


def write_mark(state: Recovery) -> None:
    """Write the mark if E or T is not that of `known`, the mark on disk. Without one, a turn writes the first."""
    timer, known = state.timer, state.known
    if known is not None and (timer.indexed_to, timer.log.end) != (known.queue_offset, known.timer_log_position):
        timer.mark_file.write(timer.mark())
    reach("recover.staged")
