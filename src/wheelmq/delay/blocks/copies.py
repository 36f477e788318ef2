"""Copy the blocks of a master: append the parts that it sent, and note their pending messages.

A part has units and records. The units say which messages are settled. Their flags are on disk before their records
are, because the log of this store may not have the records that settled them any more. So a stop at any moment leaves
no settled message that looks pending. And no flag is on disk before the settling record is, if that is still to come.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.intake import BlockIntake
from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.blocks.wheel import BlockWheel
from wheelmq.delay.done import Flags
from wheelmq.delay.pending import PendingTable
from wheelmq.formats.disk.block import FLAG_BLANK, FLAG_DONE
from wheelmq.formats.disk.origin import block_stream, origin_of
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.block_replication import BlockPart
from wheelmq.store.recovery import InternedNames
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)


class CopyWrong(ValueError):
    """A part does not continue the copy of its block, or is not valid. The text says why."""


class StreamOver(ValueError):
    """The block was removed here, and a master has it. Its done bits are unknown until the next start."""


class _ReceivedPart(NamedTuple):
    part: BlockPart
    log_end: LogPosition
    """End of the master's log when it made the part. The records that settle flagged messages are before it."""


@dataclass
class _Flags:
    """The settled messages of a part, and the way of their flags to the disk."""

    done: Flags
    needs_log_to: LogPosition
    """The log has the settling records before this position. It must be on disk up to there."""
    are_written: bool = False
    are_on_disk: bool = False


class BlockCopies:
    """Appends the parts in their order. Parts with settled messages wait for the log of this store."""

    def __init__(
        self,
        store: Store,
        blocks: Blocks,
        wheel: BlockWheel,
        intake: BlockIntake,
        pending: PendingTable,
        worker: Worker,
        want_flush: Callable[[], None],
    ) -> None:
        """Create the object. `worker` syncs flags, and `want_flush` requests a flush of the log."""
        self._store = store
        self._blocks = blocks
        self._wheel = wheel
        self._intake = intake
        self._pending = pending
        self._want_flush = want_flush
        self._flight = SingleFlight(worker)
        self._names = InternedNames()
        self._parts: deque[_ReceivedPart] = deque()
        self._flags: _Flags | None = None
        """Those of the first part."""
        self._waits_for_removal = False
        self.failure: Exception | None = None
        """The reason why the first part cannot be appended. Nothing is appended any more."""

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, part: BlockPart, log_end: LogPosition) -> None:
        self._parts.append(_ReceivedPart(part, log_end))

    @property
    def can_continue(self) -> bool:
        """Whether `poll` can append something without an event of a worker."""
        if not self._parts or self.failure is not None or self._flight.is_running or self._waits_for_removal:
            return False
        return self._flags is None or self._store.log.synced >= self._flags.needs_log_to

    def poll(self, until_s: float) -> None:
        """Append parts until the monotonic time `until_s`, as far as possible now."""
        while self._parts and self.failure is None and not self._flight.is_running:
            try:
                if not self._append_first():
                    return
            except (OSError, ValueError) as error:
                self.failure = error
            if self._store.clock.monotonic() >= until_s:
                return

    def end(self) -> None:
        """Append the parts that need not wait. Drop the others, because this broker is a replica no more.

        The log has no records that settle their flagged messages, and it will never have them.
        """
        self.poll(math.inf)
        if self._parts:
            log.warning(
                "%d received parts of blocks are dropped: they came before their part of the log", len(self._parts)
            )
        self._forget()

    def restart(self) -> None:
        """Forget the received parts. The next ones are from a new session."""
        self._forget()
        self.failure = None

    def _forget(self) -> None:
        if self._flags is not None and self._flags.are_written:
            block = self._blocks.get(self._parts[0].part.number)
            if block is not None:
                block.queue.drop_ahead(len(self._flags.done))
        self._parts.clear()
        self._flags = None
        self._waits_for_removal = False

    def _append_first(self) -> bool:
        """Append the first part, or its flags. Returns False if it must wait.

        Raises CopyWrong, StreamOver, NotNext, OSError.
        """
        part, log_end = self._parts[0]
        stream = block_stream(part.number)
        if self._blocks.get(part.number) is None and self._pending.done.has_ended(stream):
            raise StreamOver(f"the master has block {part.number}, which was removed here")
        block = self._blocks.block_for_copy(part.number, part.start_ms, part.end_ms)
        self._waits_for_removal = block is None
        if block is None:
            return False
        self._check(block, part)
        units, indices = part.units.copy(), part.first_index + np.arange(len(part.units))
        done = (units["flags"] & FLAG_DONE != 0) | self._pending.done.of(stream).get(indices)
        done &= units["size"] > 0
        units["flags"] |= np.where(done, FLAG_DONE, 0)
        if done.any() and not self._have_flags(block, units, done, log_end):
            return False
        block.queue.write_ahead(units)
        self._append(block, part, indices, units)
        self._parts.popleft()
        self._flags = None
        return True

    def _check(self, block: Block, part: BlockPart) -> None:
        """Check that the part continues the block. Raises CopyWrong, DiskFull."""
        units = part.units
        if part.start_ms != block.start_ms or part.first_index != block.queue.end or not len(units):
            raise CopyWrong(
                f"{block.paths.folder}: {len(units)} units from {part.first_index} on came, but the next one is "
                f"{block.queue.end}"
            )
        is_named = units["size"] > 0
        positions, sizes = units["position"][is_named].astype(np.int64), units["size"][is_named].astype(np.int64)
        follows = np.array_equal(positions[1:], (positions + sizes)[:-1]) and int(sizes.sum()) == len(part.data)
        follows &= bool((is_named | (units["size"] == 0)).all())
        if not follows or (len(positions) and positions[0] != part.position):
            raise CopyWrong(
                f"{block.paths.folder}: the units from {part.first_index} on do not agree with their records"
            )
        if part.end_ms != block.end_ms:
            block.end_at(part.end_ms)
            self._wheel.drop(block.number)  # its entries end with the block
        dues_ms = units["due_ms"][is_named]
        if ((dues_ms < block.start_ms) | (dues_ms >= block.end_ms)).any():
            raise CopyWrong(f"{block.paths.folder}: a unit from {part.first_index} on is due outside of the block")
        block.begin()

    def _have_flags(self, block: Block, units: Units, done: Flags, log_end: LogPosition) -> bool:
        """Return whether the flags of the settled messages are on disk. Bring them there if the log is far enough."""
        flags = self._flags
        if flags is None or not np.array_equal(flags.done, done):
            flags = self._flags = _Flags(done, max(log_end, self._store.log.end))
        if flags.are_on_disk:
            return True
        if self._store.log.synced < flags.needs_log_to:
            self._want_flush()
            return False

        def note(_: object) -> None:
            flags.are_on_disk = True
            reach("copy.flagged")

        def fail(error: Exception) -> None:
            self.failure = error

        flags.are_written = True
        self._flight.submit(block.queue.write_ahead(units), done=note, failed=fail)
        return flags.are_on_disk

    def _append(self, block: Block, part: BlockPart, indices: Indices, units: Units) -> None:
        """Append the records, and count the units and the pending messages."""
        end = LogPosition(part.position + len(part.data))
        if len(part.data):
            block.write_records(part.position, part.data)
            reach("copy.written")
        is_named = units["size"] > 0
        alive = np.flatnonzero(is_named & (units["flags"] & FLAG_DONE == 0))
        records = UnitRecords(block.log.files, block.number, names=self._names)
        rows = records.read(indices[alive], units[alive])
        is_there = rows[:, col.SIZE] > 0
        if len(part.data):
            block.take_records(end, LogPosition(int(units["position"][is_named][-1])))
        block.queue.take_ahead(len(units))
        self._blocks.note_copied(block, len(units))
        damaged = alive[~is_there]
        self._set_aside(block, indices[damaged])
        is_done = (units["flags"] & (FLAG_DONE | FLAG_BLANK)) != 0
        is_done[damaged] = True
        self._pending.done.update(indices[is_done] | origin_of(block_stream(block.number), 0))
        at = alive[is_there]
        self._intake.take_copied(block, indices[at], units[at], rows[is_there], self._names)
        reach("copy.appended")

    @staticmethod
    def _set_aside(block: Block, indices: Indices) -> None:
        block.set_aside.update(indices.tolist())
        for index in indices.tolist():
            log.critical("%s: the message at index %d is set aside: its record is damaged", block.paths.folder, index)
