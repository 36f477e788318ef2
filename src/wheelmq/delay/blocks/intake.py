"""The intake of blocks: messages become pending by a put, by a copy of a master's block, or at a start."""

from __future__ import annotations

import numpy as np

from wheelmq.delay.blocks.arming import arm_units
from wheelmq.delay.blocks.block import Block, Put
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.delay.blocks.recover import pending_of, settle_by_log
from wheelmq.delay.blocks.walk import BlockWalk
from wheelmq.delay.pending import PendingTable
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import block_stream, origin_of
from wheelmq.formats.disk.parked import delete_key, key_hash
from wheelmq.formats.disk.properties import REAL_TOPIC, UNIQ_KEY
from wheelmq.formats.kernels import scan
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store import recovery
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach


class BlockIntake:
    """Adds messages to the pending ones. It arms those that the walk has passed."""

    def __init__(
        self, store: Store, blocks: Blocks, pending: PendingTable, in_blocks: PendingInBlocks, walk: BlockWalk
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._pending = pending
        self._in_blocks = in_blocks
        self._walk = walk

    def put(self, message: Message, due_ms: Millis) -> Put:
        """Append a parked message. After an error, the message is not stored.

        Raises PropertiesTooLong, RecordTooLong, BlockBeingDeleted, NoNumberLeft, and OSError such as DiskFull.
        """
        properties = message.properties
        unique_key = properties.get(UNIQ_KEY)
        hashed = key_hash(delete_key(properties[REAL_TOPIC], unique_key)) if unique_key else 0
        real_queue = self._store.real_queue(properties)
        block = self._blocks.block_for(due_ms)
        if block.queue.end == 0:  # the block is new, and an earlier block may have had its number
            self._pending.begin_stream(block_stream(block.number))
        message.queue_id = block.number
        put = self._blocks.put(block, message, due_ms)
        self._in_blocks.park(origin_of(block_stream(put.number), put.index), hashed, real_queue)
        if due_ms <= self._walk.armed_through_ms():
            arm_units(self._pending, block, np.array([put.index]), block.queue.read(put.index, 1), by="block_lane")
        return put

    def take_copied(
        self, block: Block, indices: Indices, units: Units, rows: recovery.Rows, names: recovery.InternedNames
    ) -> None:
        """Take new pending messages of a copy: their units, and the scanned rows of their records."""
        real_queues = self._store.queue_rows(rows[:, scan.REAL_TOPIC], rows[:, scan.REAL_QUEUE_ID], names)
        origins = indices | origin_of(block_stream(block.number), 0)
        self._in_blocks.park_copies(origins, rows[:, scan.KEY_HASH], real_queues)
        near = units["due_ms"] <= self._walk.armed_through_ms()
        arm_units(self._pending, block, indices[near], units[near], by="block_lane")

    def recover(self, gone: dict[int, LogPosition]) -> None:
        """Find the pending messages, set S, and arm the messages up to S, after the scan of the commit log.

        The timer must be ready. `gone` has the gone blocks of the snapshot from which the scan began. Raises OSError.
        """
        settle_by_log(self._blocks, self._pending.done, gone)
        self._walk.begin(self._store.clock.now_ms())
        for block in self._blocks:
            for found in pending_of(self._store, block, self._in_blocks, self._pending.done):
                near = found.units["due_ms"] <= self._walk.walked_ms
                arm_units(self._pending, block, found.indices[near], found.units[near], by="recovery")
        reach("blocks.wheel")
