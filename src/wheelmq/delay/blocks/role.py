"""The role of this broker for its blocks: it puts messages into them, or copies them from a master."""

from __future__ import annotations

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.recover import block_streams
from wheelmq.delay.blocks.settlement import BlockSettlement
from wheelmq.delay.done import DoneBits
from wheelmq.formats.disk.origin import Stream, block_stream, origin_of, stream_number
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.store import Store


class BlockRole:
    """Decides by the role which indices are used, and when a block may end."""

    def __init__(self, store: Store, blocks: Blocks, settlement: BlockSettlement, done: DoneBits) -> None:
        self._store = store
        self._blocks = blocks
        self._settlement = settlement
        self._done = done
        self.is_copy = False
        """Whether the blocks are a copy of a master's. Then a block ends only once the master has removed its own."""
        self._gone_at_master: set[int] = set()

    def take_over(self, epoch: int) -> None:
        """Put messages under `epoch` from now on, as the master. Raises DiskFull.

        No index that the log names is used again. The streams of gone blocks end.
        """
        blocks, done = self._blocks, self._done
        if self.is_copy:
            _note_missing(blocks, done, self._store.log.end)
        for stream in block_streams(done):
            number = stream_number(stream)
            if blocks.get(number) is not None:
                done.update(blocks.skip_lost(number, done.of(stream).end()) | origin_of(stream, 0))
        for number in blocks.gone():
            done.end_stream(block_stream(number))
        blocks.epoch = epoch
        self.is_copy = False
        self._gone_at_master.clear()

    def follow(self) -> None:
        """Be a copy of a master's blocks from now on."""
        self.is_copy = True
        self._settlement.note_unchecked()

    def note_gone_at_master(self, block: Block) -> bool:
        """Let a block end that the master has removed. Returns False if not all of its messages are settled here."""
        if not is_settled(block, self._done):
            return False
        self._gone_at_master.add(block.number)
        return True

    def is_past(self, block: Block, now_ms: Millis) -> bool:
        """Return whether a block may end, if its messages are settled."""
        return block.number in self._gone_at_master if self.is_copy else block.end_ms <= now_ms

    def note_removed(self, number: int) -> None:
        """Note that a block was removed here. The next one may have its number."""
        self._gone_at_master.discard(number)

    def ends(self) -> dict[Stream, QueueOffset]:
        """Return the end of each block's stream, and that of the last number, so that it is not reused soon.

        The log of a replica may settle messages that it has not got. Their indices must not be used again either.
        """
        ends = {block_stream(block.number): QueueOffset(block.queue.end) for block in self._blocks}
        if self.is_copy:
            for stream in block_streams(self._done):
                ends[stream] = QueueOffset(max(ends.get(stream, 0), self._done.of(stream).end()))
        if self._blocks.numbers.last:
            ends.setdefault(block_stream(self._blocks.numbers.last), QueueOffset(0))
        return ends


def _note_missing(blocks: Blocks, done: DoneBits, log_end: LogPosition) -> None:
    """Note blocks as gone that the log of a replica names up to `log_end`, and that it has not got from its master."""
    for number in map(stream_number, block_streams(done)):
        if blocks.get(number) is None:
            blocks.numbers.note_found(number)
            blocks.numbers.note_gone(number, log_end)


def is_settled(block: Block, done: DoneBits) -> bool:
    """Return whether all messages of a block are settled."""
    return done.of(block_stream(block.number)).first_unset(block.queue.end) >= block.queue.end
