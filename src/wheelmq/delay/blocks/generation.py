"""The second generation of delayed messages: blocks."""

from __future__ import annotations

from wheelmq.delay.api import EVERYTHING, Found, Wanted
from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.checkpoints import BlockCheckpoints
from wheelmq.delay.blocks.listing import find_in_block
from wheelmq.delay.blocks.queue import BlockQueue
from wheelmq.delay.done import DoneBits
from wheelmq.delay.pending_message import State
from wheelmq.delay.rebuild import rebuild
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import Origin, Stream, block_stream, stream_number
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.clock import Clock


class BlockGeneration:
    """The messages in blocks. Each block is a stream, and its log has the records."""

    def __init__(self, blocks: Blocks, checkpoints: BlockCheckpoints, done: DoneBits, clock: Clock) -> None:
        self._blocks = blocks
        self._checkpoints = checkpoints
        self._done = done
        self._clock = clock

    def streams(self, wanted: Wanted = EVERYTHING) -> list[Stream]:
        in_time = (one for one in self._blocks if one.start_ms < wanted.to_ms and one.end_ms > wanted.from_ms)
        return [block_stream(block.number) for block in in_time]

    def queue_of(self, stream: Stream) -> BlockQueue:
        return self._block(stream).queue

    def _block(self, stream: Stream) -> Block:
        block = self._blocks.get(stream_number(stream))
        assert block is not None, stream
        return block

    def files_of(self, stream: Stream) -> MappedSequence | None:
        block = self._blocks.get(stream_number(stream))
        return None if block is None else block.log.files

    def queue_id_of(self, stream: Stream) -> int:
        return stream_number(stream)

    def record_of(self, origin: Origin) -> Record | None:
        return self._blocks.record_of(origin)

    def record_at(self, origin: Origin, position: LogPosition) -> Record | None:
        return self._blocks.record_of(origin)

    def due_of(self, origin: Origin, record: Record, now_ms: Millis) -> Millis:
        return due_of(record.message.properties, record.store_ms)

    def state_of(self, origin: Origin) -> State:
        return State.BLOCK

    def rebuild(self, record: Record, *, enqueue_ms: int, now_ms: Millis, rolls: bool) -> Message:
        return rebuild(record, enqueue_ms=enqueue_ms, now_ms=now_ms, rolls=rolls)

    def find(self, stream: Stream, first: int, stop: int, wanted: Wanted, until_s: float) -> Found:
        return find_in_block(self._block(stream), self._done.of(stream), first, stop, wanted, self._clock, until_s)

    def needed_from(self) -> LogPosition:
        return self._checkpoints.needed_from()
