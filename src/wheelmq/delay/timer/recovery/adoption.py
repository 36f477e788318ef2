"""Take over a store that Apache RocketMQ has used: find the messages that it settled, and save this knowledge."""

from __future__ import annotations

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.levels import offsets as level_offsets
from wheelmq.delay.redelivery import ParkedRecord, delivered
from wheelmq.delay.refs import Flags, ParkedRows
from wheelmq.delay.timer.apache_import import Parked, settled_by_apache
from wheelmq.delay.timer.mark import check_is_apaches, load_check
from wheelmq.delay.timer.recovery.records import without
from wheelmq.delay.timer.recovery.state import Recovery
from wheelmq.delay.timer.snapshot import save_done
from wheelmq.formats.disk.origin import INDEX_MASK, LEVELS_MAX, level_stream
from wheelmq.formats.wire.bodies import DataVersion
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach


def load_mark(state: Recovery) -> None:
    """Load the mark. Leaves `known` and `is_adopted`."""
    store = state.timer.store
    state.known = state.timer.mark_file.load()
    state.is_adopted = state.known is None or check_is_apaches(store.disk, store.paths)


def set_floors(state: Recovery) -> None:
    """Settle expired messages, and those by Apache's level offsets.

    Needs the open levels and `is_adopted`. Leaves `adopts_levels` and `saves_done`.
    """
    timer = state.timer
    for stream in timer.ends():
        queue = timer.queue_of(stream)
        timer.pending.done.of(stream).raise_floor(queue.skip_blanks(queue.start))
    offsets = level_offsets.load(timer.store.disk, timer.store.paths)
    state.adopts_levels = state.is_adopted if offsets is None else not offsets.wheelmq
    said = offsets.offset_table if offsets is not None and state.adopts_levels else {}
    for level, offset in said.items():
        if 0 < level <= LEVELS_MAX:
            stream = level_stream(level)
            timer.pending.done.of(stream).raise_floor(min(offset, timer.queue_of(stream).end))
    state.saves_done = any(said.values())


def settle_apaches_deliveries(state: Recovery) -> None:
    """Settle the messages that Apache RocketMQ settled while it had the timer or the levels.

    Needs `pending`, `is_adopted` and `adopts_levels`. Leaves the other messages in `pending`, and `saves_done`.
    """
    pending, in_level = state.pending, state.in_level
    out = np.zeros(len(pending), np.bool_)
    if state.is_adopted:
        out[~in_level] = _are_out(state.timer.store, pending[~in_level])
    if state.adopts_levels:
        out[in_level] = _are_copied(state.timer.store, pending[in_level])
    state.timer.pending.done.update(pending[out, ref.ORIGIN])
    state.pending = without(pending, out)
    state.saves_done |= bool(out.any())


def _are_out(store: Store, pending: ParkedRows) -> Flags:
    indices, positions = pending[:, ref.ORIGIN] & INDEX_MASK, pending[:, ref.POSITION]
    parked = Parked(indices, pending[:, ref.FIRE_MS], positions, pending[:, ref.KEY_HASH])
    return settled_by_apache(parked, load_check(store.disk, store.paths), store.log.files, store.log.last_store_ms)


def _are_copied(store: Store, pending: ParkedRows) -> Flags:
    """Return which messages of level queues have a copy of Apache in the log, whatever its level table was."""
    waiting = (ParkedRecord(*row) for row in pending[:, [ref.POSITION, ref.STORE_MS]].tolist())
    return np.isin(pending[:, ref.POSITION], list(delivered(store.log.files, waiting)))


def save_done_bits(state: Recovery) -> None:
    """Save the done bits that no record proves: messages that Apache settled, and Apache's cancels applied now.

    Needs `saves_done`. Flushes the records that were written for these cancels first.
    """
    if state.saves_done:
        timer, store = state.timer, state.timer.store
        store.flush()
        save_done(store.disk, store.paths, timer.pending.done, timer.ends(), store.log.synced)
        timer.note_done_saved(store.log.synced)


def take_over_offsets(state: Recovery) -> None:
    """Mark delayOffset.json as ours, because Apache's offsets do not cover messages stored from now on.

    Needs `adopts_levels` and the saved done bits.
    """
    timer, store = state.timer, state.timer.store
    body = level_offsets.load(store.disk, store.paths) if state.adopts_levels else None
    if body is not None:
        version = DataVersion(timestamp=store.clock.now_ms(), counter=body.data_version.counter + 1)
        level_offsets.save(store.disk, store.paths, timer.pending.levels.offsets(), version)
        reach("recover.offsets")
