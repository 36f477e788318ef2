"""The removal of past blocks, whose messages are all settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks, Removal
from wheelmq.delay.blocks.role import BlockRole, is_settled
from wheelmq.delay.blocks.settlement import BlockSettlement
from wheelmq.delay.blocks.wheel import BlockWheel
from wheelmq.delay.pending import PendingTable
from wheelmq.formats.disk.origin import block_stream
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.store import Store


class BlockExpiry:
    """Removes past blocks, and their parts of the tables in memory."""

    def __init__(
        self,
        store: Store,
        blocks: Blocks,
        wheel: BlockWheel,
        settlement: BlockSettlement,
        role: BlockRole,
        pending: PendingTable,
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._wheel = wheel
        self._settlement = settlement
        self._role = role
        self._pending = pending

    def jobs(self, now_ms: Millis) -> Iterator[tuple[Callable[[], None], Callable[[object], None]]]:
        """Yield the jobs that remove past blocks, each with the function that takes its result. Raises DiskFull.

        A copy may lack messages that its log settles, and then it never flags them. It removes its block once the
        settling records are on disk.
        """
        after = self._store.log.synced if self._role.is_copy else LogPosition(0)
        unflagged = self._settlement.unflagged(self._store.journal.rows(), after)

        def is_past(block: Block) -> bool:
            return self._role.is_past(block, now_ms)

        def is_out(block: Block) -> bool:
            return is_settled(block, self._pending.done) and block.number not in unflagged

        for removal in self._blocks.expire(is_past, is_out):
            yield removal.job, partial(self._take_removal, removal)

    def _take_removal(self, removal: Removal, result: object) -> None:
        """Take the result of a removal. If the block is gone, end its stream: armed references count as settled."""
        if not removal.take_result(result):
            return
        self._wheel.drop(removal.number)
        self._role.note_removed(removal.number)
        self._pending.end_stream(block_stream(removal.number))
