"""The blocks of a store: which block a message belongs in, and their life from the first message to the last (ours; the
seed's ScheduledMessageStore).

At a start the order is: check how the last stop was, load what there is, map it, recover each block, then the wheel.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from wheelmq.delay.blocks.block import Block, BlockSizes, Put, read_checkpoint, remove_files
from wheelmq.delay.done import Indices
from wheelmq.formats.disk.block import REMOVED, BlockCheckpoint, block_name, block_start_ms
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import STREAM_BITS
from wheelmq.formats.disk.paths import BlockPaths
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

NUMBER_MAX: Final = (1 << STREAM_BITS) - 1
_NONE: Final = np.empty(0, np.int64)

Note = Callable[[], None]


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """How long a block is, and how large its files."""

    length_ms: int = 3_600_000
    sizes: BlockSizes = field(default_factory=BlockSizes)


class BlockGoing(OSError):
    """The block that a message belongs in is being removed from the disk: the clock was set back."""


class NoNumberLeft(OSError):
    """Every number is one of a block, or of one that the log still names: blocks are too short."""


class Blocks:
    """The blocks, in the order of their times, which do not overlap.

    `end` counts the messages put since the start, `synced` those of them that are on disk.
    """

    def __init__(self, store: Store, settings: BlockSettings) -> None:
        assert settings.length_ms > 0 and settings.length_ms % 1000 == 0, settings.length_ms
        self._store = store
        self._disk, self._paths = store.disk, store.paths
        self.settings = settings
        self._in_time: list[Block] = []
        self._by_number: dict[int, Block] = {}
        self._going: set[int] = set()
        """Numbers of blocks that are being removed, or were in part: what their checkpoints may say holds for good."""
        self._removing: set[int] = set()
        """Those of them whose removal is under way."""
        self._over: dict[int, LogPosition] = {}
        """Numbers of blocks that are gone, each with the log's end when it went: what the log names of it is before."""
        self.on_removed: Callable[[int], None] = lambda number: None
        """Told the number of a block that is gone."""
        self._behind: dict[int, Block] = {}
        self._last_store_ms = Millis(0)
        self._loaded: list[tuple[Block, BlockCheckpoint | None, int]] = []
        self.last_number = 0
        """The number given last; at a start the highest that a block has, or that an origin in the log names."""
        self.last_stop_was_clean: bool | None = None
        """As abort.scheduled said at the start; None in a store that had no blocks."""
        self.end = self.synced = 0

    def __iter__(self) -> Iterator[Block]:
        return iter(self._in_time)

    def __len__(self) -> int:
        return len(self._in_time)

    def get(self, number: int) -> Block | None:
        """The block of that number."""
        return self._by_number.get(number)

    # Start ---------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Check how the last stop was, and map what there is. Raises OSError."""
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
                log.warning("%s is no block, and stays as it is", paths.blocks / name)
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
        block = Block(disk, folder, known or unknown, self.settings.sizes, self._store.clock)
        self._loaded.append((block, known, sequence))

    def recover(self) -> None:
        """Make log and queue of each block agree. Raises LogDamaged, DiskFull, OSError."""
        loaded, self._loaded = self._loaded, []
        for block, known, sequence in loaded:
            block.recover(known, sequence, is_clean=self.last_stop_was_clean is True)
            if block.number == 0:
                remove_files(self._disk, block.paths)  # nothing of it had reached the disk
            else:
                self._add(block)
        for before, block in pairwise(self._in_time):
            if before.end_ms > block.start_ms:
                raise OSError(
                    f"{before.paths.folder} and {block.paths.folder} overlap: remove what is no block of ours"
                )
        reach("blocks.recovered")

    def resume(self, settled: dict[int, Indices], gone: dict[int, LogPosition]) -> None:
        """Take what the commit log says is settled: by the block's number, indices. Raises DiskFull.

        An index is given once. A message that was out before its own block's log was on disk may have left no record
        there; then the index stays a blank. Of a block that is gone the log names nothing behind where `gone` says,
        unless the walk has met something of it since.
        """
        for number in settled.keys() | gone.keys():
            self.last_number = max(self.last_number, number)
            block, indices = self._by_number.get(number), settled.get(number, _NONE)
            if block is None:
                end = self._store.log.end
                self._over[number] = end if len(indices) else gone.get(number, end)
            elif len(indices):
                block.queue.skip_to(int(indices.max()) + 1)
                block.queue.flag_done(indices)

    def _add(self, block: Block, *, is_new: bool = False) -> None:
        assert block.number not in self._by_number, f"two blocks have number {block.number}"
        self._in_time.append(block)
        self._in_time.sort(key=lambda one: one.start_ms)
        self._by_number[block.number] = block
        self.last_number = block.number if is_new else max(self.last_number, block.number)
        self._last_store_ms = max(self._last_store_ms, block.last_store_ms)

    # Put -----------------------------------------------------------------------------------------------------------

    def block_for(self, due_ms: Millis) -> Block:
        """The block of messages due at `due_ms`, made if there is none. Raises BlockGoing, NoNumberLeft, DiskFull."""
        place = bisect_right(self._in_time, due_ms, key=lambda one: one.start_ms)
        before = self._in_time[place - 1] if place else None
        if before is not None and due_ms < before.end_ms:
            if before.number in self._going:
                raise BlockGoing(f"the block of {before.paths.folder.name} is being removed; try again")
            return before
        length_ms = self.settings.length_ms
        start_ms = Millis(due_ms - due_ms % length_ms)
        end_ms = Millis(start_ms + length_ms)
        if before is not None:  # of another length, from before the setting was changed
            start_ms = max(start_ms, before.end_ms)
        if place < len(self._in_time):
            end_ms = min(end_ms, self._in_time[place].start_ms)
        self._disk.make_folder(self._paths.blocks)
        folder = self._paths.blocks / block_name(start_ms, length_ms)
        known = BlockCheckpoint(self._next_number(), start_ms, end_ms)
        block = Block(self._disk, folder, known, self.settings.sizes, self._store.clock)
        self._add(block, is_new=True)
        return block

    def _next_number(self) -> int:
        """One that no block has, and that nothing in the log names. Raises NoNumberLeft."""
        number = self.last_number
        for _ in range(NUMBER_MAX):
            number = number % NUMBER_MAX + 1
            if number not in self._by_number and self._over.get(number, -1) <= self._store.log.start:
                self._over.pop(number, None)
                return number
        raise NoNumberLeft(f"each of {NUMBER_MAX} numbers of blocks is in use, or the log names it")

    def gone(self) -> dict[int, LogPosition]:
        """Numbers of blocks that are gone, of which the log still says what became of their messages, each with the log
        position before which it does."""
        start = self._store.log.start
        self._over = {number: position for number, position in self._over.items() if position > start}
        return dict(self._over)

    def put(self, block: Block, message: Message, due_ms: Millis) -> Put:
        """Append a message that was parked for `block`. Raises PropertiesTooLong, RecordTooLong, DiskFull."""
        store_ms = max(self._store.log.store_ms(), self._last_store_ms)
        put = block.put(message, due_ms, store_ms, self._store.settings.store_host)
        self._last_store_ms = store_ms
        self._behind[block.number] = block
        self.end += 1
        return put

    def behind(self) -> list[Block]:
        """The blocks with messages that are not on disk."""
        return list(self._behind.values())

    # Disk ----------------------------------------------------------------------------------------------------------

    def flush_job(self) -> tuple[int, Callable[[], list[Note]]]:
        """The end as it is now, and what brings all blocks to disk up to there; the job may run off the loop.

        Tell `note_flushed` when it is done, with what it gave.
        """
        jobs = [block.sync_job() for block in self._behind.values()]
        return self.end, lambda: [job() for job in jobs]

    def flush(self) -> None:
        """Bring all blocks to disk. Raises OSError."""
        upto, job = self.flush_job()
        self.note_flushed(upto, job())

    def note_flushed(self, upto: int, notes: list[Note]) -> None:
        """The last flush job is done: messages are on disk up to `upto`."""
        for note in notes:
            note()
        self._behind = {number: block for number, block in self._behind.items() if block.is_behind}
        self.synced = upto

    def checkpoint_job(self) -> Callable[[], None] | None:
        """What brings units to disk and writes checkpoints; None when nothing has changed since the last.

        The job raises OSError when that failed for a block, once it has tried all.
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
                except OSError as error:  # of one block: the others do not wait for it
                    errors.append(error)
            if errors:
                raise errors[0]

        return write

    def expire(self, now_ms: Millis, is_out: Callable[[Block], bool]) -> list[tuple[Note, Callable[[object], None]]]:
        """What removes each block that is past, and of whose messages `is_out` says that all are: jobs that may run off
        the loop, each with who is to be told of its result. Raises DiskFull."""
        past = [block for block in self._in_time if block.end_ms <= now_ms or block.number in self._going]
        idle = [block for block in past if block.number not in self._removing]
        jobs = [(block.remove_job(), block) for block in idle if block.number in self._going or is_out(block)]
        self._removing.update(block.number for _, block in jobs)
        self._going |= self._removing
        return [(job, lambda result, block=block: self._removed(block, result)) for job, block in jobs]  # type: ignore[misc]

    def _removed(self, block: Block, result: object) -> None:
        self._removing.discard(block.number)
        if isinstance(result, BaseException):
            log.error("%s is past and could not be removed: %s; it is tried again", block.paths.folder, result)
            return
        self._going.discard(block.number)
        self._in_time.remove(block)
        del self._by_number[block.number]
        self._over[block.number] = self._store.log.end
        self.on_removed(block.number)

    def may_lack_flags(self) -> bool:
        """Whether flags of units may not be on disk though `checkpoint_job` is done, and are needed there."""
        return any(
            block.has_failed or block.number in self._going for block in self._in_time if not block.is_said_removed
        )

    def close(self) -> None:
        """A clean stop: everything to disk, then abort.scheduled says so; it does not when units are not on disk."""
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
    return "clean" if is_clean else "none: abort.scheduled is not there"
