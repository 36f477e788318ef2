"""The scheduler of blocks: put messages, recover them, flag their units, and remove past blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from wheelmq.delay.blocks.arming import arm_units
from wheelmq.delay.blocks.block import Block, Put
from wheelmq.delay.blocks.blocks import Blocks, Removal
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.delay.blocks.recover import block_streams, note_missing, pending_of, settle_by_log, take_over
from wheelmq.delay.blocks.settlement import BlockSettlement
from wheelmq.delay.blocks.turns import BlockTurns
from wheelmq.delay.blocks.walk import BlockWalk
from wheelmq.delay.blocks.walked import WalkedBuffer
from wheelmq.delay.blocks.wheel import BlockWheel
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.timer.turns import Turns
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import (
    Stream,
    block_stream,
    origin_of,
)
from wheelmq.formats.disk.parked import delete_key, key_hash
from wheelmq.formats.disk.properties import REAL_TOPIC, UNIQ_KEY
from wheelmq.formats.kernels import scan
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store import recovery
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach
from wheelmq.system.single_flight import SingleFlight

log = logging.getLogger(__name__)


class BlockScheduler:
    def __init__(self, store: Store, blocks: Blocks, pending: PendingTable, turns: Turns, lead_ms: int) -> None:
        self._store = store
        self.blocks = blocks
        self._pending = pending
        self.wheel = BlockWheel()
        self.walked = WalkedBuffer()
        self.walk = BlockWalk(blocks, self.wheel, self.walked, pending, turns, lead_ms)
        self.turns = BlockTurns(blocks, self.wheel, self.walk, self.walked, pending)
        self.in_blocks = PendingInBlocks(pending)
        self.settlement = BlockSettlement(blocks, self.in_blocks)
        self.flagged_to = self._store.log.start
        """Records before this log position settle only messages whose units are flagged on disk."""
        self.is_copy = False
        """Whether the blocks are a copy of a master's. Then a block ends only once the master has removed its own."""
        self._gone_at_master: set[int] = set()

    # Put -----------------------------------------------------------------------------------------------------------

    def put(self, message: Message, due_ms: Millis) -> Put:
        """Append a parked message. Raises PropertiesTooLong, RecordTooLong, BlockGoing, NoNumberLeft, DiskFull."""
        block = self.blocks.block_for(due_ms)
        if block.queue.end == 0:  # the block is new, and an earlier block may have had its number
            self._pending.begin_stream(block_stream(block.number))
        message.queue_id = block.number
        put = self.blocks.put(block, message, due_ms)
        origin = origin_of(block_stream(put.number), put.index)
        properties = message.properties
        unique_key = properties.get(UNIQ_KEY)
        hashed = key_hash(delete_key(properties[REAL_TOPIC], unique_key)) if unique_key else 0
        real_queue = self._store.real_queue(properties)
        self.in_blocks.park(origin, hashed, real_queue)
        if due_ms <= self.walk.armed_through_ms():
            arm_units(self._pending, block, np.array([put.index]), block.queue.read(put.index, 1), by="block_lane")
        return put

    def take_copied(
        self, block: Block, indices: Indices, units: Units, rows: recovery.Rows, names: recovery.InternedNames
    ) -> None:
        """Take new pending messages of a copy: their units, and the scanned rows of their records."""
        real_queues = self._store.queue_rows(rows[:, scan.REAL_TOPIC], rows[:, scan.REAL_QUEUE_ID], names)
        origins = indices | origin_of(block_stream(block.number), 0)
        self.in_blocks.park_copies(origins, rows[:, scan.KEY_HASH], real_queues)
        late = units["due_ms"] <= self.walk.armed_through_ms()
        if late.any():
            arm_units(self._pending, block, indices[late], units[late], by="block_lane")

    # Start ---------------------------------------------------------------------------------------------------------

    def recover(self, gone: dict[int, LogPosition]) -> None:
        """Find the pending messages, fill the wheel, and arm near messages, after the scan of the commit log.

        The timer must be ready. `gone` is from `Blocks.gone` before the scan. Raises LogDamaged, DiskFull.
        """
        settle_by_log(self.blocks, self._pending.done, gone)
        self.walk.begin(self._store.clock.now_ms())
        for block in self.blocks:
            for found in pending_of(self._store, block, self.in_blocks, self._pending.done):
                near = found.units["due_ms"] <= self.walk.walked_ms
                arm_units(self._pending, block, found.indices[near], found.units[near], by="recovery")
        reach("blocks.wheel")

    # Roles ---------------------------------------------------------------------------------------------------------

    def take_over(self, epoch: int) -> None:
        """Put messages under `epoch` from now on, as the master. Raises DiskFull."""
        done = self._pending.done
        if self.is_copy:
            note_missing(self.blocks, done, self._store.log.end)
        take_over(self.blocks, done)
        self.blocks.epoch = epoch
        self.is_copy = False
        self._gone_at_master.clear()

    def follow(self) -> None:
        """Be a copy of a master's blocks from now on."""
        self.is_copy = True
        self.settlement.note_unchecked()

    def end_at(self, block: Block, end_ms: Millis) -> None:
        """Change the end of a copy to that of the master's block. Raises DiskFull."""
        block.end_at(end_ms)
        self.wheel.drop(block.number)

    def note_gone_at_master(self, block: Block) -> bool:
        """Let a block end that the master has removed. Returns False if not all of its messages are settled here."""
        if not self._is_settled(block):
            return False
        self._gone_at_master.add(block.number)
        return True

    def _is_settled(self, block: Block) -> bool:
        bits = self._pending.done.of(block_stream(block.number))
        return bits.first_unset(block.queue.end) >= block.queue.end

    # Disk ----------------------------------------------------------------------------------------------------------

    def ends(self) -> dict[Stream, QueueOffset]:
        """Return the end of each block's stream, and that of the last number, so that it is not reused soon.

        The log of a replica may settle messages that it has not got. Their indices must not be used again either.
        """
        ends = {block_stream(block.number): QueueOffset(block.queue.end) for block in self.blocks}
        if self.is_copy:
            done = self._pending.done
            for stream in block_streams(done):
                ends[stream] = QueueOffset(max(ends.get(stream, 0), done.of(stream).end()))
        if self.blocks.numbers.last:
            ends.setdefault(block_stream(self.blocks.numbers.last), QueueOffset(0))
        return ends

    def write_checkpoints(self, flight: SingleFlight) -> None:
        """Flag units of settled messages, and have them synced and checkpoints written, unless `flight` has a job."""
        if flight.is_running:
            return
        upto = self._flag_settled()
        job = self.blocks.checkpoint_job()
        if job is not None:
            flight.submit(job, done=lambda _: self._note_flagged(upto), failed=_log_unwritten)
        else:
            self._note_flagged(upto)

    def _flag_settled(self) -> LogPosition:
        """Flag the messages that records on disk settle. Returns the log position up to which all are flagged."""
        return self.settlement.flag(min(self._store.log.synced, self._store.dispatched_to))

    def _note_flagged(self, upto: LogPosition) -> None:
        """Note that the flags up to log position `upto` are on disk, unless a block's failed sync left some out."""
        if not self.blocks.may_lack_flags():
            self.flagged_to = max(self.flagged_to, upto)

    def close(self) -> None:
        """Sync everything for a clean stop. No job may run any more. Raises OSError of the blocks' logs."""
        self.blocks.flush()
        self._flag_settled()
        self.blocks.close()

    def needed_from(self) -> LogPosition:
        """Return the first log position whose settling records of messages in blocks are still needed."""
        return self.flagged_to if len(self.blocks) else self._store.dispatched_to

    def expire(self, now_ms: Millis) -> Iterator[tuple[Callable[[], None], Callable[[object], None]]]:
        """Yield the jobs that remove past blocks, each with the function that takes its result. Raises DiskFull.

        A copy may lack messages that its log settles, and then it never flags them. It removes its block once the
        settling records are on disk.
        """
        after = self._store.log.synced if self.is_copy else LogPosition(0)
        unflagged = self.settlement.unflagged(self._store.journal.rows(), after)

        def is_past(block: Block) -> bool:
            return block.number in self._gone_at_master if self.is_copy else block.end_ms <= now_ms

        def is_out(block: Block) -> bool:
            return self._is_settled(block) and block.number not in unflagged

        for removal in self.blocks.expire(is_past, is_out):
            yield removal.job, partial(self._take_removal, removal)

    def _take_removal(self, removal: Removal, result: object) -> None:
        """Take the result of a removal. If the block is gone, end its stream: armed references count as settled."""
        if not removal.take_result(result):
            return
        self.wheel.drop(removal.number)
        self._gone_at_master.discard(removal.number)
        self._pending.end_stream(block_stream(removal.number))


def _log_unwritten(error: Exception) -> None:
    log.error("units of blocks may not be on disk; the next start writes them again: %s", error)
