"""The flags of settled messages of blocks on their way to the disk, and the log that is needed until they are there."""

from __future__ import annotations

import logging

from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.settlement import BlockSettlement
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store
from wheelmq.system.single_flight import SingleFlight

log = logging.getLogger(__name__)


class BlockCheckpoints:
    """Writes checkpoints of the blocks, and owns the log position up to which the flags are on disk."""

    def __init__(self, store: Store, blocks: Blocks, settlement: BlockSettlement) -> None:
        self._store = store
        self._blocks = blocks
        self._settlement = settlement
        self.flagged_to = store.log.start
        """Records before this log position settle only messages whose units are flagged on disk."""

    def write(self, flight: SingleFlight) -> None:
        """Flag units of settled messages, and have them synced and checkpoints written, unless `flight` has a job."""
        if flight.is_running:
            return
        upto = self._flag_settled()
        job = self._blocks.checkpoint_job()
        if job is not None:
            flight.submit(job, done=lambda _: self._note_flagged(upto), failed=_log_unwritten)
        else:
            self._note_flagged(upto)

    def _flag_settled(self) -> LogPosition:
        """Flag the messages that records on disk settle. Returns the log position up to which all are flagged."""
        return self._settlement.flag(min(self._store.log.synced, self._store.dispatched_to))

    def _note_flagged(self, upto: LogPosition) -> None:
        """Note that the flags up to log position `upto` are on disk, unless a block's failed sync left some out."""
        if not self._blocks.may_lack_flags():
            self.flagged_to = max(self.flagged_to, upto)

    def needed_from(self) -> LogPosition:
        """Return the first log position whose settling records of messages in blocks are still needed."""
        return self.flagged_to if len(self._blocks) else self._store.dispatched_to

    def close(self) -> None:
        """Sync everything for a clean stop. No job may run any more. Raises OSError of the blocks' logs."""
        self._blocks.flush()
        self._flag_settled()
        self._blocks.close()


def _log_unwritten(error: Exception) -> None:
    log.error("units of blocks may not be on disk; the next start writes them again: %s", error)
