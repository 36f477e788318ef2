"""The progress of transactions that a slave takes over from its master.

The master has ended all half messages before its progress. The records of these ends may not be in the log of the slave
yet. If the slave took the progress at once and was promoted, it would never check or deliver these transactions.
"""

from __future__ import annotations

from typing import NamedTuple

from wheelmq.broker.state.consumer_offsets import ConsumerOffsets, OffsetTable
from wheelmq.broker.transactions.halves import HALF_QUEUE
from wheelmq.formats.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store


class _Progress(NamedTuple):
    """Queue offsets of the half queue and of the op queue."""

    half: int
    op: int


class FollowedProgress:
    """Takes the progress of one master once the slave has on disk all that the master had in its log."""

    def __init__(self, store: Store, consumer_offsets: ConsumerOffsets) -> None:
        self._store = store
        self._offsets = consumer_offsets
        self._fetched: _Progress | None = None
        """The newest progress. The end of the master's log at that time is not known yet."""
        self._staged: tuple[_Progress, LogPosition] | None = None
        """A progress that becomes valid once the slave's log is on disk up to a position."""

    def note(self, table: OffsetTable) -> None:
        """Note the progress in the offsets that were fetched from the master."""
        half, op = (
            table.offset_table.get(f"{topic}@{TRANSACTION_GROUP}", {}).get(HALF_QUEUE, 0)
            for topic in (HALF_TOPIC, OP_HALF_TOPIC)
        )
        self._fetched = _Progress(half, op)

    def poll(self, masters_end: LogPosition) -> None:
        """Take the progress that has become valid. The master's log ended at `masters_end` after the last `note`."""
        if self._staged is None and self._fetched is not None:
            self._staged, self._fetched = (self._fetched, masters_end), None
        if self._staged is None:
            return
        progress, needed = self._staged
        if self._store.log.synced >= needed:
            self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, HALF_QUEUE, progress.half)
            self._offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, HALF_QUEUE, progress.op)
            self._staged = None
