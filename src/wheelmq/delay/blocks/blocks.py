"""The blocks of a store: create, find and remove them (WheelMQ's own; the seed's ScheduledMessageStore).

A start checks whether the last stop was clean, then loads, maps and recovers the blocks, then fills the wheel.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from wheelmq.delay.blocks.block import Block, Put, read_checkpoint, remove_files
from wheelmq.delay.blocks.numbers import BlockNumbers
from wheelmq.delay.done import Indices
from wheelmq.delay.settings import BlockSettings
from wheelmq.formats.disk.block import REMOVED, BlockCheckpoint, block_name, block_start_ms
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import Origin, origin_index, origin_stream, stream_number
from wheelmq.formats.disk.paths import BlockPaths
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

_NONE: Final = np.empty(0, np.int64)

Note = Callable[[], None]


class BlockBeingDeleted(OSError):
    """The block of the message is being removed from the disk. This happens when the clock was set back."""


class Removal(NamedTuple):
    number: int
    job: Note
    """Removes the files. It may run off the event loop."""
    take_result: Callable[[object], bool]
    """Takes the result of the job. Returns whether the block is gone."""


class Blocks:
    """The blocks, by time, not overlapping. `end` counts messages put since the start, `synced` those on disk."""

    def __init__(self, store: Store, settings: BlockSettings) -> None:
        assert settings.length_seconds > 0, settings.length_seconds
        self._store = store
        self._disk, self._paths = store.disk, store.paths
        self.settings = settings
        self._in_time: list[Block] = []
        self._by_number: dict[int, Block] = {}
        self.numbers = BlockNumbers()
        self._going: set[int] = set()
        """Numbers of blocks whose removal has begun. It is final, because their checkpoints may say so."""
        self._removing: set[int] = set()
        """Numbers of blocks with a running removal job."""
        self._behind: dict[int, Block] = {}
        self._last_store_ms = Millis(0)
        self._loaded: list[tuple[Block, BlockCheckpoint | None, int]] = []
        self.last_stop_was_clean: bool | None = None
        """Whether abort.scheduled existed at the start; None in a store without blocks."""
        self.end = self.synced = 0
        self.bytes = 0
        """Bytes of the records put since the start."""
        self.epoch = 0
        """The epoch of the master that puts messages now. Each record has that of its own master."""
        self.changed: set[int] = set()
        """Numbers of blocks with new messages and of removed blocks. The master's replicas take them."""

    def __iter__(self) -> Iterator[Block]:
        return iter(self._in_time)

    def __len__(self) -> int:
        return len(self._in_time)

    def get(self, number: int) -> Block | None:
        return self._by_number.get(number)

    # Start ---------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Check whether the last stop was clean, and load the blocks. Raises OSError."""
        disk, paths = self._disk, self._paths
        names = disk.list(paths.blocks)
        is_clean = disk.read(paths.abort_scheduled) is not None
        if names or is_clean:
            self.last_stop_was_clean = is_clean
        if names:
            log.log(logging.INFO if is_clean else logging.WARNING, "blocks: the last stop was %s", _as_text(is_clean))
        if is_clean:
            disk.remove(paths.abort_scheduled)
            disk.sync_folder(paths.root)
        reach("blocks.checked")
        for name in names:
            start_ms = block_start_ms(name)
            if start_ms is None:
                log.warning("%s is not a block, and the broker ignores it", paths.blocks / name)
            else:
                self._load_block(name, start_ms)
        reach("blocks.loaded")

    def _load_block(self, name: str, start_ms: Millis) -> None:
        disk, folder = self._disk, self._paths.blocks / name
        found = read_checkpoint(disk, BlockPaths(folder).checkpoint)
        sequence, known = found if found is not None else (0, None)
        if known is not None and known.log_position == REMOVED:
            remove_files(disk, BlockPaths(folder))
            return
        unknown = BlockCheckpoint(0, start_ms, Millis(start_ms + 1000))
        block = Block(disk, folder, known or unknown, self.settings, self._store.clock)
        self._loaded.append((block, known, sequence))

    def recover(self) -> None:
        """Make the log and the queue of each block agree. Raises LogDamaged, DiskFull, OSError."""
        loaded, self._loaded = self._loaded, []
        for block, known, sequence in loaded:
            block.recover(known, sequence, is_clean=self.last_stop_was_clean is True)
            if block.number == 0:
                remove_files(self._disk, block.paths)  # no message of it had reached the disk
            else:
                self._add(block)
        for before, block in pairwise(self._in_time):
            if before.end_ms > block.start_ms:
                raise OSError(
                    f"{before.paths.folder} and {block.paths.folder} overlap: remove the folder that is not a "
                    "block of this broker"
                )
        reach("blocks.recovered")

    def resume(self, settled: dict[int, Indices], gone: dict[int, LogPosition]) -> None:
        """Apply the indices, by block number, that the commit log shows as settled. Raises OSError.

        For a gone block, the log has no records after the position in `gone`, unless the scan found some.
        """
        for number in settled.keys() | gone.keys():
            self.numbers.note_found(number)
            block, indices = self._by_number.get(number), settled.get(number, _NONE)
            if block is None:
                end = self._store.log.end
                self.numbers.note_gone(number, end if len(indices) else gone.get(number, end))
            else:
                block.queue.flag_done(indices)

    def skip_lost(self, number: int, settled_to: int) -> Indices:
        """Let block `number` continue at index `settled_to`, or later. Returns the indices of the new blanks.

        A message that was settled before its block's log was on disk becomes a blank: no index is used twice. Raises
        DiskFull.
        """
        block = self._by_number.get(number)
        if block is None:
            return _NONE
        first = block.queue.end
        if settled_to > first:
            block.begin()
            block.queue.skip_to(settled_to)
            self._note_put(block, settled_to - first)
        return np.arange(first, block.queue.end)

    def _add(self, block: Block, *, is_new: bool = False) -> None:
        assert block.number not in self._by_number, f"two blocks have number {block.number}"
        self._in_time.append(block)
        self._in_time.sort(key=lambda one: one.start_ms)
        self._by_number[block.number] = block
        if is_new:
            self.numbers.note_used(block.number)
        else:
            self.numbers.note_found(block.number)
        self._last_store_ms = max(self._last_store_ms, block.last_store_ms)

    # Put and read --------------------------------------------------------------------------------------------------

    def block_for(self, due_ms: Millis) -> Block:
        """Return or create the block of messages due at `due_ms`. Raises BlockBeingDeleted, NoNumberLeft, DiskFull."""
        place = bisect_right(self._in_time, due_ms, key=lambda one: one.start_ms)
        before = self._in_time[place - 1] if place else None
        if before is not None and due_ms < before.end_ms:
            if before.number in self._going:
                raise BlockBeingDeleted(f"the broker is deleting the block {before.paths.folder.name}; try again")
            return before
        length_ms = self.settings.length_ms
        start_ms = Millis(due_ms - due_ms % length_ms)
        end_ms = Millis(start_ms + length_ms)
        if before is not None:  # it may have another length, from before the setting was changed
            start_ms = max(start_ms, before.end_ms)
        if place < len(self._in_time):
            end_ms = min(end_ms, self._in_time[place].start_ms)
        self._disk.make_folder(self._paths.blocks)
        folder = self._paths.blocks / block_name(start_ms, length_ms)
        number = self.numbers.next_free(self._by_number, self._store.log.start)
        known = BlockCheckpoint(number, start_ms, end_ms)
        block = Block(self._disk, folder, known, self.settings, self._store.clock)
        self._add(block, is_new=True)
        return block

    def block_for_copy(self, number: int, start_ms: Millis, end_ms: Millis) -> Block | None:
        """Return the block of a copy, or create it. Returns None while a block of its period is being removed."""
        block = self._by_number.get(number)
        if block is not None:
            return None if number in self._going else block
        if any(one.start_ms < end_ms and start_ms < one.end_ms for one in self._in_time):
            return None
        self._disk.make_folder(self._paths.blocks)
        folder = self._paths.blocks / block_name(start_ms, end_ms - start_ms)
        block = Block(self._disk, folder, BlockCheckpoint(number, start_ms, end_ms), self.settings, self._store.clock)
        self._add(block)
        return block

    def note_copied(self, block: Block, count: int) -> None:
        """Note `count` new units of a copy, which are not on disk yet. Units without a message count too."""
        self._last_store_ms = max(self._last_store_ms, block.last_store_ms)
        self._note_put(block, count)

    def gone(self) -> dict[int, LogPosition]:
        return self.numbers.gone(self._store.log.start)

    def put(self, block: Block, message: Message, due_ms: Millis) -> Put:
        """Append a message that was parked for `block`. Raises PropertiesTooLong, RecordTooLong, DiskFull."""
        store_ms = max(self._store.log.store_ms(), self._last_store_ms)
        message.prepared_position = LogPosition(self.epoch)
        put = block.put(message, due_ms, store_ms, self._store.host)
        self._last_store_ms = store_ms
        self._note_put(block, 1)
        self.bytes += put.size
        return put

    def _note_put(self, block: Block, count: int) -> None:
        self._behind[block.number] = block
        self.changed.add(block.number)
        self.end += count

    def record_of(self, origin: Origin) -> Record | None:
        """Return the record of a parked message. Returns None when the block or the record is gone or damaged."""
        block, index = self.get(stream_number(origin_stream(origin))), origin_index(origin)
        if block is None or index >= block.queue.end:
            return None
        unit = block.queue.read(index, 1)[0]
        record = block.record_at(LogPosition(int(unit["position"]))) if unit["size"] else None
        if record is None or (record.message.queue_id, record.queue_offset) != (block.number, index):
            return None
        return record

    def behind(self) -> list[Block]:
        return list(self._behind.values())

    # Disk ----------------------------------------------------------------------------------------------------------

    def flush_job(self) -> tuple[int, Callable[[], list[Note]]]:
        """Return the end, and the job that syncs all blocks up to it, off the loop too. Then call `note_flushed`."""
        jobs = [block.sync_job() for block in self._behind.values()]
        return self.end, lambda: [job() for job in jobs]

    def flush(self) -> None:
        upto, job = self.flush_job()
        self.note_flushed(upto, job())

    def note_flushed(self, upto: int, notes: list[Note]) -> None:
        """Note that the last flush job is done, and that messages are on disk up to `upto`."""
        for note in notes:
            note()
        self._behind = {number: block for number, block in self._behind.items() if block.is_behind}
        self.synced = max(self.synced, upto)

    def checkpoint_job(self) -> Callable[[], None] | None:
        """Return the job that syncs units and writes checkpoints, or None when nothing changed since the last.

        The job tries all blocks, and then raises OSError if one failed.
        """
        staying = [block for block in self._in_time if block.number not in self._going]
        jobs = [job for block in staying if (job := block.checkpoint_job()) is not None]
        if not jobs:
            return None

        def write() -> None:
            errors = []
            for job in jobs:
                try:
                    job()
                except OSError as error:  # an error of one block does not stop the others
                    errors.append(error)
            if errors:
                raise errors[0]

        return write

    def expire(self, is_past: Callable[[Block], bool], is_out: Callable[[Block], bool]) -> list[Removal]:
        """Return the removals of past blocks, whose messages are all settled (`is_out`). Raises DiskFull.

        A block that waits for a flush stays: the flush would fail without the files.
        """
        past = [block for block in self._in_time if is_past(block) or block.number in self._going]
        idle = [one for one in past if one.number not in self._removing and one.number not in self._behind]
        jobs = [(block.remove_job(), block) for block in idle if block.number in self._going or is_out(block)]
        self._removing.update(block.number for _, block in jobs)
        self._going |= self._removing
        return [Removal(block.number, job, partial(self._removed, block)) for job, block in jobs]

    def _removed(self, block: Block, result: object) -> bool:
        self._removing.discard(block.number)
        if isinstance(result, BaseException):
            log.error("the broker could not delete the past block %s: %s; it tries again", block.paths.folder, result)
            return False
        self._going.discard(block.number)
        self._in_time.remove(block)
        del self._by_number[block.number]
        self.numbers.note_gone(block.number, self._store.log.end)
        self.changed.add(block.number)
        return True

    def is_going(self, block: Block) -> bool:
        return block.number in self._going

    def may_lack_flags(self) -> bool:
        """Return whether flags of units may be missing on disk after `checkpoint_job`, and are needed there."""
        return any(
            block.has_failed or block.number in self._going for block in self._in_time if not block.is_said_removed
        )

    def close(self) -> None:
        """Sync all blocks, then write abort.scheduled. If units may not be on disk, the file is not written."""
        self.flush()
        checkpoint = self.checkpoint_job()
        try:
            if checkpoint is not None:
                checkpoint()
            if any(block.has_failed for block in self._in_time if not block.is_said_removed):
                raise OSError(errno.EIO, "units may not be on disk")
            if self._in_time or self.last_stop_was_clean is not None:
                self._disk.replace(self._paths.abort_scheduled, str(self._disk.owner_id).encode())
        except OSError as error:
            log.error("blocks: the stop is not clean: %s", error)


def _as_text(is_clean: bool) -> str:
    return "clean" if is_clean else "not clean: abort.scheduled does not exist"
