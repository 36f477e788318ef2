"""The state that the phases of a recovery share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.refs import Flags, Integers, ParkedRows
from wheelmq.delay.timer.mark import Mark
from wheelmq.delay.timer.pending_units import NO_UNITS
from wheelmq.delay.timer.recovery.records import NO_PENDING, PendingRecords
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.disk.snapshot import IndexedTimers
from wheelmq.formats.units import LogPosition
from wheelmq.store.index import MessageIndex

TIMER_FIRST: Final = timer_origin(0)
"""The first origin of the timer queue. Origins of levels are smaller."""


@dataclass(slots=True)
class Recovery:
    """The state of one recovery. Each phase names the fields that it needs and leaves."""

    timer: Timer
    records: PendingRecords
    index: MessageIndex | None = None
    """The message index, which finds messages in the log by their keys."""

    # From the snapshot
    unread: Integers = field(default_factory=lambda: NO_UNITS)
    """Rows of pending messages whose records are not read, because their units suffice; in the order of the log."""
    waiting: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    """The number of messages in `unread`, by the row of their real queue."""
    believed: IndexedTimers | None = None
    """The part of timer queue and timer log that is known to be intact."""
    blocks_gone: dict[int, LogPosition] = field(default_factory=dict)

    # From the phases
    known: Mark | None = None
    is_adopted: bool = False
    """Whether Apache RocketMQ had the timer since the mark."""
    adopts_levels: bool = False
    """Whether Apache RocketMQ had the levels."""
    saves_done: bool = False
    """Whether messages are settled that no record of the log settles."""
    pending: ParkedRows = field(default_factory=lambda: NO_PENDING)
    cancels: ParkedRows = field(default_factory=lambda: NO_PENDING)
    """The cancels that Apache RocketMQ wrote."""

    def forget_rows(self) -> None:
        """Free the rows of messages: with millions of them, the recovery of blocks needs the memory."""
        self.unread, self.pending, self.cancels = NO_UNITS, NO_PENDING, NO_PENDING

    @property
    def in_level(self) -> Flags:
        found: Flags = self.pending[:, ref.ORIGIN] < TIMER_FIRST
        return found

    @property
    def is_believed(self) -> bool:
        """Whether the timer log, after the cut, still has the whole part that the snapshot proves."""
        return self.believed is not None and self.timer.log.end >= self.believed.log_position
