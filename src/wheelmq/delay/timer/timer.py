"""The timer: timer queue, wheel and timer log, which keep messages with an arbitrary due time.

docs/formats/timer.md defines the names of the protocol: E (`indexed_to`), T (`log.synced` between turns), S
(`scans.walked_through_ms`). After a stop, recovery finds a message in the timer queue from E on, or by its unit in the
timer log below T.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wheelmq.delay.pending import PendingTable
from wheelmq.delay.settings import TimerSettings
from wheelmq.delay.timer.congestion import Congestion
from wheelmq.delay.timer.log import TimerLog
from wheelmq.delay.timer.mark import Mark, MarkFile, TimerCheck
from wheelmq.delay.timer.scans import SlotScans
from wheelmq.delay.timer.shifts import Shifts
from wheelmq.delay.timer.turns import Turns
from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.disk.origin import TIMER_STREAM, Stream, timer_origin
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.disk.turn_row import SHIFT_MAX_MS
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.mapped import MappedSequence, room_step
from wheelmq.store.store import Store

INDEX_ROWS_MAX = 100_000
LOG_ROOM_BYTES_MAX: Final = 1 << 20
"""Disk space that the timer log takes at a time."""


class Timer:
    """The third generation of delayed messages: where they are parked and indexed."""

    def __init__(self, store: Store, settings: TimerSettings, pending: PendingTable) -> None:
        self.store = store
        self.settings = settings
        self.pending = pending
        disk, paths = store.disk, store.paths
        self.wheel = TimerWheel(disk, paths.timer_wheel, settings.precision_ms, settings.slots)
        room_bytes = room_step(settings.log_file_bytes, LOG_ROOM_BYTES_MAX)
        self.log = TimerLog(MappedSequence(disk, paths.timer_log, settings.log_file_bytes, room_bytes=room_bytes))
        self.mark_file = MarkFile(disk, paths)
        self.queue: ConsumeQueue = store.queues[store.queues.row(TIMER_TOPIC, 0)]
        self.done_position = LogPosition(0)
        """P: log position of the snapshot of done bits; 0 without one."""
        self.congestion = Congestion(settings.congest_num_each_slot, settings.precision_ms, self.wheel.slots)
        self.turns = Turns(0, 0)
        self.indexed_to = 0
        self.scans = SlotScans(self.wheel, settings.lead_ms)
        self.shifts = Shifts()

    def ends(self) -> dict[Stream, QueueOffset]:
        return {TIMER_STREAM: self.queue.end, **{level.stream: level.queue.end for level in self.pending.levels}}

    def queue_of(self, stream: Stream) -> ConsumeQueue:
        return self.queue if stream == TIMER_STREAM else self.pending.levels.of(stream).queue

    def take_stop_enqueue(self) -> None:
        """Apply a change of `stop_enqueue`: whether the messages of the timer queue are neither indexed nor staged."""
        self.pending.notes.hold(TIMER_STREAM if self.settings.stop_enqueue else None)

    def note_done_saved(self, position: LogPosition) -> None:
        """Note P: a snapshot of the done bits for the log up to `position` is on disk."""
        self.done_position = position

    @property
    def shift_max_ms(self) -> int:
        """Maximum time by which a stage delays a message. Until then, no later slot takes the place of its slot."""
        settings = self.settings
        return min(SHIFT_MAX_MS, (settings.slots - settings.roll_window_slots - 1) * settings.precision_ms)

    # The index ----------------------------------------------------------------------------------------------------

    def index_from(self, first: int) -> None:
        """Set E at a start: the messages of the timer queue from `first` on are to be indexed."""
        self.indexed_to = first

    def skip_blanks(self) -> None:
        self.indexed_to = self.queue.skip_blanks(QueueOffset(self.indexed_to))

    def note_indexed(self, end: int) -> None:
        """Move E to `end`, because the messages before it have units. Their notes are not needed any more."""
        self.indexed_to = end
        self.pending.notes.drop_below(timer_origin(end))

    def wheel_has_room(self, now_ms: Millis) -> bool:
        """Return whether a message indexed now cannot take the place of a slot that was not scanned."""
        last_ms = self.wheel.floor_slot(now_ms) + self.settings.roll_window_slots * self.settings.precision_ms
        return last_ms - self.wheel.slots * self.settings.precision_ms <= self.scans.covered_through_ms

    def durable_queue_end(self, durable: LogPosition) -> int:
        """Return the queue offset up to which the timer queue can be indexed.

        It is that of the first blank, or of the first message that does not lie completely below `durable`.
        """
        assert self.store.log.files.synced(durable)
        end = self.indexed_to
        stop = min(self.queue.end, self.indexed_to + INDEX_ROWS_MAX)
        while end < stop:
            units = self.queue.read(end, stop - end)  # type: ignore[arg-type]
            not_whole = (units["position"] + units["size"] > durable) | (units["size"] == BLANK_SIZE)
            whole = int(not_whole.argmax()) if not_whole.any() else len(units)
            end += whole
            if whole < len(units):
                break
        return end

    def needed_from(self) -> LogPosition:
        """Return the position of the first record that the timer may still read: one not settled, or not indexed."""
        first = min(self.pending.done.of(TIMER_STREAM).first_unset(self.queue.end), self.indexed_to)
        return self.queue.position_from(first, self.store.dispatched_to)

    def needed_in_log(self) -> LogPosition:
        return min(self.needed_from(), self.pending.levels.needed_from())

    def drop_log(self) -> Callable[[], None] | None:
        """Drop timer log files that no scan and no recovery needs. Return the job that removes them, or None."""
        if self.log.end - self.log.files.start <= self.log.files.file_bytes:
            return None
        scans = self.scans
        needed_ms = scans.covered_through_ms if self.turns.plan is None else scans.walked_through_ms
        skipped_ms = scans.skipped.first_ms()
        if skipped_ms is not None:
            needed_ms = min(needed_ms, skipped_ms - self.settings.precision_ms)
        first = self.wheel.first_position_after(Millis(needed_ms))
        return self.log.drop_before(self.log.end if first is None else first, self.needed_in_log())

    def mark(self) -> Mark:
        """Return the mark to write once the timer log is on disk."""
        return Mark(self.indexed_to, self.log.end, self.turns.epoch, self.turns.turn, self.done_position)

    def timercheck(self, earliest_in_hand_ms: int | None) -> TimerCheck:
        """Return the timercheck for Apache: it has delivered all slots before R, the least time of a pending message.

        `earliest_in_hand_ms` is the least time of the references that were taken for release and are not released yet.
        """
        now_ms, covered_ms = self.store.clock.now_ms(), self.scans.covered_through_ms
        times = [now_ms, covered_ms, self.pending.armed.earliest_ms(), earliest_in_hand_ms]
        if self.pending.notes.count:
            times.append(self.pending.notes.next_fire_ms)
        skipped_ms = self.scans.skipped.first_ms()
        if skipped_ms is not None:
            times.append(skipped_ms + 1)  # no message of a slot is due earlier
        earliest = min(time for time in times if time is not None)
        earliest = min(earliest, self.shifts.first_fire_ms(earliest))
        return TimerCheck(
            last_read_ms=self.wheel.floor_slot(earliest - 1),
            log_flush_position=self.log.synced,
            queue_offset=self.indexed_to,
            master_queue_offset=self.indexed_to,
        )
