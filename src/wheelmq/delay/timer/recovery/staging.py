"""Stage the pending messages: settle and obey cancels, count, note and arm."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.cancel import append_cancel_of, own_cancel
from wheelmq.delay.timer import pending_units
from wheelmq.delay.timer.lookup import find_among
from wheelmq.delay.timer.recovery.records import without
from wheelmq.delay.timer.recovery.state import Recovery
from wheelmq.delay.timer.rows import out_of_reach
from wheelmq.delay.timer.unread_records import RecordUnits
from wheelmq.formats.disk.origin import INDEX_MASK, Origin, origin_of, timer_origin
from wheelmq.formats.disk.parked import delete_keys, key_hash
from wheelmq.formats.units import LogPosition, QueueOffset

_SIDES: Final = ("left", "right")


def open_queues(state: Recovery) -> None:
    """Open the queues of the levels, and look up keys in the message index from now on. Needs `index`."""
    state.timer.pending.keys.use_index(state.index)
    state.timer.pending.levels.open_all()


def settle_damaged(state: Recovery) -> None:
    """Settle damaged messages, which no consumer receives. Their damage was logged. Needs the floors."""
    timer = state.timer
    for stream in timer.ends():
        timer.pending.done.update(pending_units.origins_without_record(timer, stream))


def take_pending(state: Recovery) -> None:
    """Take the pending messages that their queues have. Needs `records` and all done bits. Leaves `pending`."""
    pending = state.records.take_pending()
    state.pending = without(pending, ~pending_units.are_queued(state.timer, pending[:, ref.ORIGIN]))


def settle_cancels(state: Recovery) -> None:
    """Settle the cancels that Apache RocketMQ wrote. Moves them from `pending` to `cancels`. Leaves `saves_done`."""
    are_cancels = (state.pending[:, ref.FLAGS] & ref.FLAG_DELETE) != 0
    state.cancels = state.pending[are_cancels]
    state.timer.pending.done.update(state.cancels[:, ref.ORIGIN])
    state.pending = without(state.pending, are_cancels)
    state.saves_done |= bool(are_cancels.any())


def count_pending(state: Recovery) -> None:
    """Count `pending` by queue and slot, and keep the keys that the message index does not have."""
    timer, pending, index = state.timer, state.pending, state.index
    timer.pending.counts.add(pending[:, ref.REAL_QUEUE])
    fresh = pending if index is None else pending[pending[:, ref.POSITION] >= index.indexed_to]
    timer.pending.keys.add(fresh[:, ref.KEY_HASH], fresh[:, ref.ORIGIN], timer.pending.done, timer.store.log.end)
    timer.congestion.count(pending[~state.in_level, ref.FIRE_MS], timer.store.clock.now_ms())


def stage_timers(state: Recovery) -> None:
    """Note the messages of the timer queue from E on. Arm those that fire soon or that no scan reaches.

    Needs `pending`, E, and the time up to which the wheel is scanned.
    """
    timer, pending = state.timer, without(state.pending, state.in_level)
    units = RecordUnits.of(timer.log, np.sort(pending[:, ref.POSITION]), timer.log.end)
    newest, _ = units.newest_of(pending[:, ref.POSITION])
    is_indexed = pending[:, ref.ORIGIN] < timer_origin(timer.indexed_to)
    timer.pending.notes.add(ref.refs_of(without(pending, is_indexed)), timer.store.clock.now_ms())
    slots_ms, rolls = units.slots_ms[newest], units.rolls[newest]
    passed = out_of_reach(slots_ms, timer.scans.walked_through_ms, timer.wheel)
    fires = pending[:, ref.FIRE_MS] <= timer.scans.walked_through_ms + timer.settings.precision_ms
    chosen = is_indexed & (fires | passed)
    refs = ref.refs_of(pending[chosen])
    slots_ms, rolling = slots_ms[chosen], (rolls & ~fires)[chosen]
    refs[rolling, ref.FIRE_MS] = np.maximum(slots_ms[rolling] + 1, timer.scans.walked_through_ms)
    refs[rolling, ref.FLAGS] |= ref.FLAG_ROLL
    timer.pending.arm(ref.by_fire_time(refs), enqueue_ms=ref.NO_ENQUEUE_MS, by="recovery")


def stage_levels(state: Recovery) -> None:
    """Continue each level at its first message that is not settled. Needs `pending`."""
    timer, pending = state.timer, state.pending[state.in_level]
    now_ms = timer.store.clock.now_ms()
    for level in timer.pending.levels:
        first = origin_of(level.stream, 0)
        mine = pending[(pending[:, ref.ORIGIN] & ~INDEX_MASK) == first]
        mine = mine[np.argsort(mine[:, ref.ORIGIN])]
        level.advance(QueueOffset(timer.pending.done.of(level.stream).first_unset(level.queue.end)))
        refs = ref.refs_of(mine)
        refs[:, ref.FIRE_MS] = pending_units.tag_codes(level.queue, mine[:, ref.ORIGIN] - first)
        timer.pending.notes.add(refs[level.grow(refs[:, ref.FIRE_MS])], now_ms)


def obey_cancels(state: Recovery) -> None:
    """Apply `cancels`. Stores a cancel again as ours if its message is among `pending`, which are staged.

    Does not use the message index, because it may be damaged.
    """
    timer, positions = state.timer, state.cancels[:, ref.POSITION].tolist()
    by_key = state.pending[np.argsort(state.pending[:, ref.KEY_HASH], kind="stable")] if positions else state.pending
    for position in positions:
        record = timer.store.log.record_at(LogPosition(position))
        assert record is not None, position
        for key in delete_keys(record.message.properties):
            first, end = (np.searchsorted(by_key[:, ref.KEY_HASH], key_hash(key), side) for side in _SIDES)
            found = find_among(timer, key, map(Origin, by_key[first:end, ref.ORIGIN].tolist()))
            if found:
                append_cancel_of(timer.store, timer, own_cancel(record), found)
                break
