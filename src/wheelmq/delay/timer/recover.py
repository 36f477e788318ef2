"""Recover the timer from the files alone, without Spark.

While the store scans its log, this module collects parked and settled messages. Then it cuts the timer log at T,
links its units into an empty wheel, and stages the messages that fire within the lead. It finds an indexed message by
its unit, and any other one by its place in the timer queue at or after E. When a message is in neither place, E goes
back to it, which is logged.

With a snapshot of the log up to P, the scan begins at P. The snapshot has the messages settled before P as bits. The
pending ones are found in the timer queue, and their records are read, unless their units suffice (unread_records). So
a start reads only pending and new records.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.cancel import append_cancel_of, own_cancel
from wheelmq.delay.levels import offsets as level_offsets
from wheelmq.delay.redelivery import ParkedRecord, delivered
from wheelmq.delay.timer import pending_units, unread_records
from wheelmq.delay.timer.apache_import import Parked, what_is_out
from wheelmq.delay.timer.lookup import find_among
from wheelmq.delay.timer.mark import Mark, check_is_apaches, load_check
from wheelmq.delay.timer.rows import out_of_reach
from wheelmq.delay.timer.snapshot import load_done, save_done
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.unread_records import RecordUnits
from wheelmq.formats.disk.origin import (
    INDEX_MASK,
    KIND_BLOCK,
    LEVELS_MAX,
    Origin,
    Stream,
    level_stream,
    origin_index,
    origin_of,
    stream_kind,
    timer_origin,
)
from wheelmq.formats.disk.parked import delete_keys, key_hash
from wheelmq.formats.disk.snapshot import IndexedTimers, Snapshot
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import NEVER_MS, LogPosition, QueueOffset
from wheelmq.formats.wire.bodies import DataVersion
from wheelmq.store.index import MessageIndex
from wheelmq.store.recovery import CHUNK_ROWS, InternedNames, LogDamaged, LogScan, Rows, log_damaged
from wheelmq.store.snapshot import disagreement, load_snapshot
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

_TIMER_FIRST = timer_origin(0)
_NO_PENDING: Final = np.empty((0, ref.PARKED_COLUMNS), np.int64)
_SIDES: Final = ("left", "right")


class SnapshotWrong(LogDamaged):
    """The snapshot was trusted, but the records contradict it.

    It is removed. Open the store again, which scans the whole log.
    """


class TimerRecovery:
    """Processes the rows of every record of the log, then prepares the timer."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._chunks: list[npt.NDArray[np.int64]] = []
        self._unread = unread_records.NONE
        """Pending messages whose records are not read, because their units suffice; in the order of the log."""
        self._believed: IndexedTimers | None = None
        """The part of timer queue and timer log that is known to be intact."""
        self._waiting: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """The number of messages in `_unread`, by the row of their real queue."""
        self.blocks_gone: dict[int, LogPosition] = {}
        """The deleted blocks that the snapshot names."""
        self._rows_max = 2 * CHUNK_ROWS
        """When the chunks have more rows than this, the rows that were settled meanwhile are dropped."""
        position, settled = load_done(timer.store.disk, timer.store.paths)
        timer.note_done_saved(position)
        timer.pending.done.add_packed(settled)

    def on_rows(self, rows: Rows, names: InternedNames) -> None:
        """Note the messages that the records park and settle. Keep those parked messages that are still pending."""
        done = self._timer.pending.done
        done.update(rows[rows[:, col.SETTLES] != 0, col.SETTLES])
        parked = rows[rows[:, col.PARKS] != 0]
        decided = (parked[:, col.FLAGS] & col.FLAG_DECIDED) != 0
        done.update(parked[decided, col.PARKS])
        parked = parked[~decided]
        if len(parked):
            real_queues = self._timer.store.queue_rows(parked[:, col.REAL_TOPIC], parked[:, col.REAL_QUEUE_ID], names)
            self._chunks.append(ref.parked_rows(parked, real_queues))
        if sum(map(len, self._chunks)) > self._rows_max:
            self._rows_max = 2 * len(self._drop_settled()) + 2 * CHUNK_ROWS

    def _drop_settled(self) -> npt.NDArray[np.int64]:
        """Reduce the chunks to one chunk of pending messages, and return it."""
        rows = self._chunks[0] if len(self._chunks) == 1 else np.concatenate([_NO_PENDING, *self._chunks])
        self._chunks = [_without(rows, self._timer.pending.done.get(rows[:, ref.ORIGIN]))]
        return self._chunks[0]

    def resume(self) -> Snapshot | None:
        """Load the snapshot from whose position the log scan begins, and take over its contents.

        The queues of the store must be open. Returns None without a trustworthy snapshot. Raises OSError.
        """
        timer, store = self._timer, self._timer.store
        snapshot = load_snapshot(store.disk, store.paths)
        if snapshot is None:
            return None
        is_apaches = check_is_apaches(store.disk, store.paths) or level_offsets.is_apaches(store.disk, store.paths)
        why = "Apache RocketMQ has used the store since then" if is_apaches else disagreement(store, snapshot)
        if why is None:
            done = timer.pending.done.copy()
            timer.pending.done.add_packed(snapshot.done)
            try:
                damaged = self._read_pending(snapshot)
                store.log.damaged = damaged | set(snapshot.damaged)
                for position in snapshot.damaged:
                    log_damaged(position)
                self.blocks_gone = snapshot.blocks_gone
                return snapshot
            except LogDamaged as error:
                timer.pending.done.restore(done)
                self._chunks, self._unread, self._believed = [], unread_records.NONE, None
                why = str(error)
        log.warning("recovery deletes the snapshot and reads the whole log: %s", why)
        store.disk.remove(store.paths.snapshot)
        return None

    def _read_pending(self, snapshot: Snapshot) -> frozenset[LogPosition]:
        """Process the pending records of `snapshot`, except those that need not be read.

        Returns the positions of damaged records. Raises LogDamaged when a record is not where its unit says.
        """
        timer, ends = self._timer, _ends_in_log(snapshot)
        units = pending_units.pending_in(timer, ends)
        if (units[1:, ref.POSITION] < units[:-1, ref.POSITION]).any():
            units = units[np.argsort(units[:, ref.POSITION], kind="stable")]
        spans = units[:, ref.POSITION], units[:, ref.SIZE]
        if not pending_units.can_be_records(*spans, timer.store.log.files, snapshot.position):
            raise LogDamaged(errno.EIO, "units of parked messages do not point to records")
        if not unread_records.is_of_use(timer, snapshot):
            return self._read(units)
        why = unread_records.disagreement(timer, snapshot, len(units))
        if why is not None:
            log.warning("timer: recovery reads the records of all %d pending messages: %s", len(units), why)
            return self._read(units)
        self._believed = snapshot.timers
        self._unread, is_unread = unread_records.not_to_be_read(timer, snapshot, units)
        damaged = self._read(units[~is_unread])
        self._count_unread(snapshot.waiting)
        return damaged

    def _read(self, units: npt.NDArray[np.int64]) -> frozenset[LogPosition]:
        """Process the records of `units`, all of them pending in the snapshot.

        Returns the positions of damaged records. Raises LogDamaged when a record is not where its unit says.
        """
        scan = LogScan(self._timer.store.log.files, self._timer.store.log.start, whole_before_ms=NEVER_MS)
        met = [np.empty(0, np.int64)]
        self._rows_max = len(units) + 2 * CHUNK_ROWS
        for rows in scan.records_at(units[:, ref.POSITION], units[:, ref.SIZE]):
            met.append(rows[rows[:, col.PARKS] != 0, col.PARKS])
            self.on_rows(rows, scan.names)
        if not np.array_equal(np.concatenate(met), units[:, ref.ORIGIN]):
            raise LogDamaged(errno.EIO, "units of parked messages point to records of other messages")
        return frozenset(scan.damaged)

    def _count_unread(self, waiting: dict[tuple[str, int], int]) -> None:
        """Compute the number of unread messages per queue: the snapshot's counts `waiting`, less the read messages.

        Raises LogDamaged when the counts do not fit.
        """
        rows = [self._timer.store.queues.row(*key) for key in waiting]
        counts = np.zeros(
            max((*rows, *(int(chunk[:, ref.REAL_QUEUE].max()) for chunk in self._chunks)), default=-1) + 1
        )
        counts[rows] = list(waiting.values())
        self._waiting = counts.astype(np.int64)
        for chunk in self._chunks:
            self._discount(chunk)

    def _discount(self, pending: npt.NDArray[np.int64]) -> None:
        """Subtract `pending`, whose records were read. Raises LogDamaged when the counts are too small."""
        queues = pending[:, ref.REAL_QUEUE]
        np.subtract.at(self._waiting, queues[(queues >= 0) & (queues < len(self._waiting))], 1)
        if (self._waiting < 0).any() or (queues >= len(self._waiting)).any():
            raise LogDamaged(errno.EIO, "more messages are pending for a queue than the snapshot counts")

    def _read_what_is_near(self, pending: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Read those unread messages that are to be armed or noted, or whose key the message index does not have.

        The others are only counted. Returns the messages that were read and are pending, together with `pending`.
        Raises SnapshotWrong.
        """
        timer, index, unread = self._timer, self._timer.pending.keys.index, self._unread
        origins, slots_ms = unread[:, ref.ORIGIN], unread[:, pending_units.SLOT_MS]
        horizon_ms = timer.scans.walked_through_ms + timer.settings.precision_ms
        is_near = (slots_ms <= horizon_ms) | out_of_reach(slots_ms, timer.scans.walked_through_ms, timer.wheel)
        is_near |= unread[:, ref.POSITION] >= (0 if index is None else index.indexed_to)
        is_near |= (origins >= timer_origin(timer.indexed_to)) | (not self._is_believed())
        settled = timer.pending.done.get(origins)  # settled after the snapshot: read to learn its real queue
        self._chunks = []
        try:
            damaged = self._read(unread[is_near | settled])
            read = np.concatenate([_NO_PENDING, *self._chunks])
            self._discount(read)
        except LogDamaged as error:
            timer.store.disk.remove(timer.store.paths.snapshot)
            raise SnapshotWrong(errno.EIO, str(error.strerror)) from None
        timer.store.log.damaged |= damaged
        timer.pending.done.update(read[np.isin(read[:, ref.POSITION], list(damaged)), ref.ORIGIN])
        timer.pending.counts.add_numbers(self._waiting)
        joined = np.concatenate((pending, read[~timer.pending.done.get(read[:, ref.ORIGIN])]))
        return joined[np.argsort(joined[:, ref.ORIGIN], kind="stable")]

    def finish(self, index: MessageIndex | None) -> None:
        """Prepare the timer: done bits, wheel, armed references, notes, keys, counts. Raises SnapshotWrong.

        From now on, `index` finds the messages in the log by their keys.
        """
        timer = self._timer
        timer.pending.keys.use_index(index)
        timer.pending.levels.open_all()
        known = timer.mark_file.load()
        is_adopted = known is None or check_is_apaches(timer.store.disk, timer.store.paths)
        adopts_levels, has_floors = self._set_floors(is_adopted=is_adopted)
        self._set_aside()
        pending = self._drop_settled()
        self._chunks = []
        pending = _without(pending, ~pending_units.are_queued(timer, pending[:, ref.ORIGIN]))
        in_level = pending[:, ref.ORIGIN] < _TIMER_FIRST
        out = np.zeros(len(pending), np.bool_)
        if is_adopted:
            out[~in_level] = self._what_is_out(pending[~in_level])
        if adopts_levels:
            out[in_level] = self._what_is_copied(pending[in_level])
        timer.pending.done.update(pending[out, ref.ORIGIN])
        pending, in_level = _without(pending, out), in_level[~out]
        mark = self._start_from(known, is_adopted=is_adopted)
        timer.turns.resume(mark.epoch + 1, mark.turn)
        timer.index_from(mark.queue_offset)
        timer.log.rebuild(timer.wheel, mark.timer_log_position)
        if not self._is_sound():
            log.error(
                "timer: the timer log has units of messages that are not in the timer queue: all messages are "
                "indexed again"
            )
            timer.index_from(timer.queue.skip_blanks(timer.queue.start))
            timer.log.rebuild(timer.wheel, timer.log.files.start)
        reach("recover.rebuilt")
        timer.scans.walk_to(timer.scans.lead_end_ms(timer.store.clock.now_ms()))
        self._go_back_to_what_is_lost(pending)
        if len(self._unread):
            pending = self._read_what_is_near(pending)
            self._go_back_to_what_is_lost(pending)
        in_level = pending[:, ref.ORIGIN] < _TIMER_FIRST
        deletes = (pending[:, ref.FLAGS] & ref.FLAG_DELETE) != 0
        timer.pending.done.update(pending[deletes, ref.ORIGIN])
        self._count_and_key(_without(pending, deletes))
        self._stage(_without(pending, deletes | in_level))
        self._stage_levels(pending[in_level])
        self._obey(pending[deletes, ref.POSITION], _without(pending, deletes))
        if out.any() or deletes.any() or has_floors:
            self._keep_done()
        if adopts_levels:
            self._take_over_offsets()
        if known is not None and (timer.indexed_to, timer.log.end) != (known.queue_offset, known.timer_log_position):
            timer.mark_file.write(timer.mark())
        reach("recover.staged")

    def _take_over_offsets(self) -> None:
        """Mark delayOffset.json as ours, because Apache's offsets do not cover messages stored from now on."""
        timer, store = self._timer, self._timer.store
        body = level_offsets.load(store.disk, store.paths)
        if body is not None:
            version = DataVersion(timestamp=store.clock.now_ms(), counter=body.data_version.counter + 1)
            level_offsets.save(store.disk, store.paths, timer.pending.levels.offsets(), version)
            reach("recover.offsets")

    def _set_floors(self, *, is_adopted: bool) -> tuple[bool, bool]:
        """Set the floors of the done bits: expired messages, and those that Apache's level offsets settle.

        Returns whether Apache RocketMQ had the levels, and whether it stored an offset.
        """
        timer = self._timer
        for stream in timer.ends():
            queue = timer.queue_of(stream)
            timer.pending.done.of(stream).raise_floor(queue.skip_blanks(queue.start))
        offsets = level_offsets.load(timer.store.disk, timer.store.paths)
        adopts = is_adopted if offsets is None else not offsets.wheelmq
        said = offsets.offset_table if offsets is not None and adopts else {}
        for level, offset in said.items():
            if 0 < level <= LEVELS_MAX:
                stream = level_stream(level)
                timer.pending.done.of(stream).raise_floor(min(offset, timer.queue_of(stream).end))
        return adopts, any(said.values())

    def _set_aside(self) -> None:
        """Settle damaged messages, which no consumer receives. Their damage was logged."""
        timer = self._timer
        for stream in timer.ends():
            timer.pending.done.update(pending_units.origins_of_none(timer, stream))

    def _start_from(self, mark: Mark | None, *, is_adopted: bool) -> Mark:
        """Return the mark if it is ours and its positions exist; else one from which all are indexed again."""
        timer = self._timer
        first = timer.queue.skip_blanks(timer.queue.start)
        anew = Mark(queue_offset=first, timer_log_position=timer.log.files.start)
        if mark is None:
            return anew
        if is_adopted:
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

    def _is_sound(self) -> bool:
        """Return whether every unit names a record of the timer queue or an expired one.

        A scan reads them all. Skips the units that the snapshot proves.
        """
        timer, believed = self._timer, self._believed
        log_start, unit_from, queue_from = timer.store.log.start, timer.log.files.start, timer.queue.start
        if believed is not None and self._is_believed():
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

    def _is_believed(self) -> bool:
        """Return whether the timer log, after the cut, still has the whole part that the snapshot proves."""
        return self._believed is not None and self._timer.log.end >= self._believed.log_position

    def _what_is_out(self, pending: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which messages Apache RocketMQ settled while it had the store."""
        store = self._timer.store
        parked = Parked(
            pending[:, ref.ORIGIN] & INDEX_MASK,
            pending[:, ref.FIRE_MS],
            pending[:, ref.POSITION],
            pending[:, ref.KEY_HASH],
        )
        return what_is_out(parked, load_check(store.disk, store.paths), store.log.files, store.log.last_store_ms)

    def _what_is_copied(self, pending: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which messages of level queues have a copy of Apache RocketMQ in the log.

        The copy counts at any time, because Apache's level table may have been a different one.
        """
        waiting = (ParkedRecord(*row) for row in pending[:, [ref.POSITION, ref.STORE_MS]].tolist())
        return np.isin(pending[:, ref.POSITION], list(delivered(self._timer.store.log.files, waiting)))

    def _keep_done(self) -> None:
        """Save the done bits that no record proves: messages that Apache settled, and Apache's cancels applied now.

        Flushes the records that were written for these cancels first.
        """
        timer, store = self._timer, self._timer.store
        store.flush()
        save_done(store.disk, store.paths, timer.pending.done, timer.ends(), store.log.synced)
        timer.note_done_saved(store.log.synced)

    def _obey(self, positions: npt.NDArray[np.int64], pending: npt.NDArray[np.int64]) -> None:
        """Apply the cancels at `positions`, which Apache RocketMQ wrote.

        Stores a cancel again as ours if its message is among `pending`, the pending messages. Does not use the
        message index, because it may be damaged.
        """
        timer = self._timer
        by_key = pending[np.argsort(pending[:, ref.KEY_HASH], kind="stable")] if len(positions) else pending
        for position in positions.tolist():
            record = timer.store.log.record_at(LogPosition(position))
            assert record is not None, position
            for key in delete_keys(record.message.properties):
                first, end = (np.searchsorted(by_key[:, ref.KEY_HASH], key_hash(key), side) for side in _SIDES)
                found = find_among(timer, key, map(Origin, by_key[first:end, ref.ORIGIN].tolist()))
                if found:
                    append_cancel_of(timer.store, timer, own_cancel(record), found)
                    break

    def _count_and_key(self, pending: npt.NDArray[np.int64]) -> None:
        timer = self._timer
        timer.pending.counts.add(pending[:, ref.REAL_QUEUE])
        index = timer.pending.keys.index
        fresh = pending if index is None else pending[pending[:, ref.POSITION] >= index.indexed_to]
        timer.pending.keys.add(fresh[:, ref.KEY_HASH], fresh[:, ref.ORIGIN], timer.pending.done, timer.store.log.end)
        is_timer = pending[:, ref.ORIGIN] >= _TIMER_FIRST  # the origins of levels are smaller
        timer.congestion.count(pending[is_timer, ref.FIRE_MS], timer.store.clock.now_ms())

    def _go_back_to_what_is_lost(self, pending: npt.NDArray[np.int64]) -> None:
        """Set E back to the first pending message that should have a unit and has none."""
        timer = self._timer
        origins = pending[:, ref.ORIGIN]
        is_indexed = (origins >= _TIMER_FIRST) & (origins < timer_origin(timer.indexed_to))
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

    def _stage(self, pending: npt.NDArray[np.int64]) -> None:
        timer = self._timer
        units = RecordUnits.of(timer.log, np.sort(pending[:, ref.POSITION]), timer.log.end)
        newest, _ = units.newest_of(pending[:, ref.POSITION])
        is_indexed = pending[:, ref.ORIGIN] < timer_origin(timer.indexed_to)
        timer.pending.notes.add(ref.refs_of(_without(pending, is_indexed)), timer.store.clock.now_ms())
        slots_ms, rolls = units.slots_ms[newest], units.rolls[newest]
        passed = out_of_reach(slots_ms, timer.scans.walked_through_ms, timer.wheel)
        fires = pending[:, ref.FIRE_MS] <= timer.scans.walked_through_ms + timer.settings.precision_ms
        chosen = is_indexed & (fires | passed)
        refs = ref.refs_of(pending[chosen])
        slots_ms, rolling = slots_ms[chosen], (rolls & ~fires)[chosen]
        refs[rolling, ref.FIRE_MS] = np.maximum(slots_ms[rolling] + 1, timer.scans.walked_through_ms)
        refs[rolling, ref.FLAGS] |= ref.FLAG_ROLL
        timer.pending.arm(ref.by_fire_time(refs), enqueue_ms=ref.NO_ENQUEUE_MS, by="recovery")

    def _stage_levels(self, pending: npt.NDArray[np.int64]) -> None:
        """Continue each level at its first message that is not settled."""
        timer = self._timer
        now_ms = timer.store.clock.now_ms()
        for level in timer.pending.levels:
            first = origin_of(level.stream, 0)
            mine = pending[(pending[:, ref.ORIGIN] & ~INDEX_MASK) == first]
            mine = mine[np.argsort(mine[:, ref.ORIGIN])]
            level.advance(QueueOffset(timer.pending.done.of(level.stream).first_unset(level.queue.end)))
            refs = ref.refs_of(mine)
            refs[:, ref.FIRE_MS] = pending_units.tag_codes(level.queue, mine[:, ref.ORIGIN] - first)
            timer.pending.notes.add(refs[level.grow(refs[:, ref.FIRE_MS])], now_ms)


def _without(rows: npt.NDArray[np.int64], left_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return `rows` without those left out. Mostly there are none, and a copy of all pending rows takes seconds."""
    return rows[~left_out] if left_out.any() else rows


def _ends_in_log(snapshot: Snapshot) -> dict[Stream, int]:
    """Return the ends of the snapshot's streams whose messages are in the commit log, so not those of blocks."""
    return {one.stream: one.end_index for one in snapshot.done if stream_kind(one.stream) != KIND_BLOCK}
