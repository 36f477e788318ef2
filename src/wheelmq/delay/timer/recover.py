"""Recover the timer from the files alone, without Spark.

While the store scans its log, this module collects parked and settled messages. Then it cuts the timer log at T, links
its units into an empty wheel, and stages the messages that fire within the lead. It finds an indexed message by its
unit, and any other one by its place in the timer queue at or after E. When a message is in neither place, E goes back
to it, which is logged.

With a snapshot of the log up to P, the scan begins at P. The snapshot has the settled messages before P as bits. The
pending ones are found in the timer queue, and their records are read, unless their units suffice (unread_records).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wheelmq.delay.timer.recovery import adoption, rebuild, resume, staging
from wheelmq.delay.timer.recovery.records import PendingRecords
from wheelmq.delay.timer.recovery.resume import SnapshotWrong as SnapshotWrong
from wheelmq.delay.timer.recovery.state import Recovery
from wheelmq.delay.timer.snapshot import load_done
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.snapshot import Snapshot
from wheelmq.formats.units import LogPosition
from wheelmq.store.index import MessageIndex
from wheelmq.store.recovery import InternedNames, Rows

PHASES: Final[tuple[Callable[[Recovery], None], ...]] = (
    staging.open_queues,
    adoption.load_mark,
    # All done bits, and the pending messages
    adoption.set_floors,
    staging.settle_damaged,
    staging.take_pending,
    adoption.settle_apaches_deliveries,
    # The wheel, E and T
    rebuild.rebuild_wheel,
    rebuild.scan_to_lead,
    rebuild.go_back_to_lost,
    resume.read_near_records,
    rebuild.go_back_to_lost_near,
    # Counts, keys, notes and armed messages
    staging.settle_cancels,
    staging.count_pending,
    staging.stage_timers,
    staging.stage_levels,
    staging.obey_cancels,
    # The disk
    adoption.save_done_bits,
    adoption.take_over_offsets,
    rebuild.write_mark,
)
"""The phases after the scan of the log, in their order."""


class TimerRecovery:
    """Processes the rows of every record of the log, then prepares the timer."""

    def __init__(self, timer: Timer) -> None:
        self._state = Recovery(timer, PendingRecords(timer))
        position, settled = load_done(timer.store.disk, timer.store.paths)
        timer.note_done_saved(position)
        timer.pending.done.add_packed(settled)

    @property
    def blocks_gone(self) -> dict[int, LogPosition]:
        return self._state.blocks_gone

    def on_rows(self, rows: Rows, names: InternedNames) -> None:
        self._state.records.add(rows, names)

    def resume(self) -> Snapshot | None:
        """Take over the snapshot from which the log scan begins, or return None. Needs open queues. Raises OSError."""
        return resume.resume(self._state)

    def finish(self, index: MessageIndex | None) -> None:
        """Prepare the timer, which finds messages in the log by `index` from now on. Raises SnapshotWrong."""
        self._state.index = index
        for phase in PHASES:
            phase(self._state)
        self._state.forget_rows()
